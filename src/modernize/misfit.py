"""Recognise, where it fails: what is said of a file that no dialect fits."""

import math
from collections.abc import Sequence

from modernize.checkpoint import Checkpoint
from modernize.dialects import Cover
from modernize.errors import BadTensors, UnknownLayout
from modernize.outline import listed, shape_faults
from modernize.spec import layerless
from modernize.stored import METADATA_KEY
from modernize.strangers import stranger
from modernize.unwrap import Unwrapped


def check_file(checkpoint: Checkpoint) -> None:
    """Whether there is anything to recognise. Raises UnknownLayout, BadTensors."""
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
        if len(info.shape) == 2 and info.dtype == "int8":
            raise BadTensors(
                f"{checkpoint.path}: {name} is int8, so it holds quantized weights",
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
    faults = []
    if nearest.missing:
        gone = "".join(f" ({what})" for what in _gone(nearest))
        faults.append(f"it lacks {listed(nearest.missing, of=nearest.lacking)}{gone}")
    if strange := (*nearest.unknown, *found.strange):
        faults.append(f"it has {listed(strange)}, which no row knows")
    if nearest.twice:
        faults.append(f"{listed(nearest.twice)} are the same tensor")
    return UnknownLayout(
        f"{whole.path} is nearest to {nearest.dialect.name}, but {' and '.join(faults)}",
        hint=_other_set(whole, found)
        or "a model with other parts cannot be converted; `modernize dialects` lists what can",
    )


def misshapen(checkpoint: Checkpoint, covers: Sequence[Cover]) -> BadTensors:
    """Names of a dialect, with shapes that are not: of several, the one whose first fault comes last."""
    faults = {found.dialect.name: shape_faults(checkpoint, found)[0] for found in covers}
    name = max(faults, key=lambda name: faults[name][0])
    return BadTensors(
        f"{checkpoint.path} has the names of {name}, but {faults[name][1]}",
        hint="check which program wrote the file; its tensors do not fit together",
    )


def _other_set(whole: Checkpoint, found: Unwrapped) -> str:
    """The hint that another set of weights in the file is whole; empty where none is."""
    if not found.other_is_whole:
        return ""
    if whole.weights == "ema":
        return "the trained weights in it are whole: leave --weights out"
    return "the averaged weights in it are whole: --weights ema takes them"


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
