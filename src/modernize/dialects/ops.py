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
    """Sources -> targets. `shapes` foretells what `apply` gives; both work on lists, one entry per tensor.

    `shapes` raises ValueError where the op cannot be done. `fate` is what reports call it.
    """

    name: str
    fate: Fate
    shapes: Callable[[Sequence[Shape]], list[Shape]]
    apply: "Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]"


def _split3_shapes(sources: Sequence[Shape]) -> list[Shape]:
    rows, *rest = sources[0]
    if rows % 3:
        raise ValueError(f"{rows} rows are not three equal parts")
    return [(rows // 3, *rest)] * 3


def _mask_shapes(sources: Sequence[Shape]) -> list[Shape]:
    *rest, rows, columns = (1, 1, *sources[0])
    if rows != columns or set(rest) - {1}:
        raise ValueError("a causal mask is square")
    return []


def _stack_shapes(sources: Sequence[Shape]) -> list[Shape]:
    if len(set(sources)) != 1:
        raise ValueError(f"heads differ in shape: {sorted(set(sources))}")
    rows, *rest = sources[0]
    return [(rows * len(sources), *rest)]


def _stack(sources: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
    import torch

    return [torch.cat(list(sources), dim=0)]


# as it is, (out, in) or (n,)
KEEP = Op("keep", "renamed", lambda s: [s[0]], lambda t: [t[0]])
# (in, out) -> (out, in), as Conv1D stores its matrices
TRANSPOSE = Op("transpose", "renamed", lambda s: [s[0][::-1]], lambda t: [t[0].t()])
# (3·out, in) or (3·out,) -> q, k, v
SPLIT3 = Op("split3", "split", _split3_shapes, lambda t: list(t[0].chunk(3, dim=0)))
# (in, 3·out) -> q, k, v, each (out, in)
TRANSPOSE_SPLIT3 = Op(
    "transpose_split3",
    "split",
    lambda s: _split3_shapes([s[0][::-1]]),
    lambda t: list(t[0].t().chunk(3, dim=0)),
)
# one (head size, in) or (head size,) per head, in order -> (out, in) or (out,)
STACK_HEADS = Op("stack_heads", "renamed", _stack_shapes, _stack)
# no parameter but a causal mask: a square, or the scalar that stands in for minus infinity
DROP = Op("drop", "ignored", _mask_shapes, lambda t: [])
