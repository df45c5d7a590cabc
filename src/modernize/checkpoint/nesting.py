"""How deep and how wide values lie in one another, told without walking the same value twice.

A pickle can put one list into many others, and so describe more than it could ever print (2^60 leaves from sixty
pairs), or a list into itself. What comes out of here can be walked, shown and compared by plain recursion.
"""

from collections.abc import Iterator
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, TooMuch
from modernize.checkpoint.records import Record

_CONTAINERS = (dict, list, tuple, set, frozenset)
_LEVELS = 6  # dictionaries and objects in one another, that are looked through for weights and settings


def check_nesting(root: object) -> None:
    """Raises TooMuch for what is too deep or too wide, Damaged for a container that holds itself.

    Records may refer to one another in circles, as modules and configurations do: through them goes only what counts
    its steps.
    """
    _check_width(root, {}, _LEVELS)
    sizes: dict[int, tuple[int, int]] = {}  # container -> (values in it, however often; depth)
    seen: set[int] = set()
    roots = [root]
    while roots:
        found = roots.pop()
        if isinstance(found, Record):
            if id(found) not in seen:
                seen.add(id(found))
                roots += [found.args, found.fields, found.items_held]
        elif isinstance(found, _CONTAINERS):
            _measure(found, sizes, roots)


def _check_width(found: object, known: dict[tuple[int, int], int], levels: int) -> int:
    """Entries of dictionaries and objects, as often as one meets them on the way down some levels. Raises TooMuch."""
    if not levels or not isinstance(found, dict | Record):
        return 1
    if (id(found), levels) not in known:
        entries = 1 + sum(_check_width(value, known, levels - 1) for value in found.values())
        if entries > limits.OPCODES:
            raise TooMuch("dictionaries and objects put into so many others that they could never be looked through")
        known[id(found), levels] = entries
    return known[id(found), levels]


def _measure(root: Any, sizes: dict[int, tuple[int, int]], records: list[object]) -> None:  # noqa: ANN401
    """Sizes of a container and of all in it, innermost first; records in them are put aside."""
    if id(root) in sizes:
        return
    open_: set[int] = {id(root)}
    way: list[tuple[Any, Iterator[Any], list[int]]] = [(root, _inside(root), [1, 1])]
    while way:
        container, rest, told = way[-1]
        for value in rest:
            if isinstance(value, Record):
                records.append(value)
            if not isinstance(value, _CONTAINERS):
                told[0] += 1
                continue
            if id(value) in open_:
                raise Damaged("it has a container that holds itself")
            if id(value) in sizes:
                _add(told, sizes[id(value)])
                continue
            open_.add(id(value))
            way.append((value, _inside(value), [1, 1]))
            break
        else:
            way.pop()
            open_.discard(id(container))
            sizes[id(container)] = (told[0], told[1])
            if way:
                _add(way[-1][2], sizes[id(container)])
        if len(way) > limits.DEPTH:
            raise TooMuch(f"containers in one another, deeper than {limits.DEPTH}")


def _add(told: list[int], inner: tuple[int, int]) -> None:
    told[0] += inner[0]
    told[1] = max(told[1], 1 + inner[1])
    if told[1] > limits.DEPTH:
        raise TooMuch(f"containers in one another, deeper than {limits.DEPTH}")
    if told[0] > 4 * limits.OPCODES:
        raise TooMuch("containers put into so many others that they hold more than could ever be shown")


def _inside(container: Any) -> Iterator[Any]:  # noqa: ANN401  (one of _CONTAINERS)
    if isinstance(container, dict):
        yield from container
        yield from container.values()
    else:
        yield from container
