"""The zip files that torch has written since 1.6: a pickle, and a member for the bytes of each storage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from modernize.checkpoint import limits
from modernize.checkpoint.base import Checksum
from modernize.checkpoint.faults import Damaged, Foreign, TooMuch, shown
from modernize.checkpoint.pickle_machine import PickleMachine
from modernize.checkpoint.pickle_names import CALLS
from modernize.checkpoint.records import Storage
from modernize.checkpoint.storages import Storages
from modernize.checkpoint.zip_members import Member, members_of


class TorchZip:
    """The value that a file holds (`root`), where each storage begins (`starts`), and its checksums.

    `faults` says of storages what is wrong with them.
    """

    def __init__(self, path: Path) -> None:
        self.starts: dict[str, int] = {}
        self.faults: dict[str, str] = {}
        self._described = Storages()
        with path.open("rb") as stream:
            self._members = members_of(stream, path.stat().st_size)
            order = self._small(stream, "byteorder", "little")
            if order != "little":
                raise Foreign(f"its byte order is {shown(order)}, and only little-endian numbers are read")
            raw = self._bytes(stream, "data.pkl", limits.PICKLE)
        machine = PickleMachine(memoryview(raw), calls=CALLS, persistent=self._storage)
        self.root: Any = machine.run()
        if machine.at != len(raw):
            raise Damaged("something stands behind the end of its pickle")
        with_bytes = [member for member in self._members.values() if member.size]
        if any(member.crc for member in with_bytes) and not all(member.crc for member in with_bytes):
            raise Damaged("some of its members have checksums, and some have none")
        self.checksums: Sequence[Checksum] = [
            Checksum(what=f"the member {shown(m.name)}", start=m.start, end=m.end, crc=m.crc)
            for m in self._members.values()
            if m.crc
        ]

    def _storage(self, reference: object) -> Storage:
        """`("storage", torch.FloatStorage, key, location, numel)`; where it lived does not matter."""
        storage = self._described.take(reference, parts=5)
        member = self._members.get(f"data/{storage.key}")
        if member is None:
            self.faults[storage.key] = "is not in the file"
        elif member.size != storage.nbytes:
            self.faults[storage.key] = f"is said to have {storage.nbytes:,} bytes, and has {member.size:,}"
        else:
            self.starts[storage.key] = member.start
        return storage

    def _member(self, name: str) -> Member:
        if name not in self._members:
            raise Damaged(f"it has no member {name}")
        return self._members[name]

    def _small(self, stream: BinaryIO, name: str, otherwise: str) -> str:
        if name not in self._members:
            return otherwise
        return self._bytes(stream, name, limits.LINE).decode("utf-8", "replace").strip()

    def _bytes(self, stream: BinaryIO, name: str, limit: int) -> bytes:
        member = self._member(name)
        if member.size > limit:
            raise TooMuch(f"a member {name} of {member.size:,} bytes, more than {limit:,}")
        stream.seek(member.start)
        raw = stream.read(member.size)
        Checksum(what=f"the member {name}", start=0, end=member.size, crc=member.crc).check(raw)
        return raw
