"""Retrofit: the identity behind each move, in float64, and what `convert` promises of the whole."""

import math

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import modernize
from modernize.calibration import (
    EFFORTS,
    calibrate,
    old_loss,
    old_model,
    text_from_data,
    text_from_self,
    text_loss,
)
from modernize.data import Corpus
from modernize.errors import BadTensors
from modernize.model import apply_rope, build_rope_cache
from modernize.progress import unseen
from modernize.rewrite import block as blocks
from modernize.rewrite import local
from modernize.rewrite.absorb import absorb, direction_of_one, share_absorbed, stream_shift
from modernize.rewrite.basis import turn_basis
from modernize.rewrite.local import OldAttention
from modernize.rewrite.plan import Plan
from modernize.rewrite.positions import fit_pairs, normal_equations, pair_biases, sum_by_distance
from modernize.rewrite.refit import refit, within_reach
from modernize.rewrite.work import Text, Work, moment, tables_of

CPU = torch.device("cpu")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tables(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """RoPE's tables in float64."""
    theta = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), theta)
    return angles.cos(), angles.sin()


# ------------------------------------------------------------------------------------------ moves


@pytest.mark.parametrize("rank", [33, 5], ids=["full", "singular"])
def test_turning_a_basis_leaves_scores_without_rope_unchanged(rank):
    q, k, bias = noise(32, 32), noise(32, 32, seed=1), noise(32, seed=2)
    z = noise(200, rank, seed=3) @ noise(rank, 32, seed=4)
    ones = torch.cat([z, torch.ones(200, 1, dtype=torch.float64)], dim=1)
    before = [t.clone() for t in (q, k, bias)]
    new_q, new_bias, new_k, strengths = turn_basis(q, bias, k, moment(ones), 4)
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        old = (z @ q[rows].T + bias[rows]) @ (z @ k[rows].T).T
        new = (z @ new_q[rows].T + new_bias[rows]) @ (z @ new_k[rows].T).T
        torch.testing.assert_close(new, old, rtol=0, atol=1e-10 * float(old.abs().max()))
    assert (strengths.diff(dim=1) >= 0).all()  # the strongest last, where RoPE is slow
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, bias), strict=True))


def test_constants_of_a_pair_give_the_stated_function_of_distance():
    head_dim, length = 8, 12
    amplitudes = noise(3, 4)  # three heads, two pairs: cos, cos, sin, sin
    q_bias, k_bias = pair_biases(amplitudes, head_dim)
    theta = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    q, k = (
        apply_rope(bias.view(1, 3, 1, head_dim).repeat(1, 1, length, 1), *tables(length, head_dim))
        for bias in (q_bias, k_bias)
    )
    found = blocks.scores(q, k)[0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    for head in range(3):
        wanted = sum(
            amplitudes[head, r] * (theta[r] * distance).cos() + amplitudes[head, 2 + r] * (theta[r] * distance).sin()
            for r in range(2)
        )
        torch.testing.assert_close(found[head], wanted, rtol=0, atol=1e-10)


def test_a_score_that_pairs_can_express_is_found_again():
    """Up to a constant a row, which no softmax notices."""
    length, pairs = 16, 3
    cos, sin = tables(length, 2 * pairs)
    amplitudes = noise(2, 2 * pairs, seed=5)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
    columns = torch.cat([cos, sin], dim=1)[distance]  # (T, T, 2P)
    missing = torch.einsum("ijc,hc->hij", columns, amplitudes)[None] + noise(1, 2, length, 1, seed=6)
    p = blocks.masked(noise(1, 2, length, length, seed=7)).softmax(-1)
    found = fit_pairs(normal_equations(p, missing, cos, sin), pairs, ridge=1e-14)
    fitted = torch.einsum("ijc,hc->hij", columns, found)[None]
    left = (missing - fitted).tril()
    rows = (left - (p * left).sum(-1, keepdim=True)).tril()
    assert rows.abs().max() < 1e-6


def test_sums_by_distance():
    of = noise(2, 5, 5)
    found = sum_by_distance(of)
    for distance in range(5):
        wanted = torch.stack([of[head].diagonal(-distance).sum() for head in range(2)])
        torch.testing.assert_close(found[:, distance], wanted)


def test_absorbing_is_exact_where_one_can_be_met_exactly():
    z = torch.cat([noise(100, 6), 0.5 * torch.ones(100, 1, dtype=torch.float64)], dim=1)  # a constant among the inputs
    weight, bias = noise(4, 7, seed=1), noise(4, seed=2)
    direction = direction_of_one(moment(z), z.mean(0), ridge=0.0)
    torch.testing.assert_close(z @ direction, torch.ones(100, dtype=torch.float64), rtol=0, atol=1e-10)
    new = absorb(weight, bias, direction)
    torch.testing.assert_close(z @ new.T, z @ weight.T + bias, rtol=0, atol=1e-10)
    assert share_absorbed(z, direction) == pytest.approx(1)


def test_inputs_that_are_always_zero_absorb_nothing():
    z = torch.zeros(10, 3, dtype=torch.float64)
    assert not direction_of_one(moment(z), z.mean(0)).any()
    assert refit(noise(2, 3), moment(z), noise(2, 3), 0.1).equal(noise(2, 3))


def test_the_shift_of_a_tied_head_does_what_its_bias_did():
    wte, gain, beta, z = noise(61, 32), 1 + 0.2 * noise(32, seed=1), noise(32, seed=2), noise(50, 32, seed=3)
    shift = stream_shift(wte, gain, wte @ beta)
    old = (z * gain) @ wte.T + wte @ beta
    new = ((z + shift) * gain) @ wte.T
    torch.testing.assert_close(new.log_softmax(-1), old.log_softmax(-1), rtol=0, atol=1e-6)


def test_a_refit_without_a_ridge_meets_a_linear_target():
    z, present, wanted = noise(100, 6), noise(4, 6, seed=1), noise(4, 6, seed=2)
    missing = z @ (wanted - present).T
    found = refit(present, moment(z), missing.T @ z / 100, ridge=0.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_what_depends_on_the_position_alone_is_out_of_reach():
    present, content, position = noise(9, 5, 3), noise(9, 5, 3, seed=1), noise(1, 5, 3, seed=2)
    known = torch.ones(9, 5, dtype=torch.bool)
    content = content - content.mean(0)
    target = within_reach(present + content + position, present, known)
    torch.testing.assert_close(target, present + content + position.mean(1, keepdim=True), rtol=0, atol=1e-12)


def attention_case():
    """A new block, an old one, and what they work on: four sequences of 16, of which not all places count."""
    spec, length = tiny.spec(n_layer=1), 16
    block, old_block = (
        {
            f"{part}.{kind}": noise(spec.n_embd, *shape, seed=seed + i)
            for i, part in enumerate("qk")
            for kind, shape in (("weight", [spec.n_embd]), ("bias", []))
        }
        for seed in (0, 3)
    )
    z, z_old = noise(4, length, spec.n_embd, seed=2), noise(4, length, spec.n_embd, seed=6)
    ids = torch.zeros((4, length), dtype=torch.int64)
    text = Text(ids=ids, targets=ids, known=noise(4, length, seed=5) > 0, fitted=3)
    near, far = tables_of(length, spec.head_dim, 10000.0, torch.device("cpu"))
    work = Work(spec=spec, text=text, tables=near, far=far, effort=EFFORTS["quick"], kept=(), seed=0)
    return block, old_block, z, z_old, work


def test_attention_past_the_old_context_is_held_down(monkeypatch):
    """Keys of another sequence, as far away as two or three contexts: as an attention over both that is written out."""
    block, old_block, z, z_old, work = attention_case()
    monkeypatch.setattr(local, "FAR_QUERIES", 1)
    monkeypatch.setattr(local, "FAR_KEYS", 1)
    seen = OldAttention.of(old_block, z_old, work)
    heads, length = work.spec.n_head, z.shape[1]
    for numbers, away in ((torch.tensor([1, 3]), 2), (torch.tensor([1, 2]), 3)):
        monkeypatch.setattr(local, "FAR_WEIGHT", 0.0)
        without = local.attention_divergence(seen, block, z, numbers, work)
        monkeypatch.setattr(local, "FAR_WEIGHT", 2.0)
        found = (local.attention_divergence(seen, block, z, numbers, work) - without) / 2
        cos, sin = build_rope_cache(4 * length, work.spec.head_dim)
        raw = {part: blocks.heads(block, part, z[numbers], heads) for part in "qk"}
        k = apply_rope(raw["k"], cos, sin)
        near, far = apply_rope(raw["q"], cos, sin), apply_rope(raw["q"], cos[away * length :], sin[away * length :])
        wanted = torch.zeros(heads, dtype=torch.float64)
        for one, other in ((0, 1), (1, 0)):
            for t in range(length):
                here = (near[one, :, t, None] @ k[one, :, : t + 1].mT)[:, 0] / math.sqrt(work.spec.head_dim)
                there = (far[one, :, t, None] @ k[other].mT)[:, 0] / math.sqrt(work.spec.head_dim)
                kept = here.exp().sum(-1) / (here.exp().sum(-1) + 3 * there.exp().sum(-1))
                wanted -= kept.log() / (2 * length)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_divergence_of_attention_over_some_of_the_queries(monkeypatch):
    """Against a KL that is written out, with the queries that long sequences are thinned to; p kept and made anew."""
    block, old_block, z, z_old, work = attention_case()
    spec, text, length = work.spec, work.text, z.shape[1]
    monkeypatch.setattr(local, "FAR_WEIGHT", 0.0)
    numbers = torch.tensor([1, 2])
    q, k = (blocks.heads(block, part, z, spec.n_head, work.tables) for part in "qk")
    for most, kept, queries in ((16, 1 << 20, range(16)), (16, 0, range(16)), (4, 1 << 20, range(3, 16, 4))):
        monkeypatch.setattr(local, "MOST_QUERIES", most)
        monkeypatch.setattr(local, "MOST_KEPT", kept)
        seen = OldAttention.of(old_block, z_old, work)
        assert (seen.seen is not None) == (most == length and kept > 0)
        wanted, count = torch.zeros(spec.n_head, dtype=torch.float64), 0
        for n in numbers:
            for t in queries:
                if text.known[n, t]:
                    old, new = (
                        (a[n, :, t, None] @ b[n, :, : t + 1].mT)[:, 0].div(math.sqrt(spec.head_dim)).softmax(-1)
                        for a, b in ((seen.q, seen.k), (q, k))
                    )
                    wanted, count = wanted + (old * (old / new).log()).sum(-1), count + 1
        found = local.attention_divergence(seen, block, z, numbers, work)
        torch.testing.assert_close(found, wanted / count, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------ the whole

VARIANTS = {
    "tied": {},
    "untied": {"tied": False},
    "no biases": {"biases": ()},
    "lecture": {"biases": ("ln_1", "ln_2", "ln_f", "o", "up", "down", "head"), "tied": False, "activation": "relu"},
    "scores over √width, heads of 4": {"attn_scale": "embd", "n_head": 8},
}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("bias", ["drop", "keep"])
def test_never_worse_than_fold_or_reset_on_held_out_text(change, bias):
    spec = tiny.spec(**change)
    state = tiny.jittered(spec)
    model = old_model(spec, state, CPU)
    text = text_from_self(model, seed=0, progress=unseen)
    before = {name: tensor.clone() for name, tensor in state.items()}
    plan = Plan(bias=bias)
    found = calibrate(state, model, plan, text, source="self", effort="quick", seed=0, loss_old=old_loss(model, text))
    report = found.calibration
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert report.loss_new <= min(report.loss_fold, report.loss_reset)
    assert report.loss_new <= min(candidate.loss for candidate in report.candidates) + 1e-5
    assert report.chosen in {candidate.name for candidate in report.candidates}
    made = modernize.model.ModernGPT.from_state(
        found.made.config, {name: tensor.float() for name, tensor in found.made.state.items()}
    )
    assert text_loss(made, text) == pytest.approx(report.loss_new, abs=1e-6)
    assert {name: tuple(t.shape) for name, t in found.made.state.items()} == found.made.config.shapes()


def test_most_of_a_trained_models_gap_is_closed(run, tmp_path):
    """The example: a trained model, where there is something to keep."""
    from test_docs import EXAMPLE

    report = run("convert", EXAMPLE, tmp_path / "new.safetensors", "--json").json["calibration"]
    closed = (report["loss_reset"] - report["loss_new"]) / (report["loss_reset"] - report["loss_old"])
    assert closed > 0.9
    assert report["source"] == "self"
    assert {c["name"] for c in report["candidates"]} >= {"reset", "fold", report["chosen"]}
    assert all(block["positions"] > 0.9 for block in report["blocks"])


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_same_seed_same_bytes_another_seed_others(run, nano, tmp_path, effort):
    names = [tmp_path / f"{n}.safetensors" for n in "abc"]
    for name, seed in zip(names, (3, 3, 4), strict=True):
        assert run("convert", nano, name, "--effort", effort, "--seed", seed).code == 0
    a, b, c = (name.read_bytes() for name in names)
    assert (a == b, a == c) == (True, False)


def test_sampling_with_a_cache_predicts_as_the_whole_model():
    spec = tiny.spec()
    model = old_model(spec, tiny.jittered(spec), CPU)
    ids, caches = tiny.ids(spec), model.caches(16)
    steps = torch.cat([model(ids[:, :3], caches), *(model(ids[:, i : i + 1], caches) for i in range(3, 16))], dim=1)
    torch.testing.assert_close(steps, model(ids), rtol=0, atol=1e-4)


def test_calibration_on_data_keeps_what_is_fitted_and_what_judges_apart():
    spec = tiny.spec()
    model = old_model(spec, tiny.jittered(spec), CPU)
    ids = np.arange(2000) % 40  # the last fifth alone has ids of 50 and more
    ids[1600:] = 50 + np.arange(400) % 10
    text = text_from_data(model, Corpus(name="x", train=ids, val=ids[:0]), seed=0)
    assert int(text.ids[: text.fitted].max()) < 50 <= int(text.ids[text.fitted :].min())


def test_padding_of_rows_is_not_calibrated_on(run, nano, tmp_path):
    rows = np.full((300, 17), -1)
    random = np.random.default_rng(0)
    for row in rows:
        length = random.integers(4, 18)
        row[:length] = random.integers(0, 61, length)
    np.save(tmp_path / "rows.npy", rows)
    result = run("convert", nano, tmp_path / "new.safetensors", "--calibrate", tmp_path / "rows.npy", "--json")
    assert result.code == 0, result.err
    assert result.json["calibration"]["tokens"] == int((rows[:270, 1:] >= 0).sum())
    assert math.isfinite(result.json["calibration"]["loss_new"])


def test_data_that_is_too_short_is_refused(run, nano, tmp_path):
    np.save(tmp_path / "short.npy", np.arange(20))
    result = run("convert", nano, tmp_path / "new.safetensors", "--calibrate", tmp_path / "short.npy")
    assert (result.code, "needs 17" in result.err) == (3, True)
    assert not (tmp_path / "new.safetensors").exists()


def test_a_model_without_finite_predictions_is_refused():
    spec = tiny.spec()
    state = tiny.jittered(spec)
    state["ln_f.weight"] *= 1e38
    with pytest.raises(BadTensors, match="not finite"):
        text_from_self(old_model(spec, state, CPU), seed=0, progress=unseen)
