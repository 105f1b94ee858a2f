"""Gaps between requests have the mean and the variation that were asked for, and follow from the seed."""

from itertools import islice

import numpy as np
import pytest

from loadtest.arrivals import gaps
from loadtest.scenario import Burst, Gamma, Poisson


def drawn(arrivals: Poisson | Gamma | Burst, seed: int = 0) -> np.ndarray:
    return np.array(list(islice(gaps(arrivals, np.random.default_rng(seed)), 20_000)))


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Poisson(kind="poisson", rate=8.0), 1.0),
        (Gamma(kind="gamma", rate=8.0, variation=3.0), 3.0),
        (Gamma(kind="gamma", rate=0.2, variation=0.25), 0.25),
    ],
)
def test_rate_and_variation(arrivals: Poisson | Gamma, variation: float) -> None:
    seconds = drawn(arrivals)
    assert seconds.min() >= 0
    assert seconds.mean() * arrivals.rate == pytest.approx(1, rel=0.07)
    assert seconds.std() / seconds.mean() == pytest.approx(variation, rel=0.07)


def test_poisson_is_memoryless() -> None:
    seconds = drawn(Poisson(kind="poisson", rate=2.0))
    assert (seconds > 0.5).mean() == pytest.approx(np.exp(-1), abs=0.02)
    assert (seconds > 1.0).sum() / (seconds > 0.5).sum() == pytest.approx(np.exp(-1), abs=0.02)


def test_a_burst_has_no_gaps() -> None:
    assert not drawn(Burst(kind="burst")).any()


def test_the_seed_decides() -> None:
    arrivals = Gamma(kind="gamma", rate=1.0, variation=2.0)
    assert (drawn(arrivals, 1) == drawn(arrivals, 1)).all()
    assert (drawn(arrivals, 1) != drawn(arrivals, 2)).all()
