"""What the parts of the reader say of a file, without knowing which file it is; `named` adds its name and a hint."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modernize.errors import InputRefused, UnreadableFile, UnsafeFile

SAVE_AGAIN = (
    "save it again from the program that made it, tensors and plain values only: "
    'torch.save({"model": model.state_dict(), "model_args": {"n_head": ...}}, PATH)'
)
COPY_AGAIN = "copy or download it again, and compare its size"
_LONGEST = 80  # characters of a name that is shown


class Fault(Exception):
    """Something in a file that does not hold."""


class Damaged(Fault):
    """Bytes that contradict each other, or are not all there."""


class CutShort(Damaged):
    """Bytes that end before they should."""


class Unsafe(Fault):
    """Something that only running code could rebuild; `what` names it."""


class TooMuch(Fault):
    """More of something than limits.py allows."""


class Foreign(Fault):
    """Whole, and written as no program here is known to write, or for another kind of machine."""


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Faults in this file as errors that name it. Raises UnreadableFile, UnsafeFile."""
    try:
        yield
    except Fault as fault:
        raise _error(path, fault) from fault
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror or error}", hint=COPY_AGAIN) from error
    except MemoryError as error:
        raise UnreadableFile(f"{path} asks for more memory than there is", hint=COPY_AGAIN) from error


def _error(path: Path, fault: Fault) -> InputRefused:
    if isinstance(fault, Unsafe):
        return UnsafeFile(
            f"{path} {fault}, and rebuilding that would run code, so the file is not loaded", hint=SAVE_AGAIN
        )
    if isinstance(fault, TooMuch):
        return UnreadableFile(f"{path} has {fault}, so it is not read", hint=SAVE_AGAIN)
    if isinstance(fault, Foreign):
        return UnreadableFile(f"{path}: {fault}", hint=SAVE_AGAIN)
    return UnreadableFile(f"{path} is damaged or cut short: {fault}", hint=COPY_AGAIN)


class _Short(reprlib.Repr):
    """Values of any size and depth, as Python writes them, but short."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = self.maxset = self.maxfrozenset = 3
        self.maxstring = self.maxlong = self.maxother = _LONGEST


quoted = _Short().repr  # a setting, as a sentence shows it


def shown(value: object) -> str:
    """A name or a value from a file, short enough to be shown; of containers and objects only what they are."""
    if not isinstance(value, str | int | float | complex | None):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text):,} characters)"
