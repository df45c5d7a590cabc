"""What a fine-tune chooses by itself."""

import pytest

from modernize.events import Settings
from modernize.recipe import ALONE_LR, DISTILL, DISTILL_OFTEN, FAR_LR, NEAR_LR, choose_recipe


def recipe(*, loss=1.7, old=1.6, width=128, tokens=10**6, **settings):
    chosen = Settings(**{"steps": 50, "batch_size": 16, "block_size": 128, **settings})
    return choose_recipe(chosen, loss=loss, old=old, width=width, tokens=tokens)


@pytest.mark.parametrize("name", ["auto", "muon", "adamw"])
def test_a_model_near_the_old_one_takes_small_steps(name):
    assert recipe(optimizer=name).lr == NEAR_LR[name] < FAR_LR[name] == recipe(optimizer=name, loss=3.4).lr
    alone = recipe(optimizer=name, loss=3.4, old=None)
    assert (alone.lr, alone.distill, alone.match) == (ALONE_LR, 0.0, False)


def test_states_are_matched_near_the_old_model_alone():
    assert recipe().match
    assert not recipe(loss=3.4).match
    assert not recipe(old=None).match
    assert not recipe(distill=0.0).match
    assert recipe(distill=0.0).lr == ALONE_LR
    assert recipe(loss=1.0).match  # it is better already


def test_near_steps_are_smaller_in_wide_models_and_larger_with_large_batches():
    assert recipe(width=2048).lr == recipe().lr / 2
    assert recipe(width=512).lr == recipe().lr
    assert recipe(batch_size=64).lr == recipe(grad_accum=4).lr == recipe(grad_accum=400).lr == 2 * recipe().lr
    assert recipe(batch_size=4).lr == recipe(batch_size=1).lr == recipe().lr / 2
    assert recipe(width=2048, loss=3.4).lr == recipe(loss=3.4).lr


def test_few_steps_are_smaller():
    assert recipe(steps=200).lr == recipe(steps=50).lr
    assert recipe(steps=2).lr == pytest.approx(recipe(steps=50).lr / 5)
    assert recipe(steps=2, loss=3.4).lr == recipe(steps=50, loss=3.4).lr


def test_data_that_is_seen_often_is_trusted_less():
    drawn = 50 * 16 * 128
    assert recipe(tokens=drawn // 2).distill == DISTILL
    assert recipe(tokens=drawn // 2 - 1).distill == DISTILL_OFTEN > DISTILL
    assert recipe(tokens=10, distill=0.3).distill == 0.3


def test_what_is_asked_for_is_taken():
    assert recipe(lr=1e-5, loss=3.4).lr == 1e-5
