"""Recognise, second half: a Checkpoint becomes Recognised, or an error that says what does not fit and what to pass.

Names first (exact cover by a dialect's rows), then shapes, then what else speaks: whether the head equals the
embedding, the settings that only one dialect's programs write, and what the user said.

unwrap.py     what stands in front of all names, and what lies beside the model
outline.py    shapes
masks.py      the buffers that are left out
facts.py      what names and shapes cannot tell
misfit.py     what is said of a file that does not fit
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import Checkpoint
from modernize.dialects import Cover, Dialect, Step, cover
from modernize.dialects.ops import IGNORE, KEEP, SPLIT3, TRANSPOSE_SPLIT3
from modernize.errors import BadTensors, UsageError
from modernize.facts import ASSUMED_FIELDS, QKV, Facts, check_settings, dialects_of, find_facts
from modernize.masks import check_masks
from modernize.misfit import check_file, check_quantized, misshapen, unknown
from modernize.outline import canonical_shapes, check_sizes, outline, shape_faults, width_of
from modernize.spec import NORMS, GPTSpec, State
from modernize.unwrap import Unwrapped, unwrap

if TYPE_CHECKING:
    import torch

__all__ = ["Facts", "Recognised", "recognise"]


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A checkpoint whose every key is accounted for: `steps` say what each becomes in the canonical State."""

    checkpoint: Checkpoint
    dialect: Dialect
    spec: GPTSpec
    steps: tuple[Step, ...]
    warnings: tuple[str, ...]

    @cached_property
    def step_of(self) -> Mapping[str, Step]:
        """The step that gives each tensor of the canonical State; of two the later, see `Cover`."""
        return {target: step for step in self.steps for target in step.targets}

    def sources_of(self, target: str) -> tuple[str, ...]:
        """Names in the file that make up one tensor of the canonical State."""
        return self.step_of[target].sources if target in self.step_of else ()

    def facts(self, said: Facts) -> dict[str, Any]:
        """What is known of the model now, by the fields of `Facts`."""
        names = ("n_head", "activation", "attn_scale", "norm_eps")
        settled = {name: getattr(self.spec, name) for name in names}
        return {"dialect": self.dialect.name, **settled, "norm": "pre", "qkv_order": said.qkv_order}

    def array(self, target: str) -> NDArray[np.float64]:
        """One tensor of the canonical State that the file keeps as it is, without loading torch for safetensors."""
        (source,) = self.sources_of(target)
        return self.checkpoint.array(source)

    def array_blocks(self, target: str, rows: int) -> Iterator[NDArray[np.float64]]:
        """The same in blocks of so many rows."""
        (source,) = self.sources_of(target)
        return self.checkpoint.array_blocks(source, rows)

    def state(self, *, verified: bool = False) -> State:
        """The canonical State in the file's dtypes, `(out, in)`; a tied head is left out. `verified` where the caller
        compares checksums.

        Raises BadTensors for values that are not finite, UnknownLayout for masks that are not causal, UnreadableFile
        for bytes that have changed.
        """
        if not verified:
            self.checkpoint.sha256()  # reads all, and compares it with its checksums
        check_masks(self.checkpoint, self.steps)
        state: State = {}
        for step in self.steps:
            state |= self.read(step)
        return {name: state[name] for name in self.spec.shapes()}

    def read(self, step: Step) -> State:
        """What one step gives, from the file. Raises BadTensors for values that are not finite."""
        if not step.targets:
            return {}
        return self._applied(step, [self.checkpoint.read(name) for name in step.sources])

    def read_rows(self, step: Step, start: int, stop: int) -> State:
        """Rows [start, stop) of what a step gives whose op works by rows. Raises BadTensors as `read` does."""
        return self._applied(step, [self.checkpoint.rows(name, start, stop) for name in step.sources])

    def _applied(self, step: Step, tensors: "Sequence[torch.Tensor]") -> State:
        for name, tensor in zip(step.sources, tensors, strict=True):
            if not is_finite(tensor):
                raise not_finite(self.checkpoint, name)
        return dict(zip(step.targets, step.op.apply(tensors, self.spec.n_embd), strict=True))


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut so many into parts of a size: start and stop of each."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


def is_finite(tensor: "torch.Tensor") -> bool:
    """Whether all values are. Then their sum is too, unless it is too large, which is faster than to look at each."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def not_finite(checkpoint: Checkpoint, name: str) -> BadTensors:
    """What there is to say of a tensor with values that are no numbers."""
    return BadTensors(
        f"{checkpoint.path}: {name} holds values that are not finite (NaN or infinite)",
        hint="use an earlier checkpoint of that training",
    )


def recognise(checkpoint: Checkpoint, said: Facts | None = None) -> Recognised:
    """Find the dialect and the facts of a checkpoint.

    Raises:
        UnknownLayout: no dialect accounts for every key; the sentence names the nearest and what does not fit.
        AmbiguousInput: two models, or two names of one tensor.
        MissingFact: something nobody said; the sentence names the option to pass.
        BadTensors: shapes, dtypes or numbers that contradict each other.
        UsageError: a fact that is no such thing.
    """
    said = said or Facts()
    unwrapped, covers = _covered(checkpoint, said)
    checkpoint = unwrapped.checkpoint
    found = find_facts(checkpoint, covers, said)
    best = covers[0]
    shapes = canonical_shapes(checkpoint, best)
    spec = replace(outline(shapes, best), tied=_tied(checkpoint, best), **found.values)
    check_sizes(checkpoint, spec)
    warnings = check_settings(checkpoint, spec, said, best.dialect, has_head="head.weight" in shapes)
    if "head.weight" not in shapes and "config.json" not in checkpoint.settings:
        warnings.append("there is no head, so it is taken to be tied to the embedding")
    return Recognised(
        checkpoint=checkpoint,
        dialect=best.dialect,
        spec=spec,
        steps=(*best.steps, *unwrapped.steps()),
        warnings=(*checkpoint.warnings, *unwrapped.warnings, *found.warnings, *warnings, *_doubts(best.dialect, spec)),
    )


def covers_of(checkpoint: Checkpoint, said: Facts) -> list[Cover]:
    """The dialects that a checkpoint may be of. Raises what `recognise` raises."""
    return _covered(checkpoint, said)[1]


def _covered(whole: Checkpoint, said: Facts) -> tuple[Unwrapped, list[Cover]]:
    """A checkpoint under the model's own names, and its covers, the likeliest first."""
    check_file(whole)
    dialects = dialects_of(whole, said)
    unwrapped = unwrap(whole, dialects)
    checkpoint = unwrapped.checkpoint
    covers = [_without_copies(checkpoint, cover(dialect, unwrapped.own())) for dialect in dialects]
    nearest = min(covers, key=lambda c: c.faults)
    check_quantized(checkpoint, nearest)
    if unwrapped.strange or not nearest.fits:
        raise unknown(whole, unwrapped, nearest)
    by_name = [c for c in covers if c.fits]
    fits = [c for c in by_name if not shape_faults(checkpoint, c)]
    if not fits:
        raise misshapen(checkpoint, by_name)
    exact = [c for c in fits if not c.dialect.loose]
    ordered = _in_order(exact or fits, said.qkv_order)
    return unwrapped, _narrowed(checkpoint, [_with_heads(checkpoint, c) for c in ordered], said)


def _with_heads(checkpoint: Checkpoint, found: Cover) -> Cover:
    """The same cover with the number of heads, where the shape of a tensor tells it."""
    width = width_of(checkpoint, found)
    told = {step.op.heads(checkpoint.tensors[step.sources[0]].shape, width) for step in found.steps if step.op.heads}
    return replace(found, n_head=told.pop()) if len(told) == 1 else found


def _without_copies(checkpoint: Checkpoint, found: Cover) -> Cover:
    """The same cover where all that is there under two names holds the same values: the second name is passed over."""
    pairs = list(zip(found.twice[::2], found.twice[1::2], strict=True))
    if not pairs or not all(checkpoint.equal(first, second) for first, second in pairs):
        return found
    copies = (Step(IGNORE, second, (second,), ()) for _, second in pairs)
    return replace(found, twice=(), steps=(*found.steps, *copies))


def _in_order(covers: Sequence[Cover], order: str) -> list[Cover]:
    """The same covers with fused projections read in the order given. Raises UsageError for no such order, and for
    another than usual where nothing is fused.
    """
    wanted = [part.strip() for part in order.split(",")]
    if sorted(wanted) != ["k", "q", "v"]:
        raise UsageError(f"--qkv-order {order} is no order of q, k and v", hint="for example --qkv-order k,q,v")
    fused = [step for found in covers for step in found.steps if step.op in (SPLIT3, TRANSPOSE_SPLIT3)]
    if wanted != QKV.split(",") and not fused:
        raise UsageError(
            f"--qkv-order {order} says how query, key and value lie in one tensor, and here they are apart",
            hint="leave --qkv-order out",
        )
    return [replace(found, steps=tuple(_turned(step, wanted) for step in found.steps)) for found in covers]


def _turned(step: Step, wanted: Sequence[str]) -> Step:
    if step.op not in (SPLIT3, TRANSPOSE_SPLIT3):
        return step
    return replace(step, targets=tuple(step.targets["qkv".index(part)] for part in wanted))


def _doubts(dialect: Dialect, spec: GPTSpec) -> list[str]:
    """What a dialect of many spellings cannot tell, and no option says."""
    doubts = list(dialect.doubts)
    if dialect.loose and not set(NORMS) & set(spec.biases):
        doubts.append(
            "its norms have gains and no shifts, as LayerNorm without shifts has, and as RMSNorm has: it is read as "
            "LayerNorm; with DATA that it knows, `modernize inspect --data` tells"
        )
    return doubts


def _narrowed(checkpoint: Checkpoint, fits: list[Cover], said: Facts) -> list[Cover]:
    """Of the dialects that fit, those for which head, settings and user speak; several only where nothing does."""
    tied = _tied(checkpoint, fits[0])
    fits = [c for c in fits if tied in c.dialect.tied] or fits
    fits = [c for c in fits if any(mark in checkpoint.settings for mark in c.dialect.marks)] or fits
    told = {(name, getattr(said, name)) for name in ASSUMED_FIELDS}
    return sorted(fits, key=lambda c: -sum((a.field, a.value) in told for a in c.dialect.assumptions))


def _tied(checkpoint: Checkpoint, found: Cover) -> bool:
    """Whether the head is absent or holds the embedding's own values."""
    steps = {target: step for step in found.steps for target in step.targets}
    head, embedding = steps.get("head.weight"), steps["wte.weight"]
    if head is None:
        return True
    alike = head.op is embedding.op is KEEP
    return alike and checkpoint.equal(head.sources[0], embedding.sources[0])
