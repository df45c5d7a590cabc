"""JSON in which every name stands once: what programs resolve in different ways is refused, and what is too long."""

import json
from pathlib import Path
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, Foreign, TooMuch, shown
from modernize.checkpoint.nesting import check_nesting


def parse(raw: bytes, limit: int) -> Any:  # noqa: ANN401  (any plain value)
    """Plain values from UTF-8, with or without a byte order mark. Raises Damaged, TooMuch."""
    if len(raw) > limit:
        raise TooMuch(f"{len(raw):,} bytes of JSON, more than {limit:,}")
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its JSON cannot be read ({shown(str(error))})") from error


def read(path: Path) -> Any:  # noqa: ANN401
    """The JSON of a file. Raises Damaged, TooMuch, Foreign, OSError."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise Foreign(f"{path.name} is no regular file")
    with path.open("rb") as stream:
        plain = parse(stream.read(limits.JSON + 1), limits.JSON)
    check_nesting(plain)
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Damaged(f"{shown(name)} is there twice")
            seen.add(name)
    return made
