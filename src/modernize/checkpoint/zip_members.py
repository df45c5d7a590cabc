"""The members of a zip archive, read strictly: what two programs could read in two ways is refused.

    stored     nothing is compressed or encrypted, so what a member takes is what it has
    tiled      members lie one behind the other from the first byte on, with nothing between them, then the directory,
               then the end of the file: no bytes in front, behind or in two members
    agreed     the directory and what stands before each member say the same name, sizes and checksum
    one root   every name is a plain one in one and the same folder, and none is there twice

(APPNOTE.TXT 6.3.10, PKWARE: sections 4.3.7 local header, 4.3.9 descriptor, 4.3.12 directory, 4.3.14 and 4.3.15 zip64,
4.3.16 end, 4.5.3 sizes of zip64.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, Foreign, TooMuch, shown

_LOCAL, _CENTRAL = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I")
_END, _END64, _LOCATOR = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
_DESCRIPTORS = (struct.Struct("<4s3I"), struct.Struct("<4sI2Q"))
_FOLLOWS, _UTF8 = 1 << 3, 1 << 11  # flags: a descriptor follows the data; the name is UTF-8
_FULL, _FULL16 = 0xFFFFFFFF, 0xFFFF  # see zip64


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member: its bytes are `start` to `end` of the file, and `crc` is their CRC-32 (0: it was never computed)."""

    name: str
    start: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What the directory says of a member; `at` is where its local header begins."""

    raw_name: bytes
    name: str
    flags: int
    crc: int
    size: int
    at: int


def names_in(stream: BinaryIO, size: int) -> list[str]:
    """Names of the members of any archive, whatever else is to be said of it. Raises Damaged, TooMuch."""
    start, end, count = _directory(stream, size)
    return [raw_name.decode("utf-8", "replace") for raw_name, *_ in _rows(_read(stream, start, end - start), count)]


def members_of(stream: BinaryIO, size: int) -> dict[str, Member]:
    """Members by name without the root folder, of a file of `size` bytes. Raises Damaged, TooMuch, Foreign."""
    start, end, count = _directory(stream, size)
    entries = sorted(map(_entry, _rows(_read(stream, start, end - start), count)), key=lambda entry: entry.at)
    roots = {entry.name.partition("/")[0] for entry in entries}
    if len(roots) != 1 or not all("/" in entry.name for entry in entries):
        raise Foreign("its members are not in one folder, as those of a torch file are")
    members: dict[str, Member] = {}
    expected = 0
    for entry, after in zip(entries, [*(entry.at for entry in entries[1:]), start], strict=True):
        if entry.at != expected:
            raise Damaged(f"the member {shown(entry.name)} does not begin where the one before it ends")
        member = _member(stream, entry, after)
        expected = after
        name = entry.name.partition("/")[2]
        if name in members:
            raise Damaged(f"the member {shown(entry.name)} is there twice")
        if entry.name.endswith("/") and entry.size:
            raise Damaged(f"the folder {shown(entry.name)} has bytes of its own")
        members[name] = member
    return members


def _read(stream: BinaryIO, at: int, count: int) -> bytes:
    if at < 0 or count < 0:
        raise Damaged("its directory points outside of the file")
    stream.seek(at)
    raw = stream.read(count)
    if len(raw) != count:
        raise Damaged("it ends too early")
    return raw


def _directory(stream: BinaryIO, size: int) -> tuple[int, int, int]:
    """Start and end of the directory, and how many members it has; both ends of it are fixed by what follows it."""
    at = size - _END.size
    magic, disk, first, here, count, length, start, comment = _END.unpack(_read(stream, at, _END.size))
    if magic != b"PK\x05\x06" or comment or disk or first:
        raise Damaged("it does not end with the end of a zip directory")
    locator = _read(stream, at - _LOCATOR.size, _LOCATOR.size) if at >= _LOCATOR.size else b""
    if locator[:4] == b"PK\x06\x07":
        _, _, place, disks = _LOCATOR.unpack(locator)
        at -= _LOCATOR.size + _END64.size
        row = _END64.unpack(_read(stream, at, _END64.size))
        magic, rest, _, _, disk, first, here64, count64, length64, start64 = row
        if (magic, rest, disk, first, disks, place) != (b"PK\x06\x06", _END64.size - 12, 0, 0, 1, at):
            raise Damaged("the two ends of its directory disagree")
        for short, long, full in ((here, here64, _FULL16), (count, count64, _FULL16), (length, length64, _FULL)):
            if short not in (long, full):
                raise Damaged("the two ends of its directory disagree")
        if start not in (start64, _FULL):
            raise Damaged("the two ends of its directory disagree")
        here, count, length, start = here64, count64, length64, start64
    if here != count or start + length != at:
        raise Damaged("its directory does not end where the file does")
    if count > limits.MEMBERS:
        raise TooMuch(f"{count:,} members, more than {limits.MEMBERS:,}")
    if length > limits.DIRECTORY:
        raise TooMuch(f"a directory of {length:,} bytes, more than {limits.DIRECTORY:,}")
    return start, at, count


def _rows(raw: bytes, count: int) -> Iterator[tuple[bytes, bytes, tuple[Any, ...]]]:
    """Name, extra fields and the rest of what the directory says of each member. Raises Damaged."""
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(raw):
            raise Damaged("its directory ends too early")
        row = _CENTRAL.unpack_from(raw, at)
        name, extra, comment = row[10:13]
        if row[0] != b"PK\x01\x02":
            raise Damaged("its directory has something that is no member")
        at += _CENTRAL.size
        end = at + name + extra + comment
        if end > len(raw):
            raise Damaged("its directory ends too early")
        yield raw[at : at + name], raw[at + name : at + name + extra], row
        at = end
    if at != len(raw):
        raise Damaged("its directory has more than its members")


def _entry(said: tuple[bytes, bytes, tuple[Any, ...]]) -> _Entry:
    """A member as the directory has it. Raises Damaged, TooMuch, Foreign."""
    raw_name, more, row = said
    _, _, _, flags, method, _, _, crc, packed, size, _, _, comment, disk, _, _, place = row
    shown_name = shown(raw_name.decode("utf-8", "replace"))
    if method or flags & ~(_FOLLOWS | _UTF8) or comment or disk:
        raise Foreign(f"its member {shown_name} is compressed, encrypted or has a comment, as torch never does")
    size, packed, place = _wide(more, (size, packed, place))
    if size != packed:
        raise Damaged(f"the member {shown_name} has two sizes")
    return _Entry(raw_name=raw_name, name=_name(raw_name, flags), flags=flags, crc=crc, size=size, at=place)


def _wide(extra: bytes, values: tuple[int, int, int]) -> tuple[int, ...]:
    """Sizes and places of which zip64 has the true value, in this order, where the short one is full."""
    true = iter(())
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if at + 4 + length > len(extra):
            raise Damaged("its directory ends too early")
        if kind == 1:
            true = iter(value for (value,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + length // 8 * 8]))
        at += 4 + length
    return tuple(next(true, value) if value == _FULL else value for value in values)


def _name(raw: bytes, flags: int) -> str:
    """A member's name. Raises Foreign for one that is no plain path downwards."""
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise Damaged("a member's name is no UTF-8") from error
    if len(name) > limits.NAME:
        raise TooMuch(f"a member with a name of {len(name):,} characters, more than {limits.NAME}")
    if "\\" in name or "\0" in name or not {"", ".", ".."}.isdisjoint(name.removesuffix("/").split("/")):
        raise Foreign(f"its member {shown(name)} has a name that is no path within the archive")
    return name


def _member(stream: BinaryIO, entry: _Entry, after: int) -> Member:
    """A member whose local header says what the directory says, and that fills the file up to `after`."""
    row = _LOCAL.unpack(_read(stream, entry.at, _LOCAL.size))
    magic, _, flags, method, _, _, crc, packed, size, name, extra = row
    rest = _read(stream, entry.at + _LOCAL.size, name + extra)
    size, packed, _ = _wide(rest[name:], (size, packed, 0))
    said = (magic, flags, method, rest[:name])
    later = flags & _FOLLOWS and (crc, packed, size) == (0, 0, 0)
    if said != (b"PK\x03\x04", entry.flags, 0, entry.raw_name) or not (
        later or (crc, packed, size) == (entry.crc, entry.size, entry.size)
    ):
        raise Damaged(f"the directory and the member {shown(entry.name)} itself disagree")
    start = entry.at + _LOCAL.size + name + extra
    end = start + entry.size
    if end > after:
        raise Damaged(f"the member {shown(entry.name)} reaches into the next one")
    between = _read(stream, end, min(after - end, _DESCRIPTORS[1].size + 1))
    forms = _DESCRIPTORS[entry.size > _FULL :]  # with short sizes, and with long ones
    descriptors = {form.pack(b"PK\x07\x08", entry.crc, entry.size, entry.size) for form in forms}
    if between not in (descriptors if flags & _FOLLOWS else {b""}):
        raise Damaged(f"something stands behind the member {shown(entry.name)}")
    return Member(name=entry.name, start=start, end=end, crc=entry.crc)
