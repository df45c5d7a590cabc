"""Files that torch wrote, zip or legacy, as a Root. No code of a file runs, and torch itself reads none of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.configurations import unfolded
from modernize.checkpoint.envelope import Root
from modernize.checkpoint.faults import SAVE_AGAIN, Damaged, named, shown
from modernize.checkpoint.modules import is_module, notes_of, state_of
from modernize.checkpoint.names import check_names
from modernize.checkpoint.numpy_values import Array
from modernize.checkpoint.places import Place, PlacedSource, expanded
from modernize.checkpoint.records import ITEM_SIZES, Misfit, Storage, View, overlap
from modernize.checkpoint.settings import DEEPEST
from modernize.checkpoint.torch_legacy import TorchLegacy
from modernize.checkpoint.torch_zip import TorchZip
from modernize.errors import UnreadableFile


def load_torch(path: Path, *, legacy: bool) -> Root:
    """Read what a torch file holds, tensors by their places.

    Raises:
        UnsafeFile: something that only running code could rebuild; the sentence names it.
        UnreadableFile: damaged, more than limits.py allows, or without a dictionary or a module.
    """
    with named(path):
        opened = TorchLegacy(path) if legacy else TorchZip(path)
        for key, what in opened.faults.items():
            raise Damaged(f"the storage {shown(key)}{_owner(opened.root, key)} {what}")
        root = {"model": opened.root} if is_module(opened.root) else opened.root
        usable = _usable(root) if isinstance(root, Mapping) else None
    if usable is None:
        what = "Tensor" if isinstance(root, View | Misfit) else type(root).__name__
        raise UnreadableFile(f"{path} holds one {what}, where a dictionary of tensors was expected", hint=SAVE_AGAIN)

    def source(path: Path, tensors: Mapping[str, Any]) -> PlacedSource:
        return PlacedSource(path, _places(path, tensors, opened.starts), opened.checksums)

    return Root(path, usable, source)


def _owner(root: object, key: str) -> str:
    """Which tensor looks into a storage, where it has a name."""
    waiting, seen = [("", root)], set[int]()
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, View) and isinstance(value.storage, Storage) and value.storage.key == key and place:
            return f" of {shown(place)}"
        if isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(shown(name), inner) for name, inner in value.items()]
    return ""


def _usable(items: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same with numpy's arrays as tensors, modules as their weights and configurations as their values, wherever
    weights and settings may lie.

    What a module says of itself stands beside its weights, where nothing else has that name.
    """
    usable = _turned(items, {})
    for module in {id(value): value for value in items.values() if is_module(value)}.values():
        for key, note in notes_of(module).items():
            usable.setdefault(key, note)
    return usable


def _turned(items: Mapping[Any, Any], known: dict[tuple[int, int], Any], depth: int = 0) -> dict[Any, Any]:
    """`known` is what became of a value at a depth: what stands in several places is turned once."""

    def turned(value: object) -> object:
        if isinstance(value, Array):
            return value.as_view()
        if is_module(value):
            return state_of(value)
        value = unfolded(value)
        if isinstance(value, Mapping) and depth < DEEPEST:
            return _turned(value, known, depth + 1)
        return value

    made: dict[Any, Any] = {}
    for key, value in items.items():
        if not isinstance(value, Array | Mapping):
            made[key] = value
            continue
        place = (id(value), 0 if is_module(value) else depth)
        if place not in known:
            known[place] = turned(value)
        made[key] = known[place]
    return made


def _places(path: Path, tensors: Mapping[str, Any], starts: Mapping[str, int]) -> dict[str, Place]:
    """Where each tensor lies. Raises UnreadableFile for one that cannot be read as it is."""
    check_names(path, tensors)
    places: dict[str, Place] = {}
    for name, view in tensors.items():
        if isinstance(view, Misfit):
            raise UnreadableFile(
                f"{path}: {name} is {view.what}", hint="save it dense and with its values, as a plain torch.Tensor"
            )
        if view.numel * ITEM_SIZES[view.dtype] > limits.EXPANDED and overlap(view.shape, view.stride):
            raise expanded(path, name)
        held = view.storage if isinstance(view.storage, bytes) else None
        start = view.offset * ITEM_SIZES[view.dtype] + (0 if held is not None else starts[view.storage.key])
        places[name] = Place(start=start, dtype=view.dtype, shape=view.shape, stride=view.stride, held=held)
    return places
