"""Write: the safetensors file of a model, and what is asked of an output before any work is done.

The bytes are laid out here and not by the safetensors package because that writes metadata in an order that changes
from run to run, and the same conversion has to give the same bytes. (Layout: 8 bytes of length, a JSON header, data.)
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from modernize import __version__
from modernize.errors import BadTensors, OutputRefused, UsageError
from modernize.recognise import is_finite
from modernize.spec import ModernConfig, Shape, State
from modernize.stored import METADATA_KEY, SCHEMA
from modernize.whole import Part, resolve_output, write_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# names in torch, names in the file and bytes
DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "uint8": ("U8", 1),
}
Row: TypeAlias = "tuple[Shape, torch.dtype | str]"


def check_output(path: Path, *, inputs: tuple[Path, ...], force: bool) -> None:
    """Refuse an output before any work is done.

    Raises OutputRefused when it is one of the inputs (also through links), exists without `force`, is no regular file,
    or has no folder that can be written to.
    """
    try:
        _check_output(path, inputs, force)
    except OSError as error:
        raise OutputRefused(
            f"the output {path} cannot be looked at: {error.strerror}", hint="check its folder and its name"
        ) from error


def _check_output(path: Path, inputs: tuple[Path, ...], force: bool) -> None:
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise OutputRefused(f"the output {path} is the input {source}", hint="give the output another name")
    target = resolve_output(path)
    if target.exists() and not force:
        raise OutputRefused(f"the output {path} exists already", hint="give another name, or --force to replace it")
    folder = target.parent
    if not folder.is_dir():
        shown = folder if path.is_symlink() else path.parent
        raise OutputRefused(f"there is no folder {shown}", hint=f"make it first: mkdir -p '{shown}'")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputRefused(f"nothing can be written into the folder {folder}", hint="check its permissions")


def check_suffix(path: Path) -> None:
    """Refuse a name that would make other programs take a safetensors file for something else. Raises UsageError."""
    if path.suffix != ".safetensors":
        raise UsageError(
            f"{path} is not named .safetensors, and nothing else is written",
            hint=f"name it {path.with_suffix('.safetensors')}",
        )


def model_metadata(
    config: ModernConfig,
    *,
    sha256: str,
    dialect: str,
    init: str,
    vocabulary: Mapping[str, int],
    facts: Mapping[str, Any],
    calibration: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """All that is needed to load a modern file, and where it came from, as safetensors metadata.

    `facts` are those of the old model, `calibration` tells how a retrofit went, `history` has an entry for each
    fine-tune since the conversion.
    """
    plain = {
        "schema": SCHEMA,
        "version": __version__,
        "config": config.to_json(),
        "source": {"sha256": sha256, "dialect": dialect, "facts": dict(facts)},
        "init": init,
        "calibration": None if calibration is None else dict(calibration),
        "vocabulary": dict(vocabulary),
        "finetunes": list(history),
    }
    return {"format": "pt", METADATA_KEY: json.dumps(plain, ensure_ascii=True, sort_keys=True)}


def write_tensors(path: Path, state: State, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all. Raises OutputRefused; see `write_whole`."""
    rows: dict[str, Row] = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    write_streamed(path, rows, state.values(), metadata)


def write_streamed(
    path: Path,
    rows: Mapping[str, Row],
    pieces: "Iterable[Tensor]",
    metadata: Mapping[str, str],
    final: Callable[[], Mapping[str, str]] | None = None,
) -> None:
    """Write a safetensors file whose tensors are made while it is written, whole or not at all.

    `rows` tells the shape and the dtype of each name. `pieces` are the tensors in the same order, each as one piece or
    as several, say some rows at a time, whose bytes follow each other; none is held longer than it takes to write it.
    Metadata stand first in the file, and something in them may be known last: `final` gives them when all pieces are
    there, as long as those that held the place. Raises OutputRefused (see `write_whole`), ValueError for pieces or
    metadata that are not what was told, and what `pieces` and `final` raise.
    """
    header = _header(rows, metadata)

    def revised() -> bytes:
        again = _header(rows, final() if final else metadata)
        if len(again) != len(header):
            raise ValueError(f"a header of {len(again)} bytes in the place of one of {len(header)}")
        return again

    write_whole(path, itertools.chain([header], _data(rows, pieces)), beginning=revised if final else None)


def cast(state: State, dtype: "torch.dtype", *, origin: Callable[[str], str]) -> State:
    """The same tensors in another dtype. Raises BadTensors where a value does not fit, with what `origin` calls it."""
    import torch

    cast_state = {name: tensor.to(dtype) for name, tensor in state.items()}
    for name, tensor in cast_state.items():
        if not is_finite(tensor):
            largest = state[name].abs().max().item()
            raise BadTensors(
                f"{origin(name)} becomes {largest:.3g}, which {str(dtype).removeprefix('torch.')} cannot hold",
                hint="these weights are too large for any dtype; is it the right checkpoint, and whole?"
                if dtype == torch.float32
                else "use --dtype bfloat16 or float32",
            )
    return cast_state


def _header(rows: Mapping[str, Row], metadata: Mapping[str, str]) -> bytes:
    told: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, (shape, dtype) in rows.items():
        size = _size(shape, dtype)
        told[name] = {
            "dtype": DTYPES[_word(dtype)][0],
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)  # data starts at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def _data(rows: Mapping[str, Row], pieces: "Iterable[Tensor]") -> Iterator[Part]:
    """The bytes of the pieces, row by row. Raises ValueError where the two differ."""
    coming = filter(_is_filled, pieces)  # unlike a loop, this holds no piece while the next one is made
    for name, (shape, dtype) in rows.items():
        left = _size(shape, dtype)
        while left:
            piece = next(coming, None)
            if piece is None or _word(piece.dtype) != _word(dtype) or (size := piece.nbytes) > left:
                found = "nothing" if piece is None else f"{tuple(piece.shape)} of {piece.dtype}"
                raise ValueError(f"{name} is {tuple(shape)} of {dtype}; for its last {left} bytes there is {found}")
            part = _bytes(piece)
            del piece
            yield part
            del part  # before the next one is made
            left -= size
    if next(coming, None) is not None:
        raise ValueError("there are more pieces than rows")


def _is_filled(piece: "Tensor") -> bool:
    return piece.numel() > 0


def _size(shape: Shape, dtype: "torch.dtype | str") -> int:
    return math.prod(shape) * DTYPES[_word(dtype)][1]


def _word(dtype: "torch.dtype | str") -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: "Tensor") -> Part:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
