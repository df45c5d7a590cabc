"""Numpy's numbers and arrays in a pickle: their bytes, read as what their dtype says. Nothing of numpy's is called."""

import math
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import limits
from modernize.checkpoint.records import View
from modernize.spec import Shape

_KINDS = {
    "f2": "float16", "f4": "float32", "f8": "float64",
    "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64", "b1": "bool",
}  # fmt: skip


class DType:
    """A dtype: the kind as numpy writes it, such as `f8`, and the order of its bytes."""

    def __init__(self, kind: object) -> None:
        self.kind, self.order = kind if isinstance(kind, str) else "", "="

    def set_state(self, state: object) -> None:
        """The second of the values that numpy pickles is the order of bytes."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "="):
            self.order = state[1]

    def read(self, raw: object) -> NDArray[Any] | None:
        """Numbers from their bytes, or None where they are no numbers."""
        if self.kind not in _KINDS or not isinstance(raw, bytes | str):
            return None
        found = np.dtype(self.kind).newbyteorder("=" if self.order == "=" else self.order)  # type: ignore[arg-type]
        try:
            data = raw.encode("latin-1") if isinstance(raw, str) else raw
        except UnicodeEncodeError:
            return None
        if not data or len(data) % found.itemsize:
            return None
        return np.frombuffer(data, found).astype(found.newbyteorder("="), copy=False)


class Array:
    """An array. `value` is its numbers, or None for what holds none (objects, texts, nothing)."""

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None

    def set_state(self, state: object) -> None:
        """(version, shape, dtype, whether columns come first, bytes)."""
        if isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            self.fill(raw, dtype, shape, "F" if fortran is True else "C")

    def __len__(self) -> int:
        """Bytes of its numbers."""
        return 0 if self.value is None else self.value.nbytes

    def fill(self, raw: object, dtype: object, shape: object, order: object) -> None:
        """Take numbers from their bytes where all of it fits together."""
        flat = dtype.read(raw) if isinstance(dtype, DType) else None
        if flat is None or not _is_shape(shape) or order not in ("C", "F"):
            return
        if math.prod(shape) == len(flat):
            self.value = flat.reshape(shape, order="F" if order == "F" else "C")

    def as_view(self) -> View | None:
        """The same numbers as a tensor, held in memory."""
        if self.value is None:
            return None
        whole = np.ascontiguousarray(self.value)
        return View(
            storage=whole.tobytes(),
            dtype=str(whole.dtype),
            offset=0,
            shape=self.value.shape,
            stride=strides_of(self.value.shape),
        )


def from_buffer(args: tuple[Any, ...]) -> Array:
    """`numpy._core.numeric._frombuffer(bytes, dtype, shape, order)`, as pickle protocol 5 has it."""
    made = Array()
    if len(args) == 4:
        made.fill(*args)
    return made


def scalar(args: tuple[Any, ...]) -> int | float | bool | None:
    """`numpy._core.multiarray.scalar(dtype, bytes)`: a Python number, or None for what is none."""
    flat = args[0].read(args[1]) if len(args) == 2 and isinstance(args[0], DType) else None
    if flat is None or len(flat) != 1:
        return None
    number: int | float | bool = flat[0].item()
    return number


def strides_of(shape: Shape) -> Shape:
    """Strides of numbers that lie in order, in numbers: (2, 3) -> (3, 1)."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _is_shape(shape: object) -> TypeGuard[Shape]:
    return (
        isinstance(shape, tuple)
        and len(shape) <= limits.DIMENSIONS
        and all(isinstance(n, int) and 0 <= n <= limits.SIZE for n in shape)
    )
