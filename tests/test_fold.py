"""Moves: each leaves its input alone; together, with biases kept and positions still added, they change no logit."""

import numpy as np
import pytest
import reference
import tiny
import torch
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.facts import Facts
from modernize.recognise import recognise
from modernize.rewrite import fold
from modernize.rewrite.apply import move, rewrite
from modernize.rewrite.plan import FOLD, Plan
from modernize.rewrite.tie import settle_tie, tie_cost

VARIANTS = {
    "all biases": {},
    "no biases": {"biases": ()},
    "norm shifts only": {"biases": ("ln_1", "ln_2", "ln_f")},
    "linear biases only": {"biases": ("q", "k", "v", "o", "up", "down")},
    "lecture": {"biases": ("ln_1", "ln_2", "ln_f", "o", "up", "down", "head"), "tied": False, "activation": "relu"},
    "scores over √width": {"attn_scale": "embd"},
    "tanh, narrow MLP": {"activation": "gelu_tanh", "n_inner": 40, "norm_eps": 1e-3},
}
MOVES = ("untie_head", *FOLD, "reset_gains", "scale_queries", "drop_positions", "drop_biases", "rename")


def same_prediction(a, b):
    """Logits equal up to a constant per place, which no softmax notices."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def folded(state, spec, names):
    for name in names:
        state = move(name)(state, spec)
    return state


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_untied_fold_reproduces_the_old_logits(change):
    spec = tiny.spec(**{**change, "tied": False})
    state = tiny.jittered(spec, dtype=torch.float64)
    ids = tiny.ids(spec)
    new = folded(state, spec, FOLD)
    np.testing.assert_allclose(
        reference.folded_logits(new, spec, ids), reference.old_logits(state, spec, ids), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_fold_of_a_tied_model_with_untie_reproduces_the_old_logits(change):
    spec = tiny.spec(**{**change, "tied": True})
    state = tiny.jittered(spec, dtype=torch.float64)
    ids = tiny.ids(spec)
    new = folded(state, spec, ("untie_head", *FOLD))
    np.testing.assert_allclose(
        reference.folded_logits(new, spec, ids), reference.old_logits(state, spec, ids), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_tied_fold_is_exact_where_rows_have_one_mean(change):
    """Then centring the embedding shifts all logits of a place alike; nothing else about a tied head is inexact."""
    spec = tiny.spec(**{**change, "tied": True})
    state = tiny.jittered(spec, dtype=torch.float64)
    wte = state["wte.weight"]
    state["wte.weight"] = wte - wte.mean(1, keepdim=True) + 0.3
    ids = tiny.ids(spec)
    new = folded(state, spec, FOLD)
    assert "head.weight" not in new
    same_prediction(reference.folded_logits(new, spec, ids), reference.old_logits(state, spec, ids))


@pytest.mark.parametrize("name", FOLD)
@pytest.mark.parametrize("tied", [True, False])
def test_each_move_alone_keeps_the_prediction(name, tied):
    """Every move but centring is exact for LayerNorm as well (centring: it then takes off the mean that is zero)."""
    spec = tiny.spec(tied=tied)
    state = tiny.jittered(spec, dtype=torch.float64)
    wte = state["wte.weight"]
    state["wte.weight"] = wte - wte.mean(1, keepdim=True) + 0.3
    if name == "fold_gain":
        state = move("fold_shift")(state, spec)
    ids = tiny.ids(spec)
    new = move(name)(state, spec)
    same_prediction(reference.old_logits(new, spec, ids), reference.old_logits(state, spec, ids))


def test_gains_cannot_be_folded_before_shifts():
    spec = tiny.spec()
    with pytest.raises(ValueError, match="fold_shift"):
        fold.fold_gain(tiny.jittered(spec), spec)


def test_scaled_queries_give_the_same_scores():
    spec = tiny.spec(attn_scale="embd")
    state = tiny.jittered(spec, dtype=torch.float64)
    ids = tiny.ids(spec)
    new = move("scale_queries")(state, spec)
    head = tiny.spec(attn_scale="head")
    np.testing.assert_allclose(
        reference.old_logits(new, head, ids), reference.old_logits(state, spec, ids), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_move_leaves_its_input_bit_equal(name, tied):
    spec = tiny.spec(tied=tied, attn_scale="embd")
    state = tiny.jittered(spec, dtype=torch.float64)
    if name == "fold_gain":
        state = move("fold_shift")(state, spec)
    before = {n: t.clone() for n, t in state.items()}
    new = move(name)(state, spec)
    assert new is not state
    assert list(state) == list(before)
    assert all(torch.equal(state[n], before[n]) for n in before)


def test_after_fold_gains_are_one_writers_centred_and_shifts_gone():
    spec = tiny.spec(tied=False)
    new = folded(tiny.jittered(spec, dtype=torch.float64), spec, FOLD)
    assert not [n for n in new if ".ln_" in n and n.endswith("bias")]
    assert not [n for n in new if n.endswith("v.bias")]
    for name, tensor in new.items():
        if "ln_" in name:
            assert torch.equal(tensor, torch.ones_like(tensor))
    for name in ("wte.weight", "wpe.weight"):
        assert new[name].mean(1).abs().max() < 1e-12
    assert new["wpe.weight"].mean(0).abs().max() < 1e-12
    assert new["h.1.mlp.down.weight"].mean(0).abs().max() < 1e-12
    assert abs(new["h.1.attn.o.bias"].mean()) < 1e-12


def test_a_tied_head_keeps_the_final_gain_and_gets_a_bias():
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    new = folded(state, spec, FOLD)
    assert torch.equal(new["ln_f.weight"], state["ln_f.weight"])
    assert "head.bias" in new


def test_tie_cost_foretells_what_centring_costs():
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    ids = tiny.ids(spec, batch=40)
    state = move("fold_shift")(state, spec)
    new = move("centre")(state, spec)
    old = torch.from_numpy(reference.old_logits(state, spec, ids)).log_softmax(-1)
    tied = torch.from_numpy(reference.old_logits(new, spec, ids)).log_softmax(-1)
    real = float((old.exp() * (old - tied)).sum(-1).mean())
    assert real / 3 < tie_cost([state["wte.weight"].numpy()], state["ln_f.weight"].numpy()) < real * 3


def recognised(tmp_path, spec, state, kind):
    """The same model as a torch file or as safetensors."""
    keys = tiny.as_dialect(state, spec, tiny.dialect("nanogpt"))
    if kind == "torch":
        torch.save({"model": keys, "model_args": tiny.model_args(spec)}, tmp_path / "m.pt")
        return recognise(open_checkpoint(tmp_path / "m.pt"))
    save_file({n: t.clone() for n, t in keys.items()}, tmp_path / "m.safetensors")
    return recognise(open_checkpoint(tmp_path / "m.safetensors"), Facts(n_head=spec.n_head, activation="gelu"))


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_auto_unties_only_where_tying_does_harm(tmp_path, kind, dtype):
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    wte = state["wte.weight"]
    wte += 0.5 * torch.randn(61, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = recognised(tmp_path, spec, {n: t.to(dtype) for n, t in state.items()}, kind)
    plan, warnings = settle_tie(found, Plan(init="fold"), "auto")
    assert plan.untie
    assert "1,952 parameters" in warnings[0]
    assert settle_tie(found, Plan(init="reset"), "auto") == (Plan(init="reset"), ())
    wte -= wte.mean(1, keepdim=True)
    found = recognised(tmp_path, spec, {n: t.to(dtype) for n, t in state.items()}, kind)
    assert settle_tie(found, Plan(init="fold"), "auto") == (Plan(init="fold"), ())


@pytest.mark.parametrize("tie", ["tie", "untie"])
def test_tie_is_obeyed_and_untied_models_stay_untied(tmp_path, tie):
    for tied in (True, False):
        spec = tiny.spec(tied=tied)
        found = recognised(tmp_path, spec, tiny.jittered(spec), "torch")
        plan, warnings = settle_tie(found, Plan(init="fold"), tie)
        assert plan.tied(spec) == (tied and tie == "tie")
        assert warnings == ()


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(
    "plan", [Plan(init="fold"), Plan(init="fold", bias="keep"), Plan(init="reset")], ids=["drop", "keep", "reset"]
)
def test_a_plan_foretells_names_and_shapes(change, plan):
    spec = tiny.spec(**change)
    made = rewrite(tiny.jittered(spec), spec, plan)
    assert {n: tuple(t.shape) for n, t in made.state.items()} == plan.config(spec).shapes()
    assert all(t.dtype == torch.float64 for t in made.state.values())
    assert not [n for n in made.state if "wpe" in n]
