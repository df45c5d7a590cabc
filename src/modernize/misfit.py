"""Recognise, where it fails: what is said of a file that no dialect fits."""

import math
from collections.abc import Sequence

from modernize.checkpoint import Checkpoint
from modernize.dialects import Cover
from modernize.errors import BadTensors, UnknownLayout
from modernize.outline import canonical_shapes, listed, outline, shape_faults
from modernize.spec import Shape, layerless
from modernize.stored import METADATA_KEY, check_no_run
from modernize.strangers import stranger
from modernize.unwrap import Unwrapped

_QUANTIZED = ("int8", "uint8", "float8", "f8_", "float4", "f4", "qint", "quint")  # dtypes, by how they begin
_OTHERS = "a model with other parts cannot be converted"


def check_file(checkpoint: Checkpoint) -> None:
    """Whether there is anything to recognise. Raises UnreadableFile, UnknownLayout, BadTensors."""
    check_no_run(checkpoint)
    if METADATA_KEY in checkpoint.metadata:
        raise UnknownLayout(
            f"{checkpoint.path} is already converted: it is a modern model that modernize wrote",
            hint="use it as it is: `modernize finetune`, `eval` and `sample` take it",
        )
    if not checkpoint.tensors:
        raise UnknownLayout(f"{checkpoint.path} holds no tensors", hint="give the file that holds the weights")
    if all(math.prod(info.shape) == 0 for info in checkpoint.tensors.values()):
        raise BadTensors(
            f"{checkpoint.path} holds only empty tensors, as DeepSpeed ZeRO-3 leaves them",
            hint="gather the weights first with DeepSpeed's zero_to_fp32.py",
        )


def check_quantized(checkpoint: Checkpoint, nearest: Cover) -> None:
    """Whether what a row takes for a matrix of the model holds quantized weights. Raises BadTensors."""
    for name in (name for step in nearest.steps if step.targets for name in step.sources):
        info = checkpoint.tensors[name]
        if len(info.shape) == 2 and info.dtype.startswith(_QUANTIZED):
            raise BadTensors(
                f"{checkpoint.path}: {name} is {info.dtype}, so it holds quantized weights",
                hint="quantized weights cannot be converted; use the checkpoint that they were made from",
            )


def unknown(whole: Checkpoint, found: Unwrapped, nearest: Cover) -> UnknownLayout:
    """What does not fit, by name: what it is instead, or the nearest dialect. `whole` has the file's own names."""
    if found.strange and nearest.fits:
        return UnknownLayout(
            f"{whole.path} has a model under {found.prefix} and beside it {listed(found.strange)}, "
            "which no dialect knows",
            hint=_other_set(whole, found) or "save the model alone: torch.save(model.state_dict(), PATH)",
        )
    said, hint = stranger(whole.tensors)
    if said:
        return UnknownLayout(f"{whole.path} {said}", hint=hint)
    if not nearest.steps:
        return UnknownLayout(
            f"{whole.path} is of no known dialect: it holds {listed(whole.tensors)}",
            hint="`modernize dialects` lists the names by which each is recognised",
        )
    strange = (*nearest.unknown, *found.strange)
    spare = [found.checkpoint.tensors[name].shape for name in strange]
    faults = []
    if nearest.missing:
        gone = "".join(f" ({what})" for what in _gone(nearest, spare))
        faults.append(f"it lacks {listed(nearest.missing, of=nearest.lacking)}{gone}")
    if strange:
        faults.append(f"it has {listed(strange)}, which no row knows")
    if nearest.twice:
        faults.append(f"{listed(nearest.twice)} are the same tensor")
    return UnknownLayout(
        f"{whole.path} is nearest to {nearest.dialect.name}, but {' and '.join(faults)}",
        hint=_other_set(whole, found)
        or (
            f"if only names differ, rename its keys to those of {nearest.dialect.name} (`modernize dialects`) and save "
            f"it again; {_OTHERS}"
            if _could_be_renamed(nearest, spare)
            else f"{_OTHERS}; `modernize dialects` lists what can"
        ),
    )


def misshapen(checkpoint: Checkpoint, covers: Sequence[Cover]) -> BadTensors:
    """Names of a dialect, with shapes that are not: of several, one that all tensors can be read as, with the fewest
    faults, and then the one whose first fault comes last.
    """
    found_faults = {found.dialect.name: shape_faults(checkpoint, found) for found in covers}
    readable = {found.dialect.name for found in covers if _is_readable(checkpoint, found)}
    faults = {name: found[0] for name, found in found_faults.items()}
    name = min(faults, key=lambda name: (name not in readable, len(found_faults[name]), -faults[name][0]))
    for found in covers:
        if what := _other_shape(checkpoint, found):
            return BadTensors(f"{checkpoint.path} {what}: {faults[found.dialect.name][1]}", hint=f"{_OTHERS}")
    return BadTensors(
        f"{checkpoint.path} has the names of {name}, but {faults[name][1]}",
        hint="check which program wrote the file; its tensors do not fit together",
    )


def _is_readable(checkpoint: Checkpoint, found: Cover) -> bool:
    try:
        canonical_shapes(checkpoint, found)
    except ValueError:
        return False
    return True


def _other_shape(checkpoint: Checkpoint, found: Cover) -> str:
    """What a model is whose names are those of a GPT and whose shapes are others; empty where nobody knows."""
    try:
        shapes = canonical_shapes(checkpoint, found)
        spec = outline(shapes, found)
    except ValueError:
        return ""
    layers = range(spec.n_layer)
    rows = {part: {shapes[f"h.{i}.{part}.weight"][0] for i in layers} for part in ("attn.q", "attn.k", "mlp.up")}
    inner = {(*shapes[f"h.{i}.mlp.down.weight"], 0)[1] for i in layers}
    head = shapes.get("head.weight", (spec.vocab_size,))[0]
    if rows["attn.k"] != {spec.n_embd} and rows["attn.q"] == {spec.n_embd} and max(rows["attn.k"]) < spec.n_embd:
        return "has fewer heads for keys and values than for queries (GQA or MQA)"
    if rows["attn.q"] != {spec.n_embd}:
        return "has attention of another width than its embedding"
    if rows["mlp.up"] == {2 * width for width in inner}:
        return "has a gated MLP (SwiGLU), with both halves in one matrix"
    if len(rows["mlp.up"]) > 1:
        return "has blocks whose MLPs differ in width"
    if head != spec.vocab_size:
        return f"has a head of {head} outputs for {spec.vocab_size} tokens, as a classifier"
    return ""


def _other_set(whole: Checkpoint, found: Unwrapped) -> str:
    """The hint that another set of weights in the file is whole; empty where none is."""
    if not found.other_is_whole:
        return ""
    if whole.weights == "ema":
        return "the trained weights in it are whole: leave --weights out"
    return "the averaged weights in it are whole: --weights ema takes them"


def _missing_parts(found: Cover) -> set[str]:
    """Names in the canonical State, for all layers, of what is missing in some of them."""
    rules = found.dialect.rules
    targets = {t for key in found.missing for rule in rules if rule.pattern.fullmatch(key) for t in rule.targets}
    return {layerless(t.format(i=0, p="weight")) for t in targets}


def _could_be_renamed(found: Cover, spare: Sequence[Shape]) -> bool:
    """Whether all that is missing may be there under another name, by how many axes it has."""
    return bool(found.missing) and all(_in_spare(part, spare) for part in _missing_parts(found))


def _in_spare(part: str, spare: Sequence[Shape]) -> bool:
    axes = 1 if "ln_" in part else 2
    return any(len(shape) == axes or (axes == 2 and len(shape) == 3 and shape[0] == 1) for shape in spare)


def _gone(found: Cover, spare: Sequence[Shape]) -> list[str]:
    """What a model doesn't have at all, in words; not what may be there under another name."""
    made = {layerless(t) for step in found.steps for t in step.targets}
    whole = {part for part in _missing_parts(found) - made if not _in_spare(part, spare)}
    words = {
        "wpe.weight": "no learned position table",
        "mlp.up.weight": "no MLP",
        "ln_1.weight": "no LayerNorm",
        "ln_f.weight": "no LayerNorm at the end",
    }
    return [said for part, said in words.items() if any(name.endswith(part) for name in whole)]
