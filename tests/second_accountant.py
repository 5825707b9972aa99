"""The same quantities by other means, to hold against `mapl.accounting`.

Nothing here is shared with mapl: sums over lattices, value iteration, brute force.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def gaussian_delta(sigma: float, steps: int, epsilon: float) -> float:
    """Delta of ``steps`` unit shifts under discrete Gaussian noise, on their lattice.

    The loss of x is (1 - 2x)/(2 sigma^2), so that of all steps depends on their sum.
    """
    first, below = gaussian_sum(sigma, steps)
    # loss > epsilon iff sum < (steps - 2 sigma^2 epsilon)/2; Q's sum is P's plus steps
    last = math.ceil((steps - 2 * sigma**2 * epsilon) / 2) - 1
    at = last - first
    if at < steps:  # beyond twelve standard deviations
        return 0.0
    return float(below[at] - math.exp(epsilon) * below[at - steps])


@lru_cache
def gaussian_sum(sigma: float, steps: int) -> tuple[int, Floats]:
    """The distribution function of a sum of discrete Gaussians, by one transform."""
    reach = math.ceil(12 * sigma * math.sqrt(steps)) + 50
    size = 1 << (2 * reach + 2 * steps + 1).bit_length()
    x = np.arange(size)
    x = np.where(x < size // 2, x, x - size)
    one = np.exp(-(x.astype(float) ** 2) / (2 * sigma**2))
    one /= one.sum()
    total = np.fft.irfft(np.fft.rfft(one) ** steps, size)
    order = np.argsort(x)
    return int(x[order][0]), np.cumsum(np.maximum(total[order], 0))


def pure_delta(loss: float, n: int, epsilon: float) -> float:
    """Delta of n randomised responses, by enumerating all 2^n outcomes."""
    p = math.exp(loss) / (1 + math.exp(loss))
    total = 0.0
    for outcome in itertools.product((p, 1 - p), repeat=n):
        first = math.prod(outcome)
        second = math.prod(1 - value for value in outcome)
        total += max(0.0, first - math.exp(epsilon) * second)
    return total


def abstain_probability(distance: int, scale: float) -> float:
    """P(distance + X <= 0): the threshold is put at 0, so distances may be < 0."""
    q = math.exp(-1 / scale)
    return q**distance / (1 + q) if distance > 0 else 1 - q ** (1 - distance) / (1 + q)


def charged_delta(
    scale: float, cutoff: int, epsilon: float, *, n_queries: int
) -> float:
    """Delta of a sparse vector without threshold noise, by value iteration.

    An adversary asks ``n_queries`` times at the threshold, in either direction; the
    log-likelihood ratio then lives on the multiples of 1/scale.
    """
    loss = 1 / scale
    up = 1 / (1 + math.exp(-loss))
    levels = np.arange(-n_queries, n_queries + 1)
    payoff = np.maximum(0, 1 - np.exp(np.minimum(epsilon - levels * loss, 700)))
    value = np.tile(payoff, (cutoff + 1, 1))  # value[c]: c abstentions left
    for _ in range(n_queries):
        above = np.concatenate((value[:, 1:], value[:, -1:]), axis=1)
        below = np.concatenate((value[:, :1], value[:, :-1]), axis=1)
        withheld_is_up = up * above[:-1] + (1 - up) * below[1:]
        withheld_is_down = (1 - up) * below[:-1] + up * above[1:]
        best = np.maximum(withheld_is_up, withheld_is_down)
        value[1:] = np.maximum(value[1:], best)
    return float(value[cutoff, n_queries])


def charged_renyi_growth(scale: float, order: float, *, n_queries: int) -> float:
    """E_Q[(P/Q)^order] until the first abstention, maximised over all distances."""
    pairs = [
        (abstain_probability(z, scale), abstain_probability(z + step, scale))
        for z in range(-30 * math.ceil(scale), 40 * math.ceil(scale))
        for step in (-1, 1)
    ]
    p, q = np.array(pairs).T
    ended = np.exp(order * np.log(p) + (1 - order) * np.log(q))
    going_on = np.exp(order * np.log1p(-p) + (1 - order) * np.log1p(-q))
    value = 1.0
    for _ in range(n_queries):
        value = max(1.0, float(np.max(ended + going_on * value)))
    return value


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
