"""Hash a checkpoint beside other work, and see that its files stay as they were."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from modernize.checkpoint import Checkpoint
from modernize.checkpoint.base import Stamp, stamps_of
from modernize.errors import InputRefused, UnreadableFile

T = TypeVar("T")


class Hashing:
    """A checkpoint's sha256, made in a thread beside what is done in the `with` block.

    Where the block refuses the model, what is wrong with the file is waited for and raised in its place: it explains
    more. A thread that nobody waits for ends alone, or with the program.
    """

    def __init__(self, checkpoint: Checkpoint, files: Iterable[Path], stamps: tuple[Stamp | None, ...]) -> None:
        """`stamps` are those that the files had before the checkpoint was opened."""
        self._checkpoint, self._files, self._stamps = checkpoint, tuple(files), stamps
        self._found, self._settled = "", False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Hashing":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        if isinstance(error, InputRefused):
            self.sha256()

    def _run(self) -> None:
        try:
            self._found = self._checkpoint.sha256()
        except BaseException as error:  # raised where somebody waits for it
            self._error = error

    def sha256(self) -> str:
        """Wait for the hash. To be asked for when everything else is read.

        Raises UnreadableFile for a file that is damaged, or that has changed before this was asked for the first time.
        """
        if self._settled:
            return self._found
        self._thread.join()
        if stamps_of(self._files) != self._stamps:
            raise UnreadableFile(
                f"{self._checkpoint.path} changed while it was read",
                hint="wait until whatever writes it is done, then convert it again",
            )
        if self._error:
            raise self._error
        self._settled = True
        return self._found

    def readable(self, read: Iterator[T]) -> Iterator[T]:
        """The same of what is read from the file, whose own errors it may raise: UnreadableFile in their place."""
        try:
            yield from read
        except OSError as error:
            raise UnreadableFile(
                f"{self._checkpoint.path} cannot be read: {error.strerror or error}",
                hint="check its disk, and try again",
            ) from error
