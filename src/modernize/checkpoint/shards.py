"""Weights in several files with an index: `model.safetensors.index.json` or `pytorch_model.bin.index.json`."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import strict_json
from modernize.checkpoint.base import Source
from modernize.checkpoint.faults import named, shown
from modernize.checkpoint.kinds import Kind, kind_of
from modernize.checkpoint.names import check_names
from modernize.checkpoint.safetensors_file import SafetensorsSource
from modernize.checkpoint.torch_file import load_torch
from modernize.errors import UnreadableFile

if TYPE_CHECKING:
    import torch

_LONGEST = 255  # bytes of a file name
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # SHA-1 or SHA-256
_AGAIN = "download the folder again, or save the model again with save_pretrained"


class ShardedSource:
    """Tensors of all files that an index names, each from the file that the index says.

    Raises UnreadableFile for a file or tensor that is missing, or is there and not in the index.
    """

    def __init__(self, index: Path) -> None:
        where = _weight_map(index)
        self.files = tuple(index.parent / name for name in sorted(set(where.values())))
        for shard in self.files:
            _check_link(shard)
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
        self.checksums = {path: sums for source in sources.values() for path, sums in source.checksums.items()}
        self.tensors = {name: self._sources[name].tensors[name] for name in where}

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, in its stored dtype."""
        return self._sources[name].read(name)

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Some rows of a tensor, in its stored dtype."""
        return self._sources[name].rows(name, start, stop)

    def by_rows(self, name: str) -> bool:
        """Whether some rows of a tensor can be read without the others."""
        return self._sources[name].by_rows(name)

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor in float64."""
        return self._sources[name].array(name)

    def array_blocks(self, name: str, rows: int) -> Iterator[NDArray[np.float64]]:
        """The same in blocks of so many rows."""
        return self._sources[name].array_blocks(name, rows)

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same values."""
        if self._sources[a] is self._sources[b]:
            return self._sources[a].equal(a, b)
        return all(one == other for one, other in zip(self.parts(a), self.parts(b), strict=True))

    def parts(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, some rows at a time."""
        return self._sources[name].parts(name)


def _check_link(file: Path) -> None:
    """A shard that is a link stays in its folder, or leads to a file of the hub's cache, which are named by hashes.

    Raises UnreadableFile for one that leads elsewhere, as a folder from a stranger could have.
    """
    home, real = Path(os.path.realpath(file.parent)), Path(os.path.realpath(file))
    if not real.is_relative_to(home) and not _BLOB.fullmatch(real.name):
        raise UnreadableFile(
            f"{file} is a link that leads out of its folder, to {real}",
            hint="copy the shards into the folder, or give the folder that holds them",
        )


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
    with named(index):
        plain = strict_json.read(index)
    entries = plain.get("weight_map") if isinstance(plain, dict) else None
    if not isinstance(entries, dict):
        raise UnreadableFile(f"{index} is no index of shards: it has no weight_map", hint=_AGAIN)
    check_names(index, entries)
    for name, file in entries.items():
        if not isinstance(file, str) or not _is_file_name(file):
            raise UnreadableFile(
                f"{index} puts {name} into {shown(file)}, which is no file name in its folder", hint=_AGAIN
            )
    if not entries:
        raise UnreadableFile(f"{index} names no tensors", hint=_AGAIN)
    return entries


def _is_file_name(name: str) -> bool:
    """Whether it names a file in a folder, on any system, and can be said."""
    plain = name.isprintable() and Path(name).name == name and "\\" not in name and name not in {"", ".", ".."}
    return plain and len(os.fsencode(name)) <= _LONGEST
