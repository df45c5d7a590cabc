"""Recognise, by values: whether the buffers that are left out are causal masks, as every GPT that is known here has."""

from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import Checkpoint
from modernize.dialects import Step
from modernize.dialects.ops import DROP
from modernize.errors import UnknownLayout
from modernize.spec import FLOATS

HIDDEN = -1e3  # added to a score, this and less hides its place
_READABLE = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")


def check_masks(checkpoint: Checkpoint, steps: Iterable[Step], *, most: int | None = None) -> None:
    """Read the masks that these steps drop, or some of them. Raises UnknownLayout for one that is not causal.

    Layers have the same one, as a rule, so that one is looked at and the others compared with it.
    """
    known: str | None = None
    dropped = (name for step in steps if step.op is DROP for name in step.sources)
    squares = (name for name in dropped if checkpoint.tensors[name].shape[-1:] > (1,))
    for name in islice(squares, most):
        if known and checkpoint.equal(known, name):
            continue
        if checkpoint.tensors[name].dtype not in _READABLE or not is_causal(checkpoint.array(name)):
            raise UnknownLayout(
                f"{checkpoint.path}: {checkpoint.raw_names[name]} is no causal mask, so attention there is not "
                "plainly causal",
                hint="only models whose every place sees all places before it can be converted; if the program never "
                "used this mask, save the model without it",
            )
        known = name


def is_causal(mask: NDArray[np.float64]) -> bool:
    """Whether a mask, square in its last two axes, hides what comes after each place and nothing else, in one of the
    usual ways: 1 for what is seen and 0 for what is hidden, the reverse, or 0 and -inf or a large negative number.
    """
    size = mask.shape[-1]
    below = np.tri(size, dtype=bool)
    seen, hidden = mask.reshape(size, size)[below], mask.reshape(size, size)[~below]
    if np.any(seen != seen[0]) or np.any((hidden != hidden[0]) & (hidden > HIDDEN)):
        return False
    return (seen[0], hidden[0]) in ((1, 0), (0, 1)) or bool(seen[0] == 0 and np.all(hidden <= HIDDEN))
