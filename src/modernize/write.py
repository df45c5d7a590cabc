"""Write: a file, whole or not at all, and above all the safetensors file of a model.

The bytes are laid out here and not by the safetensors package because that writes metadata in an order that changes
from run to run, and the same conversion has to give the same bytes. (Layout: 8 bytes of length, a JSON header, data.)
"""

import itertools
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize import __version__
from modernize.errors import BadTensors, OutputRefused, UsageError
from modernize.spec import ModernConfig, State
from modernize.stored import METADATA_KEY, SCHEMA

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DTYPE_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "uint8": "U8",
}


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
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise OutputRefused(f"the output {path} is not a regular file", hint="give the name of a file")
    if path.exists() and not force:
        raise OutputRefused(f"the output {path} exists already", hint="give another name, or --force to replace it")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputRefused(f"there is no folder {path.parent}", hint=f"make it first: mkdir -p '{path.parent}'")
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
    write_whole(path, itertools.chain([_header(state, metadata)], map(_bytes, state.values())))


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file beside its final place, and move it there when it is whole.

    Raises OutputRefused when it cannot be written; what was there before is then still there.
    """
    target = Path(os.path.realpath(path))  # a link is written through, not replaced
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.writelines(parts)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(target)
        except BaseException:  # also an interrupt leaves nothing behind
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputRefused(
            f"{path} cannot be written: {error.strerror or error}", hint="check the space and the permissions there"
        ) from error


def cast(state: State, dtype: "torch.dtype", *, origin: Callable[[str], str]) -> State:
    """The same tensors in another dtype. Raises BadTensors where a value does not fit, with what `origin` calls it."""
    import torch

    cast_state = {name: tensor.to(dtype) for name, tensor in state.items()}
    for name, tensor in cast_state.items():
        if not torch.isfinite(tensor).all():
            largest = state[name].abs().max().item()
            raise BadTensors(
                f"{origin(name)} becomes {largest:.3g}, which {str(dtype).removeprefix('torch.')} cannot hold",
                hint="these weights are too large for any dtype; is it the right checkpoint, and whole?"
                if dtype == torch.float32
                else "use --dtype bfloat16 or float32",
            )
    return cast_state


def _header(state: State, metadata: Mapping[str, str]) -> bytes:
    rows: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, tensor in state.items():
        size = tensor.numel() * tensor.element_size()
        rows[name] = {
            "dtype": DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)  # data starts at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: "Tensor") -> Any:  # noqa: ANN401  (a buffer: an array of bytes)
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
