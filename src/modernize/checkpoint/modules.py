"""Whole modules in a pickle: their weights as `state_dict()` would give them, and what they say of themselves.

Torch pickles a module as an object with the fields `_parameters`, `_buffers` and `_modules`; its own settings, such as
`config` or `n_head`, are fields beside these.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, TooMuch, shown
from modernize.checkpoint.records import Misfit, Record, View

_PARTS = ("_parameters", "_buffers", "_modules")
_ACTIVATIONS = {"GELU": "gelu", "ReLU": "relu", "NewGELU": "gelu_new", "FastGELU": "gelu_new"}
_PLAIN = (str, int, float, bool, Mapping)  # a configuration is a mapping


def is_module(value: object) -> TypeGuard[Record]:
    """Whether an object was a torch.nn.Module."""
    return isinstance(value, Record) and all(isinstance(value.fields.get(part), Mapping) for part in _PARTS[::2])


def state_of(module: Record) -> dict[str, View | Misfit]:
    """The weights and persistent buffers by their full names, as `state_dict()`."""
    state: dict[str, View | Misfit] = {}
    count = 0
    for prefix, part in _walk(module):
        fleeting = part.fields.get("_non_persistent_buffers_set", ())
        for group in ("_parameters", "_buffers"):
            entries = _mapping(part, group)
            count += len(entries)
            if count > limits.TENSORS:
                raise TooMuch(f"a module of more than {limits.TENSORS:,} tensors")
            for name, tensor in entries.items():
                kept = group == "_parameters" or not isinstance(fleeting, set) or name not in fleeting
                if kept and isinstance(tensor, View | Misfit):
                    state[f"{prefix}{_checked(name)}"] = tensor
    return state


def notes_of(module: Record) -> dict[str, Any]:
    """What it says of itself: its own fields, and where all its parts agree, their activation, heads and epsilon."""
    notes: dict[str, Any] = {}
    inner = module
    while True:  # data parallelism and compilation put a module around the model
        notes |= {
            key: value
            for key, value in inner.fields.items()
            if isinstance(key, str) and not key.startswith("_") and key != "training" and not is_module(value)
            and isinstance(value, _PLAIN)
        }  # fmt: skip
        parts = _mapping(inner, "_modules")
        held = next(iter(parts.values()), None)
        if set(parts) not in ({"module"}, {"_orig_mod"}) or not is_module(held):
            break
        inner = held
    told: dict[str, set[Any]] = {}
    for _, part in _walk(module):
        for key, value in _facts(part):
            told.setdefault(key, set()).add(value)
    return {**{key: next(iter(values)) for key, values in told.items() if len(values) == 1}, **notes}


def _facts(part: Record) -> Iterator[tuple[str, Any]]:
    """Facts of a model that one of its parts has: torch's own classes by their fields, others by `n_head`."""
    kind, fields = part.kind, part.fields
    if kind.name in _ACTIVATIONS:
        yield "activation", "gelu_tanh" if fields.get("approximate") == "tanh" else _ACTIVATIONS[kind.name]
    eps = fields.get("eps")
    if kind.name == "LayerNorm" and isinstance(eps, float):
        yield "norm_eps", eps
    for key in ("n_head", "n_heads", "num_heads"):
        if isinstance(fields.get(key), int) and not isinstance(fields[key], bool):
            yield "n_head", fields[key]


def _walk(module: Record) -> Iterator[tuple[str, Record]]:
    """Every part with what stands in front of its names, in the order of `state_dict()`."""
    waiting: list[tuple[str, Record, frozenset[int]]] = [("", module, frozenset())]
    count = 0
    while waiting:
        prefix, part, above = waiting.pop()
        count += 1
        if count > limits.TENSORS:
            raise TooMuch(f"a module of more than {limits.TENSORS:,} parts")
        if id(part) in above or len(above) > limits.DEPTH:
            raise Damaged("it holds a module that is a part of itself")
        if len(prefix) > limits.NAME:
            raise TooMuch(f"a module with a name of more than {limits.NAME} characters")
        yield prefix, part
        inner = [
            (f"{prefix}{_checked(name)}.", value, above | {id(part)})
            for name, value in _mapping(part, "_modules").items()
            if isinstance(value, Record) and is_module(value)
        ]
        waiting += reversed(inner)


def _checked(name: object) -> str:
    """A name of a part. Raises Damaged for what is no text, TooMuch for what is too long to be shown."""
    if not isinstance(name, str):
        raise Damaged(f"a part of a module has the name {shown(name)}")
    if len(name) > limits.NAME:
        raise TooMuch(f"a module with a name of more than {limits.NAME} characters")
    return name


def _mapping(part: Record, name: str) -> Mapping[Any, Any]:
    found = part.fields.get(name)
    return found if isinstance(found, Mapping) else {}
