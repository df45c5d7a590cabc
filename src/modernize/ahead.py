"""Compute ahead: what comes next is made in a thread of its own, while what there is is used."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterator[T], *, waiting: int = 4) -> Iterator[T]:
    """The same items, with what they raise, made while others are used; so many may wait.

    Who stops early leaves a thread that ends with the item it is at.
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

    threading.Thread(target=make, daemon=True).start()
    try:
        while (item := made.get()) is not _END:
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        while not made.empty():  # a thread that waits for room goes on, and ends
            made.get_nowait()
    if failed:
        raise failed[0]
