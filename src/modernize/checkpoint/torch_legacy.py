"""The files that torch wrote before 1.6: five pickles one behind the other, then the bytes of each storage.

a magic number · the protocol, 1001 · facts of the machine · the value itself · the keys of the storages in order
then for each of these keys: how many numbers (8 bytes), and the numbers
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from modernize.checkpoint import limits
from modernize.checkpoint.base import Checksum
from modernize.checkpoint.faults import CutShort, Damaged, Foreign, shown
from modernize.checkpoint.pickle_machine import PickleMachine
from modernize.checkpoint.pickle_names import CALLS, Call
from modernize.checkpoint.records import Name
from modernize.checkpoint.storages import Storages, checked_key

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_BEGINNING = 1 << 20  # bytes that are read at first


class TorchLegacy:
    """The value that a file holds (`root`), and where each storage begins (`starts`). There are no checksums.

    `faults` says of storages what is wrong with them.
    """

    checksums: Sequence[Checksum] = ()

    def __init__(self, path: Path) -> None:
        self.starts: dict[str, int] = {}
        self.faults: dict[str, str] = {}
        self._described = Storages()
        size = path.stat().st_size
        with path.open("rb") as stream:
            keys, at = self._pickles(stream, size)
            for key in keys:
                at = self._place(stream, at, key)
        if at > size:
            raise Damaged("its last storage is not all there")
        if at != size:
            raise Damaged(f"{size - at:,} bytes stand behind its last storage")

    def _pickles(self, stream: BinaryIO, size: int) -> tuple[list[str], int]:
        """Read the pickles, which are mostly a small part of the file, from as much of its beginning as they take."""
        length = _BEGINNING
        while True:
            stream.seek(0)
            beginning = stream.read(min(length, size, limits.PICKLE))
            self._described = Storages()
            self.faults.clear()
            try:
                return self._read(memoryview(beginning))
            except CutShort:
                if length >= min(size, limits.PICKLE):
                    raise
            length *= 8

    def _read(self, whole: memoryview) -> tuple[list[str], int]:
        """The keys of the storages, and where the first begins."""
        magic, at = self._pickle(whole, 0, {})
        if magic != MAGIC:
            raise Damaged("it does not begin with the number that torch files begin with")
        protocol, at = self._pickle(whole, at, {})
        if protocol != PROTOCOL:
            raise Foreign(f"its protocol is {shown(protocol)}, and only {PROTOCOL} is known")
        facts, at = self._pickle(whole, at, {})
        if not isinstance(facts, dict) or facts.get("little_endian") is not True:
            raise Foreign("it was written on a big-endian machine, and only little-endian numbers are read")
        self.root, at = self._pickle(whole, at, CALLS)
        keys, at = self._pickle(whole, at, {})
        if not isinstance(keys, list) or len(set(map(checked_key, keys))) != len(keys):
            raise Damaged("its list of storages is none")
        self.faults |= dict.fromkeys(sorted(self._described.by_key.keys() - set(keys)), "is not in the file")
        return keys, at

    def _pickle(self, whole: memoryview, at: int, calls: dict[Name, Call]) -> tuple[Any, int]:
        machine = PickleMachine(whole, at, calls=calls, persistent=self._storage)
        return machine.run(), machine.at

    def _storage(self, reference: object) -> object:
        """`("storage", torch.FloatStorage, key, location, numel, view)`, or `("module", class, file, text)`, of which
        only the class counts.
        """
        if isinstance(reference, tuple) and len(reference) == 4 and reference[0] == "module":
            return reference[1]
        found = self._described.take(reference, parts=6)
        if isinstance(reference, tuple) and reference[5:] not in ((), (None,)):
            raise Foreign(f"the storage {shown(found.key)} is a part of another, as torch before 0.4 wrote")
        return found

    def _place(self, stream: BinaryIO, at: int, key: str) -> int:
        """Where a storage begins is noted; gives where it ends."""
        found = self._described.by_key.get(key)
        if found is None:
            raise Damaged(f"the storage {shown(key)} belongs to no tensor")
        stream.seek(at)
        counted = stream.read(8)
        if len(counted) < 8 or int.from_bytes(counted, "little", signed=True) != found.numel:
            raise Damaged(f"the storage {shown(key)} is said to have {found.numel:,} numbers, and does not")
        self.starts[key] = at + 8
        return at + 8 + found.nbytes
