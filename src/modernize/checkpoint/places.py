"""Tensors by where their bytes lie in a file: read one at a time, a few rows at a time, and never before they are asked
for. Nothing is mapped into memory, so what was read and let go takes none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint.base import Checksum, TensorInfo
from modernize.checkpoint.faults import COPY_AGAIN
from modernize.checkpoint.records import ITEM_SIZES, overlap
from modernize.errors import UnreadableFile
from modernize.spec import Shape

if TYPE_CHECKING:
    import torch

_PART = 1 << 22  # elements that are compared at once
# bfloat16, which numpy lacks, is the upper half of a float32
_NUMPY = {name: name for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A tensor's numbers: from byte `start` of a file (or of `held`) on, `stride` numbers apart."""

    start: int
    dtype: str
    shape: Shape
    stride: Shape
    held: bytes | None = None

    @property
    def extent(self) -> int:
        """Numbers from the first to the last."""
        if not math.prod(self.shape):
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def in_order(self) -> bool:
        """Whether they lie one behind the other, as they are counted."""
        wanted = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != wanted:
                return False
            wanted *= size
        return True

    @property
    def by_rows(self) -> bool:
        """Whether each row lies behind the one before it."""
        return not self.shape or self.shape[0] <= 1 or self.stride[0] == max(self.stride)

    def rows(self, first: int, last: int) -> "Place":
        """The place of some rows of it."""
        step = self.stride[0] * ITEM_SIZES[self.dtype]
        return replace(self, start=self.start + first * step, shape=(last - first, *self.shape[1:]))


class PlacedSource:
    """Tensors of one file, by their places."""

    def __init__(self, path: Path, places: Mapping[str, Place], checksums: Sequence[Checksum] = ()) -> None:
        self.path, self._places = path, places
        self.checksums = {path: tuple(checksums)}
        self.tensors = {name: TensorInfo(place.shape, place.dtype) for name, place in places.items()}

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, in its stored dtype. Raises UnreadableFile for one whose numbers stand for several elements."""
        return self._tensor(self._single(name))

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Some rows of a tensor, in its stored dtype."""
        return self._tensor(self._single(name).rows(start, stop))

    def by_rows(self, name: str) -> bool:
        """Whether some rows can be read without the others: not in a transposed matrix, whose rows lie everywhere."""
        return self._places[name].by_rows

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor in float64, without torch."""
        return self._array(self._places[name])

    def array_blocks(self, name: str, rows: int) -> Iterator[NDArray[np.float64]]:
        """The same in blocks of so many rows; what cannot be read by rows is read once."""
        place = self._places[name]
        starts = range(0, place.shape[0], rows)
        if place.by_rows:
            yield from (self._array(place.rows(at, min(at + rows, place.shape[0]))) for at in starts)
        else:
            whole = self._numbers(place)
            yield from (whole[at : at + rows].astype(np.float64) for at in starts)

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors of the same shape and dtype hold the same bytes; stops at the first that differ."""
        if self._places[a] == self._places[b]:
            return True
        return all(one == other for one, other in zip(self.parts(a), self.parts(b), strict=True))

    def parts(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor in the order of its elements, some rows at a time."""
        place = self._places[name]
        if not place.shape:
            yield self._raw(place).tobytes()
            return
        rows = place.shape[0]
        if not place.by_rows:
            yield self._ordered(place)
            return
        at_once = max(1, _PART * rows // max(1, math.prod(place.shape)))
        for at in range(0, rows if place.extent else 0, at_once):
            yield self._ordered(place.rows(at, min(at + at_once, rows)))

    def _single(self, name: str) -> Place:
        place = self._places[name]
        if math.prod(place.shape) and overlap(place.shape, place.stride):
            raise expanded(self.path, name)
        return place

    def _tensor(self, place: Place) -> "torch.Tensor":
        import torch

        dtype: torch.dtype = getattr(torch, place.dtype)
        whole = torch.empty(place.extent, dtype=dtype, device="cpu")
        if place.extent:
            self._fill(place, whole.view(torch.uint8).numpy())
        view = whole.as_strided(place.shape, place.stride) if place.extent else whole.reshape(place.shape)
        return view.contiguous()

    def _array(self, place: Place) -> NDArray[np.float64]:
        return self._numbers(place).astype(np.float64)

    def _numbers(self, place: Place) -> NDArray[Any]:
        raw = self._raw(place)
        if place.dtype == "bfloat16":
            numbers: NDArray[Any] = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = raw.view(np.dtype(_NUMPY[place.dtype]).newbyteorder("<"))
        return _laid_out(numbers, place)

    def _ordered(self, place: Place) -> bytes:
        """The bytes of its numbers in the order in which they are counted."""
        raw = self._raw(place)
        return raw.tobytes() if place.in_order else _laid_out(raw.view(f"V{ITEM_SIZES[place.dtype]}"), place).tobytes()

    def _raw(self, place: Place) -> NDArray[np.uint8]:
        raw = np.empty(place.extent * ITEM_SIZES[place.dtype], dtype=np.uint8)
        self._fill(place, raw)
        return raw

    def _fill(self, place: Place, into: NDArray[np.uint8]) -> None:
        """The bytes of a place. Raises UnreadableFile where the file has become shorter."""
        if place.held is not None:
            into[:] = np.frombuffer(place.held, np.uint8)[place.start : place.start + len(into)]
            return
        rest = memoryview(into.data)
        with self.path.open("rb", buffering=0) as stream:
            stream.seek(place.start)
            while rest:
                count = stream.readinto(rest)
                if not count:
                    raise UnreadableFile(f"{self.path} has become shorter while it was read", hint=COPY_AGAIN)
                rest = rest[count:]


def expanded(path: Path, name: str) -> UnreadableFile:
    """What there is to say of a weight whose numbers stand for several elements each."""
    return UnreadableFile(
        f"{path}: {name} is an expanded tensor, whose numbers stand for several elements each",
        hint="save it whole: tensor.clone() in the place of the expanded one",
    )


def _laid_out(numbers: NDArray[Any], place: Place) -> NDArray[Any]:
    if place.in_order or not place.extent:
        return numbers.reshape(place.shape)
    steps = [step * numbers.itemsize for step in place.stride]
    return np.lib.stride_tricks.as_strided(numbers, place.shape, steps, writeable=False)
