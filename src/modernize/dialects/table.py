"""What a dialect is: rows that claim keys, and exact cover, which is recognition.

A row's source is a template with holes, matched whole:

    {i}   the layer: every layer from 0 to the last must be there
    {j}   the head, in the same way
    {p}   `weight`, which must be there, or `bias`, which may be
    […]   may be absent, in all keys alike: `[transformer.]h.{i}.…`
    {a|b} one of these, of which one may be nothing: `blocks.{i}.{ln1|norm1}.…`
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from modernize.dialects.ops import (
    DROP,
    KEEP,
    SPLIT3,
    SQUEEZE,
    STACK_HEADS,
    STACK_HEADS_ALONE,
    TRANSPOSE,
    TRANSPOSE_SPLIT3,
    Op,
)

_HOLE = re.compile(r"\{([ijp])\}|\[([^\]]*)\]|\{([^{}]*\|[^{}]*)\}")
_PATTERNS = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "j": r"(?P<j>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}
AssumedField = Literal["activation", "attn_scale", "norm_eps", "norm"]


def _pattern(hole: re.Match[str]) -> str:
    if hole[1]:
        return _PATTERNS[hole[1]]
    if hole[3]:
        return f"(?:{'|'.join(map(re.escape, hole[3].split('|')))})"
    return f"(?:{re.escape(hole[2])})?"


@dataclass(frozen=True)
class Rule:
    """One row: the keys that match `source` become `targets` through `op`. An optional row need not claim anything."""

    source: str
    targets: tuple[str, ...]
    op: Op
    optional: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """`source` as a regular expression for `fullmatch`."""
        parts, at = [], 0
        for hole in _HOLE.finditer(self.source):
            parts.append(re.escape(self.source[at : hole.start()]))
            parts.append(_pattern(hole))
            at = hole.end()
        return re.compile("".join([*parts, re.escape(self.source[at:])]))

    def key(
        self, *, i: int | str = 0, j: int | str = 0, p: str = "weight", with_optional: bool = True, spelling: int = 0
    ) -> str:
        """The key that this row claims for a layer, a head and a kind, in one of its spellings."""
        holes = {"i": str(i), "j": str(j), "p": p}

        def fill(hole: re.Match[str]) -> str:
            if hole[1]:
                return holes[hole[1]]
            words = hole[3].split("|") if hole[3] else [hole[2] * with_optional]
            return words[spelling % len(words)]

        return _HOLE.sub(fill, self.source)

    def respelled(self, key: str, **holes: int | str) -> str:
        """A key that this row claims, with other values in the holes `i`, `j` and `p`."""
        match = self.pattern.fullmatch(key)
        assert match is not None
        spans = sorted((match.span(name), str(value)) for name, value in holes.items() if match.groupdict().get(name))
        for (start, end), value in reversed(spans):
            key = key[:start] + value + key[end:]
        return key


def keep(source: str, target: str, *, optional: bool = False) -> Rule:
    """Taken over as it is, under another name."""
    return Rule(source, (target,), KEEP, optional)


def transpose(source: str, target: str) -> Rule:
    """Stored as (in, out)."""
    return Rule(source, (target,), TRANSPOSE)


def split3(source: str, q: str, k: str, v: str, *, optional: bool = False) -> Rule:
    """Query, key and value in one matrix, in this order along the outputs."""
    return Rule(source, (q, k, v), SPLIT3, optional)


def transpose_split3(source: str, q: str, k: str, v: str) -> Rule:
    """The same, stored as (in, out)."""
    return Rule(source, (q, k, v), TRANSPOSE_SPLIT3)


def stack_heads(source: str, target: str) -> Rule:
    """One matrix per head, `{j}`."""
    return Rule(source, (target,), STACK_HEADS)


def stack_heads_alone(source: str, v: str, o: str) -> Rule:
    """One value matrix per head, `{j}`, in a model that doesn't project what its heads give."""
    return Rule(source, (v, o), STACK_HEADS_ALONE)


def squeeze(source: str, target: str) -> Rule:
    """Stored with a first axis of one."""
    return Rule(source, (target,), SQUEEZE)


def drop(source: str) -> Rule:
    """A buffer that is no parameter; it need not be there."""
    return Rule(source, (), DROP, optional=True)


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """What a dialect's programs are known to do where nothing in the file says it. `doubt` is why a warning is due, and
    empty where none is. What is `certain` they do whatever the settings in the file say.
    """

    field: AssumedField
    value: str | float
    doubt: str = ""
    certain: bool = False


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One way of naming an old GPT's tensors.

    `marks` are the groups of settings that only this dialect's programs write: of two dialects with the same names, the
    one whose mark is there is meant. `tied` says whether its models share the head with the embedding. A `loose` one
    knows many spellings of a layout and stands back where another fits, and one that `asks_norm` may be post-norm.
    `model_types` are those of its `config.json`, and `must_be` settings there that change what is computed, with the
    only value that can be carried over.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    assumptions: tuple[Assumption, ...]
    marks: tuple[str, ...] = ()
    tied: tuple[bool, ...] = (True, False)
    loose: bool = False
    asks_norm: bool = False
    model_types: tuple[str, ...] = ()
    must_be: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Step:
    """One application of a row: these keys become those targets."""

    rule: Rule
    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cover:
    """How a dialect's rows cover the keys of a file. It fits when nothing is unknown, missing or claimed twice."""

    dialect: Dialect
    steps: tuple[Step, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    n_layer: int
    n_head: int  # 0 where heads are not counted by keys

    @property
    def fits(self) -> bool:
        """Whether every key is claimed and every required row claims."""
        return not (self.unknown or self.missing or self.twice)

    @property
    def faults(self) -> int:
        """How far it is from fitting."""
        return len(self.unknown) + len(self.missing) + len(self.twice)


@dataclass
class _Claims:
    """Keys by row, and within a row by (layer, kind), each with its head."""

    most: int  # no layer or head has a number as large as the number of all keys
    by_row: dict[Rule, dict[tuple[int, str], dict[int, str]]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    def add(self, rules: Iterable[Rule], key: str) -> None:
        for rule in rules:
            match = rule.pattern.fullmatch(key)
            holes = match.groupdict() if match else {}
            if match and max(int(holes.get("i") or 0), int(holes.get("j") or 0)) < self.most:
                spot = (int(holes.get("i") or 0), holes.get("p") or "weight")
                heads = self.by_row.setdefault(rule, {}).setdefault(spot, {})
                j = int(holes.get("j") or 0)
                if j in heads:
                    self.twice += [heads[j], key]
                heads[j] = key
                return
        self.unknown.append(key)


def cover(dialect: Dialect, keys: Iterable[str]) -> Cover:
    """Lay a dialect's rows over the keys of a file."""
    keys = list(keys)
    claims = _Claims(most=len(keys))
    for key in keys:
        claims.add(dialect.rules, key)
    layered = [i for rule, spots in claims.by_row.items() if "{i}" in rule.source for i, _ in spots]
    n_layer = max(layered, default=0) + 1
    headed = [
        j for rule, spots in claims.by_row.items() if "{j}" in rule.source for heads in spots.values() for j in heads
    ]
    n_head = max(headed) + 1 if headed else 0
    return Cover(
        dialect=dialect,
        steps=tuple(_steps(dialect, claims.by_row)),
        unknown=tuple(claims.unknown),
        missing=tuple(_missing(dialect, claims.by_row, n_layer, max(n_head, 1))),
        twice=tuple(claims.twice),
        n_layer=n_layer,
        n_head=n_head,
    )


def _steps(dialect: Dialect, by_row: Mapping[Rule, Mapping[tuple[int, str], Mapping[int, str]]]) -> Iterable[Step]:
    """In the order of the rows, so that what a later one gives counts where two give the same."""
    for rule in dialect.rules:
        for (i, p), heads in by_row.get(rule, {}).items():
            targets = tuple(target.format(i=i, p=p) for target in rule.targets)
            yield Step(rule, tuple(heads[j] for j in sorted(heads)), targets)


def _missing(
    dialect: Dialect,
    by_row: Mapping[Rule, Mapping[tuple[int, str], Mapping[int, str]]],
    n_layer: int,
    n_head: int,
) -> Iterable[str]:
    """Keys that a required row should claim, or that an optional one claims in some layers and heads but not in all."""
    bare = any(
        key == rule.key(i=i, j=j, p=p, with_optional=False) != rule.key(i=i, j=j, p=p)
        for rule, spots in by_row.items()
        for (i, p), heads in spots.items()
        for j, key in heads.items()
    )
    for rule in dialect.rules:
        if rule.op is DROP:
            continue
        spots = by_row.get(rule, {})
        example = next((key for heads in spots.values() for key in heads.values()), "")
        kinds = {p for _, p in spots} | (set() if rule.optional else {"weight"})
        for p in sorted(kinds, reverse=True):
            for i in range(n_layer if "{i}" in rule.source else 1):
                for j in range(n_head if "{j}" in rule.source else 1):
                    if j in spots.get((i, p), {}):
                        continue
                    if example:
                        yield rule.respelled(example, i=i, j=j, p=p)
                    else:
                        yield rule.key(i=i, j=j, p=p, with_optional=not bare)
