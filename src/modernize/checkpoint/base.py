"""What a checkpoint is, whatever file it came from."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint.faults import Damaged, named
from modernize.choices import Weights
from modernize.spec import Shape

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 20
Stamp: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype (`float32`, `bfloat16`, …) of a tensor that need not have been read."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The CRC-32 of a part of a file, `start` to `end`; 0 where none was computed."""

    what: str
    start: int
    end: int
    crc: int

    def check(self, raw: bytes) -> None:
        """Raises Damaged where the bytes of the part are others."""
        self.compare(zlib.crc32(raw))

    def compare(self, crc: int) -> None:
        """Raises Damaged for another."""
        if self.crc and crc != self.crc:
            raise Damaged(f"the checksum of {self.what} is not that of its bytes")


class Source(Protocol):
    """Where tensors come from, by the names that the file gives them."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor, in the file's order."""

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, on the CPU, in its stored dtype."""

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows [start, stop) of one tensor along its first axis, as `read` gives it, in memory of their own."""

    def by_rows(self, name: str) -> bool:
        """Whether some rows of a tensor can be read without the others."""

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor of floating point in float64."""

    def array_blocks(self, name: str, rows: int) -> Iterator[NDArray[np.float64]]:
        """One tensor of floating point in float64, in blocks of so many rows."""

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors of the same shape and dtype hold the same values, bit for bit."""

    def parts(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor in the order of its elements, some rows at a time."""

    @property
    def checksums(self) -> Mapping[Path, Sequence[Checksum]]:
        """Where the files say what their bytes add up to."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors by clean name, and everything that the file says beside them.

    `settings` are the groups of plain values found beside the weights, most telling first, by the key that held them
    (`model_args`, `config.json`, …). `vocabulary` is the token of each id where the file carries one (`stoi`, `chars`).
    `raw_names` maps each clean name to the file's own, which differs where a wrapper's prefix was taken off.
    """

    path: Path
    format: str
    files: tuple[Path, ...]  # that hold the weights; for a folder, those in it
    source: Source
    raw_names: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]
    vocabulary: Mapping[str, int]
    metadata: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    weights: Weights = "model"  # which of several sets was asked for
    tensors: Mapping[str, TensorInfo] = field(init=False)

    def __post_init__(self) -> None:
        infos = self.source.tensors
        object.__setattr__(self, "tensors", {name: infos[raw] for name, raw in self.raw_names.items()})

    def read(self, name: str) -> "torch.Tensor":
        """One tensor by its clean name, on the CPU, in its stored dtype."""
        return self.source.read(self.raw_names[name])

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows [start, stop) of one tensor along its first axis, as `read` gives it."""
        return self.source.rows(self.raw_names[name], start, stop)

    def by_rows(self, name: str) -> bool:
        """Whether some rows of a tensor can be read without the others, which a transposed one lies across."""
        return self.source.by_rows(self.raw_names[name])

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor of floating point by its clean name, in float64; needs no torch."""
        return self.source.array(self.raw_names[name])

    def array_blocks(self, name: str, rows: int) -> Iterator[NDArray[np.float64]]:
        """The same in blocks of so many rows."""
        return self.source.array_blocks(self.raw_names[name], rows)

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same values, bit for bit."""
        return self.tensors[a] == self.tensors[b] and self.source.equal(self.raw_names[a], self.raw_names[b])

    def sha256(self) -> str:
        """Hash of the file that holds the weights; of shards, of all of them one behind the other.

        Every byte is read, once, and compared with the checksums that the files have. Raises UnreadableFile. May run
        beside other readers.
        """
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for file in self.files:
            with named(file):
                _read_through(file, digest, self.source.checksums.get(file, ()))
        return digest.hexdigest()


def _read_through(file: Path, digest: "hashlib._Hash", checksums: Sequence[Checksum]) -> None:
    """Feed a file to a digest, and its parts to their checksums, which don't overlap. Raises Damaged."""
    at = 0
    with file.open("rb", buffering=0) as stream:

        def feed(count: int) -> int:
            """The CRC of the next bytes, as far as there are so many."""
            nonlocal at
            crc, end = 0, at + count
            while at < end and (read := stream.readinto(buffer[: min(_CHUNK, end - at)])):
                digest.update(buffer[:read])
                crc = zlib.crc32(buffer[:read], crc)
                at += read
            return crc

        buffer = memoryview(bytearray(_CHUNK))
        for checksum in sorted(checksums, key=lambda part: part.start):
            feed(checksum.start - at)
            checksum.compare(feed(checksum.end - checksum.start))
        feed(1 << 62)


def stamps_of(files: Iterable[Path]) -> tuple[Stamp | None, ...]:
    """What changes when a file does: its size, the time of its last change, and which file it is; None for no file."""
    found: list[Stamp | None] = []
    for file in files:
        try:
            seen = file.stat()
        except OSError:  # whoever opens it says what is wrong
            found.append(None)
        else:
            found.append((seen.st_size, seen.st_mtime_ns, seen.st_ino))
    return tuple(found)
