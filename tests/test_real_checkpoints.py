"""Real checkpoints, trained by others; skipped where they are not. Losses are those that their own programs reach."""

import numpy as np
import pytest
import torch

import modernize
from modernize.calibration import text_from_self, text_loss
from modernize.checkpoint import open_checkpoint
from modernize.facts import Facts
from modernize.measure import evaluate
from modernize.sample import generate

# folder, file, facts that no key says, old loss on val.bin
BY_VAL_BIN = [
    ("nanogpt-shakespeare-bias", "ckpt.pt", {}, 1.6625),
    ("nanogpt-professionals", "ckpt.pt", {}, 2.2202),
    ("nanogpt-by-hand", "ckpt.pt", {}, 1.5061),
    ("lecture-bpe", "gpt_model.pth", {"activation": "relu", "attn_scale": "embd"}, 0.5305),
]
MINGPT = {
    "mingpt-adder": {"n_head": 3, "activation": "gelu_tanh"},
    "makemore-names": {"n_head": 4, "activation": "gelu_tanh"},
}
ALL = [
    *((folder, file, facts) for folder, file, facts, _ in BY_VAL_BIN),
    *((folder, "model.pt", facts) for folder, facts in MINGPT.items()),
    ("slm-memorised", "ckpt.pt", {}),
]


def options(facts):
    return [part for name, value in facts.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize(("folder", "file", "facts", "loss"), BY_VAL_BIN, ids=[row[0] for row in BY_VAL_BIN])
def test_old_losses_on_val_bin(run, checkpoints, folder, file, facts, loss):
    home = checkpoints / folder
    found = run("eval", home / file, "--data", home, "--json", *options(facts)).json
    assert found["loss"] == pytest.approx(loss, abs=1e-3)


def test_old_loss_of_the_memorised_corpus(run, checkpoints):
    home = checkpoints / "slm-memorised"
    found = run("eval", home / "ckpt.pt", "--data", home / "corpus.txt", "--split", "all", "--json").json
    assert found["loss"] == pytest.approx(0.0698, abs=1e-3)


def test_old_loss_of_the_names(run, checkpoints, tmp_path):
    """A name a row: 0, letters as 1 to 26, an ending 0, and padding that is not predicted."""
    home = checkpoints / "makemore-names"
    names = (home / "names.txt").read_text().split()
    rows = np.full((len(names), 17), -1)
    for row, name in zip(rows, names, strict=True):
        row[0] = row[len(name) + 1] = 0
        row[1 : len(name) + 1] = [ord(letter) - 96 for letter in name]
    np.save(tmp_path / "names.npy", rows)
    facts = options(MINGPT["makemore-names"])
    found = run("eval", home / "model.pt", "--data", tmp_path / "names.npy", "--split", "all", "--json", *facts).json
    assert found["loss"] == pytest.approx(1.9025, abs=1e-3)


def test_the_adder_gets_all_sums(checkpoints):
    model = modernize.load(checkpoints / "mingpt-adder" / "model.pt", facts=Facts(**MINGPT["mingpt-adder"]))
    a, b = torch.arange(10_000) // 100, torch.arange(10_000) % 100
    asked = torch.stack([a // 10, a % 10, b // 10, b % 10], dim=1)
    digits = torch.stack(list(generate(model, asked, tokens=3, temperature=0)), dim=1)  # lowest first
    assert int(((digits * torch.tensor([1, 10, 100])).sum(1) == a + b).sum()) == 10_000


@pytest.mark.parametrize(("folder", "file", "facts"), ALL, ids=[row[0] for row in ALL])
@pytest.mark.parametrize("init", ["fold", "reset"])
def test_all_convert_and_run(run, checkpoints, tmp_path, folder, file, facts, init):
    new = tmp_path / "new.safetensors"
    result = run("convert", checkpoints / folder / file, new, "--init", init, "--json", *options(facts))
    assert result.code == 0, result.err
    assert result.json["parameters"]["after"] < result.json["parameters"]["before"]
    model = modernize.load(new)
    ids = torch.zeros((1, 2 * model.block_size), dtype=torch.int64)
    assert torch.isfinite(model(ids)).all()


@pytest.mark.parametrize("folder", ["nanogpt-professionals", "nanogpt-by-hand"])
def test_without_biases_fold_loses_less_than_reset(run, checkpoints, tmp_path, folder):
    home, losses = checkpoints / folder, {}
    for init in ("fold", "reset"):
        new = tmp_path / f"{init}.safetensors"
        run("convert", home / "ckpt.pt", new, "--init", init)
        losses[init] = evaluate(modernize.load(new), home).loss
    assert losses["fold"] < losses["reset"]


@pytest.mark.parametrize("folder", ["mingpt-adder", "makemore-names"])
def test_what_no_key_says_is_asked_for(run, checkpoints, folder):
    result = run("inspect", checkpoints / folder / "model.pt")
    assert result.code == 3
    assert "--n-head" in result.err
    assert "--activation gelu|gelu_tanh" in result.err


@pytest.mark.parametrize(("folder", "file", "facts"), ALL, ids=[row[0] for row in ALL])
def test_retrofit_is_never_worse_on_held_out_text(run, checkpoints, tmp_path, folder, file, facts):
    """Judged here by the files that were written, on the text that the same seed gives."""
    old = checkpoints / folder / file
    said = Facts(**facts)
    text = text_from_self(modernize.load(old, facts=said).float(), seed=0, progress=lambda *_: None)
    losses = {}
    for init in ("retrofit", "fold", "reset"):
        new = tmp_path / f"{init}.safetensors"
        result = run("convert", old, new, "--init", init, "--json", *options(facts))
        assert result.code == 0, result.err
        losses[init] = text_loss(modernize.load(new).float(), text)
        if init == "retrofit":
            report = result.json["calibration"]
    assert losses["retrofit"] <= min(losses["fold"], losses["reset"])
    assert losses["retrofit"] == pytest.approx(report["loss_new"], abs=1e-3)
    assert losses["retrofit"] <= min(c["loss"] for c in report["candidates"]) + 1e-3


@pytest.mark.parametrize(("folder", "file", "facts"), ALL, ids=[row[0] for row in ALL])
@pytest.mark.parametrize("to", ["arcee", "llama"])
def test_all_are_exported_and_write_the_same_text(run, checkpoints, tmp_path, folder, file, facts, to):
    transformers = pytest.importorskip("transformers")
    new, out = tmp_path / "new.safetensors", tmp_path / "out"
    assert run("convert", checkpoints / folder / file, new, "--init", "fold", *options(facts)).code == 0
    found = run("export", new, out, "--to", to, "--json")
    if to == "llama" and facts.get("activation") == "relu":
        assert (found.code, "ReLU" in found.err) == (2, True)
        return
    assert found.code == 0, found.err
    assert found.json["checked"] == transformers.__version__
    model, theirs = modernize.load(new), transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ids = torch.randint(0, model.vocab_size, (2, model.block_size), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, wanted = theirs(ids).logits, model.float()(ids)
    if to == "llama":
        assert found.json["difference"]["kl"] < 0.05
        return
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4 * max(1.0, wanted.abs().max().item()))
    ours = torch.stack(list(generate(model, ids[:1, :4], tokens=24, temperature=0)), dim=1)
    written = theirs.generate(ids[:1, :4], max_new_tokens=24, do_sample=False)
    assert torch.equal(written[:, 4:], ours)


@pytest.mark.parametrize(("folder", "file"), [row[:2] for row in ALL], ids=[row[0] for row in ALL])
def test_every_tensor_is_what_torch_reads(checkpoints, folder, file):
    path = checkpoints / folder / file
    held = torch.load(path, weights_only=True, map_location="cpu")
    wanted = next((held[key] for key in ("model", "model_state_dict", "model_state") if key in held), held)
    source = open_checkpoint(path).source
    assert list(source.tensors) == [name for name, tensor in wanted.items() if isinstance(tensor, torch.Tensor)]
    assert all(torch.equal(source.read(name), wanted[name]) for name in source.tensors)
