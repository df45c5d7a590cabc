"""Whole: a file that is there whole, bit for bit, or not at all, whenever its writer stops.

It is written aside, in the same folder, as `.NAME.xxxxxxxx.part`. Every slice is read back and compared as soon as it
is written. Then the file is synced, gets its mode, is renamed, and the folder is synced. A process that is killed
leaves the old file or the new one, and perhaps a part, which the next writer of that name removes: a writer holds a
lock on its part, so one whose lock can be taken is nobody's. What is read back comes from the system's cache: it tells
what the system took for the file, and not what a broken disk will make of it.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from modernize.errors import OutputRefused

if sys.platform != "win32":
    import fcntl

Part: TypeAlias = bytes | NDArray[Any]
SLICE = 1 << 20  # bytes; what was written is still near the processor when it is compared
LONGEST_NAME = 255  # bytes, where a file system doesn't say
STALE = 24 * 3600  # seconds without a byte, after which a part is nobody's where nothing can be locked
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_whole(path: Path, parts: Iterable[Part], *, beginning: Callable[[], bytes] | None = None) -> None:
    """Write the bytes of `parts`, one behind the other, as the file `path`, whole or not at all.

    `beginning` is asked when all parts are there: its bytes take the place of as many at the start of the file, where
    something stands that was known last. Parts may be large and made only when they are asked for: never more than one
    is held. A link is written through, a new file gets the mode of the umask, and one that is replaced hands on its
    permission bits and, where that may be, its group; not its owner, and not setuid, setgid and sticky, which were
    granted to other bytes.

    Raises OutputRefused where it cannot be written, and whatever `parts` and `beginning` raise; what was there before
    is then still there, and nothing else.
    """
    with _telling(path):
        target = resolve_output(path)
        clear_leftovers(target)
        aside = aside_of(target)
        old = _stat(target)
    try:
        with _telling(path):
            file = _created(aside, old.st_mode & 0o600 if old else 0o666)  # less the umask
        with file:
            size, parts = 0, iter(parts)
            while True:
                part = next(parts, None)
                if part is None:
                    break
                with _telling(path):
                    size += _put(file, part, path)
                del part  # before the next one is made
            first = beginning() if beginning else b""
            with _telling(path):
                file.seek(0)
                _put(file, first, path)
                _check_size(file, size, path)
                os.fsync(file.fileno())
                _take_place(file, aside, target, _stat(target) or old)
        with _telling(path):
            sync_folder(target.parent)
    except BaseException:  # also an interrupt leaves nothing behind
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def resolve_output(path: Path) -> Path:
    """Where a file of that name lies, behind all links, also behind one that leads to nothing yet. Opens nothing.

    Raises OutputRefused for links that go round and for what is no regular file, OSError where that can't be known.
    """
    try:
        target = Path(os.path.realpath(path))
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return target
    except ValueError as error:  # a null byte, a lone surrogate
        raise OutputRefused(f"the output {str(path)!r} has no name for a file", hint="give another name") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OutputRefused(
                f"the output {path} is a link that goes round", hint="give the name of a file"
            ) from None
        raise
    if kind != stat.S_IFREG:
        _refuse_kind(path, kind)
    return target


def aside_of(target: Path, end: str = "part") -> Path:
    """A new name beside the target, for what is to become it."""
    return target.with_name(f".{stem(target)}.{secrets.token_hex(4)}.{end}")


def clear_leftovers(target: Path, *, end: str = "part", folders: bool = False) -> None:
    """Remove what killed runs left aside of this target; what a process is writing just now stays.

    Only files (or only folders) with a name that `aside_of` makes.
    """
    pattern = re.compile(rf"\.{re.escape(stem(target))}\.[0-9a-f]{{8}}\.{end}")
    with contextlib.suppress(OSError):  # a folder that can't be listed may still be written to
        for entry in list(os.scandir(target.parent)):
            if not pattern.fullmatch(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False) if folders else entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # somebody else's, or gone
                    _remove_if_dead(Path(entry.path))


def hold(descriptor: int) -> None:
    """Lock a part for as long as it stays open, so that nobody takes it for a leftover."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # a file system without locks: see STALE
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where a folder can be synced. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # it may be written to but not read, or the system is Windows
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """What the system refuses, as a sentence. Not around `parts`, whose errors are about other files."""
    try:
        yield
    except OSError as error:
        raise OutputRefused(
            f"{path} cannot be written: {error.strerror or error}", hint="check the space and the permissions there"
        ) from error


def _refuse_kind(path: Path, kind: int) -> None:
    raise OutputRefused(
        f"the output {path} is {KINDS.get(kind, 'something else')}, not a regular file", hint="give the name of a file"
    )


def stem(target: Path) -> str:
    """The name of the target, or, where there is no room for more beside it, its start and a hash."""
    try:
        longest = os.pathconf(target.parent, "PC_NAME_MAX")
    except (AttributeError, OSError, ValueError):
        longest = LONGEST_NAME
    room = longest - len(".") - len(".01234567.part")
    if len(os.fsencode(target.name)) <= room:
        return target.name
    mark = "~" + hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]
    start = target.name[: room - len(mark)]
    while len(os.fsencode(start + mark)) > room:
        start = start[:-1]
    return start + mark


def _created(aside: Path, mode: int) -> FileIO:
    """The part, new, locked and empty. Raises OSError."""
    while True:
        file = FileIO(aside, "x+", opener=lambda name, flags: os.open(name, flags, mode))
        try:
            hold(file.fileno())
            if is_named(aside, os.fstat(file.fileno())):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # somebody took it for a leftover between the two


def _put(file: FileIO, part: Part, path: Path) -> int:
    """Write a part at the end of the file in slices, each read back and compared; its size in bytes."""
    view = memoryview(part) if isinstance(part, bytes) else part.data
    if not view.nbytes:
        return 0
    view, back = view.cast("B"), bytearray(min(SLICE, view.nbytes))
    room, at = memoryview(back), file.tell()
    for start in range(0, len(view), SLICE):
        piece, done = view[start : start + SLICE], 0
        while done < len(piece):
            done += file.write(piece[done:])
        file.seek(at + start)
        done = 0
        while done < len(piece) and (more := file.readinto(room[done : len(piece)])):
            done += more
        if (back if done == len(back) else back[:done]) != piece:  # two memoryviews would be compared item by item
            _refuse_bytes(path, f"at byte {at + start}")
    return len(view)


def _check_size(file: FileIO, size: int, path: Path) -> None:
    if (found := os.fstat(file.fileno()).st_size) != size:
        _refuse_bytes(path, f"it has {found} bytes and not {size}")


def _refuse_bytes(path: Path, where: str) -> None:
    raise OutputRefused(f"{path} was not written as it is: {where}", hint="check the disk, and write it again")


def _take_place(file: FileIO, aside: Path, target: Path, old: os.stat_result | None) -> None:
    """Give the part the mode of what it replaces, and then its name. Raises OutputRefused, OSError."""
    if old:
        if not stat.S_ISREG(old.st_mode):  # it came there meanwhile
            _refuse_kind(target, stat.S_IFMT(old.st_mode))
        _follow(old, aside)
    if sys.platform == "win32":
        file.close()  # an open file cannot be renamed there; elsewhere the lock is kept until it is
    aside.replace(target)


def _follow(old: os.stat_result, aside: Path) -> None:
    """Permission bits and group of the old file; where the group can't be had, its rights shrink to everybody's."""
    mode = old.st_mode & 0o777
    if sys.platform != "win32" and aside.stat().st_gid != old.st_gid:
        try:
            os.chown(aside, -1, old.st_gid)
        except OSError:
            mode &= 0o707 | (mode & 0o007) << 3
    aside.chmod(mode)


def _remove_if_dead(path: Path) -> None:
    """Remove a part that no process holds. Raises OSError."""
    if sys.platform == "win32":
        if _is_stale(path.stat()):
            path.unlink()
        return
    # neither waits nor leads away, whatever has the name by now
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        # asked under the lock: until then its writer may have renamed it
        if _is_nobodys(descriptor, found) and is_named(path, found):
            shutil.rmtree(path) if stat.S_ISDIR(found.st_mode) else path.unlink()
    finally:
        os.close(descriptor)


def _is_nobodys(descriptor: int, found: os.stat_result) -> bool:
    if sys.platform == "win32":
        return _is_stale(found)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return _is_stale(found)
    return True


def _is_stale(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > STALE


def _stat(path: Path) -> os.stat_result | None:
    """Of what has that name, be it a link; None where nothing has."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def is_named(path: Path, found: os.stat_result) -> bool:
    """Whether a file that is open still has this name."""
    now = _stat(path)
    return now is not None and os.path.samestat(now, found)
