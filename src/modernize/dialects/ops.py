"""What a row does to the tensors it claims. Each Op works on shapes alone and on tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modernize.choices import Fate
from modernize.spec import Shape

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Op:
    """Sources -> targets, in a model of a width. `shapes` foretells what `apply` gives; one entry per tensor.

    `shapes` raises ValueError where the op cannot be done. `fate` is what reports call it. `heads` tells how many heads
    there are, where the shape of a source does, and 0 where it doesn't. Where it works `by_rows`, each row of a target
    is made of the same row of the only source, so that some rows of that give the same rows of each target.
    """

    name: str
    fate: Fate
    shapes: Callable[[Sequence[Shape], int], list[Shape]]
    apply: "Callable[[Sequence[torch.Tensor], int], list[torch.Tensor]]"
    heads: Callable[[Shape, int], int] | None = None
    by_rows: bool = False


def _rows(shape: Shape) -> tuple[int, Shape]:
    """The first axis, and the others."""
    if not shape:
        raise ValueError("a matrix or a vector was expected")
    return shape[0], shape[1:]


def _split3_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    rows, rest = _rows(sources[0])
    if rows % 3:
        raise ValueError(f"{rows} rows are not three equal parts")
    return [(rows // 3, *rest)] * 3


def _shared_size(rows: int, width: int) -> int:
    """The size of a head, where queries for all of them and one key and one value are stored in so many rows."""
    size, odd = divmod(rows - width, 2)
    if odd or size <= 0 or size == width or width % size:
        raise ValueError(f"{rows} rows are not {width} for queries and one head each for key and value")
    return size


def _split_shared_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    rows, rest = _rows(sources[0])
    _shared_size(rows, width)
    return [(width, *rest)] * 3


def _split_shared(sources: "Sequence[torch.Tensor]", width: int) -> "list[torch.Tensor]":
    import torch

    size = _shared_size(len(sources[0]), width)
    q, k, v = torch.split(sources[0], [width, size, size])
    return [q, torch.cat([k] * (width // size)), torch.cat([v] * (width // size))]


def _mask_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    *rest, rows, columns = (1, 1, *sources[0])
    if rows != columns or set(rest) - {1}:
        raise ValueError("a causal mask is square")
    return []


def _stack_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    if len(set(sources)) != 1:
        raise ValueError(f"heads differ in shape: {sorted(set(sources))}")
    rows, rest = _rows(sources[0])
    return [(rows * len(sources), *rest)]


def _stack(sources: "Sequence[torch.Tensor]", width: int) -> "list[torch.Tensor]":
    import torch

    return [torch.cat(list(sources), dim=0)]


def _stack_alone_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    ((rows, *rest),) = _stack_shapes(sources, width)
    return [(rows, *rest), (rows, rows) if rest else (rows,)]


def _stack_alone(sources: "Sequence[torch.Tensor]", width: int) -> "list[torch.Tensor]":
    import torch

    (whole,) = _stack(sources, width)
    return [whole, torch.eye(len(whole), dtype=whole.dtype) if whole.ndim == 2 else torch.zeros_like(whole)]


def _squeeze_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    *ones, rows, columns = (1, 1, *sources[0])
    if set(ones) != {1} or len(sources[0]) > 3:
        raise ValueError("a bare table of positions is positions×width or 1×positions×width")
    return [(rows, columns)]


def _after_two_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    rows, rest = _rows(sources[0])
    if rows <= 2:
        raise ValueError("the first two rows stand for no position, and there are no others")
    return [(rows - 2, *rest)]


def _by_head(sources: Sequence[Shape]) -> tuple[int, int, int]:
    if len(sources[0]) != 3:
        raise ValueError("a matrix for each head has three axes")
    return sources[0]


def _into_heads_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    heads, columns, size = _by_head(sources)
    return [(heads * size, columns)]


def _out_of_heads_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    heads, size, rows = _by_head(sources)
    return [(rows, heads * size)]


def _flat_shapes(sources: Sequence[Shape], width: int) -> list[Shape]:
    if len(sources[0]) != 2:
        raise ValueError("a bias for each head has two axes")
    return [(sources[0][0] * sources[0][1],)]


# as it is, (out, in) or (n,)
KEEP = Op("keep", "renamed", lambda s, _: [s[0]], lambda t, _: [t[0]], by_rows=True)
# (in, out) -> (out, in), as Conv1D stores its matrices
TRANSPOSE = Op("transpose", "renamed", lambda s, _: [s[0][::-1]], lambda t, _: [t[0].t()])
# (3·out, in) or (3·out,) -> q, k, v
SPLIT3 = Op("split3", "split", _split3_shapes, lambda t, _: list(t[0].chunk(3, dim=0)))
# (in, 3·out) -> q, k, v, each (out, in)
TRANSPOSE_SPLIT3 = Op(
    "transpose_split3",
    "split",
    lambda s, d: _split3_shapes([s[0][::-1]], d),
    lambda t, _: list(t[0].t().chunk(3, dim=0)),
)
# (width + 2·head size, in) or (width + 2·head size,): one key and one value for all heads -> q, k, v, repeated
SPLIT_SHARED = Op("split_shared", "split", _split_shared_shapes, _split_shared, lambda s, d: d // _shared_size(s[0], d))
# one (head size, in) or (head size,) per head, in order -> (out, in) or (out,)
STACK_HEADS = Op("stack_heads", "renamed", _stack_shapes, _stack)
# the same of values whose heads are put side by side and not projected -> values, and an output that changes nothing
STACK_HEADS_ALONE = Op("stack_heads_alone", "renamed", _stack_alone_shapes, _stack_alone)
# (heads, in, head size) -> (out, in)
INTO_HEADS = Op(
    "into_heads",
    "renamed",
    _into_heads_shapes,
    lambda t, _: [t[0].transpose(1, 2).flatten(0, 1)],
    lambda s, _: s[0],
)
# (heads, head size, out) -> (out, in)
OUT_OF_HEADS = Op("out_of_heads", "renamed", _out_of_heads_shapes, lambda t, _: [t[0].flatten(0, 1).t()])
# (heads, head size) -> (out,)
FLATTEN = Op("flatten", "renamed", _flat_shapes, lambda t, _: [t[0].flatten()])
# (positions, width) or (1, positions, width) -> (positions, width)
SQUEEZE = Op("squeeze", "renamed", _squeeze_shapes, lambda t, _: [t[0].reshape(t[0].shape[-2:])])
# (2 + positions, width) -> (positions, width), of programs that count positions from two
AFTER_TWO = Op("after_two", "renamed", _after_two_shapes, lambda t, _: [t[0][2:]])
# an embedding that is multiplied by √width where tokens come in and not where they go out -> both
SCALE_INPUT = Op("scale_input", "renamed", lambda s, _: [s[0]] * 2, lambda t, d: [t[0] * d**0.5, t[0]], by_rows=True)
# no part of the model: measured, or of other weights
IGNORE = Op("ignore", "ignored", lambda s, _: [], lambda t, _: [])
# no parameter but a causal mask: a square, or the scalar that stands in for minus infinity
DROP = Op("drop", "ignored", _mask_shapes, lambda t, _: [])
