"""What a file says beside its weights: groups of settings, and the tokens of its vocabulary."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Fault
from modernize.checkpoint.nesting import check_nesting

DEEPEST = 3  # groups in one another
# keys beside the weights that hold facts, most telling first
SETTINGS = (
    "config.json",
    "model_args",
    "model_config",
    "gpt_config",
    "gptconfig",
    "gptconf",
    "model_cfg",
    "model_hparams",
    "model_hyperparameters",
    "model_params",
    "model_kwargs",
    "init_args",
    "config",
    "configuration",
    "conf",
    "hyper_parameters",
    "hyperparameters",
    "hyperparams",
    "hparams",
    "args",
    "kwargs",
    "cfg",
    "settings",
    "arch",
    "opt",
    "metadata",
    "meta",
)
_PARTS = (*SETTINGS, "model", "gpt", "transformer", "network", "net", "architecture")  # a group in a group


def settings_in(notes: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Groups of plain values, most telling first, what is in a group before the group itself (`config.model`); plain
    values at the top level come last, under an empty name.
    """
    groups = dict(islice(_groups(notes, SETTINGS), limits.GROUPS))
    plain = {k: v for k, v in notes.items() if isinstance(v, str | int | float | bool)}
    return {**groups, **({"": plain} if plain else {})}


def _groups(notes: Mapping[Any, Any], words: Iterable[str], depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Dictionaries under these words, however they are capitalised, also as JSON, also in one another."""
    spelled = {str(key).lower(): key for key in notes}
    for key in (spelled[word] for word in words if word in spelled):
        group = decoded(notes[key])
        if isinstance(group, Mapping) and len(group) <= limits.SETTINGS:
            if depth < DEEPEST:
                yield from ((f"{key}.{name}", inner) for name, inner in _groups(group, _PARTS, depth + 1))
            yield str(key), group


def decoded(value: Any) -> Any:  # noqa: ANN401  (whatever the file holds)
    """A value, or what it says where it is a text of JSON."""
    if not isinstance(value, str) or len(value) > limits.SAID or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        plain = json.loads(value)
        check_nesting(plain)
    except (ValueError, RecursionError, Fault):
        return value
    return plain


def vocabulary_in(notes: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, from `stoi`, `chars` or `itos`, at the top or in one of the settings; empty where there is none."""
    for group in (notes, *dict(islice(_groups(notes, SETTINGS), limits.GROUPS)).values()):
        stoi, itos = group.get("stoi"), group.get("itos")
        entries = (
            *(enumerate(t) for t in (group.get("chars"), itos) if isinstance(t, str | list | tuple) and _is_short(t)),
            *((itos.items(),) if isinstance(itos, Mapping) and _is_short(itos) else ()),
        )
        turned = [
            {token: index for index, token in listed}
            for listed in map(list, entries)
            if all(isinstance(token, str) for _, token in listed)
        ]
        for found in (stoi, *turned):
            if isinstance(found, Mapping) and found and _is_short(found) and all(map(_is_entry, found.items())):
                return dict(found)
    return {}


def _is_short(tokens: Sized) -> bool:
    return len(tokens) <= limits.TOKENS


def _is_entry(entry: tuple[object, object]) -> bool:
    token, index = entry
    return (
        isinstance(token, str)
        and len(token) <= limits.NAME
        and isinstance(index, int)
        and not isinstance(index, bool)
        and index >= 0
    )
