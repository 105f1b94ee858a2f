"""How a long list of texts becomes several requests of bounded size, and several answers one again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Text = TypeVar("Text", bound="str | NDArray[np.int32]")  # or token ids, [n]

BATCH_SIZE = 64  # texts in one request
IN_FLIGHT = 4  # requests at once: enough that the server never waits for the next one
BATCH_BYTES = 1 << 20  # of text in one request; a longer text goes alone


def split(texts: Sequence[Text], batch_size: int) -> list[Sequence[Text]]:
    """`texts`, in order, in parts of at most `batch_size` texts and `BATCH_BYTES` bytes.

    Raises:
        ValueError: `batch_size` is less than 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is at least 1, not {batch_size}")
    starts, size = [0], 0
    for position, text in enumerate(texts):
        length = len(text.encode(errors="surrogatepass")) if isinstance(text, str) else text.nbytes
        if position - starts[-1] == batch_size or (position > starts[-1] and size + length > BATCH_BYTES):
            starts.append(position)
            size = 0
        size += length
    return [texts[start:end] for start, end in zip(starts, [*starts[1:], len(texts)], strict=True)]


def checked_in_flight(in_flight: int) -> int:
    """`in_flight`, if it is a number of requests; else raises `ValueError`."""
    if in_flight < 1:
        raise ValueError(f"in_flight is at least 1, not {in_flight}")
    return in_flight


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """A bar on stderr, or in a notebook, for `total` texts, if it is to be `shown`. The value moves it on."""
    if not shown:
        yield lambda texts: None
        return
    from tqdm.auto import tqdm  # takes a while, and few want it

    with tqdm(total=total, desc="Embedding", unit="text", leave=False, mininterval=0) as bar:
        yield bar.update
