"""Recognise, second half: a Checkpoint becomes Recognised, or an error that says what does not fit and what to pass.

Names first (exact cover by a dialect's rows), then shapes, then what else speaks: whether the head equals the
embedding, the settings that only one dialect's programs write, and what the user said.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import Checkpoint
from modernize.dialects import DIALECTS, Cover, Dialect, Step, cover
from modernize.dialects.ops import KEEP, SPLIT3, TRANSPOSE_SPLIT3
from modernize.errors import BadTensors, UnknownLayout, UsageError
from modernize.facts import ASSUMED_FIELDS, Facts, check_settings, dialects_by_model_type, find_facts
from modernize.spec import FLOATS, LINEARS, NORMS, GPTSpec, Shape, State, layerless, names_of
from modernize.stored import METADATA_KEY
from modernize.strangers import stranger
from modernize.unwrap import Unwrapped, unwrap

__all__ = ["Facts", "Recognised", "recognise"]

_SHOWN = 3  # names in a sentence


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A checkpoint whose every key is accounted for: `steps` say what each becomes in the canonical State."""

    checkpoint: Checkpoint
    dialect: Dialect
    spec: GPTSpec
    steps: tuple[Step, ...]
    warnings: tuple[str, ...]

    def sources_of(self, target: str) -> tuple[str, ...]:
        """Names in the file that make up one tensor of the canonical State."""
        return next((step.sources for step in reversed(self.steps) if target in step.targets), ())

    def array(self, target: str) -> NDArray[np.float64]:
        """One tensor of the canonical State that the file keeps as it is, without loading torch for safetensors."""
        (source,) = self.sources_of(target)
        return self.checkpoint.array(source)

    def state(self) -> State:
        """The canonical State in the file's dtypes, `(out, in)`; a tied head is left out.

        Raises BadTensors for values that are not finite, UnreadableFile for bytes that have changed.
        """
        import torch

        self.checkpoint.source.verify()

        state: State = {}
        for step in self.steps:
            tensors = [self.checkpoint.read(name) for name in step.sources] if step.targets else []
            for name, tensor in zip(step.sources, tensors, strict=False):
                if not torch.isfinite(tensor).all():
                    raise not_finite(self.checkpoint, name)
            state.update(zip(step.targets, step.op.apply(tensors, self.spec.n_embd), strict=True))
        return {name: state[name] for name in self.spec.shapes()}


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
        MissingFact: something nobody said; the sentence names the option to pass.
        BadTensors: shapes, dtypes or numbers that contradict each other.
        UsageError: a fact that is no such thing.
    """
    said = said or Facts()
    unwrapped, covers = _covered(checkpoint, said)
    checkpoint = unwrapped.checkpoint
    found = find_facts(checkpoint, covers, said)
    best = covers[0]
    shapes = _canonical_shapes(checkpoint, best)
    spec = replace(_outline(shapes, best), tied=_tied(checkpoint, best), **found.values)
    _check_heads(checkpoint, spec)
    warnings = check_settings(checkpoint, spec, has_head="head.weight" in shapes)
    if "head.weight" not in shapes and "config.json" not in checkpoint.settings:
        warnings.append("there is no head, so it is taken to be tied to the embedding")
    return Recognised(
        checkpoint=checkpoint,
        dialect=best.dialect,
        spec=spec,
        steps=(*best.steps, *unwrapped.steps()),
        warnings=(*checkpoint.warnings, *found.warnings, *warnings),
    )


def covers_of(checkpoint: Checkpoint, said: Facts) -> tuple[Checkpoint, list[Cover]]:
    """A checkpoint under the model's own names, and the dialects that it may be of. Raises what `recognise` raises."""
    unwrapped, covers = _covered(checkpoint, said)
    return unwrapped.checkpoint, covers


def _covered(checkpoint: Checkpoint, said: Facts) -> tuple[Unwrapped, list[Cover]]:
    if METADATA_KEY in checkpoint.metadata:
        raise UnknownLayout(
            f"{checkpoint.path} is already converted: it is a modern model that modernize wrote",
            hint="use it as it is: `modernize finetune`, `eval` and `sample` take it",
        )
    _check_tensors(checkpoint)
    unwrapped = unwrap(checkpoint)
    return unwrapped, _narrowed(unwrapped.checkpoint, _fitting(unwrapped.checkpoint, unwrapped.own(), said), said)


def _fitting(checkpoint: Checkpoint, own: list[str], said: Facts) -> list[Cover]:
    """Covers of the model's own names that fit, also by the orientation of their matrices. Raises UnknownLayout."""
    chosen = dialects_by_model_type(checkpoint)
    if said.dialect is not None:
        chosen = tuple(d for d in DIALECTS if d.name == said.dialect)
    if not chosen:
        raise UsageError(
            f"--dialect {said.dialect} is not known; there are {', '.join(d.name for d in DIALECTS)}",
            hint="`modernize dialects` lists them",
        )
    covers = [_in_order(cover(dialect, own), said.qkv_order) for dialect in chosen]
    by_name = [c for c in covers if c.fits]
    if not by_name:
        raise _unknown(checkpoint, min(covers, key=lambda c: c.faults))
    fits = [c for c in by_name if not _shape_fault(checkpoint, c)]
    if not fits:
        raise BadTensors(
            f"{checkpoint.path} has the names of {by_name[0].dialect.name}, but {_shape_fault(checkpoint, by_name[0])}",
            hint="check which program wrote the file; its tensors do not fit together",
        )
    exact = [c for c in fits if not c.dialect.loose]
    return [_with_heads(checkpoint, c) for c in exact or fits]


def _with_heads(checkpoint: Checkpoint, found: Cover) -> Cover:
    """The same cover with the number of heads, where the shape of a tensor tells it."""
    width = _width(checkpoint, found)
    told = {step.op.heads(checkpoint.tensors[step.sources[0]].shape, width) for step in found.steps if step.op.heads}
    return replace(found, n_head=told.pop()) if len(told) == 1 else found


def _width(checkpoint: Checkpoint, found: Cover) -> int:
    """The width of the embedding."""
    (source,) = next(step.sources for step in found.steps if "wte.weight" in step.targets)
    return (*checkpoint.tensors[source].shape, 0)[1]


def _in_order(found: Cover, order: str) -> Cover:
    """The same cover with fused projections read in the order given. Raises UsageError for no such order."""
    wanted = [part.strip() for part in order.split(",")]
    if sorted(wanted) != ["k", "q", "v"]:
        raise UsageError(f"--qkv-order {order} is no order of q, k and v", hint="for example --qkv-order k,q,v")
    steps = tuple(
        replace(step, targets=tuple(step.targets["qkv".index(part)] for part in wanted))
        if step.op in (SPLIT3, TRANSPOSE_SPLIT3)
        else step
        for step in found.steps
    )
    return replace(found, steps=steps)


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


# ---------------------------------------------------------------------------------------------- shapes


def _canonical_shapes(checkpoint: Checkpoint, found: Cover) -> dict[str, Shape]:
    """Shapes of the canonical State, before any tensor is read. Raises ValueError where a row's op cannot be done."""
    shapes: dict[str, Shape] = {}
    width = _width(checkpoint, found)
    for step in found.steps:
        sources = [checkpoint.tensors[name].shape for name in step.sources]
        try:
            shapes.update(zip(step.targets, step.op.shapes(sources, width), strict=True))
        except ValueError as error:
            raise ValueError(f"{step.sources[0]} has the shape {_x(sources[0])}: {error}") from error
    return shapes


def _outline(shapes: Mapping[str, Shape], found: Cover) -> GPTSpec:
    """The spec as far as names and shapes tell it. Raises ValueError for embeddings or an MLP without two axes."""
    (vocab_size, n_embd), (block_size, _), (n_inner, _) = (
        shapes[name] for name in ("wte.weight", "wpe.weight", "h.0.mlp.up.weight")
    )
    return GPTSpec(
        n_layer=found.n_layer,
        n_head=found.n_head or 1,
        n_embd=n_embd,
        n_inner=n_inner,
        block_size=block_size,
        vocab_size=vocab_size,
        activation="gelu",
        attn_scale="head",
        norm_eps=1e-5,
        tied="head.weight" not in shapes,
        biases=tuple(p for p in (*NORMS, *LINEARS) if f"{names_of(p, found.n_layer)[0]}.bias" in shapes),
    )


def _shape_fault(checkpoint: Checkpoint, found: Cover) -> str:
    """What is wrong with the first tensor that a row cannot turn into its place in the model; empty when all fit."""
    try:
        shapes = _canonical_shapes(checkpoint, found)
        wanted = _outline(shapes, found).shapes()
    except ValueError as error:
        return str(error)
    for step in found.steps:
        dtype = checkpoint.tensors[step.sources[0]].dtype
        if step.targets and dtype not in FLOATS:
            return f"{step.sources[0]} is {dtype}, where floating point was expected"
        for target in step.targets:
            if shapes[target] != wanted[target]:
                return (
                    f"{_listed(step.sources)} gives {target} the shape {_x(shapes[target])}, "
                    f"where {_x(wanted[target])} was expected"
                )
    return ""


def _check_heads(checkpoint: Checkpoint, spec: GPTSpec) -> None:
    """Nothing is empty, heads divide the width, and RoPE finds pairs. Raises BadTensors."""
    for name in ("vocab_size", "block_size", "n_embd", "n_inner"):
        if not getattr(spec, name):
            raise BadTensors(
                f"{checkpoint.path}: {name} is 0, so there is nothing to convert", hint="get a whole checkpoint"
            )
    if spec.n_head < 1 or spec.n_embd % spec.n_head:
        raise BadTensors(
            f"{checkpoint.path}: n_head {spec.n_head} does not divide the width {spec.n_embd}",
            hint="pass the right number with --n-head",
        )
    if spec.head_dim % 2:
        raise BadTensors(
            f"{checkpoint.path}: heads are {spec.head_dim} wide ({spec.n_embd} over {spec.n_head}), and RoPE turns "
            "pairs, so the width of a head must be even",
            hint="this model cannot carry RoPE, unless --n-head is wrong",
        )


def _check_tensors(checkpoint: Checkpoint) -> None:
    """Quantized and empty tensors are named before anything is said about names. Raises BadTensors."""
    for name, info in checkpoint.tensors.items():
        if len(info.shape) == 2 and info.dtype == "int8":
            raise BadTensors(
                f"{checkpoint.path}: {name} is int8, so it holds quantized weights",
                hint="quantized weights cannot be converted; use the checkpoint that they were made from",
            )
    if checkpoint.tensors and all(math.prod(info.shape) == 0 for info in checkpoint.tensors.values()):
        raise BadTensors(
            f"{checkpoint.path} holds only empty tensors, as DeepSpeed ZeRO-3 leaves them",
            hint="gather the weights first with DeepSpeed's zero_to_fp32.py",
        )


# ---------------------------------------------------------------------------------------------- what does not fit


def _unknown(checkpoint: Checkpoint, nearest: Cover) -> UnknownLayout:
    """What does not fit, by name, with the nearest dialect."""
    names = list(checkpoint.tensors)
    if not names:
        return UnknownLayout(f"{checkpoint.path} holds no tensors", hint="give the file that holds the weights")
    said, hint = stranger(checkpoint.tensors)
    if said:
        return UnknownLayout(f"{checkpoint.path} {said}", hint=hint)
    if len(nearest.unknown) == len(names):
        return UnknownLayout(
            f"{checkpoint.path} is of no known dialect: it holds {_listed(names)}",
            hint="`modernize dialects` lists the names by which each is recognised",
        )
    faults = []
    if nearest.missing:
        gone = "".join(f" ({what})" for what in _gone(nearest))
        faults.append(f"it lacks {_listed(nearest.missing, of=nearest.lacking)}{gone}")
    if nearest.unknown:
        faults.append(f"it has {_listed(nearest.unknown)}, which no row knows")
    if nearest.twice:
        faults.append(f"{_listed(nearest.twice)} are the same tensor")
    return UnknownLayout(
        f"{checkpoint.path} is nearest to {nearest.dialect.name}, but {' and '.join(faults)}",
        hint="a model with other parts cannot be converted; `modernize dialects` lists what can",
    )


def _gone(found: Cover) -> list[str]:
    """What a model doesn't have at all, in words."""
    rules = found.dialect.rules
    targets = {t for key in found.missing for rule in rules if rule.pattern.fullmatch(key) for t in rule.targets}
    made = {layerless(t) for step in found.steps for t in step.targets}
    whole = {layerless(t.format(i=0, p="weight")) for t in targets} - made
    words = {
        "wpe.weight": "no learned position table",
        "mlp.up.weight": "no MLP",
        "ln_1.weight": "no LayerNorm",
        "ln_f.weight": "no LayerNorm at the end",
    }
    return [said for part, said in words.items() if any(name.endswith(part) for name in whole)]


def _listed(names: Iterable[str], *, of: int = 0) -> str:
    names = list(names)
    more = max(len(names), of) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _x(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "scalar"
