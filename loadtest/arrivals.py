"""When requests are sent that do not wait for answers: gaps between them. Knows no clock and no request."""

from collections.abc import Iterator

import numpy as np

from loadtest.scenario import Burst, Gamma, Poisson


def gaps(arrivals: Poisson | Gamma | Burst, draw: np.random.Generator) -> Iterator[float]:
    """Seconds before each request, without end.

    Gamma-distributed gaps of shape k and mean 1/rate have the coefficient of variation 1/sqrt(k); k = 1 is the
    exponential distribution of a Poisson process.
    """
    match arrivals:
        case Burst():
            while True:
                yield 0.0
        case Poisson(rate=rate):
            shape = 1.0
        case Gamma(rate=rate, variation=variation):
            shape = variation**-2
    while True:
        yield float(draw.gamma(shape, 1 / (shape * rate)))
