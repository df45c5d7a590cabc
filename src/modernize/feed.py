"""What a fine-tune reads: windows that start anywhere in the training part of DATA, of two lengths.

A conversion only sees to it that what is past the old context does no harm. Windows of the target context, which the
old table forbade, teach what it is good for, and every length between, since a long window begins as a short one. An
update has windows of one length, and about as many tokens whichever that is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modernize.data import Corpus, Windows
from modernize.events import Settings

SHARE = 0.8  # of the updates, for the short windows


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Windows of each length, the shorter first, and how many of those make a batch.

    A batch is shared by `processes`, so it holds a multiple of them.
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
        count = self.windows_in(chosen.context)
        return [chosen.draw(self.random, count) for _ in range(batches)]

    def windows_in(self, context: int) -> int:
        """Windows of this length in a batch of all processes: one for each at least, even where that is more tokens."""
        each = self.batch * self.shortest.context // (context * self.processes)
        return max(1, each) * self.processes


def longest_window(corpus: Corpus, wanted: int) -> int:
    """The longest window up to the wanted one that training text holds: rows are never longer than they are."""
    return 0 if corpus.train.ndim == 2 else min(wanted, max(len(corpus.train) - 1, 0))
