"""Python's search for cycles of garbage, which takes a part of the start-up and finds little there."""

import contextlib
import gc
from collections.abc import Iterator

_MANY = 100_000


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Searches for cycles after 100,000 new objects, not after 700, inside the `with` block.

    Imports and traces make millions of objects that stay. Each search goes through them again. Memory that cycles hold
    is freed later.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_MANY, before[0]) if before[0] else 0, *before[1:])  # 0: the user has switched it off
    try:
        yield
    finally:
        gc.set_threshold(*before)
