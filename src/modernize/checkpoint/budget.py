"""What a pickle may cost beside its instructions: keys whose hashes collide, and values that are copied."""

from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, TooMuch, shown
from modernize.checkpoint.numpy_values import Array
from modernize.checkpoint.records import Misfit, Name, Record, View, is_small

_SCALARS = (str, int, float, bytes, type(None), Name, Record, View, Misfit)  # that may be keys
_PARTS = (str, int, float, bytes, type(None), Name)  # that a tuple may hold that is a key
_SIZED = (str, bytes, list, tuple, dict, set, Record, Array)


class Budget:
    """One pickle's."""

    def __init__(self) -> None:
        self._copied = self._numbers = 0

    def key(self, key: Any, held: int = -1) -> Any:  # noqa: ANN401
        """A value that can be a key, in a dictionary that holds so many. Raises Damaged, TooMuch.

        Texts and names are hashed with a secret, but numbers are not, so that a file could choose many that collide.
        Those that follow one another don't, as those of tokens; of others only some are taken. A tuple becomes its
        text: nothing here looks for a tuple.
        """
        if isinstance(key, tuple) and all(isinstance(part, _PARTS) for part in key):
            return f"({', '.join(map(str, key))})"
        if not isinstance(key, _SCALARS):
            raise Damaged(f"{shown(key)} is used as a key")
        if isinstance(key, int | float):
            self._numbers += key not in (held, held + 1)
            if self._numbers > limits.NUMBERS or not is_small(key):
                raise TooMuch(f"more numbers as keys, or larger ones, than any program writes ({shown(key)})")
        return key

    def copied(self, made: object, read: int) -> None:
        """Count what a call or a state has taken from values that the pickle holds once, after so many bytes of it.

        Of one value there could be any number of copies. Raises TooMuch.
        """
        self._copied += len(made) if isinstance(made, _SIZED) else 1
        if self._copied > limits.COPIED + 2 * read:
            raise TooMuch("values that are copied over and over")
