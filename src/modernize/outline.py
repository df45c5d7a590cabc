"""Recognise, by shapes: the outline of a model that names have covered, and what contradicts it; reads no tensor."""

from collections.abc import Iterable, Mapping

from modernize.checkpoint import Checkpoint
from modernize.dialects import Cover, Step
from modernize.errors import BadTensors
from modernize.spec import FLOATS, LINEARS, NORMS, GPTSpec, Shape, names_of

_SHOWN = 3  # names in a sentence
_TABLES = ("wte.weight", "wpe.weight", "h.0.mlp.up.weight")  # whose shapes tell the sizes of a model


def canonical_shapes(checkpoint: Checkpoint, found: Cover) -> dict[str, Shape]:
    """Shapes of the canonical State of a cover without `shape_faults`."""
    width = width_of(checkpoint, found)
    return {target: shape for step in found.steps for target, shape in _given(checkpoint, step, width).items()}


def width_of(checkpoint: Checkpoint, found: Cover) -> int:
    """The width of the embedding; 0 where it is no table."""
    (source,) = next(step.sources for step in found.steps if "wte.weight" in step.targets)
    return (*checkpoint.tensors[source].shape, 0, 0)[1]


def outline(shapes: Mapping[str, Shape], found: Cover) -> GPTSpec:
    """The spec as far as names and shapes tell it."""
    (vocab_size, n_embd), (block_size, _), (n_inner, _) = (shapes[name] for name in _TABLES)
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


def shape_faults(checkpoint: Checkpoint, found: Cover) -> list[tuple[int, str]]:
    """What is wrong with tensors that a row cannot turn into their place in the model, each with its number in the file
    and in this order; none where all fit.
    """
    place = {name: number for number, name in enumerate(checkpoint.tensors)}
    width = width_of(checkpoint, found)
    shapes: dict[str, Shape] = {}
    faults: list[tuple[int, str]] = []
    for step in found.steps:
        try:
            shapes |= _given(checkpoint, step, width)
        except ValueError as error:
            source = step.sources[0]
            shape = dimensions(checkpoint.tensors[source].shape)
            faults.append((place[source], f"{source} has the shape {shape}: {error}"))
    if not faults:
        wanted = outline(shapes, found).shapes()
        for step in found.steps:
            faults += [(place[step.sources[0]], said) for said in _misplaced(checkpoint, step, shapes, wanted)]
    return sorted(faults)


def _given(checkpoint: Checkpoint, step: Step, width: int) -> dict[str, Shape]:
    """Shapes of what a step gives. Raises ValueError where it cannot be done."""
    shapes = step.op.shapes([checkpoint.tensors[name].shape for name in step.sources], width)
    given = dict(zip(step.targets, shapes, strict=True))
    if any(target in _TABLES and len(shape) != 2 for target, shape in given.items()):
        raise ValueError("a table of two axes was expected")
    return given


def _misplaced(
    checkpoint: Checkpoint, step: Step, shapes: Mapping[str, Shape], wanted: Mapping[str, Shape]
) -> Iterable[str]:
    for name in step.sources if step.targets else ():
        if checkpoint.tensors[name].dtype not in FLOATS:
            yield f"{name} is {checkpoint.tensors[name].dtype}, where floating point was expected"
    for target in step.targets:
        if shapes[target] != wanted[target]:
            yield (
                f"{listed(step.sources)} gives {target} the shape {dimensions(shapes[target])}, "
                f"where {dimensions(wanted[target])} was expected"
            )


def check_sizes(checkpoint: Checkpoint, spec: GPTSpec) -> None:
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


def listed(names: Iterable[str], *, of: int = 0) -> str:
    """A few names, and how many more there are, all in all or `of` so many."""
    names = list(names)
    more = max(len(names), of) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def dimensions(shape: Shape) -> str:
    """A shape as people write it: 96×32."""
    return "×".join(map(str, shape)) or "scalar"
