"""Exports against `transformers` itself: the same logits, the same text, and a folder that works without us."""

import json
import re
import shutil
import string
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import tokenizers
import torch

import modernize
from modernize.choices import ModernActivation
from modernize.errors import BadData, OutputRefused, UsageError
from modernize.loading import Rope, load
from modernize.measure import evaluate
from modernize.rewrite.silu import with_silu
from modernize.runtimes import folder as folders
from modernize.runtimes.layout import to_halves
from modernize.runtimes.tokens import files_for
from modernize.sample import generate
from modernize.spec import MODERN_ACTIVATIONS
from modernize.tokenizer import BytesTokenizer, VocabularyTokenizer, find_tokenizer

transformers = pytest.importorskip("transformers")

CHARACTERS = sorted({*string.ascii_letters, " ", "\n", "é", "€", "😀", "[", "\\"})[:61]
STOI = {c: i for i, c in enumerate(CHARACTERS)}
NO_BIASES = {"biases": ()}


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def loaded(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def same_logits(model, folder, atol=1e-4):
    ids = torch.randint(0, model.vocab_size, (3, model.block_size), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(loaded(folder)(ids).logits, model(ids), rtol=0, atol=atol)


def exported(tmp_path, to, *, vocabulary=None, tokenizer=None, dtype="keep", **change):
    new = tiny.save_modern(tmp_path / "new.safetensors", vocabulary, **change)
    return new, modernize.export(new, tmp_path / "out", to=to, tokenizer=tokenizer, dtype=dtype)


# ------------------------------------------------------------------------------------------ arcee

VARIANTS = {
    "all biases but the head's": {"biases": ("q", "k", "o", "up", "down")},
    "no biases": NO_BIASES,
    "untied": {"tied": False, "biases": ()},
    "biases of attention alone": {"biases": ("q", "o")},
    "biases of the MLP alone, untied": {"biases": ("up", "down"), "tied": False},
    "grouped keys": {"n_kv_head": 2, "biases": ("k",)},
    "another base, eps and MLP": {"rope_base": 500.0, "norm_eps": 1e-3, "n_inner": 48, "biases": ()},
}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_an_arcee_gives_the_same_logits(tmp_path, change):
    new, report = exported(tmp_path, "arcee", **change)
    assert report.architecture == "ArceeForCausalLM"
    assert report.difference is None
    assert report.checked == transformers.__version__
    same_logits(load(new), tmp_path / "out")


@pytest.mark.parametrize(("base", "scale"), [(500.0, None), (None, 2.0), (300.0, 1.5)])
def test_another_rope_for_this_once_is_exported_too(run, tmp_path, base, scale):
    """Also past the trained context, where it is wanted."""
    new = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES)
    rope = [str(part) for name, x in (("base", base), ("scale", scale)) if x for part in (f"--rope-{name}", x)]
    assert run("export", new, tmp_path / "out", "--to", "arcee", *rope).code == 0
    model = load(new, rope=Rope(base=base, scale=scale))
    assert not torch.allclose(model(torch.arange(16)[None]), load(new)(torch.arange(16)[None]), atol=1e-3)
    ids = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(loaded(tmp_path / "out")(ids).logits, model(ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("activation", MODERN_ACTIVATIONS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biases", [(), ("q", "k", "o", "up", "down")], ids=["bare", "biased"])
def test_an_arcee_has_every_activation_and_writes_the_same_text(tmp_path, activation, tied, biases):
    new, _ = exported(tmp_path, "arcee", activation=activation, tied=tied, biases=biases)
    model, theirs = load(new), loaded(tmp_path / "out")
    same_logits(model, tmp_path / "out")
    prompt = torch.tensor([[5, 17, 3]])
    ours = torch.stack(list(generate(model, prompt, tokens=12, temperature=0)), dim=1)
    written = theirs.generate(prompt, max_new_tokens=12, do_sample=False)
    assert torch.equal(written[:, 3:], ours)


def test_weights_are_rounded_once_for_another_dtype(tmp_path):
    new, report = exported(tmp_path, "arcee", dtype="bfloat16", **NO_BIASES)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    model = load(new).bfloat16().float()
    same_logits(model, tmp_path / "out")
    assert report.difference is None


# ------------------------------------------------------------------------------------------ llama


def test_a_llama_of_a_model_with_silu_is_exact(tmp_path):
    new, report = exported(tmp_path, "llama", activation="silu", biases=("q", "down"))
    assert report.architecture == "LlamaForCausalLM"
    assert report.difference is None
    same_logits(load(new), tmp_path / "out")


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("biases", [(), ("q", "k", "o", "up", "down")], ids=["bare", "biased"])
def test_a_llama_has_silu_in_the_place_of_gelu_and_nothing_else(tmp_path, activation, biases):
    new, report = exported(tmp_path, "llama", activation=activation, biases=biases)
    model = load(new)
    x = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    quick = x * torch.sigmoid(1.702 * x)
    assert (quick - torch.nn.functional.gelu(x)).abs().max() < 0.0204
    state, config = with_silu(model.to_state(), model.config)
    assert config.activation == "silu"
    same_logits(type(model).from_state(config, state), tmp_path / "out")
    assert report.difference is not None
    assert 0 < report.difference.kl < 0.1
    assert any("SiLU stands in the place of" in said for said in report.warnings)
    with torch.no_grad():
        ids = torch.arange(16)[None]
        assert not torch.allclose(loaded(tmp_path / "out")(ids).logits, model(ids), rtol=0, atol=1e-5)


def test_a_llama_is_refused_for_relu_and_says_why(run, tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors", activation="relu")
    found = run("export", new, tmp_path / "out", "--to", "llama")
    assert found.code == 2
    assert "ReLU" in found.err
    assert "--to arcee" in found.err
    assert not (tmp_path / "out").exists()


def test_llama_cpp_undoes_the_halves():
    """Its converter brings queries and keys of a Llama back to neighbours: (2, head_dim/2) -> (head_dim/2, 2)."""
    rows = torch.arange(4 * 8 * 3.0).view(32, 3)
    back = to_halves(rows, 4).reshape(4, 2, 4, 3).swapaxes(1, 2).reshape(32, 3)
    assert torch.equal(back, rows)
    assert torch.equal(to_halves(torch.arange(8), 1), torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]))


# ------------------------------------------------------------------------------------------ a head bias


def test_a_head_bias_is_absorbed_and_that_is_measured(tmp_path, run):
    new = tiny.save_modern(tmp_path / "new.safetensors", biases=("head",))
    found = run("export", new, tmp_path / "out", "--to", "arcee", "--json")
    assert found.code == 0
    assert "head's bias" in found.json["warnings"][-1]
    assert found.json["difference"]["kl"] > 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    model, theirs = load(new), loaded(tmp_path / "out")
    ids = torch.randint(0, 61, (4, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, bare = model(ids).softmax(-1), (model(ids) - model.head.bias).softmax(-1)
        kept = theirs(ids).logits.softmax(-1)
    assert (kept - wanted).abs().mean() < (bare - wanted).abs().mean()


# ------------------------------------------------------------------------------------------ tokenizers

TEXT = "Hello World\n[é€😀\\]".replace("]", "")


def tokenizer_of(name, tmp_path):
    if name == "characters":
        return VocabularyTokenizer(STOI, name)
    if name == "words":
        return VocabularyTokenizer(STOI | {"Hello": 61, "ell": 62, "o W": 63}, name)
    if name == "bytes":
        return BytesTokenizer()
    merges = [("l", "l"), ("e", "ll"), ("o", "Ġ"), ("H", "ell")]
    base = [*map(chr, range(33, 127)), "Ġ", "Ċ", *map(chr, range(161, 173)), *map(chr, range(174, 256))]
    base += [chr(n) for n in range(256, 324) if chr(n) not in base]
    tokens = [*base, *("".join(pair) for pair in merges), "<|endoftext|>"]
    (tmp_path / "bpe").mkdir()
    (tmp_path / "bpe" / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (tmp_path / "bpe" / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return find_tokenizer(str(tmp_path / "bpe"), vocabulary={}, beside=tmp_path, vocab_size=1000)


@pytest.mark.parametrize("name", ["characters", "words", "bytes", "vocab.json and merges.txt"])
def test_auto_tokenizer_does_what_the_tokenizer_does(tmp_path, name):
    ours = tokenizer_of(name, tmp_path)
    made = files_for(ours, context=16)
    (tmp_path / "config.json").write_text('{"model_type": "arcee"}')
    for file, text in made.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT, "ello  Hellol", "\n\n"):
        ids = theirs(text).input_ids
        assert ids == ours.encode(text).tolist()
        assert theirs.decode(ids) == text == ours.decode(ids)
    assert (theirs.eos_token_id is not None) == (name == "vocab.json and merges.txt")
    assert theirs.eos_token_id == made.end
    if name in ("characters", "words"):
        with pytest.raises(Exception, match="vocabulary"):
            theirs("Hello 日")


def test_a_vocabulary_with_one_id_twice_is_refused():
    with pytest.raises(BadData, match="same id"):
        files_for(VocabularyTokenizer({"a": 0, "b": 0}, "x"), context=4)


def test_without_a_tokenizer_it_says_so_and_writes_no_empty_one(tmp_path):
    _, report = exported(tmp_path, "arcee")
    assert any("no tokenizer" in said for said in report.warnings)
    assert not [name for name in report.files if "token" in name]


# ------------------------------------------------------------------------------------------ the folder


def test_the_command_tells_what_it_promises(run, tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors", STOI)
    found = run("export", new, tmp_path / "out", "--to", "arcee", "--json")
    assert found.code == 0
    plain = found.json
    assert {"schema", "input", "output", "architecture", "files", "parameters", "warnings"} <= set(plain)
    assert plain["files"] == names_in(tmp_path / "out")
    assert plain["parameters"] == sum(p.numel() for p in loaded(tmp_path / "out").parameters())
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    for said in ("0" * 64, "nanogpt", "`--init fold`", "AutoTokenizer"):
        assert said in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["modernize"]["source"] == {"sha256": "0" * 64, "dialect": "nanogpt"}


def test_it_is_for_people_too(run, tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors", STOI)
    found = run("export", new, tmp_path / "out", "--to", "llama")
    assert found.code == 0
    assert "not exact: on" in found.out
    assert f"loaded back by transformers {transformers.__version__}" in found.out
    quiet = run("export", new, tmp_path / "two", "--to", "arcee", "--quiet")
    assert quiet.out == f"{tmp_path / 'two'}\n"
    assert quiet.err == ""


def test_an_old_model_is_sent_to_convert(run, nano, tmp_path):
    found = run("export", nano, tmp_path / "out", "--to", "arcee")
    assert found.code == 2
    assert f"modernize convert {nano}" in found.err


def test_shards_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARD_BYTES", 20_000)
    new, report = exported(tmp_path, "arcee", **NO_BIASES)
    shards = [name for name in report.files if re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name)]
    assert len(shards) > 2
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(shards)
    assert index["metadata"]["total_size"] == 4 * report.parameters
    same_logits(load(new), tmp_path / "out")


def test_the_folder_works_alone_and_from_inside(tmp_path):
    """Moved, with transformers and without modernize."""
    new, _ = exported(tmp_path, "arcee", vocabulary=STOI, **NO_BIASES)
    moved = shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    code = (
        "import sys; sys.modules['modernize'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model, tokenizer = AutoModelForCausalLM.from_pretrained('.'), AutoTokenizer.from_pretrained('.')\n"
        "ids = tokenizer('Hello', return_tensors='pt')\n"
        "print(tokenizer.decode(model.generate(**ids, max_new_tokens=20, do_sample=False)[0]), end='')"
    )
    written = subprocess.run([sys.executable, "-c", code], cwd=moved, check=True, capture_output=True, encoding="utf-8")
    model, ours = load(new), VocabularyTokenizer(STOI, "characters")
    prompt = torch.from_numpy(ours.encode("Hello"))[None]
    ids = [int(following) for following in generate(model, prompt, tokens=20, temperature=0)]
    assert written.stdout == "Hello" + ours.decode(ids)


def test_what_is_there_is_not_lost(run, tmp_path):
    new, out = tiny.save_modern(tmp_path / "new.safetensors"), tmp_path / "out"
    arguments = ("export", new, out, "--to", "arcee")
    out.mkdir()
    assert run(*arguments).code == 0  # an empty one is filled
    assert run(*arguments).code == 4
    before = (out / "config.json").stat().st_ino
    assert run(*arguments, "--force").code == 0
    assert (out / "config.json").stat().st_ino != before
    (out / "thesis.tex").write_text("years of work")
    found = run(*arguments, "--force")
    assert found.code == 4
    assert "thesis.tex" in found.err
    assert (out / "thesis.tex").exists()
    inside = run("export", new, tmp_path, "--to", "arcee", "--force")
    assert inside.code == 4
    assert "holds the input" in inside.err
    assert run("export", new, new, "--to", "arcee", "--force").code == 4
    assert run("export", new, tmp_path / "no" / "where", "--to", "arcee").code == 4
    assert names_in(tmp_path) == ["new.safetensors", "out"]


def test_what_came_there_meanwhile_is_not_lost(tmp_path, monkeypatch):
    new = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES)
    write = modernize.exporting.write_weights

    def slowly(folder, tensors):
        write(folder, tensors)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("years of work")

    monkeypatch.setattr(modernize.exporting, "write_weights", slowly)
    with pytest.raises(OutputRefused, match="not empty"):
        modernize.export(new, tmp_path / "out", to="arcee")
    assert names_in(tmp_path / "out") == ["thesis.tex"]
    assert names_in(tmp_path) == ["new.safetensors", "out"]


def test_another_model_in_the_same_names_is_no_export(run, tmp_path):
    new, out = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES), tmp_path / "gpt2"
    out.mkdir()
    (out / "config.json").write_text('{"model_type": "gpt2"}')
    found = run("export", new, out, "--to", "arcee", "--force")
    assert (found.code, "config.json" in found.err) == (4, True)
    assert names_in(out) == ["config.json"]


def test_a_folder_that_holds_the_tokenizer_is_an_input(run, tmp_path):
    new, report = exported(tmp_path, "arcee", vocabulary=STOI, **NO_BIASES)
    assert "tokenizer.json" in report.files
    found = run("export", new, tmp_path / "out", "--to", "arcee", "--force", "--tokenizer", tmp_path / "out")
    assert (found.code, "holds the input" in found.err) == (4, True)


def test_the_mode_of_the_folder_stays(tmp_path):
    new, out = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES), tmp_path / "out"
    out.mkdir(mode=0o700)
    inode = out.stat().st_ino
    modernize.export(new, out, to="arcee")
    assert (out.stat().st_mode & 0o777, out.stat().st_ino) == (0o700, inode)  # an empty one stays what it is
    modernize.export(new, out, to="llama", force=True)
    assert out.stat().st_mode & 0o777 == 0o700
    assert names_in(tmp_path) == ["new.safetensors", "out"]


def test_a_name_that_leaves_no_room_is_refused(run, tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES)
    found = run("export", new, tmp_path / ("o" * 250), "--to", "arcee")
    assert (found.code, "too long" in found.err) == (4, True)


def test_rows_are_measured_without_their_padding(tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors", biases=("head",))
    rows = np.full((40, 17), -1)
    for i, row in enumerate(rows):
        row[: 3 + i % 14] = np.arange(3 + i % 14) + i % 40
    np.save(tmp_path / "rows.npy", rows)
    report = modernize.export(new, tmp_path / "out", to="arcee", calibrate=tmp_path / "rows.npy")
    wanted = evaluate(load(new), tmp_path / "rows.npy")
    assert report.difference.tokens == wanted.tokens
    assert report.difference.loss_before == pytest.approx(wanted.loss, abs=1e-6)


@pytest.mark.parametrize("name", ["characters", "words", "vocab.json and merges.txt"])
def test_every_tokenizer_goes_through_a_whole_export(tmp_path, name):
    ours = tokenizer_of(name, tmp_path)
    if name == "vocab.json and merges.txt":
        _, report = exported(tmp_path, "arcee", tokenizer=str(tmp_path / "bpe"), vocab_size=400, **NO_BIASES)
    else:
        _, report = exported(tmp_path, "arcee", vocabulary=ours.stoi, vocab_size=ours.size, **NO_BIASES)
    assert "tokenizer.json" in report.files


def test_what_a_file_puts_around_a_text_stays_out(tmp_path):
    """Begin and end, cutting and filling: the model was trained on the text alone."""
    inner = tokenizers.Tokenizer.from_str(files_for(BytesTokenizer(), context=16).files["tokenizer.json"])
    inner.add_special_tokens(["<s>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = find_tokenizer(str(tmp_path / "tokenizer.json"), vocabulary={}, beside=tmp_path, vocab_size=300)
    assert ours.encode("Hello World").tolist() == list(b"Hello World")
    made = tokenizers.Tokenizer.from_str(files_for(ours, context=16).files["tokenizer.json"])
    assert made.encode("Hello World").ids == list(b"Hello World")


@pytest.mark.parametrize("vocabulary", [STOI | {"": 60}, STOI | {"??": 60}])
def test_no_token_stands_for_what_is_unknown(tmp_path, vocabulary):
    made = files_for(VocabularyTokenizer(vocabulary, "odd"), context=16)
    written = tokenizers.Tokenizer.from_str(made.files["tokenizer.json"])
    with pytest.raises(Exception, match="vocabulary"):
        written.encode("Hello 日")


def test_a_token_that_is_no_text_is_refused():
    with pytest.raises(BadData, match="cannot hold"):
        files_for(VocabularyTokenizer({"\ud800": 0}, "odd"), context=4)


def test_a_name_that_is_no_text_is_refused(run, tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors")
    found = run("export", new, tmp_path / "o\udcff", "--to", "arcee")
    assert (found.code, "UTF-8" in found.err) == (4, True)


def test_an_old_transformers_is_no_judge(tmp_path, monkeypatch):
    new = tiny.save_modern(tmp_path / "new.safetensors", **NO_BIASES)
    monkeypatch.setattr(modernize.runtimes.back, "OLDEST", (99, 0))
    assert modernize.export(new, tmp_path / "out", to="arcee").checked == ""


@pytest.mark.parametrize("to", ["arcee", "llama"])
def test_an_export_is_already_converted(run, tmp_path, to):
    exported(tmp_path, to, **NO_BIASES)
    for command in (("inspect", tmp_path / "out"), ("convert", tmp_path / "out", tmp_path / "x.safetensors")):
        found = run(*command)
        assert (found.code, "already converted" in found.err, "nothing to convert" in found.err) == (3, True, True)


def test_a_llama_of_others_has_nothing_to_convert(run, tmp_path):
    exported(tmp_path, "llama", **NO_BIASES)
    config = tmp_path / "out" / "config.json"
    plain = json.loads(config.read_text())
    del plain["modernize"]
    config.write_text(json.dumps(plain))
    found = run("inspect", tmp_path / "out")
    assert (found.code, "RMSNorm and RoPE already" in found.err) == (3, True)


def test_an_export_that_computes_something_else_gets_no_name(tmp_path, monkeypatch):
    new = tiny.save_modern(tmp_path / "new.safetensors")
    arcee = modernize.exporting.RUNTIMES["arcee"]

    def wrong(state, config):
        layout = arcee(state, config)
        return replace(layout, config=layout.config | {"rms_norm_eps": 0.5})

    monkeypatch.setitem(modernize.exporting.RUNTIMES, "arcee", wrong)
    with pytest.raises(OutputRefused, match="other logits"):
        modernize.export(new, tmp_path / "out", to="arcee")
    assert names_in(tmp_path) == ["new.safetensors"]


def test_an_export_that_reads_back_otherwise_gets_no_name(tmp_path, monkeypatch):
    new = tiny.save_modern(tmp_path / "new.safetensors")
    write = modernize.exporting.write_weights

    def damaged(folder: Path, tensors):
        write(folder, tensors)
        raw = bytearray((folder / "model.safetensors").read_bytes())
        raw[-1] ^= 1
        (folder / "model.safetensors").write_bytes(raw)

    monkeypatch.setattr(modernize.exporting, "write_weights", damaged)
    with pytest.raises(OutputRefused, match="reads back differently"):
        modernize.export(new, tmp_path / "out", to="arcee")
    assert names_in(tmp_path) == ["new.safetensors"]


def test_words_that_are_no_runtime(tmp_path):
    new = tiny.save_modern(tmp_path / "new.safetensors")
    with pytest.raises(UsageError, match="gguf"):
        modernize.export(new, tmp_path / "out", to="gguf")


def test_every_activation_has_a_name_there():
    from modernize.runtimes.arcee import ACTIVATIONS

    assert set(ACTIVATIONS) == set(MODERN_ACTIVATIONS) == set(ModernActivation.__args__)
