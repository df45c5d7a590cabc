"""What a pickle may leave behind beside plain values. All of it is inert: names and fields, and nothing that acts.

Name     a class or function that is named and neither imported nor called
Record   an object of a class that nobody here knows: its fields, as a mapping
Storage  bytes of a file that tensors look into
View     a tensor: which numbers of a storage, in which order
Misfit   a tensor that has no such numbers (sparse, quantized, of a class of its own), with what it is
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, TooMuch, shown
from modernize.spec import Shape

ITEM_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_ONLY_STORED = {"qint8": 1, "quint8": 1, "qint32": 4}  # no numbers without a scale


@dataclass(frozen=True)
class Name:
    """A class or function, by name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record(Mapping[Any, Any]):
    """An object of a class that is not known: what it was made of (`args`), its fields, and what it holds as a list."""

    kind: Name
    args: tuple[Any, ...] = ()
    fields: dict[Any, Any] = field(default_factory=dict)
    items_held: list[Any] = field(default_factory=list)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401  (whatever the file holds)
        return self.fields[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(frozen=True)
class Storage:
    """Numbers one behind the other, under a key of the file; `numel` of them."""

    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Their size."""
        return self.numel * {**ITEM_SIZES, **_ONLY_STORED}[self.dtype]


@dataclass(frozen=True, kw_only=True, repr=False)
class View:
    """A tensor: numbers of a storage from `offset` on, `stride` apart, all in numbers of its own dtype."""

    storage: Storage | bytes
    dtype: str
    offset: int
    shape: Shape
    stride: Shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<tensor {'×'.join(map(str, self.shape))} {self.dtype}>"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A tensor that cannot be read, and what it is (`a sparse tensor`)."""

    what: str
    shape: Shape = (0,)
    dtype: str = "none"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def is_small(number: object) -> bool:
    """Whether a number may be a key: those that are larger than its hash can be chosen to collide."""
    return not isinstance(number, int) or abs(number) < 1 << 60


def view_of(storage: object, offset: object, shape: object, stride: object, dtype: str | None = None) -> View | Misfit:
    """A view of a storage, checked against its size. Raises Damaged, TooMuch."""
    if not isinstance(storage, Storage):
        raise Damaged(f"a tensor's storage is {shown(storage)}")
    dtype = dtype or storage.dtype
    sizes, steps = _whole(shape, "shape"), _whole(stride, "stride")
    if len(sizes) != len(steps):
        raise Damaged(f"a tensor has {len(sizes)} axes and {len(steps)} strides")
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= limits.SIZE:
        raise Damaged(f"a tensor begins at {shown(offset)}")
    if dtype not in ITEM_SIZES:
        return Misfit(what=f"a tensor of {shown(dtype)}", shape=sizes, dtype=dtype)
    made = View(storage=storage, dtype=dtype, offset=offset, shape=sizes, stride=steps)
    if made.numel:
        last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        there = storage.nbytes // ITEM_SIZES[dtype]
        if last >= there:
            raise Damaged(f"a tensor reaches to number {last:,} of a storage that has {there:,}")
    return made


def _whole(value: object, what: str) -> Shape:
    if not isinstance(value, tuple | list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise Damaged(f"a tensor's {what} is {shown(value)}")
    if len(value) > limits.DIMENSIONS:
        raise TooMuch(f"a tensor of {len(value)} axes, more than {limits.DIMENSIONS}")
    if not all(0 <= n <= limits.SIZE for n in value):
        raise Damaged(f"a tensor's {what} is {'×'.join(map(shown, value))}")
    return tuple(value)


def overlap(shape: Shape, stride: Shape) -> bool:
    """Whether two elements may be one and the same number, as in an expanded tensor."""
    reach = 0
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda axis: axis[1]):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False
