"""Recognise, before it begins: the model's own tensors, without what a program wraps around or puts beside them.

A training program calls its model `model.`, `net.` or `gpt.` and saves metrics and losses along, or a second set of
weights, averaged over the training. Where a dialect's token embedding stands says what is in front of every name of
a set; what isn't behind that, is none of the model's.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from modernize.checkpoint import Checkpoint
from modernize.checkpoint.envelope import is_averaged
from modernize.dialects import Dialect, Step, any_of, cover
from modernize.dialects.ops import IGNORE
from modernize.errors import AmbiguousInput
from modernize.spec import FLOATS

MOST_NAMES = 20_000  # more are not looked through for what stands in front of them
MOST_PREFIXES = 12  # that are tried, the shortest first
MOST_PARTS = 6  # of a name, that may stand in front of its own
# words in the first part of a name that stand for measurements and not for a part of a model
_WORDS = (
    "metrics?|loss|losses|criterion|objective|acc|accuracy|ppl|perplexity|f1|auc|auroc|precision|recall|bleu|rouge"
    "|confmat|nll|step|steps|epoch|averaged"
)
_MEASURED = re.compile(rf"(?:.*_)?(?:{_WORDS})(?:_.*)?")
_POSITIONS = re.compile(r"(?:.*\.)?(?:position_ids|pos_ids|positions|pos_idx)")


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """A checkpoint whose model has its own names. `beside` are tensors that are no part of it, measured or of another
    set of weights; `strange` are those of which nobody knows what they are.

    `prefix` was taken off. `other_is_whole` says that the other set is a whole model, where this one is none.
    """

    checkpoint: Checkpoint
    prefix: str
    beside: frozenset[str]
    strange: tuple[str, ...]
    other_is_whole: bool
    warnings: tuple[str, ...]

    def own(self) -> list[str]:
        """The names that a dialect has to account for."""
        apart = self.beside.union(self.strange)
        return [name for name in self.checkpoint.tensors if name not in apart]

    def steps(self) -> tuple[Step, ...]:
        """What becomes of those beside: nothing."""
        names = self.checkpoint.raw_names
        return tuple(Step(IGNORE, names[name], (name,), ()) for name in names if name in self.beside)


@dataclass(frozen=True)
class _Set:
    """One set of weights in a checkpoint: what stands in front of its names, and in front of those of other sets."""

    checkpoint: Checkpoint
    dialects: Sequence[Dialect]
    prefix: str
    others: tuple[str, ...]

    @property
    def is_averaged(self) -> bool:
        return is_averaged(self.prefix)

    @cached_property
    def own(self) -> dict[str, str]:
        """The file's names of this set, to those behind the prefix."""
        return {
            name: name.removeprefix(self.prefix)
            for name in self.checkpoint.tensors
            if name.startswith(self.prefix) and not self._is_of_another(name) and not self._is_measured(name)
        }

    @cached_property
    def strange(self) -> tuple[str, ...]:
        """Names that are neither of this set nor of another nor measured."""
        return tuple(
            name
            for name in self.checkpoint.tensors
            if name not in self.own and not self._is_of_another(name) and not self._is_measured(name)
        )

    @cached_property
    def misfits(self) -> int:
        """How many faults the dialect has that fits best."""
        return min(cover(dialect, self.own.values()).faults for dialect in self.dialects)

    @cached_property
    def _without_dots(self) -> frozenset[str]:
        """The file's names as LitEma keeps averaged weights: under a prefix, in one word."""
        names = [name for name in self.checkpoint.tensors if not is_averaged(name)]
        return frozenset(said.replace(".", "") for name in names for said in (name, name.removeprefix(self.prefix)))

    def _is_of_another(self, name: str) -> bool:
        """Only what stands under another set's own prefix, or is an averaged copy in one word."""
        if self.prefix and name.startswith(self.prefix):
            return False
        _, _, word = name.partition(".")
        return name.startswith(self.others) or (is_averaged(name) and word in self._without_dots)

    def _is_measured(self, name: str) -> bool:
        if _counts(self.checkpoint, name):
            return True
        info, first = self.checkpoint.tensors[name], name.removeprefix(self.prefix).split(".", maxsplit=1)[0]
        if math.prod(info.shape) == 1 and is_averaged(name):  # how many were averaged, how fast they are forgotten
            return True
        matrix = len(info.shape) > 1 and info.dtype in FLOATS and math.prod(info.shape) > 1
        return not matrix and bool(_MEASURED.fullmatch(first))


def _counts(checkpoint: Checkpoint, name: str) -> bool:
    """Whether it is a buffer of the positions themselves: 0, 1, 2, …"""
    info = checkpoint.tensors[name]
    if not _POSITIONS.fullmatch(name) or info.dtype not in {"int64", "int32"}:
        return False
    numbers = checkpoint.array(name).ravel()
    return max(info.shape, default=0) == len(numbers) and bool(np.array_equal(numbers, np.arange(len(numbers))))


def unwrap(checkpoint: Checkpoint, dialects: Sequence[Dialect]) -> Unwrapped:
    """Take off what stands in front of all names of the set of weights that is asked for.

    Raises AmbiguousInput for two models or two names that become one.
    """
    chosen, rest = _chosen(checkpoint, _sets(checkpoint, dialects))
    strange = frozenset(chosen.strange)
    clean: dict[str, str] = {}
    beside = []
    for name in checkpoint.tensors:
        new = chosen.own.get(name, name)
        if name not in chosen.own and name not in strange:
            beside.append(new := f"beside {name}")  # in the file it may have a name that here is the model's
        elif new in clean:
            raise AmbiguousInput(
                f"{checkpoint.path} holds {clean[new]} and {name}, the same tensor once {chosen.prefix} is off",
                hint="save again with only one of them",
            )
        clean[new] = name
    is_whole = not chosen.misfits and not chosen.strange
    said = f"there are no weights but averaged ones, under {chosen.prefix}, so these were taken"
    return Unwrapped(
        checkpoint=replace(checkpoint, raw_names={new: checkpoint.raw_names[name] for new, name in clean.items()}),
        prefix=chosen.prefix,
        beside=frozenset(beside),
        strange=chosen.strange,
        other_is_whole=not is_whole and any(not s.misfits and not s.strange for s in rest),
        warnings=(said,) if chosen.is_averaged and checkpoint.weights == "model" else (),
    )


def _sets(checkpoint: Checkpoint, dialects: Sequence[Dialect]) -> list[_Set]:
    """A set of weights for all that stands in front of a token embedding and of most of a model; one of all names where
    there is none.
    """
    names = list(checkpoint.tensors)
    found = {""} if len(names) > MOST_NAMES else set(_in_front(names, dialects))
    tried = sorted(found, key=lambda prefix: (len(prefix), prefix))[:MOST_PREFIXES]
    alone = (_Set(checkpoint, dialects, prefix, ()) for prefix in tried)
    prefixes = [one.prefix for one in alone if one.misfits < len(one.own)] or [""]
    averaged = {prefix: is_averaged(prefix) for prefix in prefixes}
    return [
        _Set(checkpoint, dialects, prefix, tuple(p for p in prefixes if averaged[p] != averaged[prefix]))
        for prefix in prefixes
    ]


def _in_front(names: Iterable[str], dialects: Sequence[Dialect]) -> Iterator[str]:
    """Everything that stands in front of a dialect's token embedding."""
    embedding = any_of(rule for d in dialects for rule in d.rules if "wte.weight" in rule.targets)
    for name in names:
        parts = name.split(".")
        for start in range(min(len(parts), MOST_PARTS)):
            if embedding.fullmatch(".".join(parts[start:])):
                yield "".join(part + "." for part in parts[:start])


def _chosen(checkpoint: Checkpoint, sets: Sequence[_Set]) -> tuple[_Set, list[_Set]]:
    """The set that is asked for, averaged or not, and those of the other kind; of several prefixes the one that leaves
    the fewest faults.
    """
    averaged = [s for s in sets if s.is_averaged]
    trained = [s for s in sets if not s.is_averaged]
    if checkpoint.weights == "ema" and not averaged and any(map(is_averaged, checkpoint.tensors)):
        raise AmbiguousInput(
            f"{checkpoint.path} has averaged weights that are no whole model", hint="leave --weights out"
        )
    wanted, rest = (averaged, trained) if checkpoint.weights == "ema" or not trained else (trained, averaged)
    if not wanted:
        wanted, rest = rest, wanted
    whole: list[_Set] = []
    for one in wanted:
        if not any(one.prefix.startswith(shorter.prefix) for shorter in whole) and not one.misfits:
            whole.append(one)
    if len(whole) > 1:
        raise AmbiguousInput(
            f"{checkpoint.path} holds several models: {', '.join(one.prefix for one in whole)}",
            hint="save the one you mean alone: torch.save(model.state_dict(), PATH)",
        )
    if whole and not whole[0].strange:
        return whole[0], rest
    return min(wanted, key=lambda s: s.misfits + len(s.strange)), rest
