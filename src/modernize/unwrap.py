"""Recognise, before it begins: the model's own tensors, without what a program wraps around or puts beside them.

A training program calls its model `model.`, `net.` or `gpt.` and saves metrics and losses along. Where a dialect's
token embedding stands says what is in front of every name; what isn't behind that, is none of the model's.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from modernize.checkpoint import Checkpoint
from modernize.checkpoint.envelope import is_averaged
from modernize.dialects import DIALECTS, Rule, Step, cover
from modernize.dialects.ops import IGNORE
from modernize.errors import AmbiguousInput, UnknownLayout
from modernize.spec import FLOATS

MOST_NAMES = 20_000  # more are not looked through for what stands in front of them
# words in the first part of a name that stand for measurements and not for a part of a model
_BESIDE = re.compile(
    r"(?:.*_)?(?:metrics?|loss|losses|loss_fn|criterion|acc|accuracy|ppl|perplexity|step|epoch|n_averaged)(?:_.*)?"
)


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """A checkpoint under the model's own names, and those of its names that are no part of the model."""

    checkpoint: Checkpoint
    beside: tuple[str, ...]

    def own(self) -> list[str]:
        """The names that a dialect has to account for."""
        return [name for name in self.checkpoint.tensors if name not in self.beside]

    def steps(self) -> tuple[Step, ...]:
        """What becomes of the others: nothing."""
        return tuple(Step(Rule(name, (), IGNORE), (name,), ()) for name in self.beside)


def unwrap(checkpoint: Checkpoint) -> Unwrapped:
    """Take off what stands in front of all names.

    Raises AmbiguousInput for two models or two names that become one, UnknownLayout for a matrix beside the model.
    """
    names = list(checkpoint.tensors)
    prefix = _chosen(checkpoint, _fitting(names))
    if not prefix:
        beside = [name for name in names if _BESIDE.fullmatch(name.split(".")[0]) and not _is_matrix(checkpoint, name)]
        return Unwrapped(checkpoint=checkpoint, beside=tuple(beside))
    inside = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    beside = [name for name in names if name not in inside]
    other = [name for name in beside if _is_matrix(checkpoint, name) and not _other_set(name, prefix)]
    if other:
        raise UnknownLayout(
            f"{checkpoint.path} has a model under {prefix} and beside it {other[0]}, which no dialect knows",
            hint="save the model alone: torch.save(model.state_dict(), PATH)",
        )
    clean: dict[str, str] = {}
    for name in names:
        new = inside.get(name, name)
        if new in clean:
            raise AmbiguousInput(
                f"{checkpoint.path} holds {clean[new]} and {name}, the same tensor once {prefix} is off",
                hint="save again with only one of them",
            )
        clean[new] = name
    raw = {new: checkpoint.raw_names[name] for new, name in clean.items()}
    return Unwrapped(checkpoint=replace(checkpoint, raw_names=raw), beside=tuple(beside))


def _fitting(names: list[str]) -> list[str]:
    """What may stand in front: the shortest of those behind which a dialect fits; else that with the fewest faults."""
    if len(names) > MOST_NAMES or _faults(names, "") == 0:
        return [""]
    found = sorted({"", *_in_front(names)}, key=lambda prefix: (len(prefix), prefix))
    faults = {p: _faults(names, p) for p in found}
    chosen: list[str] = []
    for prefix in [p for p in found if not faults[p]] or [min(found, key=lambda p: faults[p])]:
        if not any(prefix.startswith(shorter) for shorter in chosen):
            chosen.append(prefix)
    return chosen


def _faults(names: list[str], prefix: str) -> int:
    """Of the dialect that fits best what is behind a prefix."""
    return min(cover(dialect, _behind(names, prefix)).faults for dialect in DIALECTS)


def _in_front(names: Iterable[str]) -> Iterator[str]:
    """Everything that stands in front of a dialect's token embedding."""
    rules = [rule for d in DIALECTS for rule in d.rules if "wte.weight" in rule.targets]
    for name in names:
        parts = name.split(".")
        for start in range(min(len(parts), 6)):
            if any(rule.pattern.fullmatch(".".join(parts[start:])) for rule in rules):
                yield "".join(part + "." for part in parts[:start])


def _behind(names: Iterable[str], prefix: str) -> list[str]:
    own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return own if prefix else [name for name in own if not _BESIDE.fullmatch(name.split(".")[0])]


def _chosen(checkpoint: Checkpoint, prefixes: list[str]) -> str:
    """One of several sets of weights: the averaged ones where they are asked for, else the others."""
    if len(prefixes) > 1:
        averaged = [prefix for prefix in prefixes if is_averaged(prefix)]
        wanted = averaged if checkpoint.weights == "ema" else [p for p in prefixes if p not in averaged]
        if len(wanted) != 1:
            raise AmbiguousInput(
                f"{checkpoint.path} holds several models: {', '.join(prefixes)}",
                hint="save the one you mean alone: torch.save(model.state_dict(), PATH)",
            )
        return wanted[0]
    if checkpoint.weights == "ema" and not is_averaged(prefixes[0]) and any(map(is_averaged, checkpoint.tensors)):
        raise AmbiguousInput(
            f"{checkpoint.path} has averaged weights that are no whole model", hint="leave --weights out"
        )
    return prefixes[0]


def _other_set(name: str, prefix: str) -> bool:
    """Whether a name belongs to averaged weights beside those chosen, or to the others beside averaged ones."""
    return is_averaged(name) or is_averaged(prefix)


def _is_matrix(checkpoint: Checkpoint, name: str) -> bool:
    info = checkpoint.tensors[name]
    return len(info.shape) > 1 and info.dtype in FLOATS and math.prod(info.shape) > 1
