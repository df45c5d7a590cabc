"""OldGPT and ModernGPT against forward passes written apart."""

import pytest
import reference
import tiny
import torch

from modernize.errors import UsageError
from modernize.model import ModernGPT, build_rope_cache
from modernize.old import OldGPT
from modernize.rewrite.apply import rewrite
from modernize.rewrite.plan import Plan
from modernize.spec import ModernConfig

VARIANTS = {
    "all biases, tied": {},
    "no biases": {"biases": ()},
    "untied, head bias": {"tied": False, "biases": (*tiny.ALL_BIASES, "head")},
    "tanh": {"activation": "gelu_tanh"},
    "relu, scores over √width": {"activation": "relu", "attn_scale": "embd"},
    "another MLP and eps": {"n_inner": 48, "norm_eps": 1e-3},
}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_old_model_gives_the_reference_logits(change):
    spec = tiny.spec(**change)
    state = tiny.jittered(spec, dtype=torch.float64)
    ids = tiny.ids(spec)
    found = OldGPT.from_state(spec, state)(ids)
    torch.testing.assert_close(found, torch.from_numpy(reference.old_logits(state, spec, ids)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_narrow_teacher_predicts_what_autocast_predicts(precision):
    spec = tiny.spec()
    model, ids = OldGPT.from_state(spec, tiny.jittered(spec)), tiny.ids(spec)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    teacher = model.as_teacher(torch.device("cpu"), precision)
    assert {p.dtype for n, p in teacher.named_parameters() if n.startswith("h.") and p.ndim == 2} == {precision}
    with torch.autocast("cpu", precision), torch.no_grad():
        assert torch.equal(teacher(ids), model(ids))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.as_teacher(torch.device("cpu"), torch.float32) is model


def test_position_interpolation_halves_every_distance():
    cos, sin = build_rope_cache(9, 8, 100.0)
    for table, wide in zip((cos, sin), build_rope_cache(17, 8, 100.0, scale=2.0), strict=True):
        torch.testing.assert_close(wide[::2], table, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("option", "value"), [("--rope-base", "1"), ("--rope-scale", "0"), ("--rope-scale", "nan")])
def test_a_rope_that_cannot_be(run, nano, new, data, option, value):
    found = run("eval", new, "--data", data, option, value)
    assert (found.code, option in found.err) == (2, True)
    found = run("eval", nano, "--data", data, option, "2")
    assert (found.code, "no RoPE" in found.err) == (2, True)


def test_rope_is_changed_for_this_once(run, new, data):
    before = new.read_bytes()
    losses = [run("eval", new, "--data", data, "--json", *more).json["loss"] for more in ((), ("--rope-scale", "4"))]
    assert losses[0] != losses[1]
    assert new.read_bytes() == before


def test_old_model_has_no_positions_past_its_table():
    spec = tiny.spec()
    model = OldGPT.from_state(spec, tiny.jittered(spec))
    with pytest.raises(UsageError, match="16 positions and was given 17"):
        model(tiny.ids(spec, length=17))


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_a_spec_counts_what_its_model_holds(change):
    spec = tiny.spec(**change)
    assert sum(p.numel() for p in OldGPT(spec).parameters()) == spec.parameters()


MODERN = {
    "as converted": {},
    "untied": {"tied": False},
    "no biases": {"biases": ()},
    "every bias": {"biases": ("q", "k", "v", "o", "up", "down", "head")},
    "two key/value heads for four": {"n_kv_head": 2},
    "one key/value head": {"n_kv_head": 1},
    "another base": {"rope_base": 500.0},
    "relu": {"activation": "relu"},
}


@pytest.mark.parametrize("change", MODERN.values(), ids=MODERN)
def test_modern_model_gives_the_reference_logits(change):
    config, state = tiny.modern(**change)
    ids = tiny.ids(tiny.spec())
    model = ModernGPT.from_state(config, state)
    wanted = torch.from_numpy(reference.modern_logits(state, config, ids))
    torch.testing.assert_close(model(ids), wanted, rtol=0, atol=1e-5)  # tables are float32
    assert sum(p.numel() for p in model.parameters()) == config.parameters()
    assert {n: tuple(t.shape) for n, t in model.to_state().items()} == config.shapes()


def test_modern_model_reads_past_the_trained_context():
    config, state = tiny.modern()
    model = ModernGPT.from_state(config, state)
    ids = tiny.ids(tiny.spec(), length=50)
    wanted = torch.from_numpy(reference.modern_logits(state, config, ids))
    torch.testing.assert_close(model(ids), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(ids)[:, :16], model(ids[:, :16]), rtol=0, atol=1e-9)


def by_caches(model, ids, *, first, room):
    """Logits of ids (B, T): of the first ones at once, then of one token at a time."""
    caches = model.caches(room)
    with torch.no_grad():
        steps = [model(ids[:, :first], caches)]
        steps += [model(ids[:, i : i + 1], caches) for i in range(first, ids.shape[1])]
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize("first", [1, 5, 16])
@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_an_old_model_predicts_the_same_with_caches(change, first):
    spec = tiny.spec(**change)
    model, ids = OldGPT.from_state(spec, tiny.jittered(spec, dtype=torch.float64)), tiny.ids(spec)
    torch.testing.assert_close(by_caches(model, ids, first=first, room=16), model(ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize("first", [1, 5, 40])
@pytest.mark.parametrize("change", MODERN.values(), ids=MODERN)
def test_a_modern_model_predicts_the_same_with_caches_also_past_its_context(change, first):
    config, state = tiny.modern(**change)
    model, ids = ModernGPT.from_state(config, state), tiny.ids(tiny.spec(), length=50)
    torch.testing.assert_close(by_caches(model, ids, first=first, room=50), model(ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize("room", [1, 7, 49])
def test_caches_grow_when_more_tokens_come_than_there_is_room_for(room):
    config, state = tiny.modern()
    model, ids = ModernGPT.from_state(config, state), tiny.ids(tiny.spec(), length=50)
    torch.testing.assert_close(by_caches(model, ids, first=5, room=room), model(ids), rtol=0, atol=1e-9)


def test_caches_are_used_where_activations_would_be_recomputed():
    config, state = tiny.modern()
    model, ids = ModernGPT.from_state(config, state), tiny.ids(tiny.spec())
    model.recompute = True
    torch.testing.assert_close(by_caches(model, ids, first=5, room=16), model(ids), rtol=0, atol=1e-9)


def test_tables_are_not_made_again_for_every_token_past_the_context(monkeypatch):
    config, state = tiny.modern()
    model, made = ModernGPT.from_state(config, state), []

    def spy(length, *more, **scaled):
        made.append(length)
        return build_rope_cache(length, *more, **scaled)

    monkeypatch.setattr("modernize.model.build_rope_cache", spy)
    for length in range(1, 129):
        assert model.rope(length, torch.device("cpu"))[0].shape == (length, 4)
    assert made == [16, 34, 70, 142]


def test_a_model_that_measured_can_still_be_trained():
    config, state = tiny.modern()
    model = ModernGPT.from_state(config, state)
    with torch.inference_mode():
        model(tiny.ids(tiny.spec(), length=40))
    model(tiny.ids(tiny.spec(), length=40)).sum().backward()
    assert model.wte.weight.grad is not None


def test_a_tied_head_is_one_parameter():
    config, state = tiny.modern()
    model = ModernGPT.from_state(config, state)
    assert model.head.weight is model.wte.weight
    assert "head.weight" not in model.to_state()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs_and_stays_near(dtype):
    config, state = tiny.modern()
    ids = tiny.ids(tiny.spec())
    wide = ModernGPT.from_state(config, state)(ids)
    narrow = ModernGPT.from_state(config, {n: t.to(dtype) for n, t in state.items()})(ids)
    assert narrow.dtype == dtype
    assert (narrow.double() - wide).abs().max() < 0.1 * wide.abs().max()


def test_reset_gives_the_plain_modern_model():
    spec = tiny.spec()
    state = tiny.jittered(spec, dtype=torch.float64)
    made = rewrite(state, spec, Plan(init="reset"))
    plain = {n: t for n, t in made.state.items() if n.endswith("weight")}
    assert all(torch.equal(t, state[n]) for n, t in plain.items())
    assert all(torch.equal(t, torch.ones(32)) for n, t in made.state.items() if n.endswith("gain"))


def test_config_survives_json():
    config, _ = tiny.modern()
    assert ModernConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("field", "value"), [("n_layer", 0), ("n_head", "4"), ("activation", "swish"), ("biases", ["x"])]
)
def test_a_config_that_cannot_be_is_refused(field, value):
    config, _ = tiny.modern()
    with pytest.raises(ValueError, match=field):
        ModernConfig.from_json(config.to_json() | {field: value})
