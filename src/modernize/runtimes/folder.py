"""A folder for `transformers`: weights in shards, and the whole of it there or not at all."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.errors import OutputRefused
from modernize.spec import State
from modernize.whole import aside_of, clear_leftovers, hold, sync_folder, write_whole
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

    `check` is asked again just before. What killed runs left aside is removed. Raises what `check` raises, and
    OutputRefused where the folder cannot be made.
    """
    target = Path(os.path.realpath(path))  # a link is written through, not replaced
    try:
        clear_leftovers(target, folders=True)
        if target.exists():  # else the old one is the only one
            clear_leftovers(target, end="old", folders=True)
        aside = aside_of(target)
        try:
            aside.mkdir()
            with _held(aside):
                yield aside
                check()
                sync_folder(aside)
                if not target.exists():
                    aside.rename(target)
                elif any(target.iterdir()):
                    _change_places(aside, target)
                else:
                    _fill_up(aside, target)
                sync_folder(target)
                sync_folder(target.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise OutputRefused(
            f"{path} cannot be written: {error.strerror or error}", hint="check the space and the permissions there"
        ) from error


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Locked, so that no other run takes it for a leftover."""
    if sys.platform == "win32":  # which opens no folders
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        hold(descriptor)
        yield
    finally:
        os.close(descriptor)


def _change_places(aside: Path, target: Path) -> None:
    """The new folder for the old one, at once where the system can do that.

    Where it can't, the old one is set aside, and comes back where the rest fails.
    """
    shutil.copymode(target, aside)
    if _swapped(aside, target):
        return  # the old one is aside now, and goes as what is there goes
    before = aside_of(target, "old")
    target.rename(before)
    try:
        aside.rename(target)
    except BaseException:
        before.rename(target)
        raise
    shutil.rmtree(before)


def _swapped(one: Path, other: Path) -> bool:
    """Whether the two have each other's names now. Linux can, on most file systems; Python has no call for it."""
    if sys.platform != "linux":
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call is not None and call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _fill_up(aside: Path, target: Path) -> None:
    """An empty folder stays what it is, also where somebody stands in it or a disk is mounted there.

    The configuration comes last: without it nothing takes the folder for a model.
    """
    for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == CONFIG):
        shutil.move(entry, target / entry.name)


def write_text(path: Path, text: str) -> None:
    """A text file that is on the disk when this comes back. Raises OutputRefused."""
    write_whole(path, [text.encode()])


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
