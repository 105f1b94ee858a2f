"""The device that is checked: what it is, and what it can do at most, measured on it.

The only file here that knows that devices differ. The ceilings are those of a roofline: operations a second of a large
product of square matrices, and bytes a second of a copy, read and written ones both counted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch

from orthrus_backend.model import resolve_device, resolve_dtype

REPETITIONS = 10  # of which the median counts
_IN_A_ROW = 10  # products or copies of one repetition, so that starting the first one does not count
_GPU, _CPU, _TINY = (8192, 4 << 30), (2048, 256 << 20), (128, 1 << 20)  # rows of a matrix, bytes of a copy


@dataclass(frozen=True, slots=True)
class Card:
    """What the numbers were measured on."""

    device: str
    name: str
    memory: int  # bytes; 0 where it is the machine's
    capability: str
    cuda: str
    cudnn: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the device does at most in one number format."""

    dtype: str
    operations: float  # a second; a multiplication and an addition are two
    bandwidth: float  # bytes a second
    fault: str = ""


def is_cpu(device_name: str) -> bool:
    """Whether it will be the CPU."""
    return device_name == "cpu" or (device_name == "auto" and not torch.cuda.is_available())


def describe(device_name: str) -> Iterator[Card]:
    """What it is. Raises `ValueError` where there is none."""
    device = resolve_device(device_name)
    if device.type != "cuda":
        yield Card(device.type, "", 0, "", "", 0)
        return
    found = torch.cuda.get_device_properties(device)
    capability, cuda = f"{found.major}.{found.minor}", str(torch.version.cuda)
    yield Card(device.type, found.name, found.total_memory, capability, cuda, torch.backends.cudnn.version() or 0)


def measure(device_name: str, tiny: bool) -> Iterator[Ceiling]:
    """What it does at most, in the number format that the engine takes on it; `tiny` takes no time and says nothing."""
    device = resolve_device(device_name)
    dtype = resolve_dtype("auto", device)
    rows, size = _TINY if tiny else _GPU if device.type == "cuda" else _CPU
    operations = 2 * rows**3 / _product_seconds(rows, dtype, device)
    yield Ceiling(str(dtype).removeprefix("torch."), operations, 2 * size / _copy_seconds(size, device))


def _copy_seconds(size: int, device: torch.device) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return median(repeated(lambda: [target.copy_(source) for _ in range(_IN_A_ROW)], device)) / _IN_A_ROW


def _product_seconds(rows: int, dtype: torch.dtype, device: torch.device) -> float:
    left, right = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return median(repeated(lambda: [torch.mm(left, right, out=out) for _ in range(_IN_A_ROW)], device)) / _IN_A_ROW


def repeated(work: Callable[[], object], device: torch.device, repetitions: int = REPETITIONS) -> list[float]:
    """Seconds of each repetition, after one that does not count."""
    seconds_of(work, device)
    return [seconds_of(work, device) for _ in range(repetitions)]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
