"""The properties of RMSNorm and RoPE, in numpy and in torch."""

import math

import numpy as np
import pytest
import torch

from modernize.model import RMSNorm, apply_rope, build_rope_cache


def numpy_rms_norm(x, gain, eps=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


def numpy_rope(x, cos, sin):
    """x (T, head_dim), pairs (2i, 2i + 1)."""
    out = np.empty_like(x)
    out[:, ::2] = x[:, ::2] * cos - x[:, 1::2] * sin
    out[:, 1::2] = x[:, ::2] * sin + x[:, 1::2] * cos
    return out


@pytest.fixture
def x():
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def norm():
    made = RMSNorm(16).double()
    made.gain.data = torch.linspace(0.5, 1.5, 16, dtype=torch.float64)
    return made


def test_gain_starts_at_one_and_eps_is_the_lessons():
    made = RMSNorm(16)
    assert made.eps == 1e-5
    assert torch.equal(made.gain, torch.ones(16))
    assert [name for name, _ in made.named_parameters()] == ["gain"]


def test_output_is_x_over_its_root_mean_square(x, norm):
    root = np.sqrt((x.numpy() ** 2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(x).detach(), x.numpy() / root * norm.gain.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(norm(x).detach(), numpy_rms_norm(x.numpy(), norm.gain.detach().numpy()), atol=1e-12)


@pytest.mark.parametrize("c", [0.5, 3.0, 100.0])
def test_rms_norm_ignores_scale(x, c):
    norm = RMSNorm(16, eps=0.0).double()
    torch.testing.assert_close(norm(c * x), norm(x), rtol=0, atol=1e-12)
    np.testing.assert_allclose(numpy_rms_norm(c * x.numpy(), 1, 0), numpy_rms_norm(x.numpy(), 1, 0), atol=1e-12)


def test_layer_norm_ignores_shift_and_rms_norm_does_not(x, norm):
    layer = torch.nn.LayerNorm(16).double()
    torch.testing.assert_close(layer(x + 2.5), layer(x), rtol=0, atol=1e-9)
    assert (norm(x + 2.5) - norm(x)).abs().max() > 0.1
    assert np.abs(numpy_rms_norm(x.numpy() + 2.5, 1) - numpy_rms_norm(x.numpy(), 1)).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_of_half_precision_are_taken_in_float32(dtype):
    big = torch.full((1, 16), 300.0, dtype=dtype)  # its square overflows float16
    out = RMSNorm(16).to(dtype)(big)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), torch.ones(1, 16), rtol=0, atol=1e-2)


def test_tables_have_the_lessons_shape_angles_and_dtype():
    cos, sin = build_rope_cache(12, 8)
    assert cos.shape == sin.shape == (12, 4)
    assert cos.dtype == sin.dtype == torch.float32
    for m in (0, 1, 11):
        for i in range(4):
            angle = m * 10000 ** (-2 * i / 8)
            assert cos[m, i].item() == pytest.approx(math.cos(angle), abs=1e-6)
            assert sin[m, i].item() == pytest.approx(math.sin(angle), abs=1e-6)


def test_far_positions_are_as_exact_as_near_ones():
    cos, _ = build_rope_cache(100_001, 8)
    assert cos[100_000, 0].item() == pytest.approx(math.cos(100_000), abs=1e-6)


def test_base_changes_the_slow_pairs_only():
    usual, other = build_rope_cache(5, 8)[0], build_rope_cache(5, 8, base=500.0)[0]
    assert torch.equal(usual[:, 0], other[:, 0])
    assert not torch.equal(usual[:, 3], other[:, 3])


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="9"):
        build_rope_cache(4, 9)


def test_apply_rope_turns_neighbouring_pairs_as_numpy_does():
    q = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cos, sin = build_rope_cache(7, 8)
    turned = apply_rope(q, cos, sin)
    assert turned.dtype == torch.float64
    for b in range(2):
        for h in range(3):
            wanted = numpy_rope(q[b, h].numpy(), cos.double().numpy(), sin.double().numpy())
            np.testing.assert_allclose(turned[b, h], wanted, atol=1e-12)


def test_position_zero_is_not_turned_and_length_is_kept():
    q = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(3))
    turned = apply_rope(q, *build_rope_cache(6, 8))
    torch.testing.assert_close(turned[:, :, 0], q[:, :, 0])
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_score_depends_on_the_distance_alone(library):
    random = torch.Generator().manual_seed(4)
    q, k = torch.randn(8, generator=random), torch.randn(8, generator=random)
    cos, sin = build_rope_cache(10, 8)

    def score(m, n):
        if library == "torch":
            at_m = apply_rope(q.expand(1, 1, 10, 8), cos, sin)[0, 0, m]
            at_n = apply_rope(k.expand(1, 1, 10, 8), cos, sin)[0, 0, n]
            return float(at_m @ at_n)
        tables = cos.numpy(), sin.numpy()
        at_m = numpy_rope(np.tile(q.numpy(), (10, 1)), *tables)[m]
        at_n = numpy_rope(np.tile(k.numpy(), (10, 1)), *tables)[n]
        return float(at_m @ at_n)

    assert score(5, 3) == pytest.approx(score(9, 7), abs=1e-5)
    assert abs(score(5, 3) - score(5, 4)) > 1e-2
