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
    begun, stopped, over = threading.Event(), threading.Event(), threading.Event()

    def make() -> None:
        begun.set()
        try:
            for item in items:
                made.put(item)
                if stopped.is_set():
                    return
        except BaseException as error:  # raised where the item was awaited
            failed.append(error)
        finally:
            made.put(_END)  # whoever stops early takes things out until this is over
            over.set()

    try:
        threading.Thread(target=make, daemon=True).start()
        while (item := made.get()) is not _END:
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        # an interrupt may come while the thread starts: then it begins soon, or there is none
        while begun.wait(1.0) and not over.wait(0.01):
            with contextlib.suppress(queue.Empty):
                made.get_nowait()
    if failed:
        raise failed[0]
