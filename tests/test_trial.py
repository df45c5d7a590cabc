"""What a file doesn't say is settled by the loss on DATA."""

import re

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from modernize.checkpoint import open_checkpoint
from modernize.errors import UnknownLayout
from modernize.facts import Facts
from modernize.inspection import inspect
from modernize.measure import Evaluation, mean_loss
from modernize.old import OldGPT
from modernize.recognise import recognise
from modernize.trial import CLEARLY, NOISE, PostNormGPT, RMSNormGPT

TRUE = {"n_head": 4, "activation": "relu", "attn_scale": "embd"}


def written(model, path, *, sharp=3):
    """Ids that a model finds likely: its own samples, as a .npy of one sequence a row."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 61, (400, 1), generator=random)
    with torch.no_grad():
        for _ in range(16):
            likely = (sharp * model(ids[:, -16:])[:, -1]).softmax(-1)
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
    assert len(found.trials) == 3 * 2 * (2 * 4 - 1)  # activations, norms, scales and heads of at least 4; one has one
    assert {name: getattr(found.config, name) for name in TRUE} == TRUE
    said = run("inspect", path, "--data", data, "--json").json
    assert said["trials"][0] == {**best.facts, "loss": best.loss}
    shown = run("inspect", path, "--data", data).out
    assert "read with --activation relu --attn-scale embd --norm pre --n-head 4" in shown


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


def course(tmp_path, kind, **change):
    """A course model, and text that a model of this kind with its weights wrote; its stream has a mean."""
    spec = tiny.spec(activation="relu", **change)
    state = {name: 1.5 * t if t.ndim == 2 else t for name, t in tiny.jittered(spec).items()}
    state["wpe.weight"] += 0.5
    torch.save(tiny.as_dialect(state, spec, tiny.dialect("course-apart")), tmp_path / "m.pt")
    return tmp_path / "m.pt", str(written(kind.from_state(spec, state), tmp_path / "data.npy", sharp=1))


def test_a_model_with_rmsnorm_is_refused(tmp_path):
    path, data = course(tmp_path, RMSNormGPT, biases=())
    with pytest.raises(UnknownLayout, match=r"is a model with RMSNorm: .* with that, and .* with LayerNorm"):
        inspect(path, data=data, facts=Facts(n_head=4, activation="relu", attn_scale="head"))


def test_rmsnorm_is_what_torch_computes_and_shifts_rule_it_out(tmp_path):
    spec = tiny.spec(activation="relu", biases=())
    model = RMSNormGPT.from_state(spec, tiny.jittered(spec))
    assert isinstance(model.ln_f, nn.RMSNorm)
    facts = Facts(n_head=4, activation="relu", attn_scale="head")
    assert {t.norm for t in inspect(*course(tmp_path, OldGPT, biases=())[:1], facts=facts,
                                    data=str(tmp_path / "data.npy")).trials} == {"pre", "post", "rms"}  # fmt: skip
    path, data = course(tmp_path, OldGPT)
    assert {t.norm for t in inspect(path, data=data, facts=facts).trials} == {"pre", "post"}


def losing(monkeypatch, loss):
    """Trials whose losses are a function of the model."""

    def told(model, ids, *, limit):
        return Evaluation(loss=loss(model), tokens=ids.context, context=ids.context)

    monkeypatch.setattr("modernize.trial.mean_loss", told)


@pytest.mark.parametrize("better", ["gelu", "gelu_tanh"])
def test_two_gelus_are_not_settled_by_noise(nano, data, run, monkeypatch, better):
    """Whichever has the lower loss, nanoGPT's own is taken, with its warning."""
    losing(monkeypatch, lambda model: {better: 1.0, "relu": 1.1}.get(model.spec.activation, 1 + NOISE / 2))
    found = inspect(nano, data=str(data), facts=Facts(norm="pre"))
    assert found.trials[0].facts["activation"] == better
    assert found.config.activation == found.reading["activation"] == "gelu"
    assert any("activation is assumed to be gelu" in warning for warning in found.warnings)
    assert "read with --activation gelu\n" in run("inspect", nano, "--data", data, "--norm", "pre").out


def test_a_clear_difference_settles_it_against_the_dialect(nano, data, monkeypatch):
    losing(monkeypatch, lambda model: {"gelu": 1 + 2 * NOISE, "relu": 1.1}.get(model.spec.activation, 1.0))
    found = inspect(nano, data=str(data), facts=Facts(norm="pre"))
    assert found.config.activation == "gelu_tanh"
    assert not any("activation" in warning for warning in found.warnings)


def test_where_no_program_is_known_two_that_fit_alike_are_told(bare, monkeypatch):
    losing(monkeypatch, lambda model: {"gelu_tanh": 1.0, "relu": 1.1}.get(model.spec.activation, 1 + NOISE / 2))
    found = inspect(bare[0], data=str(bare[1]), facts=Facts(n_head=4, attn_scale="head", norm="pre"))
    assert found.config.activation == "gelu_tanh"
    assert any("activation gelu_tanh predicts no better" in warning for warning in found.warnings)


def test_the_reading_that_was_taken_is_shown_and_not_a_better_one_that_cannot_be(nano, data, run, monkeypatch):
    losing(monkeypatch, lambda model: 1 - CLEARLY / 2 * isinstance(model, PostNormGPT))
    shown = run("inspect", nano, "--data", data, "--activation", "gelu").out
    assert re.search(r"norm +loss\npost +0\.9750\npre +1\.0000\nread with --norm pre\n", shown)


def test_readings_of_no_promise_are_tried_on_a_few_tokens(bare, monkeypatch):
    from modernize import trial

    tried = []

    def counted(model, ids, *, limit):
        tried.append(limit * ids.context)
        return mean_loss(model, ids, limit=limit)

    monkeypatch.setattr(trial, "mean_loss", counted)
    path, data = bare
    found = inspect(path, data=str(data))
    assert tried[: len(found.trials)] == [trial.FIRST_TOKENS] * len(found.trials)
    again = tried[len(found.trials) :]
    assert set(again) == {trial.TOKENS}
    assert len(again) < len(found.trials) / 2


def test_averaged_weights_are_tried_as_well(tmp_path, data):
    spec = tiny.spec()
    both = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    both = {f"{front}.{name}": tensor for front in ("model", "ema") for name, tensor in both.items()}
    torch.save(both, tmp_path / "m.pt")
    found = inspect(tmp_path / "m.pt", data=str(data), facts=Facts(n_head=4, activation="gelu"), weights="ema")
    assert {t.norm for t in found.trials} == {"pre", "post"}


def test_a_loss_above_that_of_mere_frequencies_is_told(nano, tmp_path, monkeypatch):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).integers(0, 3, 5000))  # log 3 is 1.0986
    for loss, told in ((1.0, False), (1.2, True)):
        losing(monkeypatch, lambda model, loss=loss: loss)
        found = inspect(nano, data=str(tmp_path / "data.npy"), facts=Facts(activation="gelu"))
        assert any("better than chance" in warning for warning in found.warnings) == told


def test_data_settles_nothing_about_a_modern_model(new, data, run):
    found = run("inspect", new, "--data", data)
    assert found.code == 2
    assert "modernize eval" in found.err


@pytest.mark.parametrize("order", ["q,k,v", "k,q,v", "v,q,k"])
@pytest.mark.parametrize("heads", [{"n_head": 4}, {}], ids=["heads said", "heads open"])
def test_the_order_in_one_tensor_is_tried_where_only_spellings_tell_it(tmp_path, run, order, heads):
    spec = tiny.spec(**TRUE)
    state = {name: 1.5 * t if t.ndim == 2 else t for name, t in tiny.jittered(spec).items()}
    turned = dict(state)
    for name in state:
        for place, part in enumerate("qkv"):
            if f".attn.{part}." in name:
                turned[name] = state[name.replace(f".attn.{part}.", f".attn.{order.split(',')[place]}.")]
    torch.save(tiny.as_dialect(turned, spec, tiny.dialect("course-fused")), tmp_path / "m.pt")
    data = written(OldGPT.from_state(spec, state), tmp_path / "data.npy")
    found = inspect(tmp_path / "m.pt", data=str(data), facts=Facts(activation="relu", norm="pre", **heads))
    assert found.reading.get("qkv_order", "q,k,v") == order
    assert {name: getattr(found.config, name) for name in TRUE} == TRUE
    if order != "q,k,v" and heads:
        said = ("--activation", "relu", "--norm", "pre", "--n-head", "4")
        assert f"--qkv-order {order}" in run("inspect", tmp_path / "m.pt", "--data", data, *said).out
        everything = Facts(**TRUE, norm="pre")
        assert inspect(tmp_path / "m.pt", data=str(data), facts=everything).reading == {"qkv_order": order}


def test_the_order_of_a_program_that_is_known_is_not_tried(nano, data):
    found = inspect(nano, data=str(data), facts=Facts(activation="gelu"))
    assert not any("qkv_order" in trial.facts for trial in found.trials)
