"""Safetensors files: 8 bytes of length, a header of JSON, then the tensors' bytes, which the header has to account for
one by one. (Layout: the format's own README, huggingface/safetensors.)
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modernize.checkpoint import limits, strict_json
from modernize.checkpoint.faults import Damaged, Foreign, TooMuch, named, shown
from modernize.checkpoint.names import check_names
from modernize.checkpoint.numpy_values import strides_of
from modernize.checkpoint.places import Place, PlacedSource
from modernize.checkpoint.records import ITEM_SIZES
from modernize.spec import Shape

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip  (safetensors' names -> torch's)
_ROW = {"dtype", "shape", "data_offsets"}


class SafetensorsSource(PlacedSource):
    """Tensors of one safetensors file.

    A tensor that was left out because it shares its memory with another is still there under both names: safetensors'
    `save_model` notes such pairs in the metadata as `left out -> kept`.
    """

    def __init__(self, path: Path) -> None:
        with named(path):
            header, start = _header(path)
            self.metadata: Mapping[str, str] = _metadata(header.pop("__metadata__", {}))
            places = _places(header, start, path.stat().st_size)
        kept = {gone: kept for gone, kept in self.metadata.items() if gone not in places and kept in places}
        check_names(path, (*places, *kept))
        super().__init__(path, {**places, **{gone: places[name] for gone, name in kept.items()}})


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors' bytes begin. Raises Damaged, TooMuch."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size - 8:
            raise Damaged(f"its header is said to have {length:,} bytes, more than the file")
        if length > limits.HEADER:
            raise TooMuch(f"a header of {length:,} bytes, more than {limits.HEADER:,}")
        raw = stream.read(length)
    header = strict_json.parse(raw, limits.HEADER)
    if raw[:1] != b"{" or not isinstance(header, dict):
        raise Damaged("its header is no JSON object")
    return header, 8 + length


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Damaged("its metadata are no texts")
    return found


def _places(header: Mapping[str, Any], start: int, size: int) -> dict[str, Place]:
    """Where each tensor lies; in the order of their bytes, which they fill without a gap. Raises Damaged, TooMuch."""
    if len(header) > limits.TENSORS:
        raise TooMuch(f"{len(header):,} tensors, more than {limits.TENSORS:,}")
    rows = sorted(((name, *_row(name, row)) for name, row in header.items()), key=lambda row: (row[3], row[4]))
    expected = 0
    for name, _, _, begin, end in rows:
        if begin != expected:
            raise Damaged(f"the bytes of {shown(name)} do not begin where those before them end")
        expected = end
    if start + expected != size:
        raise Damaged(f"its tensors have {expected:,} bytes, and it has {size - start:,}")
    places = {
        name: Place(start=start + begin, dtype=dtype, shape=shape, stride=strides_of(shape))
        for name, dtype, shape, begin, _ in rows
    }
    return {name: places[name] for name in header}


def _row(name: str, row: object) -> tuple[str, Shape, int, int]:
    """dtype, shape, first and last byte of one tensor. Raises Damaged, Foreign."""
    if not isinstance(row, dict) or row.keys() != _ROW:
        raise Damaged(f"its header does not say dtype, shape and data_offsets of {shown(name)}")
    shape, offsets = row["shape"], row["data_offsets"]
    if not _are_sizes(shape) or len(shape) > limits.DIMENSIONS or not _are_sizes(offsets) or len(offsets) != 2:
        raise Damaged(f"its header has no shape or place for {shown(name)}")
    if not isinstance(row["dtype"], str) or row["dtype"] not in DTYPES:
        raise Foreign(f"{shown(name)} is of the dtype {shown(row['dtype'])}, which is not known")
    dtype = DTYPES[row["dtype"]]
    if math.prod(shape) * ITEM_SIZES[dtype] != offsets[1] - offsets[0]:
        raise Damaged(f"{shown(name)} has a shape that is not that of its {offsets[1] - offsets[0]:,} bytes")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= limits.SIZE for n in value
    )
