"""What a checkpoint is, whatever file it came from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from modernize.choices import Weights
from modernize.spec import Shape

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 20


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype (`float32`, `bfloat16`, …) of a tensor that need not have been read."""

    shape: Shape
    dtype: str


class Source(Protocol):
    """Where tensors come from, by the names that the file gives them."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor, in the file's order."""

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, on the CPU, in its stored dtype."""

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor of floating point in float64."""

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors of the same shape and dtype hold the same values."""

    def verify(self) -> None:
        """Read everything once and compare it with its checksums, where there are any. Raises UnreadableFile."""


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

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor of floating point by its clean name, in float64; needs no torch for safetensors."""
        return self.source.array(self.raw_names[name])

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same values, bit for bit."""
        return self.tensors[a] == self.tensors[b] and self.source.equal(self.raw_names[a], self.raw_names[b])

    def sha256(self) -> str:
        """Hash of the file that holds the weights; of shards, of all of them one behind the other."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        return digest.hexdigest()
