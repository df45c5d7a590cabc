"""Weights in several files with an index: `model.safetensors.index.json` or `pytorch_model.bin.index.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint.base import Source
from modernize.checkpoint.kinds import Kind, kind_of
from modernize.checkpoint.safetensors_file import SafetensorsSource
from modernize.checkpoint.torch_file import load_torch
from modernize.errors import UnreadableFile

if TYPE_CHECKING:
    import torch

_AGAIN = "download the folder again, or save the model again with save_pretrained"


class ShardedSource:
    """Tensors of all files that an index names, each from the file that the index says.

    Raises UnreadableFile for a file or tensor that is missing, or is there and not in the index.
    """

    def __init__(self, index: Path) -> None:
        where = _weight_map(index)
        self.files = tuple(index.parent / name for name in sorted(set(where.values())))
        missing = [file.name for file in self.files if not file.is_file()]
        if missing:
            raise UnreadableFile(f"{index} names {missing[0]}, which is not there", hint=_AGAIN)
        sources = {file.name: source_of(file) for file in self.files}
        self._sources: dict[str, Source] = {name: sources[file] for name, file in where.items()}
        for name, file in where.items():
            if name not in sources[file].tensors:
                raise UnreadableFile(f"{index} says that {file} holds {name}, and it doesn't", hint=_AGAIN)
        for file, source in sources.items():
            for name in source.tensors:
                if where.get(name) != file:
                    raise UnreadableFile(
                        f"{index.parent / file} holds {name}, which the index doesn't say", hint=_AGAIN
                    )
        self.metadata: Mapping[str, str] = {}
        self.tensors = {name: self._sources[name].tensors[name] for name in where}

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, in its stored dtype."""
        return self._sources[name].read(name)

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor in float64."""
        return self._sources[name].array(name)

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same values."""
        if self._sources[a] is self._sources[b]:
            return self._sources[a].equal(a, b)
        return bool(np.array_equal(self.array(a), self.array(b)))

    def verify(self) -> None:
        """Every file once."""
        for source in {id(source): source for source in self._sources.values()}.values():
            source.verify()


def source_of(file: Path) -> Source:
    """The tensors of one file of weights. Raises UnreadableFile, UnsafeFile."""
    kind = kind_of(file)
    if kind is Kind.SAFETENSORS:
        return SafetensorsSource(file)
    return load_torch(file, legacy=kind is Kind.TORCH_LEGACY).choose("model")


def shards_in(index: Path) -> tuple[Path, ...]:
    """The files that an index names; none where it cannot be read."""
    try:
        return tuple(index.parent / name for name in sorted(set(_weight_map(index).values())))
    except UnreadableFile:
        return ()


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, every one a name within the folder."""
    try:
        plain: Any = json.loads(index.read_text(encoding="utf-8"))
        where = plain["weight_map"]
        entries = dict(where.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableFile(f"{index} is no index of shards: {error}"[:400], hint=_AGAIN) from error
    for name, file in entries.items():
        if not isinstance(file, str) or Path(file).name != file or file in {"", ".", ".."}:
            raise UnreadableFile(f"{index} puts {name} into {file!r}, which is no file name in its folder", hint=_AGAIN)
    if not entries:
        raise UnreadableFile(f"{index} names no tensors", hint=_AGAIN)
    return entries
