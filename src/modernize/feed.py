"""What a fine-tune reads: windows that start anywhere in the training part of DATA, of two lengths.

A conversion only sees to it that what is past the old context does no harm. Windows of the target context, which the
old table forbade, teach what it is good for, and every length between, since a long window begins as a short one. An
update has windows of one length, and about as many tokens whichever that is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modernize.data import IGNORED, Corpus, Windows
from modernize.events import Settings

SHARE = 0.8  # of the updates, for the short windows


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Windows of each length, the shorter first, and how many of those make a batch.

    A batch is shared by `processes`. What is drawn doesn't depend on how many there are: where it can't be shared
    evenly, windows in which nothing is predicted fill it up.
    """

    windows: tuple[Windows, ...]
    batch: int
    processes: int
    random: np.random.Generator

    @classmethod
    def of(cls, corpus: Corpus, settings: Settings, *, vocab_size: int, processes: int) -> "Feed":
        """For settings in which batch, block size and target context are chosen. Raises BadData for too little text."""
        lengths = sorted({settings.block_size, settings.target_context})
        return cls(
            windows=tuple(corpus.windows("train", length, vocab_size=vocab_size) for length in lengths),
            batch=settings.batch_size,
            processes=processes,
            random=np.random.default_rng(settings.seed),
        )

    @property
    def shortest(self) -> Windows:
        """The windows that every measure of a batch is told in."""
        return self.windows[0]

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return self.windows[-1].context

    def draw(self, batches: int) -> "list[tuple[NDArray[np.int64], NDArray[np.int64]]]":
        """Inputs and targets (B, T) of each batch of an update, all of one length."""
        chosen = self.shortest
        if len(self.windows) > 1 and self.random.random() >= SHARE:
            chosen = self.windows[-1]
        return [self._batch(chosen, self.random) for _ in range(batches)]

    def of_shortest(self, random: np.random.Generator) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """Inputs and targets of a batch of the shortest windows, by another generator than the run's own."""
        return self._batch(self.shortest, random)

    def _batch(self, windows: Windows, random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        inputs, targets = windows.draw(random, self._count(windows.context))
        lacking = self.windows_each(windows.context) * self.processes - len(inputs)
        if not lacking:  # each for itself in memory, as what is compiled for these shapes expects
            return inputs.copy(), targets.copy()
        more = ((0, lacking), (0, 0))
        return np.pad(inputs, more), np.pad(targets, more, constant_values=IGNORED)

    def _count(self, context: int) -> int:
        return max(1, self.batch * self.shortest.context // context)

    def windows_each(self, context: int) -> int:
        """Windows of this length in a batch, for each process."""
        return -(-self._count(context) // self.processes)


def longest_window(corpus: Corpus, wanted: int) -> int:
    """The longest window up to the wanted one that training text holds: rows are never longer than they are."""
    return 0 if corpus.train.ndim == 2 else min(wanted, max(len(corpus.train) - 1, 0))
