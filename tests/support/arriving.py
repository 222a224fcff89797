"""Records with numbers, all at once or one after the other: what arrived can be told from them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.world import World


def numbered(count: int, first: int = 0, size: int = 0) -> list[tuple[str, bytes]]:
    """Records whose data begin with `first` and its successors, in eight digits.

    Args:
        count: How many.
        first: The first number.
        size: Least bytes of each.
    """
    return [(f"k{n % 13}", f"{n:08d}".encode().ljust(size)) for n in range(first, first + count)]


@contextmanager
def arriving(world: World, first: int, every: float = 0.1, count: int = 20) -> Iterator[list[int]]:
    """Records that keep coming, `first` and its successors; yields how many there are so far, as one number."""
    put, stop = [first], threading.Event()

    def run() -> None:
        while not stop.wait(every):
            put[0] += world.put(numbered(count, first=put[0]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield put
    finally:
        stop.set()
        thread.join()
