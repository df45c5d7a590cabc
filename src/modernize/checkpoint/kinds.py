"""What kind of file it is, by its content and never by its name; and a sentence for each that is no checkpoint."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from modernize.checkpoint.faults import named, quoted
from modernize.checkpoint.zip_members import names_in
from modernize.errors import UnreadableFile

_HEAD = 512
# pickled long 0x1950a86a20f9469cfc6c, in a frame or not: torch before 1.6
_LEGACY = re.compile(rb"\x80.(?:\x95.{8})?\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19", re.DOTALL)


class Kind(Enum):
    """The kinds that can be read; the value is what reports call them."""

    FOLDER = "Hugging Face folder"
    SAFETENSORS = "safetensors"
    TORCH_ZIP = "torch zip"
    TORCH_LEGACY = "torch legacy"


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A kind of file that people take for a checkpoint: how it starts, what it is, and what to do."""

    start: bytes
    what: str
    hint: str


STRANGERS = (
    Stranger(
        start=b"version https://git-lfs",
        what="a git-LFS pointer, not the weights themselves",
        hint="run `git lfs pull` in its repository, then try again",
    ),
    Stranger(start=b"<!doctype", what="an HTML web page", hint="download the file itself, not its page"),
    Stranger(start=b"<html", what="an HTML web page", hint="download the file itself, not its page"),
    Stranger(
        start=b"<?xml",
        what="an XML page, as servers answer where there is no file or no access",
        hint="check the address, and download the file itself",
    ),
    Stranger(
        start=b'{"',
        what="a JSON text, not a checkpoint",
        hint="give the file that holds the weights; if this was a download, see what it says",
    ),
    Stranger(start=b"GGUF", what="a GGUF file", hint="convert from the checkpoint that it was made from"),
    Stranger(
        start=b"\x89HDF\r\n",
        what="an HDF5 file, as TensorFlow and Keras write",
        hint="load the model in transformers and save_pretrained() it from PyTorch",
    ),
    Stranger(start=b"\x1f\x8b", what="a gzip archive", hint="unpack it first with `gunzip` or `tar xzf`"),
    Stranger(start=b"BZh", what="a bzip2 archive", hint="unpack it first"),
    Stranger(start=b"\xfd7zXZ", what="an xz archive", hint="unpack it first"),
    Stranger(start=b"\x28\xb5\x2f\xfd", what="a zstd archive", hint="unpack it first with `unzstd`"),
    Stranger(start=b"7z\xbc\xaf\x27\x1c", what="a 7z archive", hint="unpack it first with `7z x`"),
    Stranger(start=b"Rar!\x1a\x07", what="a rar archive", hint="unpack it first with `unrar x`"),
    Stranger(start=b"\x93NUMPY", what="a single numpy array without a name", hint="give the file that holds them all"),
    *(
        Stranger(start=start, what="a GGML file", hint="convert from the checkpoint that it was made from")
        for start in (b"lmgg", b"fmgg", b"tjgg")
    ),
    Stranger(
        start=(20240326).to_bytes(4, "little"),
        what="an llm.c checkpoint",
        hint="export it to Hugging Face format first",
    ),
)


# by a part of a name in a zip archive
ARCHIVES = (
    (
        "model.weights.h5",
        "a Keras model",
        "load the model in transformers and save_pretrained() it from PyTorch",
    ),
    (
        "/data/weights/",
        "a torch.export archive, which holds a program and not only weights",
        "save the weights alone: torch.save(torch.export.load(PATH).state_dict, NEW)",
    ),
    (
        ".npy",
        "a numpy archive (.npz)",
        "save it as torch does: torch.save({k: torch.from_numpy(v) for k, v in numpy.load(PATH).items()}, NEW)",
    ),
)


def kind_of(path: Path) -> Kind:
    """The kind of a path. Raises UnreadableFile, with what it is instead, for everything that can't be a checkpoint."""
    if path.is_dir():
        return Kind.FOLDER
    if not path.exists():
        raise UnreadableFile(f"there is no file {path}", hint="check the path")
    if not path.is_file():
        raise UnreadableFile(f"{path} is not a regular file", hint="give a checkpoint file or a Hugging Face folder")
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    if size == 0:
        raise UnreadableFile(f"{path} is empty (0 bytes)", hint="copy or download it again")
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(path)
    if _LEGACY.match(head):
        return Kind.TORCH_LEGACY
    if len(head) > 8 and head[8:9] == b"{":
        return Kind.SAFETENSORS
    raise _stranger(path, head)


def _zip_kind(path: Path) -> Kind:
    """A zip is torch's when one of its folders holds `data.pkl`."""
    with named(path), path.open("rb") as stream:
        names = names_in(stream, path.stat().st_size)
    inside = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        raise UnreadableFile(
            f"{path} is a TorchScript archive, which holds a program and not only weights",
            hint="save the weights alone, from the program that made it: torch.save(model.state_dict(), PATH)",
        )
    for is_one, what, hint in ARCHIVES:
        if any(is_one in f"/{name}" for name in names) and "data.pkl" not in inside:
            raise UnreadableFile(f"{path} is {what}", hint=hint)
    if "data.pkl" not in inside:
        raise UnreadableFile(
            f"{path} is a zip archive of something else ({quoted(names[0]) if names else 'nothing'} and "
            f"{max(len(names) - 1, 0)} more), not a file that torch.save wrote",
            hint="if a checkpoint is inside, unpack it first with `unzip`",
        )
    return Kind.TORCH_ZIP


def _stranger(path: Path, head: bytes) -> UnreadableFile:
    text = head.lstrip().lower()
    for stranger in STRANGERS:
        if text.startswith(stranger.start.lower()) or head.startswith(stranger.start):
            return UnreadableFile(f"{path} is {stranger.what}", hint=stranger.hint)
    if head[:1] == b"\x08" and head[2:3] == b"\x12":
        return UnreadableFile(
            f"{path} looks like an ONNX model, which holds a program and not only weights",
            hint="use the checkpoint that it was exported from",
        )
    if head[4:8] == b"TFL3":
        return UnreadableFile(f"{path} is a TensorFlow Lite model", hint="use the checkpoint that it was exported from")
    if head[257:262] == b"ustar":
        return UnreadableFile(f"{path} is a tar archive", hint="unpack it first with `tar xf`")
    if head[:1] == b"\x80":
        return UnreadableFile(
            f"{path} is a bare pickle, not a file that torch.save wrote",
            hint="save the weights from the program that made it: torch.save(model.state_dict(), PATH)",
        )
    if b"\0" not in head:
        return UnreadableFile(
            f"{path} is a text file, not a checkpoint",
            hint="give a file that torch.save or safetensors wrote, or a Hugging Face folder",
        )
    return UnreadableFile(
        f"{path} is no checkpoint: it is neither a torch file nor safetensors",
        hint="give a file that torch.save or safetensors wrote, or a Hugging Face folder",
    )
