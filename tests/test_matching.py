"""The map between hidden states, and the loss that it leaves."""

import pytest
import torch

from modernize.matching import RIDGE, Matching
from modernize.parallel import World

ALL = torch.ones(400, dtype=torch.bool)


def noise(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def seen():
    """A matching that has looked at states that a linear map explains, and those states."""
    old, turn = noise(400, 6, seed=0), noise(6, 4, seed=1)
    matching = Matching(6, 4, torch.device("cpu"))
    matching.look(old @ turn, old, ALL)
    matching.renew(World())
    return matching, old, turn


def test_states_that_a_linear_map_explains_cost_nothing(seen):
    matching, old, turn = seen
    torch.testing.assert_close(matching.map, turn, rtol=0, atol=4 * RIDGE)
    assert matching.loss(old @ turn, old, ALL).item() == pytest.approx(0.0, abs=1e-2)


def test_the_loss_is_the_share_that_is_missed_summed_over_known_places(seen):
    matching, old, turn = seen
    new = (old @ turn + noise(400, 4, seed=2)).requires_grad_()
    known = torch.arange(400) % 3 > 0
    loss = matching.loss(new, old, known)
    missed = ((new - old @ matching.map) ** 2)[known].sum() / ((old @ turn) ** 2).sum(-1).mean()
    assert loss.item() == pytest.approx(missed.item(), rel=1e-4)
    loss.backward()
    (wanted,) = torch.autograd.grad(missed, new)
    torch.testing.assert_close(new.grad, wanted, rtol=1e-4, atol=1e-7)
    assert not new.grad[~known].any()


def test_the_map_follows_the_model(seen):
    matching, old, turn = seen
    for _ in range(80):
        matching.loss(old @ -turn, old, ALL)
        matching.renew(World())
    torch.testing.assert_close(matching.map, -turn, rtol=0, atol=1e-2)


def test_unknown_places_and_parts_of_a_batch_change_nothing():
    old, new, known = noise(400, 6, seed=0), noise(400, 4, seed=1), torch.arange(400) < 300
    whole, parts = (Matching(6, 4, torch.device("cpu")) for _ in range(2))
    whole.look(new[:300], old[:300], ALL[:300])
    for rows in (slice(0, 150), slice(150, 400)):
        parts.look(new[rows], old[rows], known[rows])
    for matching in (whole, parts):
        matching.renew(World())
    torch.testing.assert_close(whole.map, parts.map, rtol=0, atol=1e-5)
    assert whole.scale.item() == pytest.approx(parts.scale.item(), rel=1e-5)


def test_it_goes_on_from_its_state(seen):
    matching, _, _ = seen
    again = Matching(6, 4, torch.device("cpu"))
    again.restore({name: tensor.clone() for name, tensor in matching.state().items()})
    assert torch.equal(again.map, matching.map)
    assert torch.equal(again.scale, matching.scale)


def test_states_that_are_nothing_make_no_map_that_is_no_number():
    matching = Matching(3, 3, torch.device("cpu"))
    matching.look(torch.zeros(400, 3), torch.zeros(400, 3), ALL)
    matching.renew(World())
    assert torch.isfinite(matching.map).all()
    assert matching.loss(torch.zeros(400, 3), torch.zeros(400, 3), ALL).isfinite()
