"""The storages that a pickle refers to, by key: each is one thing, however often it is referred to."""

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, shown
from modernize.checkpoint.pickle_names import dtype_of_storage
from modernize.checkpoint.records import Storage


class Storages:
    """Those of one file, as far as it has been read."""

    def __init__(self) -> None:
        self.by_key: dict[str, Storage] = {}

    def take(self, reference: object, *, parts: int) -> Storage:
        """The storage of `("storage", torch.FloatStorage, key, location, numel, …)`, of 5 to so many parts; where it
        lived does not matter. Raises Damaged for what is none, or is another than before.
        """
        if not isinstance(reference, tuple) or not 5 <= len(reference) <= parts or reference[0] != "storage":
            raise Damaged("its pickle refers to something that is no storage")
        _, kind, key, _, numel = reference[:5]
        storage = Storage(checked_key(key), dtype_of_storage(kind), _checked_numel(numel))
        if self.by_key.setdefault(storage.key, storage) != storage:
            raise Damaged(f"the storage {shown(storage.key)} is described in two ways")
        return storage


def checked_key(key: object) -> str:
    """A storage's key. Raises Damaged for what is no text."""
    if not isinstance(key, str):
        raise Damaged(f"a storage has the key {shown(key)}")
    return key


def _checked_numel(numel: object) -> int:
    if not isinstance(numel, int) or isinstance(numel, bool) or not 0 <= numel <= limits.SIZE:
        raise Damaged(f"a storage is said to have {shown(numel)} numbers")
    return numel
