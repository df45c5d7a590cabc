"""Alone: one run at a time writes an output, and saves itself beside it, as long as it lasts."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from modernize.errors import OutputRefused
from modernize.whole import is_named, resolve_output, stem

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def alone(output: Path) -> Iterator[None]:
    """Hold the lock of an output: a file `.NAME.lock` beside it, which is gone afterwards.

    A lock of a process that was killed holds nobody up. Where files can't be locked, nothing is. Raises OutputRefused
    where another run has it.
    """
    target = resolve_output(output)
    place = target.with_name(f".{stem(target)}.lock")
    descriptor = _locked(place, output)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                place.unlink()  # while it is locked, so that it is nobody else's
            os.close(descriptor)


def _locked(place: Path, output: Path) -> int | None:
    if sys.platform == "win32":
        return None
    while True:
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError:  # who can't write here is told so by whatever writes first
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OutputRefused(
                f"another run that writes {output} is going on", hint="wait for it, or give another name with -o"
            ) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None
        if is_named(place, os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)  # the run that had it ended between the two
