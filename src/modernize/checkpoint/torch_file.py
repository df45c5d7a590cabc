"""Files that torch wrote, zip or legacy. Only tensors and plain containers are ever rebuilt; no code of a file runs."""

import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint.base import TensorInfo
from modernize.checkpoint.envelope import DEEPEST, Root
from modernize.checkpoint.stand_ins import STAND_INS, Array
from modernize.errors import UnreadableFile, UnsafeFile

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 20
_SAVE_AGAIN = (
    "save it again from the program that made it, tensors and plain values only: "
    'torch.save({"model": model.state_dict(), "model_args": {"n_head": ...}}, PATH)'
)
# torch names what it would not rebuild as `GLOBAL module.name`, or as `… class module.name`
_CULPRIT = re.compile(r"(?:GLOBAL|Unsupported class|unsupported class|Unsupported type)\s+`?([\w.]+)")


class TorchSource:
    """Tensors of a dictionary that torch loaded (zip files are memory-mapped, so nothing is read until it is used)."""

    def __init__(self, path: Path, tensors: Mapping[str, "torch.Tensor"]) -> None:
        for name, tensor in tensors.items():
            if str(tensor.layout) != "torch.strided" or tensor.device.type == "meta":
                raise UnreadableFile(
                    f"{path}: {name} is a sparse tensor or has no data", hint="save it dense, with its values"
                )
        self.path, self._tensors = path, tensors
        self.tensors = {
            name: TensorInfo(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()
        }

    def read(self, name: str) -> "torch.Tensor":
        """One tensor, in its stored dtype."""
        return self._tensors[name].detach()

    def array(self, name: str) -> NDArray[np.float64]:
        """One tensor in float64."""
        return self.read(name).double().numpy()

    def equal(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same values."""
        import torch

        return torch.equal(self._tensors[a], self._tensors[b])

    def verify(self) -> None:
        """By the checksums of a zip file. A checksum of zero was never computed; legacy files have none."""
        if not zipfile.is_zipfile(self.path):
            return
        try:
            with zipfile.ZipFile(self.path) as archive:
                for member in archive.infolist():
                    if member.CRC and not member.is_dir():
                        with archive.open(member) as stream:
                            while stream.read(_CHUNK):
                                pass
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise UnreadableFile(
                f"{self.path} is damaged: {error}", hint="copy or download it again, and compare its size"
            ) from error


def load_torch(path: Path, *, legacy: bool) -> Root:
    """Load a torch file with its restricted unpickler.

    Raises:
        UnsafeFile: an object of a class that only running code could rebuild; the sentence names it.
        UnreadableFile: damaged, or not a dictionary.
    """
    try:
        loaded = _load(path, legacy=legacy)
    except pickle.UnpicklingError as error:
        raise _refusal(path, str(error)) from error
    except MemoryError as error:
        raise UnreadableFile(f"{path} asks for more memory than there is", hint="copy or download it again") from error
    except Exception as error:  # the unpickler and the archive reader raise whatever a damaged stream makes them
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnreadableFile(
            f"{path} is damaged or cut short: {first}", hint="copy or download it again, and compare its size"
        ) from error
    if not isinstance(loaded, Mapping):
        raise UnreadableFile(
            f"{path} holds one {type(loaded).__name__}, where a dictionary of tensors was expected",
            hint=_SAVE_AGAIN,
        )
    return Root(path, _with_tensors(loaded), TorchSource)


def _with_tensors(items: Mapping[Any, Any], depth: int = 0) -> Mapping[Any, Any]:
    """Numpy's arrays as tensors, wherever weights may lie."""
    import torch

    def turned(value: object) -> object:
        if isinstance(value, Array):
            return None if value.value is None else torch.from_numpy(value.value)
        if isinstance(value, Mapping) and depth < DEEPEST:
            return _with_tensors(value, depth + 1)
        return value

    if not any(isinstance(value, Array | Mapping) for value in items.values()):
        return items
    return {key: turned(value) for key, value in items.items()}


def _load(path: Path, *, legacy: bool) -> Any:  # noqa: ANN401  (whatever the file holds)
    import torch

    with torch.serialization.safe_globals(STAND_INS):
        if path.suffix != ".safetensors" and _is_text(str(path)):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=not legacy)
        # by such names torch would take the file for safetensors, whatever it holds, or find nothing
        with path.open("rb") as stream:
            return torch.load(stream, map_location="cpu", weights_only=True)


def _is_text(name: str) -> bool:
    return name.encode("utf-8", "replace").decode("utf-8") == name


def _refusal(path: Path, message: str) -> UnsafeFile | UnreadableFile:
    culprit = _CULPRIT.search(message)
    if culprit:
        return UnsafeFile(
            f"{path} holds an object of the class {culprit[1].rstrip('.')}, and rebuilding it would run code, "
            "so the file is not loaded",
            hint=_SAVE_AGAIN,
        )
    if "nsupported" in message:
        return UnsafeFile(
            f"{path} holds an object that only running code could rebuild, so it is not loaded",
            hint=_SAVE_AGAIN,
        )
    return UnreadableFile(f"{path} is damaged: its pickle cannot be read", hint="copy or download it again")
