"""Safetensors files. The header tells names, shapes and dtypes; torch is imported when a tensor is asked for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint.base import TensorInfo
from modernize.errors import UnreadableFile

if TYPE_CHECKING:
    import torch

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}  # safetensors' names -> torch's


class SafetensorsSource:
    """Tensors of one safetensors file.

    A tensor that was left out because it shares its memory with another is still there under both names: safetensors'
    `save_model` notes such pairs in the metadata as `left out -> kept`.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            # opening checks the whole header: lengths, offsets, dtypes
            with safe_open(path, framework="numpy") as file:
                order = list(file.keys())
                self.metadata: Mapping[str, str] = file.metadata() or {}
            self._offsets, infos = _header(path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise UnreadableFile(
                f"{path} is a damaged safetensors file: {error}",
                hint="copy or download it again, and compare its size",
            ) from error
        self.path = path
        self._kept = {gone: kept for gone, kept in self.metadata.items() if gone not in infos and kept in infos}
        self.tensors = {name: infos[name] for name in order}
        self.tensors |= {gone: infos[kept] for gone, kept in self._kept.items()}

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, in its stored dtype."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(self._kept.get(name, name))
        except SafetensorError as error:  # a path that is no UTF-8, or a file that changed meanwhile
            raise UnreadableFile(
                f"{name} cannot be read from {self.path}: {error}", hint="rename it, or copy it again"
            ) from error
        return tensor

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor in float64, without torch. bfloat16, which numpy lacks, is the upper half of a float32."""
        info, raw = self.tensors[name], self._bytes(self._kept.get(name, name))
        if info.dtype == "bfloat16":
            halves = np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16
            return halves.view(np.float32).reshape(info.shape).astype(np.float64)
        return np.frombuffer(raw, dtype=np.dtype(info.dtype).newbyteorder("<")).reshape(info.shape).astype(np.float64)

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same bytes."""
        a, b = self._kept.get(a, a), self._kept.get(b, b)
        return a == b or self._bytes(a) == self._bytes(b)

    def verify(self) -> None:
        """There are no checksums; that the header fits the size of the file was checked when it was opened."""

    def _bytes(self, name: str) -> bytes:
        start, end = self._offsets[name]
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)


def _header(path: Path) -> tuple[dict[str, tuple[int, int]], dict[str, TensorInfo]]:
    """Byte range within the file, and shape and dtype, of each tensor (layout: 8 bytes of length, JSON, data)."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length).decode("utf-8"))
    header.pop("__metadata__", None)
    base = 8 + length
    offsets = {name: (base + row["data_offsets"][0], base + row["data_offsets"][1]) for name, row in header.items()}
    infos = {
        name: TensorInfo(tuple(row["shape"]), DTYPES.get(row["dtype"], str(row["dtype"]).lower()))
        for name, row in header.items()
    }
    return offsets, infos
