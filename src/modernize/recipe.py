"""What a fine-tune chooses by itself, from what it finds: the learning rate, and how much the old model teaches.

The figures behind it are in docs/retrofit-notes.md.
"""

import math
from dataclasses import dataclass

from modernize.choices import OptimizerName
from modernize.events import Settings

NEAR = 0.4  # nats above the old model: nearer than that, large steps would throw away what the conversion kept
# peaks that won back most in 50 to 200 steps; Muon's serves both of its optimizers
NEAR_LR: dict[OptimizerName, float] = {"auto": 1.5e-3, "muon": 1.5e-3, "adamw": 7e-4}
FAR_LR: dict[OptimizerName, float] = {"auto": 4e-3, "muon": 4e-3, "adamw": 2e-3}
ALONE_LR = 7e-4  # where the old model teaches nothing: that costs steps, the other would cost the model
NEAR_WIDTH = 512  # of the widest model that NEAR_LR was tried on, at NEAR_TOKENS a step
NEAR_TOKENS = 2048
NEAR_STEPS = 50
DISTILL = 0.5
DISTILL_OFTEN = 0.8  # where DATA is seen so often that it would be learned by heart
OFTEN = 2.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Peak learning rate, weight of the old model against the data, and whether states are matched too."""

    lr: float
    distill: float
    match: bool


def choose_recipe(settings: Settings, *, loss: float, old: float | None, width: int, tokens: int) -> Recipe:
    """For a model of a `width` with a validation loss of `loss`, and of `old` before, in nats; DATA has `tokens`.

    `settings` have a batch and a block size. Without an old loss the model is taken to be near it.
    """
    near = old is None or loss - old < NEAR
    step = settings.grad_accum * settings.batch_size * settings.block_size
    often = settings.steps * step > OFTEN * tokens
    distill = settings.distill
    if old is None:
        distill = 0.0
    elif distill is None:
        distill = DISTILL_OFTEN if often else DISTILL
    lr = FAR_LR[settings.optimizer]
    if near:
        peak = NEAR_LR[settings.optimizer] if distill else ALONE_LR
        lr = peak * near_factor(width, step, settings.steps)
    return Recipe(lr=settings.lr or lr, distill=distill, match=near and distill > 0)


def near_factor(width: int, step_tokens: int, steps: int) -> float:
    """How the peak near the old model changes: with the root of the batch as far as was tried, less in wider models,
    and with the root of the steps where they are few, which large ones would waste on coming back.
    """
    batch = min(max(math.sqrt(step_tokens / NEAR_TOKENS), 0.5), 2.0)
    return batch * min(1.0, math.sqrt(NEAR_WIDTH / width)) * min(1.0, math.sqrt(steps / NEAR_STEPS))
