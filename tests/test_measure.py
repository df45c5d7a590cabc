"""`eval`, `compare` and `sample`."""

import errno
import math
import pickle
import re

import numpy as np
import pytest
import reference
import tiny
import torch

from modernize.errors import OutputRefused
from modernize.loading import load
from modernize.measure import compare, evaluate
from modernize.old import OldGPT
from modernize.plot import plot_comparison
from modernize.sample import generate, text_of
from modernize.tokenizer import BytesTokenizer, FileTokenizer, IdsTokenizer, VocabularyTokenizer


@pytest.fixture
def pair(run, nano, tmp_path):
    new = tmp_path / "new.safetensors"
    run("convert", nano, new, "--init", "fold")
    return nano, new


def reference_loss(logits, targets):
    log = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    return -np.take_along_axis(log, targets[..., None], -1)[..., 0]


# ------------------------------------------------------------------------------------------ eval


def test_eval_of_the_old_model_is_the_reference_loss(run, nano, data):
    spec = tiny.spec()
    ids = np.fromfile(data / "val.bin", dtype=np.uint16).astype(np.int64)
    count = (len(ids) - 1) // 16
    x, y = ids[: count * 16].reshape(count, 16), ids[1 : count * 16 + 1].reshape(count, 16)
    wanted = reference_loss(reference.old_logits(tiny.jittered(spec), spec, x), y).mean()
    found = run("eval", nano, "--data", data, "--json").json
    assert found["loss"] == pytest.approx(wanted, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-5)
    assert (found["tokens"], found["context"]) == (count * 16, 16)
    assert found["contexts"] == [{k: found[k] for k in ("loss", "perplexity", "tokens", "context")}]


def test_eval_of_padded_rows_counts_what_is_predicted(run, nano, tmp_path):
    spec = tiny.spec()
    rows = np.full((10, 17), -1)
    random = np.random.default_rng(0)
    for row, length in zip(rows, random.integers(3, 17, 10), strict=True):
        row[:length] = random.integers(0, 61, length)
    np.save(tmp_path / "rows.npy", rows)
    losses = []
    for row in rows:
        ids = row[row >= 0]
        logits = reference.old_logits(tiny.jittered(spec), spec, ids[None, :-1])
        losses += reference_loss(logits, ids[None, 1:])[0].tolist()
    found = run("eval", nano, "--data", tmp_path / "rows.npy", "--split", "all", "--json").json
    assert found["tokens"] == len(losses)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_a_new_model_is_measured_past_its_context_and_an_old_one_is_not(run, pair, data):
    old, new = pair
    found = run("eval", new, "--data", data, "--context", "8", "--context", "64", "--json").json
    assert [c["context"] for c in found["contexts"]] == [8, 64]
    assert found["context"] == 8
    result = run("eval", old, "--data", data, "--context", "17")
    assert (result.code, "positions 1 to 16" in result.err) == (2, True)


def test_half_precision_is_measured(run, nano, tmp_path, data):
    run("convert", nano, tmp_path / "a.safetensors", "--init", "fold")
    run("convert", nano, tmp_path / "b.safetensors", "--init", "fold", "--dtype", "bfloat16")
    a, b = (run("eval", tmp_path / f"{n}.safetensors", "--data", data, "--json").json["loss"] for n in "ab")
    assert a == pytest.approx(b, abs=0.05)


def test_progress_goes_to_stderr_and_quiet_silences_it(run, nano, data):
    assert "24/24" in run("eval", nano, "--data", data, "--activation", "gelu").err
    assert run("eval", nano, "--data", data, "--quiet").err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "{tmp}/short.bin"), "one window of context 16 needs 17"),
        (("--data", "{tmp}/past.bin"), "token id 61 at place"),
        (("--data", "{tmp}/a.txt"), "no tokenizer"),
        (("--data", "{tmp}/a.txt", "--tokenizer", "{tmp}/meta.pkl"), "'é' (U+00E9, at position 0)"),
        (("--data", "{tmp}/gone.txt"), "no data"),
    ],
)
def test_data_that_does_not_fit_is_refused(run, nano, tmp_path, arguments, said):
    np.zeros(16, dtype=np.uint16).tofile(tmp_path / "short.bin")
    np.full(600, 61, dtype=np.uint16).tofile(tmp_path / "past.bin")
    (tmp_path / "a.txt").write_text("é" * 900)
    if "--tokenizer" in arguments:
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"stoi": {"a": 0}}))
    result = run("eval", nano, *(a.format(tmp=tmp_path) for a in arguments))
    assert result.code == 3
    assert said in result.err
    assert "hint: " in result.err


# ------------------------------------------------------------------------------------------ compare


def test_compare_tells_what_is_promised(run, pair, data):
    old, new = pair
    found = run("compare", old, new, "--data", data, "--json").json
    assert {"schema", "loss", "kl", "top1_agreement", "parameters", "by_position", "beyond_context"} <= set(found)
    assert found["loss"]["old"] == pytest.approx(run("eval", old, "--data", data, "--json").json["loss"], abs=1e-6)
    assert found["loss"]["new"] == pytest.approx(run("eval", new, "--data", data, "--json").json["loss"], abs=1e-6)
    assert found["kl"] > 0
    assert 0 <= found["top1_agreement"] <= 1
    assert found["parameters"]["old"] == tiny.spec().parameters()
    assert [(r["start"], r["end"]) for r in found["by_position"]] == [(i, i + 2) for i in range(0, 16, 2)]
    mean = np.mean([r["new"] for r in found["by_position"]])
    assert mean == pytest.approx(found["loss"]["new"], abs=1e-5)
    beyond = found["beyond_context"]
    assert [(r["context"], r["old"] is None) for r in beyond] == [(16, False), (32, True), (64, True)]


def test_a_model_agrees_with_itself(pair, data):
    model = load(pair[1])
    found = compare(model, model, data)
    assert found.kl == pytest.approx(0, abs=1e-7)
    assert found.top1_agreement == 1


def test_kl_and_agreement_are_those_of_the_definition(pair, data):
    old, new = load(pair[0]), load(pair[1])
    found = compare(old, new, data)
    ids = np.fromfile(data / "val.bin", dtype=np.uint16).astype(np.int64)
    count = (len(ids) - 1) // 16
    x = torch.from_numpy(ids[: count * 16].reshape(count, 16))
    with torch.no_grad():
        a, b = old(x).double().log_softmax(-1), new(x).double().log_softmax(-1)
    assert found.kl == pytest.approx(float((a.exp() * (a - b)).sum(-1).mean()), abs=1e-6)
    assert found.top1_agreement == pytest.approx(float((a.argmax(-1) == b.argmax(-1)).double().mean()), abs=1e-9)


def rows_of(shown, first):
    """Cells of the table whose first column is called so, by their first one."""
    lines = shown.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [first])
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return {cells[0]: cells[1:] for cells in (re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 : end])}


def test_compare_for_people_has_losses_by_position_and_by_context(run, pair, data):
    shown = run("compare", *pair, "--data", data).out
    found = run("compare", *pair, "--data", data, "--json").json
    positions = rows_of(shown, "position")
    assert list(positions) == [f"{i}-{i + 1}" for i in range(0, 16, 2)]
    for row in found["by_position"]:
        cells = positions[f"{row['start']}-{row['end'] - 1}"]
        assert cells[:3] == [f"{row['old']:.4f}", f"{row['new']:.4f}", f"{row['new'] - row['old']:+.4f}"]
        assert cells[3].startswith("█")
    contexts = rows_of(shown, "context")
    assert list(contexts) == ["16 (1×)", "32 (2×)", "64 (4×)"]
    one, two, four = found["beyond_context"]
    assert contexts["16 (1×)"][:2] == [f"{one['old']:.4f}", f"{one['new']:.4f}"]
    assert [contexts["32 (2×)"][0], contexts["64 (4×)"][0]] == [f"{two['new']:.4f}", f"{four['new']:.4f}"]


def test_compare_draws_its_losses(run, pair, data, tmp_path):
    pytest.importorskip("matplotlib")
    plain = run("compare", *pair, "--data", data, "--json").json
    result = run("compare", *pair, "--data", data, "--plot", tmp_path / "p.png", "--json")
    assert (result.code, result.json) == (0, plain)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*.part"))


def test_data_of_one_context_can_be_drawn(run, pair, tmp_path):
    pytest.importorskip("matplotlib")
    np.save(tmp_path / "rows.npy", np.arange(170).reshape(10, 17) % 61)
    result = run("compare", *pair, "--data", tmp_path / "rows.npy", "--plot", tmp_path / "p.png")
    assert (result.code, list(rows_of(result.out, "context"))) == (0, ["16 (1×)"])


@pytest.fixture
def no_work(monkeypatch):
    """Whoever loads a checkpoint fails."""

    def loaded(*args, **kwargs):
        raise AssertionError("work was done before the outputs were checked")

    monkeypatch.setattr("modernize.loading.load_whole", loaded)


def test_an_existing_plot_is_refused_before_any_work_unless_forced(run, pair, data, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "p.png"
    plot.write_bytes(b"precious")
    with monkeypatch.context() as patch:
        patch.setattr("modernize.loading.load_whole", None)
        result = run("compare", *pair, "--data", data, "--plot", plot)
    assert (result.code, "exists already" in result.err, plot.read_bytes()) == (4, True, b"precious")
    assert run("compare", *pair, "--data", data, "--plot", plot, "--force").code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "code", "said"), [("p.pdf", 2, "not named .png"), ("gone/p.png", 4, "there is no folder")]
)
def test_a_plot_that_cannot_be_is_refused_before_any_work(run, pair, data, tmp_path, no_work, name, code, said):
    result = run("compare", *pair, "--data", data, "--plot", tmp_path / name)
    assert (result.code, said in result.err, result.out) == (code, True, "")
    assert "hint: " in result.err


def test_what_is_compared_is_never_the_plot(run, pair, data, no_work):
    for source in (*pair, data / "val.bin"):
        before = source.read_bytes()
        result = run("compare", *pair, "--data", data, "--plot", source, "--force")
        assert (result.code, source.read_bytes()) == (4, before)


def test_without_matplotlib_a_plot_is_refused_before_any_work(run, pair, data, tmp_path, no_work, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("compare", *pair, "--data", data, "--plot", tmp_path / "p.png")
    assert (result.code, "needs matplotlib" in result.err, "modernize-gpt[plot]" in result.err) == (2, True, True)


def test_a_plot_is_written_whole_or_not_at_all(pair, data, tmp_path, monkeypatch):
    """A disk that fills up while it is written leaves what was there, and nothing beside it."""
    pytest.importorskip("matplotlib")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    plot = tmp_path / "p.png"
    plot.write_bytes(b"precious")
    found = compare(load(pair[0]), load(pair[1]), data)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputRefused, match="No space left"):
        plot_comparison(found, plot)
    assert plot.read_bytes() == b"precious"
    assert not list(tmp_path.glob(".*.part"))


def test_models_of_different_vocabularies_are_not_compared(run, pair, data, tmp_path):
    other = tiny.save_nano(tmp_path / "o.pt", tiny.spec(vocab_size=40))
    result = run("compare", other, pair[1], "--data", data)
    assert (result.code, "40 and 61" in result.err) == (2, True)


# ------------------------------------------------------------------------------------------ sample


STOI = {chr(48 + i): i for i in range(61)}


@pytest.fixture
def speaking(run, tmp_path):
    old = tiny.save_nano(tmp_path / "s.pt", tiny.spec(), stoi=STOI)
    new = tmp_path / "s.safetensors"
    run("convert", old, new, "--init", "fold")
    return old, new


@pytest.mark.parametrize("which", [0, 1], ids=["old", "new"])
def test_a_sample_is_repeatable_by_its_seed(run, speaking, which):
    text = run("sample", speaking[which], "--prompt", "01", "--tokens", "14").out
    assert text.startswith("01")
    assert len(text) == len("01") + 14 + len("\n")
    assert run("sample", speaking[which], "--prompt", "01", "--tokens", "14").out == text
    assert run("sample", speaking[which], "--prompt", "01", "--tokens", "14", "--seed", "1").out != text


def test_an_old_model_stops_at_its_context_and_says_so(run, speaking):
    """With 16 positions it reads 16 tokens, and still predicts the one after them."""
    whole = run("sample", speaking[0], "--activation", "gelu", "--prompt", "01", "--tokens", "15")
    assert (len(whole.out), whole.err) == (17 + len("\n"), "")
    stopped = run("sample", speaking[0], "--activation", "gelu", "--prompt", "01", "--tokens", "40")
    assert (stopped.code, stopped.out) == (0, whole.out)
    assert stopped.err == "stopped at the old model's context of 16 tokens\n"


def test_a_new_model_goes_on_past_its_context_and_says_so(run, speaking):
    within = run("sample", speaking[1], "--prompt", "01", "--tokens", "15")
    assert (len(within.out), within.err) == (17 + len("\n"), "")
    past = run("sample", speaking[1], "--prompt", "01", "--tokens", "40")
    assert (len(past.out), past.out[:17]) == (42 + len("\n"), within.out[:17])
    assert past.err == "past token 16, the context it was trained on\n"


@pytest.mark.parametrize("which", [0, 1], ids=["old", "new"])
def test_quiet_drops_the_notices(run, speaking, which):
    assert run("sample", speaking[which], "--prompt", "01", "--tokens", "40", "--quiet").err == ""


def test_a_prompt_longer_than_the_old_models_context_is_refused(run, speaking):
    assert len(run("sample", speaking[0], "--prompt", "0" * 16, "--tokens", "9").out) == 17 + len("\n")
    result = run("sample", speaking[0], "--prompt", "0" * 17)
    assert (result.code, result.out) == (3, "")
    assert "the prompt has 17 tokens, and the old model has positions for 16" in result.err
    assert "hint: " in result.err
    assert len(run("sample", speaking[1], "--prompt", "0" * 17, "--tokens", "3").out) == 20 + len("\n")


def test_a_model_that_predicts_no_numbers_writes_nothing_more(run, tmp_path):
    """Its weights are finite, what it computes with them is not."""
    state = tiny.jittered(tiny.spec(n_layer=1))
    state["h.0.mlp.down.weight"] *= 1e38
    old = tiny.save_nano(tmp_path / "wild.pt", tiny.spec(n_layer=1), state=state, stoi=STOI)
    result = run("sample", old, "--prompt", "01")
    assert (result.code, result.out) == (3, "01\n")
    assert "predictions are not finite numbers" in result.err
    assert "Traceback" not in result.err


def test_temperature_zero_is_top_one(run, speaking):
    a = run("sample", speaking[1], "--prompt", "01", "--temperature", "0").out
    b = run("sample", speaking[1], "--prompt", "01", "--top-k", "1", "--seed", "9").out
    assert a == b


def test_greedy_takes_the_likeliest_in_every_row():
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    model = OldGPT.from_state(spec, state)
    start = tiny.ids(spec, length=4)
    found = torch.stack(list(generate(model, start, tokens=20, temperature=0)), dim=1)
    assert found.shape == (3, 16 - 4 + 1)
    for step in range(found.shape[1]):
        seen = torch.cat([start, found[:, :step]], dim=1)
        assert torch.equal(torch.from_numpy(reference.old_logits(state, spec, seen)[:, -1]).argmax(-1), found[:, step])


def test_a_new_model_writes_past_its_context_what_it_thinks_likeliest(speaking):
    model, start = load(speaking[1]), tiny.ids(tiny.spec(), length=4)
    found = torch.stack(list(generate(model, start, tokens=40, temperature=0)), dim=1)  # (B, 40)
    with torch.no_grad():
        likeliest = model(torch.cat([start, found], dim=1)).argmax(-1)  # (B, 44)
    assert torch.equal(likeliest[:, 3:-1], found)


def test_chance_is_that_of_the_logits_by_seed(speaking):
    """The same logits and the same seed: the same text, whether keys and values are kept or not."""
    model, ids = load(speaking[1]), tiny.ids(tiny.spec(), length=4)
    found = torch.stack(list(generate(model, ids, tokens=12, temperature=0.7, top_k=5, seed=3)), dim=1)
    random = torch.Generator().manual_seed(3)
    for _ in range(12):
        with torch.no_grad():
            best, places = (model(ids)[:, -1] / 0.7).topk(5)
        logits = torch.full((3, 61), -torch.inf).scatter(1, places, best)
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=random)], dim=1)
    assert torch.equal(found, ids[:, 4:])


def test_writing_leaves_the_callers_gradients_on(speaking):
    for _ in generate(load(speaking[1]), tiny.ids(tiny.spec(), length=4), tokens=2):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(("prompt", "said"), [("", "--prompt is empty"), ("é", "'é'")])
def test_prompts_that_cannot_be(run, speaking, prompt, said):
    result = run("sample", speaking[0], "--prompt", prompt)
    assert (result.code, said in result.err) == (3, True)
    assert result.out == ""


@pytest.mark.parametrize("which", ["old", "new"])
def test_ids_are_answered_with_ids_and_need_no_tokenizer(run, pair, which):
    path = dict(zip(("old", "new"), pair, strict=True))[which]
    result = run("sample", path, "--prompt-ids", "1,2, 60", "--tokens", "5")
    ids = [int(word) for word in result.out.removesuffix("\n").split(" ")]
    assert (result.code, ids[:3], len(ids)) == (0, [1, 2, 60], 8)
    assert all(0 <= i < 61 for i in ids)
    assert run("sample", path, "--prompt-ids", "1 2 60", "--tokens", "5").out == result.out


def test_ids_are_those_of_the_text(run, speaking):
    text = run("sample", speaking[1], "--prompt", "01", "--tokens", "30").out
    ids = run("sample", speaking[1], "--prompt-ids", "0 1", "--tokens", "30").out
    assert [STOI[letter] for letter in text.removesuffix("\n")] == [int(word) for word in ids.split()]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "neither is given"),
        (("--prompt", "01", "--prompt-ids", "1"), 2, "both are given"),
        (("--prompt-ids", "1,x"), 2, "'x', which is no token id"),
        (("--prompt-ids", " , "), 2, "no token id"),
        (("--prompt-ids", "1,61,99,61"), 3, "--prompt-ids has 61, 99, and the model knows the ids 0 to 60"),
        (("--prompt-ids=-1",), 3, "--prompt-ids has -1"),
        (("--prompt-ids", "9" * 18), 3, "9" * 18),
        (("--prompt-ids", "9" * 5000), 2, "which is no token id"),
    ],
)
def test_prompts_that_are_none_or_two_or_unknown(run, pair, arguments, code, said):
    result = run("sample", pair[1], *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert "hint: " in result.err


def test_without_a_tokenizer_ids_are_the_way(run, pair):
    result = run("sample", pair[1], "--prompt", "01")
    assert (result.code, "--prompt-ids" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("tokenizer", "start", "ids", "pieces"),
    [
        (BytesTokenizer(), "a", [*"é日".encode(), 255], ["é", "日", "\ufffd"]),
        (VocabularyTokenizer({"a": 0, "is": 1, " ": 2}, "test"), "a", [2, 1, 5, 0], [" ", "is", "\ufffda"]),
        (IdsTokenizer(9), "1", [7, 0], [" 7", " 0"]),
    ],
    ids=["bytes", "words", "ids"],
)
def test_text_comes_in_whole_characters(tokenizer, start, ids, pieces):
    assert list(text_of(tokenizer.encode(start).tolist(), ids, tokenizer)) == pieces


def test_words_keep_the_spaces_between_them():
    """A tokenizer that leaves out the space at the beginning of a text, as WordPiece does between words."""
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"with": 0, "the": 1, "statement": 2}, unk_token="the"))
    made = FileTokenizer(inner, "test")
    assert "".join(text_of([0], [1, 2, 1], made)) == " the statement the"


@pytest.mark.parametrize("temperature", ["1e-45", "1e-300", "1e300"])
def test_extreme_temperatures(run, speaking, temperature):
    assert run("sample", speaking[1], "--prompt", "01", "--temperature", temperature).code == 0


def test_logits_that_a_cold_temperature_makes_infinite_are_the_likeliest():
    spec = tiny.spec(tied=False)
    model, start = OldGPT.from_state(spec, tiny.jittered(spec)), tiny.ids(spec, length=4)
    model.head.weight.mul_(1e35)
    logits = model(start)[:, -1]
    assert torch.isfinite(logits).all()
    assert torch.isinf(logits / 1e-5).any()
    (found,) = generate(model, start, tokens=1, temperature=1e-5)
    assert torch.isinf(logits.gather(1, found[:, None]) / 1e-5).all()


@pytest.mark.parametrize("temperature", ["nan", "-1"])
def test_temperatures_that_are_none(run, speaking, temperature):
    result = run("sample", speaking[1], "--prompt", "01", "--temperature", temperature)
    assert (result.code, result.out) == (2, "")
    assert "--temperature" in result.err


def test_evaluate_from_python(pair, data):
    assert evaluate(load(pair[1]), data).context == 16
    assert evaluate(load(pair[1]), data, context=8, split="train").tokens == 3999 // 8 * 8
