"""How long work is followed: told how much of it is done."""

from typing import Protocol


class Progress(Protocol):
    """So much is done of so much; `text` is what there is to say."""

    def __call__(self, done: int, total: int, text: str = "") -> None:
        """Tell it."""


class Stages(Protocol):
    """The same of work that is done in stages, by their names."""

    def __call__(self, stage: str, done: int, total: int, text: str = "") -> None:
        """Tell it."""


def silent(done: int, total: int, text: str = "") -> None:
    """Progress that nobody looks at."""


def unseen(stage: str, done: int, total: int, text: str = "") -> None:
    """Stages that nobody looks at."""


def unheard(text: str) -> None:
    """A notice that nobody hears."""
