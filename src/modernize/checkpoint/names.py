"""Names of tensors: texts of a length that can be shown, and not more of them than any model has."""

from collections.abc import Iterable
from pathlib import Path

from modernize.checkpoint import limits
from modernize.checkpoint.faults import shown
from modernize.errors import UnreadableFile

_HINT = "save it again with the names that state_dict() gives"


def check_names(path: Path, names: Iterable[object]) -> None:
    """Raises UnreadableFile for names that are none, too long, or too many."""
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise UnreadableFile(f"{path} has a tensor whose name is {shown(name)}, which is no text", hint=_HINT)
        if len(name) > limits.NAME:
            raise UnreadableFile(
                f"{path} has a tensor named {shown(name)}, longer than {limits.NAME} characters", hint=_HINT
            )
        if not _is_text(name):
            raise UnreadableFile(f"{path} has a tensor named {shown(name)!r}, which is no whole text", hint=_HINT)
        if number >= limits.TENSORS:
            raise UnreadableFile(f"{path} has more than {limits.TENSORS:,} tensors, more than any model", hint=_HINT)


def _is_text(name: str) -> bool:
    return name.encode("utf-8", "replace").decode("utf-8") == name
