"""Compute ahead: what comes next is made in a thread of its own, while what there is is used."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterator[T], *, waiting: int = 4) -> Generator[T, None, None]:
    """The same items, with what they raise, made while others are used; so many may wait.

    Who stops early waits for the item that is being made: a thread that is left inside of torch when the program ends
    takes the program down with it.
    """
    made: queue.Queue[object] = queue.Queue(waiting)
    failed: list[BaseException] = []
    stopped = threading.Event()

    def make() -> None:
        try:
            for item in items:
                made.put(item)
                if stopped.is_set():
                    return
        except BaseException as error:  # raised where the item was awaited
            failed.append(error)
        made.put(_END)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        while thread.is_alive():  # one that waits for room goes on, and ends
            with contextlib.suppress(queue.Empty):
                made.get(timeout=0.01)
    if failed:
        raise failed[0]
