"""What a file doesn't say is settled by the loss on DATA."""

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from modernize.checkpoint import open_checkpoint
from modernize.errors import UnknownLayout
from modernize.facts import Facts
from modernize.inspection import inspect
from modernize.old import OldGPT
from modernize.recognise import recognise
from modernize.trial import PostNormGPT

TRUE = {"n_head": 4, "activation": "relu", "attn_scale": "embd"}


def written(model, path):
    """Ids that a model finds likely: its own samples, as a .npy of one sequence a row."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 61, (400, 1), generator=random)
    with torch.no_grad():
        for _ in range(16):
            likely = (3 * model(ids[:, -16:])[:, -1]).softmax(-1)
            ids = torch.cat([ids, torch.multinomial(likely, 1, generator=random)], 1)
    np.save(path, ids.numpy())
    return path


@pytest.fixture
def bare(tmp_path):
    """A course model of which nothing is said, and text that it wrote under its own true reading."""
    spec = tiny.spec(**TRUE)
    state = {name: 1.5 * t if t.ndim == 2 else t for name, t in tiny.jittered(spec).items()}
    torch.save(tiny.as_dialect(state, spec, tiny.dialect("course-apart")), tmp_path / "m.pt")
    return tmp_path / "m.pt", written(OldGPT.from_state(spec, state), tmp_path / "data.npy")


def test_the_true_reading_has_the_lowest_loss(bare, run):
    path, data = bare
    found = inspect(path, data=str(data))
    best, *others = found.trials
    assert best.facts == {**TRUE, "norm": "pre"}
    assert best.loss < others[0].loss
    assert len(found.trials) == 3 * 2 * 2 * 4  # activations, scales, norms, heads of at least 4
    assert {name: getattr(found.config, name) for name in TRUE} == TRUE
    said = run("inspect", path, "--data", data, "--json").json
    assert said["trials"][0] == {**best.facts, "loss": best.loss}
    shown = run("inspect", path, "--data", data).out
    assert "the first fits best: --activation relu --attn-scale embd --norm pre --n-head 4" in shown


def test_what_is_said_is_not_tried(bare):
    path, data = bare
    found = inspect(path, data=str(data), facts=Facts(n_head=4, activation="relu", norm="pre"))
    assert [set(trial.facts) for trial in found.trials] == [{"attn_scale"}] * 2
    assert found.config.attn_scale == "embd"
    assert inspect(path, data=str(data), facts=Facts(**TRUE, norm="pre")).trials == ()


def test_a_file_that_says_everything_is_tried_for_its_norms_alone(nano, data):
    found = inspect(nano, data=str(data), facts=Facts(activation="gelu"))
    assert [set(trial.facts) for trial in found.trials] == [{"norm"}] * 2
    assert "better than chance" in found.warnings[-1]  # its weights are random


def test_a_post_norm_model_behind_pre_norm_names_is_refused(tmp_path, run):
    spec = tiny.spec(activation="relu")
    state = {name: 1.5 * t if t.ndim == 2 else t for name, t in tiny.jittered(spec).items()}
    torch.save(tiny.as_dialect(state, spec, tiny.dialect("lecture")), tmp_path / "m.pt")
    data = written(PostNormGPT.from_state(spec, state), tmp_path / "data.npy")
    with pytest.raises(UnknownLayout, match=r"is a post-norm model.*behind attention and MLP, and .* before"):
        inspect(tmp_path / "m.pt", data=str(data))
    assert run("inspect", tmp_path / "m.pt", "--data", data).code == 3


def test_post_norm_is_what_torch_computes(tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, activation="relu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32)).double().eval()
    tok_emb, pos_emb = (nn.Embedding(n, 32).double() for n in (61, 16))
    whole = {f"encoder.{n}": t for n, t in encoder.state_dict().items()}
    whole |= {"tok_emb.weight": tok_emb.weight.data, "pos_emb.weight": pos_emb.weight.data}
    torch.save(whole, tmp_path / "m.pt")
    found = recognise(open_checkpoint(tmp_path / "m.pt"), Facts(n_head=4, activation="relu", norm="pre"))
    ids = torch.randint(0, 61, (3, 16))
    with torch.no_grad():
        mask = nn.Transformer.generate_square_subsequent_mask(16, dtype=torch.float64)
        wanted = encoder(tok_emb(ids) + pos_emb.weight, mask=mask, is_causal=True) @ tok_emb.weight.T
        torch.testing.assert_close(PostNormGPT.from_state(found.spec, found.state())(ids), wanted, rtol=0, atol=1e-9)


def test_without_data_what_is_open_is_asked_for(bare, run):
    found = run("inspect", bare[0])
    assert found.code == 3
    assert "--n-head" in found.err
    assert "--data" in found.err


def test_averaged_weights_are_tried_as_well(tmp_path, data):
    spec = tiny.spec()
    both = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    both = {f"{front}.{name}": tensor for front in ("model", "ema") for name, tensor in both.items()}
    torch.save(both, tmp_path / "m.pt")
    found = inspect(tmp_path / "m.pt", data=str(data), facts=Facts(n_head=4, activation="gelu"), weights="ema")
    assert len(found.trials) == 2
