"""Which of the things in a file are the weights, and tensors' names without wrappers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernize.checkpoint.base import Checkpoint, Source
from modernize.checkpoint.faults import quoted, shown
from modernize.checkpoint.settings import DEEPEST, SETTINGS, settings_in, vocabulary_in
from modernize.choices import Weights
from modernize.errors import AmbiguousInput, UnreadableFile

# keys under which training programs keep the weights
WRAPPERS: dict[Weights, tuple[str, ...]] = {
    "model": (
        "model",
        "model_state_dict",
        "model_state",
        "model_weights",
        "state_dict",
        "net",
        "module",
        "params",
        "weights",
        "checkpoint",
    ),
    "ema": ("ema", "model_ema", "ema_model", "ema_state_dict", "state_dict_ema", "ema_weights", "swa_model"),
}
_WORDS = (*WRAPPERS["model"], "shadow")  # inside one of these
_SHOWN = 12  # names in a sentence
_AVERAGED = re.compile(r"(?:^|_)(?:ema|swa|averaged?)(?:_|$)")
# segments of a key that torch.compile, data parallelism and recomputing put in, wherever they stand
MARKERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})


@dataclass(frozen=True)
class Root:
    """The dictionary that a torch file holds; `wrap` makes a Source of the weights in it."""

    path: Path
    items: Mapping[Any, Any]
    wrap: Callable[[Path, Mapping[str, Any]], Source]

    def choose(self, weights: Weights) -> Source:
        """The weights: under one of WRAPPERS, also one in another, or the dictionary itself.

        Averaged weights may also lie among the others, under names that say so: then all are given.

        Raises AmbiguousInput for two sets, UnreadableFile where there is none.
        """
        found = self._found(weights)
        if len(found) > 1:
            raise AmbiguousInput(
                f"{self.path} holds several sets of weights: {_listed(found)}",
                hint=f"save the one you mean alone: torch.save({_indexed(next(iter(found)))}, PATH)",
            )
        for tensors in found.values():
            return self.wrap(self.path, tensors)
        for key in WRAPPERS[weights]:
            nameless = [name for name, value in _items(self.items.get(key)) if _is_list_of_tensors(value)]
            if nameless:
                raise UnreadableFile(
                    f"{self.path} keeps {key}.{shown(str(nameless[0]))} as a list of tensors without their names",
                    hint="in the program that wrote them, copy them into the model (`ema.copy_to(model.parameters())`) "
                    "and save its state_dict()",
                )
        keys = ", ".join(map(quoted, list(self.items)[:8])) or "nothing"
        raise UnreadableFile(
            f"{self.path} has no {'averaged ' if weights == 'ema' else ''}weights: it holds {keys}",
            hint=f"weights are looked for under {', '.join(WRAPPERS[weights])}"
            + ("" if weights == "ema" else ", or as a bare dictionary of tensors"),
        )

    def ignored(self, weights: Weights) -> str:
        """Tensors that are neither among the weights nor a scalar beside them (a loss, a step), by where they stand."""
        (place,) = self._found(weights)
        if place not in {"", *dict(_sets(self.items, WRAPPERS[weights]))}:
            return ""
        ignored: list[str] = []
        inside: Any = self.items
        for depth, key in enumerate(place.split(".") if place else ()):
            known = {key, *SETTINGS, *(name for names in WRAPPERS.values() for name in names)}
            beside = [k for k, v in inside.items() if k not in known and (getattr(v, "ndim", 0) > 0 or _tensors_in(v))]
            ignored += [".".join([*place.split(".")[:depth], str(name)]) for name in beside]
            inside = inside[key]
        nested = [k for k, v in inside.items() if isinstance(v, Mapping | list | tuple)] if place else []
        return _listed([*ignored, *(f"{place}.{name}" for name in nested)])

    def unusual_place(self, weights: Weights) -> str:
        """Where weights lie that are under none of WRAPPERS; empty where they are under one, or bare in the file."""
        found = self._found(weights)
        usual = dict(_sets(self.items, WRAPPERS[weights])) or {""}
        return next((shown(place) for place in found if place not in usual), "") if weights == "model" else ""

    def notes(self) -> dict[str, Any]:
        """What is no dictionary of tensors, beside the weights and beside what holds them, and settings without tensors
        among them; outer things count.
        """
        notes: dict[str, Any] = {}
        inside: Any = self.items
        for _ in range(DEEPEST + 1):
            if not isinstance(inside, Mapping):
                break
            plain = {k: v for k, v in inside.items() if not _is_tensor(v) and (k in SETTINGS or not _tensors_in(v))}
            notes = {str(k): _without_tensors(v) for k, v in plain.items()} | notes
            inside = next((inside[key] for key in _WORDS if isinstance(inside.get(key), Mapping)), None)
        return notes

    def _found(self, weights: Weights) -> dict[str, dict[str, Any]]:
        """Sets of tensors by where they stand (`state_dict.model`)."""
        found = dict(_sets(self.items, WRAPPERS[weights]))
        if found:
            return found
        if weights == "ema":
            sets = self._found("model").items()
            return {place: tensors for place, tensors in sets if any(is_averaged(str(name)) for name in tensors)}
        bare = _tensors_in(self.items)
        if _has_names(bare):
            return {"": bare}
        return dict(_anywhere(self.items)) or ({"": bare} if bare else {})


def is_averaged(name: str) -> bool:
    """Whether what stands in front of a name, or a prefix, says that it belongs to averaged weights."""
    return bool(_AVERAGED.search(name.split(".", maxsplit=1)[0]))


def _sets(items: Mapping[Any, Any], words: tuple[str, ...], depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Dictionaries of tensors under these words, also under one that is in another."""
    for key in words:
        inside = items.get(key)
        if tensors := _tensors_in(inside):
            yield key, tensors
        elif isinstance(inside, Mapping) and depth < DEEPEST:
            yield from ((f"{key}.{place}", tensors) for place, tensors in _sets(inside, _WORDS, depth + 1))


def _anywhere(items: Mapping[Any, Any], depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Dictionaries of tensors under whatever words, where their names are those of a model's parts."""
    for key, inside in items.items():
        if _has_names(tensors := _tensors_in(inside)):
            yield str(key), tensors
        elif isinstance(inside, Mapping) and depth < DEEPEST:
            yield from ((f"{key}.{place}", tensors) for place, tensors in _anywhere(inside, depth + 1))


def _has_names(tensors: Mapping[str, Any]) -> bool:
    """Whether these are parts of a model (`wte.weight`), and not what an optimizer keeps (`exp_avg`)."""
    return any("." in str(name) for name in tensors)


def _indexed(place: str) -> str:
    return "ckpt" + "".join(f"[{key!r}]" for key in shown(place).split("."))


def _listed(names: Iterable[str]) -> str:
    """Names of any length and number, as a sentence can bear them."""
    names = list(names)
    more = len(names) - _SHOWN
    return ", ".join(map(shown, names[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def _items(value: object) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


def _is_list_of_tensors(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(hasattr(item, "shape") for item in value)


def _tensors_in(value: object) -> dict[str, Any]:
    """The tensors that a dictionary holds directly, by name; none for anything else."""
    if not isinstance(value, Mapping):
        return {}
    tensors = {k: v for k, v in value.items() if _is_tensor(v)}
    return tensors if any(isinstance(name, str) for name in tensors) else {}


def _without_tensors(value: object) -> object:
    return {k: v for k, v in value.items() if not _is_tensor(v)} if isinstance(value, Mapping) else value


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def assemble(
    path: Path,
    *,
    format: str,
    files: tuple[Path, ...],
    source: Source,
    notes: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    warnings: tuple[str, ...] = (),
    weights: Weights = "model",
) -> Checkpoint:
    """A Checkpoint from a source of tensors and the things found beside them."""
    return Checkpoint(
        path=path,
        format=format,
        files=files,
        weights=weights,
        source=source,
        raw_names=clean_names(path, source.tensors),
        settings=settings_in(notes),
        vocabulary=vocabulary_in(notes),
        metadata=metadata if metadata is not None else getattr(source, "metadata", {}),
        warnings=warnings,
    )


def clean_names(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Clean name -> the file's name, with MARKERS taken out. Raises AmbiguousInput where two become one."""
    clean: dict[str, str] = {}
    for raw in names:
        name = ".".join(segment for segment in raw.split(".") if segment not in MARKERS)
        if name in clean:
            raise AmbiguousInput(
                f"{path} holds {clean[name]} and {raw}, the same tensor once the wrapper's prefix is off",
                hint="save again with only one of them",
            )
        clean[name] = raw
    return clean
