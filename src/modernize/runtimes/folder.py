"""A folder for `transformers`: weights in shards, and the whole of it there or not at all."""

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.errors import OutputRefused
from modernize.spec import State
from modernize.write import write_tensors

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 5 * 10**9
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
CONFIG, GENERATION, CARD = "config.json", "generation_config.json", "README.md"
LONGEST_NAME = 230  # bytes, so that there is room for a mark
MARK = "modernize"  # in the configuration, what made it
# what an export writes, and all that --force may replace
OWN = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|README\.md"
    r"|model\.safetensors|model\.safetensors\.index\.json|model-\d{5}-of-\d{5}\.safetensors"
)


def check_folder(path: Path, *, inputs: Sequence[Path], force: bool) -> None:
    """Refuse a folder before any work is done: one that holds an input, or anything that no export wrote.

    One that an export wrote is replaced where `force` says so, an empty one is filled. Raises OutputRefused.
    """
    try:
        _check_folder(path, inputs, force)
    except OSError as error:
        raise OutputRefused(
            f"the folder {path} cannot be looked at: {error.strerror}", hint="check its name and its permissions"
        ) from error


def _check_folder(path: Path, inputs: Sequence[Path], force: bool) -> None:
    target = Path(os.path.realpath(path))
    for source in inputs:
        if target in (real := Path(os.path.realpath(source)), *real.parents[:1]):
            raise OutputRefused(
                f"the folder {path} holds the input {source}", hint="give the export a folder of its own"
            )
    if re.search("[\ud800-\udfff]", str(path)):  # bytes that are no UTF-8
        raise OutputRefused(f"the name of the folder {path!r} is no UTF-8", hint="give it a name in UTF-8")
    if target.exists() and not target.is_dir():
        raise OutputRefused(f"the output {path} is not a folder", hint="give the name of a folder")
    there = sorted(entry.name for entry in target.iterdir()) if target.exists() else []
    if there and not force:
        raise OutputRefused(
            f"the folder {path} is not empty", hint="give another name, or --force to replace an export"
        )
    foreign = [name for name in there if not OWN.fullmatch(name) or not (target / name).is_file()]
    if there and not foreign and not _is_export(target):
        foreign = there[:1]
    if foreign:
        raise OutputRefused(
            f"the folder {path} holds {foreign[0]}, which no export wrote, so it is not replaced",
            hint="give the export a folder of its own",
        )
    if len(os.fsencode(target.name)) > LONGEST_NAME:
        raise OutputRefused(f"the name of the folder {path} is too long", hint="give a shorter one")
    if not target.parent.is_dir():
        raise OutputRefused(f"there is no folder {path.parent}", hint=f"make it first: mkdir -p '{path.parent}'")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputRefused(f"nothing can be written into the folder {path.parent}", hint="check its permissions")


def _is_export(folder: Path) -> bool:
    """Whether its configuration has the mark that an export puts there."""
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and MARK in config


@contextlib.contextmanager
def whole_folder(path: Path, check: Callable[[], None]) -> Iterator[Path]:
    """A folder aside, to be filled, which takes its place in the end; nothing of it stays where that fails.

    `check` is asked again just before. Raises what it raises, and OutputRefused where it cannot be made.
    """
    target = Path(os.path.realpath(path))  # a link is written through, not replaced
    mark = secrets.token_hex(4)
    aside, before = (target.with_name(f".{target.name}.{mark}.{end}") for end in ("part", "old"))
    try:
        aside.mkdir()
        try:
            yield aside
            check()
            if not target.exists():
                aside.rename(target)
            elif any(target.iterdir()):
                _change_places(aside, target, before)
            else:
                _fill_up(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise OutputRefused(
            f"{path} cannot be written: {error.strerror or error}", hint="check the space and the permissions there"
        ) from error


def _change_places(aside: Path, target: Path, before: Path) -> None:
    """Two folders cannot change places at once: the old one is set aside, and comes back where that fails."""
    shutil.copymode(target, aside)
    target.rename(before)
    try:
        aside.rename(target)
    except BaseException:
        before.rename(target)
        raise
    shutil.rmtree(before)


def _fill_up(aside: Path, target: Path) -> None:
    """An empty folder stays what it is, also where somebody stands in it or a disk is mounted there.

    The configuration comes last: without it nothing takes the folder for a model.
    """
    for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == CONFIG):
        shutil.move(entry, target / entry.name)


def write_text(path: Path, text: str) -> None:
    """A text file that is on the disk when this comes back. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """The same as JSON."""
    write_text(path, json.dumps(plain, indent=2) + "\n")


def write_weights(folder: Path, tensors: State) -> None:
    """One file, or shards of at most SHARD_BYTES (or one tensor) with an index. Raises OutputRefused."""
    shards = list(_shards(tensors, SHARD_BYTES))
    if len(shards) == 1:
        write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
        return
    homes: dict[str, str] = {}
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        write_tensors(folder / name, shard, {"format": "pt"})
        homes |= dict.fromkeys(shard, name)
    total = sum(map(_size, tensors.values()))
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": homes})


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that are there."""
    return sorted(folder.glob("model*.safetensors"))


def _shards(tensors: State, most: int) -> Iterator[State]:
    shard: State = {}
    for name, tensor in tensors.items():
        if shard and sum(map(_size, shard.values())) + _size(tensor) > most:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def _size(tensor: "Tensor") -> int:
    return tensor.numel() * tensor.element_size()
