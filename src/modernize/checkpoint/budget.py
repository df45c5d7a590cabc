"""What a pickle may cost beside its instructions: keys whose hashes collide, sets, and values that are copied."""

from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Foreign, TooMuch, shown
from modernize.checkpoint.numpy_values import Array
from modernize.checkpoint.records import Misfit, Name, Record, View, is_small

_SCALARS = (str, int, float, bytes, type(None), Name, Record, View, Misfit)  # that may be keys
_PARTS = (str, int, float, bytes, type(None), Name)  # that a tuple may hold that is a key
_SIZED = (str, bytes, list, tuple, dict, set, Record, Array)


class Budget:
    """One pickle's."""

    def __init__(self) -> None:
        self._copied = self._numbers = self._sets = 0

    def key(self, key: Any) -> Any:  # noqa: ANN401
        """A value that can be a key. Raises Foreign, TooMuch.

        Texts and names are hashed with a secret, but numbers are not, so that a file could choose many that collide.
        Those of tokens don't; of larger ones, and of fractions, only some are taken. A tuple becomes its text: nothing
        here looks for a tuple.
        """
        if isinstance(key, tuple) and all(isinstance(part, _PARTS) for part in key):
            return f"({', '.join(map(repr, key))})"
        if not isinstance(key, _SCALARS):
            raise Foreign(f"{shown(key)} is used as a key, which programs that save weights don't do")
        if isinstance(key, int | float):
            self._numbers += isinstance(key, float) or abs(key) >= limits.TOKENS
            if self._numbers > limits.NUMBERS or not is_small(key):
                raise TooMuch(f"more numbers as keys, or larger ones, than any program writes ({shown(key)})")
        return key

    def made_set(self) -> None:
        """Count a set, which takes two hundred bytes for one of the pickle. Raises TooMuch."""
        self._sets += 1
        if self._sets > limits.SETS:
            raise TooMuch(f"more than {limits.SETS:,} sets")

    def copied(self, made: object, read: int) -> None:
        """Count what a call or a state has taken from values that the pickle holds once, after so many bytes of it.

        Of one value there could be any number of copies. Raises TooMuch.
        """
        self._copied += len(made) if isinstance(made, _SIZED) else 1
        if self._copied > limits.COPIED + 2 * read:
            raise TooMuch("values that are copied over and over")
