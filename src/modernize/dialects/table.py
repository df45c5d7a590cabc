"""What a dialect is: rows that claim keys, and exact cover, which is recognition.

A row's source is a template with holes, matched whole:

    {i}   the layer: every layer from 0 to the last must be there
    {j}   the head, in the same way
    {p}   `weight`, which must be there, or `bias`, which may be
    […]   may be absent, in all keys alike: `[transformer.]h.{i}.…`
    {a|b} one of these, of which one may be nothing: `blocks.{i}.{ln1|norm1}.…`; the same in all keys where it stands
          before the layer, so that two stacks of layers don't become one
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
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

FEW = 3  # of the names that one row misses, how many are told
_HOLE = re.compile(r"\{([ijp])\}|\[([^\]]*)\]|\{([^{}]*\|[^{}]*)\}")
_PATTERNS = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "j": r"(?P<j>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}
_NAMED = re.compile(r"\(\?P<\w+>")
AssumedField = Literal["activation", "attn_scale", "norm_eps", "norm"]


def _pattern(hole: re.Match[str]) -> str:
    if hole[1]:
        return _PATTERNS[hole[1]]
    if hole[3]:
        return "|".join(map(re.escape, hole[3].split("|")))
    return re.escape(hole[2]) + "|"


@dataclass(frozen=True)
class Rule:
    """One row: the keys that match `source` become `targets` through `op`. An optional row need not claim anything."""

    source: str
    targets: tuple[str, ...]
    op: Op
    optional: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """For `fullmatch`: `source` with a group `sN` for the Nth of the holes that are spelt alike in all keys."""
        parts, at = [], 0
        for hole in _HOLE.finditer(self.source):
            parts.append(re.escape(self.source[at : hole.start()]))
            group = f"?P<s{self.alike.index(hole[0])}>" if hole[0] in self.alike else "?:"
            parts.append(_pattern(hole) if hole[1] else f"({group}{_pattern(hole)})")
            at = hole.end()
        return re.compile("".join([*parts, re.escape(self.source[at:])]))

    @cached_property
    def alike(self) -> tuple[str, ...]:
        """Its holes that have one spelling in a whole file: what may be absent, and what stands before the layer."""
        layer = self.source.find("{i}")
        return tuple(h[0] for h in _HOLE.finditer(self.source) if h[2] is not None or (h[3] and h.start() < layer))

    def key(
        self,
        *,
        i: int | str = 0,
        j: int | str = 0,
        p: str = "weight",
        spelling: int = 0,
        spelt: Mapping[str, str] | None = None,
    ) -> str:
        """The key that this row claims for a layer, a head and a kind: its holes as they are `spelt`, else in one of
        their spellings.
        """
        holes = {"{i}": str(i), "{j}": str(j), "{p}": p, **(spelt or {})}

        def fill(hole: re.Match[str]) -> str:
            words = hole[3].split("|") if hole[3] else [hole[2] or ""]
            return holes.get(hole[0], words[spelling % len(words)])

        return _HOLE.sub(fill, self.source)

    def respelled(self, key: str, **holes: int | str) -> str:
        """A key that this row claims, with other values in the holes `i`, `j` and `p`."""
        match = self.pattern.fullmatch(key)
        assert match is not None
        spans = sorted((match.span(name), str(value)) for name, value in holes.items() if match.groupdict().get(name))
        for (start, end), value in reversed(spans):
            key = key[:start] + value + key[end:]
        return key


def any_of(rules: Iterable[Rule]) -> re.Pattern[str]:
    """For `fullmatch`: what one of these rows claims, the Nth in a group `rN`."""
    rows = (_NAMED.sub("(?:", rule.pattern.pattern) for rule in rules)
    return re.compile("|".join(f"(?P<r{n}>{row})" for n, row in enumerate(rows)))


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
    """Stored with a first axis of one, or without."""
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


PRE = Assumption(field="norm", value="pre")  # norms stand before attention and MLP


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One way of naming an old GPT's tensors.

    `marks` are the groups of settings that only this dialect's programs write: of two dialects with the same names, the
    one whose mark is there is meant. `tied` says whether its models share the head with the embedding. A `loose` one
    knows many spellings of a layout and stands back where another fits. `model_types` are those of its `config.json`,
    and `must_be` settings there that change what is computed, with the only value that can be carried over. `doubts`
    are warned of whenever it is read.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    assumptions: tuple[Assumption, ...]
    marks: tuple[str, ...] = ()
    tied: tuple[bool, ...] = (True, False)
    loose: bool = False
    model_types: tuple[str, ...] = ()
    must_be: tuple[tuple[str, object], ...] = ()
    doubts: tuple[str, ...] = ()

    @cached_property
    def any_row(self) -> re.Pattern[str]:
        """What any of its rows claims."""
        return any_of(self.rules)


@dataclass(frozen=True)
class Step:
    """What becomes of some keys: these sources become those targets. `kind` is a source with `*` for layer and head."""

    op: Op
    kind: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cover:
    """How a dialect's rows cover the keys of a file. It fits when nothing is unknown, missing or claimed twice.

    Of the `missing` ones only a few are named for each row; `lacking` counts them all.
    """

    dialect: Dialect
    steps: tuple[Step, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    lacking: int
    twice: tuple[str, ...]
    n_layer: int
    n_head: int  # 0 where heads are not counted by keys

    @property
    def fits(self) -> bool:
        """Whether every key is claimed and every required row claims."""
        return self.faults == 0

    @property
    def faults(self) -> int:
        """How far it is from fitting."""
        return len(self.unknown) + self.lacking + len(self.twice)


@dataclass(frozen=True)
class _Claim:
    """A key and the row that claims it, with what stands in the row's holes."""

    rule: Rule
    key: str
    i: int
    j: int
    p: str
    spelt: tuple[tuple[str, str], ...]  # of the holes that are spelt alike in all keys


_Spots = dict[tuple[int, str], dict[int, str]]  # within a row, by layer and kind: its keys by head


def cover(dialect: Dialect, keys: Iterable[str]) -> Cover:
    """Lay a dialect's rows over the keys of a file."""
    found = {key: _claim(dialect, key) for key in keys}
    spelt = _usual(claim for claim in found.values() if claim)
    alike = [claim for claim in found.values() if claim and all(spelt[hole] == word for hole, word in claim.spelt)]
    layers = {claim.i for claim in alike if "{i}" in claim.rule.source}
    heads = {claim.j for claim in alike if "{j}" in claim.rule.source}
    claims = {claim.key: claim for claim in alike if _is_near(claim.i, layers) and _is_near(claim.j, heads)}
    n_layer = 1 + max((claim.i for claim in claims.values()), default=0)
    n_head = 1 + max((claim.j for claim in claims.values()), default=0) if heads else 0
    by_row: dict[Rule, _Spots] = {rule: {} for rule in dialect.rules}
    twice = [key for claim in claims.values() for key in _put(claim, by_row[claim.rule])]
    gaps = [_gaps(rule, by_row[rule], n_layer, max(n_head, 1), spelt) for rule in dialect.rules if rule.op is not DROP]
    return Cover(
        dialect=dialect,
        steps=tuple(_steps(by_row)),
        unknown=tuple(key for key in found if key not in claims),
        missing=tuple(name for names, _ in gaps for name in names),
        lacking=sum(count for _, count in gaps),
        twice=tuple(twice),
        n_layer=n_layer,
        n_head=n_head,
    )


def _claim(dialect: Dialect, key: str) -> _Claim | None:
    row = dialect.any_row.fullmatch(key)
    if row is None or row.lastgroup is None:
        return None
    rule = dialect.rules[int(row.lastgroup[1:])]
    match = rule.pattern.fullmatch(key)
    assert match is not None
    holes = match.groupdict()
    spelt = tuple((hole, holes[f"s{n}"] or "") for n, hole in enumerate(rule.alike))
    return _Claim(rule, key, int(holes.get("i") or 0), int(holes.get("j") or 0), holes.get("p") or "weight", spelt)


def _usual(claims: Iterable[_Claim]) -> dict[str, str]:
    """The spelling that most keys have, of each hole that is spelt alike in all of them."""
    seen: dict[str, Counter[str]] = {}
    for claim in claims:
        for hole, word in claim.spelt:
            seen.setdefault(hole, Counter())[word] += 1
    return {hole: words.most_common(1)[0][0] for hole, words in seen.items()}


def _is_near(number: int, seen: Set[int]) -> bool:
    """Whether a layer or head with this number may be one of a row of them, half of which are there."""
    return number < max(2 * len(seen), 1)


def _put(claim: _Claim, spots: _Spots) -> tuple[str, ...]:
    """Put a key into its place; gives both keys where another is there."""
    heads = spots.setdefault((claim.i, claim.p), {})
    other = heads.setdefault(claim.j, claim.key)
    return () if other == claim.key else (other, claim.key)


def _gaps(rule: Rule, spots: _Spots, n_layer: int, n_head: int, spelt: Mapping[str, str]) -> tuple[list[str], int]:
    """The first few keys, and the number of all, that a required row should claim, or that an optional one claims in
    some layers and heads but not in all.
    """
    layers, heads = n_layer if "{i}" in rule.source else 1, n_head if "{j}" in rule.source else 1
    kinds = {p for _, p in spots} | (set() if rule.optional else {"weight"})
    example = next((key for found in spots.values() for key in found.values()), "")
    names: list[str] = []
    count = 0
    for p in sorted(kinds, reverse=True):
        lacking = layers * heads - sum(len(found) for (_, kind), found in spots.items() if kind == p)
        gaps = ((i, j) for i in range(layers) for j in range(heads) if j not in spots.get((i, p), {}))
        for i, j in islice(gaps, min(lacking, FEW)):
            names.append(rule.respelled(example, i=i, j=j, p=p) if example else rule.key(i=i, j=j, p=p, spelt=spelt))
        count += lacking
    return names, count


def _steps(by_row: Mapping[Rule, _Spots]) -> Iterator[Step]:
    """In the order of the rows, so that what a later one gives counts where two give the same."""
    for rule, spots in by_row.items():
        for (i, p), heads in spots.items():
            targets = tuple(target.format(i=i, p=p) for target in rule.targets)
            kind = rule.respelled(next(iter(heads.values())), i="*", j="*")
            yield Step(rule.op, kind, tuple(heads[j] for j in sorted(heads)), targets)
