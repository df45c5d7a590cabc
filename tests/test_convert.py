"""`convert` and `inspect`: reports, fates, outputs, refusals, as CLI.md promises them."""

import hashlib
import json
import os

import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import modernize
from modernize.model import ModernGPT
from modernize.old import OldGPT


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------ convert


@pytest.mark.parametrize("init", ["fold", "reset"])
def test_json_is_one_object_with_all_that_is_promised(run, nano, tmp_path, init):
    result = run("convert", nano, tmp_path / "new.safetensors", "--init", init, "--json")
    assert result.code == 0
    report = result.json
    assert report["schema"] == 1
    assert set(report) == {
        "schema", "input", "output", "sha256", "dialect", "init", "dropped", "reinitialized", "parameters",
        "calibration", "warnings",
    }  # fmt: skip
    assert report["sha256"] == digest(nano)
    assert (report["dialect"], report["init"], report["calibration"]) == ("nanogpt", init, None)
    assert report["parameters"]["before"] == tiny.spec().parameters()
    assert report["parameters"]["after"] < report["parameters"]["before"]
    assert "transformer.wpe.weight" in report["dropped"] or init == "fold"
    assert ("transformer.ln_f.weight" in report["reinitialized"]) == (init == "reset")
    assert [w for w in report["warnings"] if "activation" in w]


def test_retrofit_is_the_default(run, nano, tmp_path):
    assert run("convert", nano, tmp_path / "new.safetensors", "--json").json["init"] == "retrofit"


def test_the_file_says_all_that_is_needed_to_load_it(run, nano, tmp_path):
    new = tmp_path / "new.safetensors"
    run("convert", nano, new, "--init", "reset", "--rope-base", "500")
    with safe_open(new, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    facts = json.loads(metadata["modernize"])
    assert (facts["source"]["sha256"], facts["source"]["dialect"]) == (digest(nano), "nanogpt")
    assert (facts["source"]["facts"]["n_head"], facts["source"]["facts"]["attn_scale"]) == (4, "head")
    assert (facts["init"], facts["version"]) == ("reset", modernize.__version__)
    config = facts["config"]
    assert (config["rope_base"], config["norm_eps"], config["activation"], config["block_size"]) == (
        500,
        1e-5,
        "gelu",
        16,
    )
    model = modernize.load(new)
    assert isinstance(model, ModernGPT)
    assert model.config.to_json() == config
    assert set(load_file(new)) == set(model.config.shapes())


def test_a_tied_head_is_written_once(run, nano, tmp_path):
    run("convert", nano, tmp_path / "new.safetensors", "--init", "reset")
    assert "head.weight" not in load_file(tmp_path / "new.safetensors")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtype(run, nano, tmp_path, dtype):
    new = tmp_path / "new.safetensors"
    assert run("convert", nano, new, "--init", "fold", "--dtype", dtype).code == 0
    assert {t.dtype for t in load_file(new).values()} == {getattr(torch, dtype)}


def test_the_old_dtype_is_kept(run, tmp_path):
    spec = tiny.spec()
    state = {n: t.bfloat16() for n, t in tiny.jittered(spec).items()}
    new = tmp_path / "new.safetensors"
    run("convert", tiny.save_nano(tmp_path / "n.pt", spec, state=state), new, "--init", "fold")
    assert {t.dtype for t in load_file(new).values()} == {torch.bfloat16}


def test_a_value_that_does_not_fit_is_refused_by_its_old_name(run, tmp_path):
    spec = tiny.spec()
    state = tiny.jittered(spec)
    state["h.0.mlp.up.weight"][0, 0] = 1e6
    nano = tiny.save_nano(tmp_path / "n.pt", spec, state=state)
    result = run("convert", nano, tmp_path / "new.safetensors", "--init", "reset", "--dtype", "float16")
    assert result.code == 3
    assert "transformer.h.0.mlp.c_fc.weight becomes 1e+06, which float16 cannot hold" in result.err
    assert not (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_where_positions_cannot_matter_fold_is_the_same_model(run, tmp_path, tied):
    """A flat position table and zero queries: the file that `fold` writes must give the old logits."""
    spec = tiny.spec(tied=tied)
    state = tiny.jittered(spec, dtype=torch.float64)
    state["wpe.weight"] = state["wpe.weight"][:1].repeat(16, 1)
    for name in state:
        if ".q." in name:
            state[name] = torch.zeros_like(state[name])
    new = tmp_path / "new.safetensors"
    nano = tiny.save_nano(tmp_path / "n.pt", spec, state=state)
    assert run("convert", nano, new, "--init", "fold", "--bias", "keep", "--tie", "untie").code == 0
    ids = tiny.ids(spec)
    old, modern = OldGPT.from_state(spec, state)(ids), modernize.load(new)(ids)
    torch.testing.assert_close(modern.log_softmax(-1), old.log_softmax(-1), rtol=0, atol=1e-9)


def test_scores_over_width_hold_in_the_new_model(tmp_path):
    """RoPE turns scaled queries as it turns any: the same new model as from an old one with √(head size)."""
    from modernize.rewrite.apply import rewrite
    from modernize.rewrite.plan import Plan

    spec = tiny.spec(attn_scale="embd")
    state = tiny.jittered(spec, dtype=torch.float64)
    scaled = dict(state)
    for i in range(2):
        scaled[f"h.{i}.attn.q.weight"] = state[f"h.{i}.attn.q.weight"] * (8 / 32) ** 0.5
    a = rewrite(state, spec, Plan(init="reset"))
    b = rewrite(scaled, tiny.spec(), Plan(init="reset"))
    assert a.config == b.config
    assert all(torch.allclose(a.state[n], b.state[n], atol=1e-12) for n in a.state)


def test_the_vocabulary_comes_along(run, tmp_path):
    spec = tiny.spec()
    stoi = {chr(65 + i): i for i in range(58)}
    nano = tiny.save_nano(tmp_path / "n.pt", spec, stoi=stoi)
    run("convert", nano, tmp_path / "new.safetensors")
    from modernize.loading import load_whole

    assert load_whole(tmp_path / "new.safetensors").vocabulary == stoi


@pytest.mark.parametrize(
    "wrong", [{"init": "Fold"}, {"bias": "none"}, {"tie": "no"}, {"dtype": "f32"}, {"weights": "x"}]
)
def test_words_that_are_none_from_python(nano, tmp_path, wrong):
    with pytest.raises(
        modernize.ModernizeError, match=f"--{next(iter(wrong))} '{next(iter(wrong.values()))}' is none of"
    ):
        modernize.convert(nano, tmp_path / "new.safetensors", **wrong)
    assert not (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize("command", [["inspect"], ["convert"]])
def test_reset_cannot_keep_biases_anywhere(run, nano, tmp_path, command):
    more = [tmp_path / "new.safetensors"] if command == ["convert"] else []
    result = run(*command, nano, *more, "--init", "reset", "--bias", "keep")
    assert (result.code, "contradicts" in result.err) == (2, True)


def test_two_runs_give_the_same_bytes(run, nano, tmp_path):
    run("convert", nano, tmp_path / "a.safetensors")
    run("convert", nano, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_dry_run_says_everything_and_writes_nothing(run, nano, tmp_path):
    result = run("convert", nano, tmp_path / "new.safetensors", "--dry-run")
    assert (result.code, "would write" in result.out) == (0, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nano.pt"]


def test_quiet_prints_the_answer_alone(run, nano, tmp_path):
    result = run("convert", nano, tmp_path / "new.safetensors", "--quiet")
    assert (result.out, result.err) == (f"{tmp_path / 'new.safetensors'}\n", "")


# ------------------------------------------------------------------------------------------ outputs


def test_an_existing_output_is_refused_before_any_work(run, tmp_path):
    new = tmp_path / "new.safetensors"
    new.write_bytes(b"precious")
    result = run("convert", tmp_path / "not even there.pt", new)
    assert (result.code, new.read_bytes()) == (4, b"precious")
    assert result.err.startswith(f"error: the output {new} exists already")


def test_force_replaces_it(run, nano, tmp_path):
    (tmp_path / "new.safetensors").write_bytes(b"old")
    assert run("convert", nano, tmp_path / "new.safetensors", "--force").code == 0
    assert load_file(tmp_path / "new.safetensors")


def test_the_input_is_never_the_output(run, nano, tmp_path):
    link = tmp_path / "link.safetensors"
    link.symlink_to(nano)
    before = nano.read_bytes()
    for output in (nano, link, tmp_path / "." / "nano.pt"):
        assert run("convert", nano, output, "--force").code == 4
    assert nano.read_bytes() == before


def test_the_weights_in_a_folder_are_an_input_too(run, tmp_path):
    from test_checkpoint import hf_folder

    folder = hf_folder(tmp_path / "hf")
    assert run("convert", folder, folder / "model.safetensors", "--force").code == 4


@pytest.mark.parametrize("output", ["no/such/folder.safetensors", "."])
def test_outputs_that_cannot_be(run, nano, tmp_path, output):
    result = run("convert", nano, tmp_path / output, "--force")
    assert result.code == 4
    assert "hint: " in result.err


@pytest.mark.parametrize("name", ["new.pt", "new", "new.bin"])
def test_only_safetensors_are_written(run, nano, tmp_path, name):
    result = run("convert", nano, tmp_path / name)
    assert (result.code, "new.safetensors" in result.err) == (2, True)


def test_a_full_disk_leaves_nothing_behind(run, nano, tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("convert", nano, tmp_path / "new.safetensors")
    assert (result.code, "No space left on device" in result.err) == (4, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nano.pt"]


def test_the_mode_follows_the_umask(run, nano, tmp_path):
    before = os.umask(0o027)
    try:
        run("convert", nano, tmp_path / "new.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "new.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(run, nano, tmp_path):
    (tmp_path / "sealed").mkdir(mode=0o555)
    result = run("convert", nano, tmp_path / "sealed" / "new.safetensors")
    assert (result.code, "nothing can be written into" in result.err) == (4, True)


def test_a_vocabulary_beside_that_is_none_is_a_warning(run, nano, tmp_path):
    import pickle

    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 61}))
    result = run("convert", nano, tmp_path / "new.safetensors")
    assert (result.code, "carries no vocabulary" in result.err) == (0, True)


def test_a_dry_run_finds_a_tokenizer_that_is_not_there(run, nano, tmp_path):
    result = run("convert", nano, tmp_path / "new.safetensors", "--dry-run", "--tokenizer", tmp_path / "gone.json")
    assert (result.code, "gone.json" in result.err) == (3, True)


@pytest.mark.parametrize("base", ["0", "1", "-5", "inf", "nan"])
def test_a_base_that_cannot_be(run, nano, tmp_path, base):
    assert run("convert", nano, tmp_path / "new.safetensors", "--rope-base", base).code == 2


def test_weights_too_large_for_any_dtype(run, tmp_path):
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    state["h.0.mlp.up.weight"][0, 0] = 1e60
    nano = tiny.save_nano(tmp_path / "n.pt", spec, state=state)
    result = run("convert", nano, tmp_path / "new.safetensors", "--dtype", "float32")
    assert (result.code, "too large for any dtype" in result.err) == (3, True)


# ------------------------------------------------------------------------------------------ inspect


INITS = [("fold", "drop"), ("fold", "keep"), ("reset", "drop")]
SPECS = {
    "tied": {},
    "untied": {"tied": False},
    "head bias": {"tied": False, "biases": (*tiny.ALL_BIASES, "head")},
    "no biases": {"biases": ()},
    "norm shifts only": {"biases": ("ln_1", "ln_2", "ln_f")},
}


@pytest.mark.parametrize("change", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize(("init", "bias"), INITS)
@pytest.mark.parametrize("tie", ["auto", "tie", "untie"])
@pytest.mark.parametrize("order", ["q,k,v", "k,v,q"])
def test_inspect_foretells_what_convert_does(tmp_path, change, init, bias, tie, order):
    """Each old tensor is changed a little: the new tensors that change with it are those that it is said to become."""
    from modernize.checkpoint import open_checkpoint
    from modernize.conversion import convert
    from modernize.facts import Facts
    from modernize.inspection import inspect
    from modernize.recognise import recognise
    from modernize.rewrite.apply import rewrite
    from modernize.rewrite.plan import Plan
    from modernize.rewrite.tie import settle_tie

    spec = tiny.spec(n_layer=1, **change)
    state = tiny.jittered(spec, dtype=torch.float64)
    path, facts = tmp_path / "n.pt", Facts(activation="gelu", qkv_order=order)
    tiny.save_nano(path, spec, state=state)
    found = inspect(path, facts=facts, plan=Plan(init=init, bias=bias), tie=tie)
    report = convert(path, tmp_path / "new.safetensors", init=init, bias=bias, tie=tie, facts=facts)
    made = load_file(tmp_path / "new.safetensors")
    assert found.parameters == report.parameters
    assert report.parameters.after == sum(t.numel() for t in made.values())
    assert set(report.dropped) == {t.name for t in found.tensors if t.fate == "dropped"}

    recognised = recognise(open_checkpoint(path), facts)
    plan, _ = settle_tie(recognised, Plan(init=init, bias=bias), tie)
    old, steps = recognised.state(), {source: step for step in recognised.steps for source in step.sources}
    base = rewrite(old, spec, plan).state
    for tensor in found.tensors:
        targets = [t for t in steps[tensor.name].targets if t in old]
        changed = dict(old)
        for target in targets:
            noise = torch.randn(old[target].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            changed[target] = old[target] + 0.1 * noise
        again = rewrite(changed, spec, plan).state
        moved = {n for n in base if (again[n] - base[n]).abs().max() > 1e-9}
        if not targets:  # the second name of a tied head
            assert tensor.becomes
        elif tensor.fate == "reinitialized":
            assert moved == set()
        else:
            assert (tensor.becomes == ()) == (tensor.fate in ("dropped", "ignored"))
            assert set(tensor.becomes) <= moved
            # a matrix whose input was shifted also changes the bias that took the shift up
            assert {n for n in moved - set(tensor.becomes) if not n.endswith("bias")} <= {
                "wte.weight", "head.weight",
            } - set(tensor.becomes)  # fmt: skip


def test_inspect_says_what_it_is(run, nano):
    found = run("inspect", nano, "--json").json
    assert set(found) == {
        "schema", "path", "format", "sha256", "architecture", "dialect", "config", "parameters", "tensors", "warnings",
    }  # fmt: skip
    assert found["architecture"] == "gpt-layernorm-learned"
    assert found["config"] == {
        "n_layer": 2, "n_head": 4, "n_embd": 32, "n_inner": 128, "block_size": 16, "vocab_size": 61,
        "activation": "gelu", "attn_scale": "head", "norm_eps": 1e-5, "tied": True,
    }  # fmt: skip
    fates = {t["name"]: (t["fate"], t["becomes"]) for t in found["tensors"]}
    assert fates["transformer.h.0.attn.c_attn.weight"] == ("split", [f"h.0.attn.{p}.weight" for p in "qkv"])
    assert fates["transformer.h.1.ln_2.weight"] == ("folded", ["h.1.mlp.up.weight"])
    assert fates["transformer.h.1.mlp.c_proj.bias"] == ("absorbed", ["h.1.mlp.down.weight"])
    assert fates["transformer.wpe.weight"][0] == "absorbed"
    assert fates["lm_head.weight"] == ("renamed", ["wte.weight"])
    assert fates["transformer.ln_f.weight"] == ("renamed", ["norm_f.gain"])


def test_inspect_tells_the_fates_of_reset(run, nano):
    found = run("inspect", nano, "--init", "reset", "--json").json
    fates = {t["name"]: (t["fate"], t["becomes"]) for t in found["tensors"]}
    assert fates["transformer.wpe.weight"] == ("dropped", [])
    assert fates["transformer.h.0.ln_1.weight"] == ("reinitialized", ["h.0.norm_1.gain"])


def test_inspect_of_a_converted_file(run, nano, tmp_path):
    new = tmp_path / "new.safetensors"
    run("convert", nano, new)
    found = run("inspect", new, "--json").json
    assert found["architecture"] == "gpt-rmsnorm-rope"
    assert found["config"]["rope_base"] == 10000
    assert {t["fate"] for t in found["tensors"]} == {"kept"}
    again = run("convert", new, tmp_path / "again.safetensors")
    assert (again.code, "already converted" in again.err) == (3, True)


def test_inspect_for_people_shows_each_kind_of_tensor_once(run, nano):
    shown = run("inspect", nano).out
    assert "transformer.h.*.attn.c_attn.weight" in shown
    assert "fewer" in shown


def test_a_converted_file_with_other_tensors_is_refused(run, nano, tmp_path):
    from safetensors.torch import save_file

    new = tmp_path / "new.safetensors"
    run("convert", nano, new)
    with safe_open(new, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(new)
    tensors["wte.weight"] = torch.ones(3, 3)
    save_file(tensors, new, metadata)
    result = run("inspect", new)
    assert (result.code, "wte.weight" in result.err) == (3, True)


def test_what_was_said_to_convert_need_not_be_said_again(run, tmp_path, data):
    """Of the file itself: another one is asked about as ever."""
    of = tiny.spec(activation="gelu_tanh")
    old, other = (tmp_path / name for name in ("old.pt", "other.pt"))
    for path, seed in ((old, 0), (other, 1)):
        torch.save(tiny.as_dialect(tiny.jittered(of, seed), of, tiny.dialect("nanogpt")), path)
    new, out = tmp_path / "new.safetensors", tmp_path / "out.safetensors"
    said = ("--n-head", 4, "--activation", "gelu_tanh", "--dialect", "nanogpt")
    assert run("convert", old, new, "--init", "fold").code == 3
    assert run("convert", old, new, "--init", "fold", *said).code == 0
    training = ("--data", data, "--steps", 2, "--batch-size", 2, "-o", out)
    assert run("finetune", new, "--teacher", old, *training).code == 0
    assert run("compare", old, out, "--data", data).code == 0
    assert run("finetune", new, "--teacher", other, *training, "--force").code == 3
    assert run("compare", other, out, "--data", data).code == 3
