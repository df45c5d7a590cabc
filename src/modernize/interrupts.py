"""Ctrl-C and SIGTERM while a run trains: the first asks it to save and stop, the second leaves at once.

Before it trains, while text is read or written and losses are measured, there is nothing to save, and the first leaves
at once too.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from modernize.events import Started

if TYPE_CHECKING:
    from modernize.tune import TuneEvent

LAUNCHED = "TORCHELASTIC_RUN_ID"  # is set in what torchrun starts
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Whether somebody asked to stop, and the exit code that says so: 128 + the signal, or 0."""

    def __init__(self) -> None:
        self.exit_code = 0
        self._awaited = False

    def asked(self) -> bool:
        """Whether to stop."""
        return bool(self.exit_code)

    def until_trained(self, events: "Iterator[TuneEvent]", together: Callable[[], None]) -> "Iterator[TuneEvent]":
        """The same events; from the start of the training on, the first signal waits for whoever asks.

        `together` waits for the other processes, so that nobody tells of the start before all have come so far.
        """
        for event in events:
            if isinstance(event, Started):
                self._awaited = True
                together()
            yield event

    def leaves(self) -> bool:
        """Whether the next signal is to leave at once."""
        return self.asked() or not self._awaited


@contextlib.contextmanager
def caught(tell: Callable[[str], None]) -> Iterator[Interrupts]:
    """Catch signals as long as this lasts; `tell` is told what will happen. Only in the main thread."""
    found = Interrupts()

    def first(number: int, frame: FrameType | None) -> None:
        if found.asked() and LAUNCHED in os.environ:
            return  # torchrun hands on what its machine has sent to everybody already
        if found.leaves():
            _put_back(before)  # as if nobody had listened
            signal.raise_signal(number)
            return  # where signals are ignored
        found.exit_code = 128 + number
        tell("stopping after this step; once more to leave at once")

    before = {number: signal.signal(number, first) for number in SIGNALS}
    try:
        yield found
    finally:
        _put_back(before)


def _put_back(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # of a handler that isn't Python's
            signal.signal(number, handler)
