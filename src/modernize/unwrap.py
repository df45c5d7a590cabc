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
from modernize.dialects import DIALECTS, Step, cover
from modernize.dialects.ops import IGNORE
from modernize.errors import AmbiguousInput, UnknownLayout
from modernize.spec import FLOATS

MOST_NAMES = 20_000  # more are not looked through for what stands in front of them
# words in the first part of a name that stand for measurements and not for a part of a model
_WORDS = (
    "metrics?|loss|losses|criterion|objective|acc|accuracy|ppl|perplexity|f1|auc|auroc|precision|recall|bleu|rouge"
    "|confmat|nll|step|steps|epoch|averaged"
)
_MEASURED = re.compile(rf"(?:.*_)?(?:{_WORDS})(?:_.*)?")


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
        return tuple(Step(IGNORE, name, (name,), ()) for name in self.beside)


def unwrap(checkpoint: Checkpoint) -> Unwrapped:
    """Take off what stands in front of all names.

    Raises AmbiguousInput for two models or two names that become one, UnknownLayout for something beside the model that
    is no measurement.
    """
    prefix = _chosen(checkpoint, _fitting(checkpoint))
    clean: dict[str, str] = {}
    beside = []
    for name in checkpoint.tensors:
        new = name.removeprefix(prefix)
        if new in clean:
            raise AmbiguousInput(
                f"{checkpoint.path} holds {clean[new]} and {name}, the same tensor once {prefix} is off",
                hint="save again with only one of them",
            )
        clean[new] = name
        if _is_measured(checkpoint, name, new) or _of_another(name, prefix):
            beside.append(new)
        elif not name.startswith(prefix):
            raise UnknownLayout(
                f"{checkpoint.path} has a model under {prefix} and beside it {name}, which no dialect knows",
                hint="save the model alone: torch.save(model.state_dict(), PATH)",
            )
    raw = {new: checkpoint.raw_names[name] for new, name in clean.items()}
    return Unwrapped(checkpoint=replace(checkpoint, raw_names=raw), beside=tuple(beside))


def _fitting(checkpoint: Checkpoint) -> list[str]:
    """What may stand in front: where several whole models are, that of each; else the one with the fewest faults."""
    names = list(checkpoint.tensors)
    if len(names) > MOST_NAMES or _faults(checkpoint, "") == 0:
        return [""]
    found = sorted({"", *_in_front(names)}, key=lambda prefix: (len(prefix), prefix))
    whole: list[str] = []
    for prefix in found:
        if _faults(checkpoint, prefix, alone=True) == 0 and not any(prefix.startswith(shorter) for shorter in whole):
            whole.append(prefix)
    return whole if len(whole) > 1 else [min(found, key=lambda p: _faults(checkpoint, p))]


def _faults(checkpoint: Checkpoint, prefix: str, *, alone: bool = False) -> int:
    """Of the dialect that fits best what is behind a prefix, and, if it isn't looked at alone, what else there is."""
    own, other = [], 0
    for name in checkpoint.tensors:
        new = name.removeprefix(prefix)
        if _is_measured(checkpoint, name, new) or _of_another(name, prefix):
            continue
        if name.startswith(prefix):
            own.append(new)
        else:
            other += not alone
    return other + min(cover(dialect, own).faults for dialect in DIALECTS)


def _in_front(names: Iterable[str]) -> Iterator[str]:
    """Everything that stands in front of a dialect's token embedding."""
    rules = [rule for d in DIALECTS for rule in d.rules if "wte.weight" in rule.targets]
    for name in names:
        parts = name.split(".")
        for start in range(min(len(parts), 6)):
            if any(rule.pattern.fullmatch(".".join(parts[start:])) for rule in rules):
                yield "".join(part + "." for part in parts[:start])


def _chosen(checkpoint: Checkpoint, prefixes: list[str]) -> str:
    """One of several sets of weights: the averaged ones where they are asked for, else the others."""
    averaged = [prefix for prefix in prefixes if is_averaged(prefix)]
    wanted = averaged if checkpoint.weights == "ema" and averaged else [p for p in prefixes if p not in averaged]
    if checkpoint.weights == "ema" and not averaged and any(map(is_averaged, checkpoint.tensors)):
        raise AmbiguousInput(
            f"{checkpoint.path} has averaged weights that are no whole model", hint="leave --weights out"
        )
    if len(wanted) == 1:
        return wanted[0]
    if not wanted:  # nothing but averaged weights
        return averaged[0]
    raise AmbiguousInput(
        f"{checkpoint.path} holds several models: {', '.join(wanted)}",
        hint="save the one you mean alone: torch.save(model.state_dict(), PATH)",
    )


def _is_measured(checkpoint: Checkpoint, name: str, new: str) -> bool:
    info = checkpoint.tensors[name]
    matrix = len(info.shape) > 1 and info.dtype in FLOATS and math.prod(info.shape) > 1
    return not matrix and bool(_MEASURED.fullmatch(new.split(".", maxsplit=1)[0]))


def _of_another(name: str, prefix: str) -> bool:
    """Whether a name belongs to averaged weights beside those in question, or to the others beside averaged ones."""
    if not prefix:
        return is_averaged(name)
    return not name.startswith(prefix) and is_averaged(name) != is_averaged(prefix)
