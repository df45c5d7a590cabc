"""What training programs pickle beside the weights, as plain values: numpy's numbers and arrays, paths, defaultdicts
and deques.

A torch file may only rebuild what is on a list. Under the names of these things the list has functions and classes of
our own, so nothing of numpy's or pathlib's is called by a file.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})


class DType:
    """Stands in for numpy.dtype: the kind as numpy writes it, such as `f8`, and the order of its bytes."""

    def __init__(self, kind: object = "", *_: object) -> None:
        self.kind, self.order = str(kind), "="

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in {"<", ">", "="}:
            self.order = str(state[1])

    def read(self, raw: object) -> NDArray[Any] | None:
        """Numbers from their bytes, or None where they are no numbers."""
        if self.kind not in _KINDS or not isinstance(raw, bytes | str):
            return None
        found = np.dtype(self.kind).newbyteorder("=" if self.order == "=" else self.order)  # type: ignore[arg-type]
        data = raw.encode("latin-1") if isinstance(raw, str) else raw
        if not data or len(data) % found.itemsize:
            return None
        return np.frombuffer(data, found).astype(found.newbyteorder("="))


class Array:
    """Stands in for numpy.ndarray. `value` is its numbers, or None for what holds none."""

    def __init__(self, *_: object) -> None:
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            return
        _, shape, dtype, fortran, raw = state
        flat = dtype.read(raw) if isinstance(dtype, DType) else None
        if flat is None or not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return
        if math.prod(shape) == len(flat):
            self.value = flat.reshape(shape, order="F" if fortran else "C")


def scalar(dtype: object, raw: object = b"") -> int | float | bool | None:
    """Stands in for numpy's scalars: a Python number, or None for what is none."""
    flat = dtype.read(raw) if isinstance(dtype, DType) else None
    if flat is None or len(flat) != 1:
        return None
    number: int | float | bool = flat[0].item()
    return number


def path(*parts: object) -> str:
    """Stands in for a path of any system: its parts, joined."""
    return "/".join(map(str, parts)).replace("//", "/")


def dictionary(*_: object) -> dict[Any, Any]:
    """Stands in for collections.defaultdict: what was in it, and nothing that is made up."""
    return {}


def sequence(*_: object) -> list[Any]:
    """Stands in for collections.deque: what was in it."""
    return []


def nothing(*_: object) -> None:
    """Stands in for a function that is named and not needed."""


STAND_INS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (DType, "numpy.dtype"),
    (Array, "numpy.ndarray"),
    *((scalar, f"{module}.multiarray.scalar") for module in ("numpy._core", "numpy.core")),
    *((Array, f"{module}.multiarray._reconstruct") for module in ("numpy._core", "numpy.core")),
    *((path, f"{module}.{name}") for module in ("pathlib", "pathlib._local") for name in (
        "Path", "PurePath", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath",
    )),
    (dictionary, "collections.defaultdict"),
    (sequence, "collections.deque"),
    (nothing, "builtins.slice"),
    (nothing, "builtins.list"),
    (nothing, "builtins.dict"),
    (nothing, "builtins.int"),
    (nothing, "builtins.float"),
]  # fmt: skip
