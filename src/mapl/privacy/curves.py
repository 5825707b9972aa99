r"""The mathematics of accounting: privacy curves, Renyi bounds, tails of the noise.

A *curve* maps epsilon >= 0 to an upper bound on the hockey-stick divergence
:math:`\sup_S P(S) - e^\epsilon Q(S)`, for both orders of the neighbours. Sums of
positive terms are inflated by more than their rounding error can reach.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np

from mapl.arrays import Floats

Curve = Callable[[Floats], Floats]
"""Epsilons >= 0 to an upper bound on delta, for both orders of the neighbours."""

INFLATE = 1 + 1e-9  # relative: rounding of a sum of positive terms


@lru_cache(maxsize=64)
def pure_composition_curve(loss: float, n: int) -> Curve:
    r"""Return the privacy curve of n adaptively composed ``loss``-DP mechanisms.

    Kairouz, Oh, Viswanath (2015), Theorem 3.3: n randomised responses,

    .. math:: \delta(\epsilon) = \sum_i \binom{n}{i} \frac{
        (e^{(n-i) loss} - e^{\epsilon + i loss})_+}{(1 + e^{loss})^n}.

    Guarantee: no n-fold adaptive composition of loss-DP mechanisms has a larger
    divergence.
    Proof: docs/proofs/accounting.md
    """
    from scipy.special import gammaln

    down = np.arange(n // 2 + 1)  # i: how many of n responses point the other way
    log_choose = gammaln(n + 1) - gammaln(down + 1) - gammaln(n - down + 1)
    log_true, log_false = -np.logaddexp(0, -loss), -np.logaddexp(0, loss)
    p = np.cumsum(np.exp(log_choose + (n - down) * log_true + down * log_false))
    log_q = log_choose + (n - down) * log_false + down * log_true
    losses = (n - 2 * down) * loss

    def curve(epsilons: Floats) -> Floats:
        counted = np.searchsorted(-losses, -epsilons, side="left")
        head = np.append(0.0, p)[counted]
        # Against overflow, e^epsilon goes into each sum of q as a shift of its log.
        log_sum_q = np.append(-np.inf, np.logaddexp.accumulate(log_q))[counted]
        rest = np.maximum(0.0, head - np.exp(epsilons + log_sum_q))
        # Logarithms of n factors round at about n 1e-16 each way.
        return np.asarray(rest + head * (1e-14 + n * 1e-15), dtype=np.float64)

    return lambda epsilons: INFLATE * curve(epsilons)


@lru_cache(maxsize=64)
def charged_abstention_curve(loss: float, cutoff: int) -> Curve:
    r"""Return the exact privacy curve of a sparse vector without threshold noise.

    Let a walk go up with probability :math:`p = 1/(1 + e^{-loss})` and down else,
    and :math:`\Psi(n)` be the probability that it climbs to n with fewer than
    ``cutoff`` steps down. With :math:`K = \lfloor\epsilon/loss\rfloor` and
    :math:`S(n) = \Psi(n) + e^{-loss} S(n + 2)`,

    .. math:: \delta(\epsilon) = (1 - e^{\epsilon - (K+1) loss}) S(K + 1)
        + (e^{\epsilon - K loss} - 1) e^{-loss} S(K + 2).

    Guarantee: approached by the worst adaptive queries, exceeded by none.
    Proof: docs/proofs/SparseVector.md, "No threshold noise"
    """

    def curve(epsilons: Floats) -> Floats:
        level = np.floor(epsilons / loss).astype(np.int64)
        first = int(level.min()) + 1
        climbs = _discounted_climbs(loss, cutoff, first, int(level.max()) + 2)
        here, after = climbs[level + 1 - first], climbs[level + 2 - first]
        below = -np.expm1(np.minimum(epsilons - (level + 1) * loss, 0.0))
        # (e^(epsilon - level loss) - 1) e^-loss, without an overflow in between
        above = np.exp(epsilons - (level + 1) * loss) - math.exp(-loss)
        above = np.maximum(above, 0.0)
        # Logarithms of factorials up to (n + 2 cutoff)! round at 1e-15 of that size.
        rounding = 1e-14 * (level.max() + 2 * cutoff)
        total = below * here + above * after
        return np.asarray((INFLATE + rounding) * total, dtype=np.float64)

    return curve


@lru_cache(maxsize=256)
def _discounted_climbs(loss: float, cutoff: int, first: int, last: int) -> Floats:
    """Return S(first), ..., S(last), each from above."""
    climbs: list[float] = []
    start, wanted = first, last - first + 1
    shrink, rest = math.exp(-loss), -math.expm1(-loss)
    while True:
        climbs.extend(_climbs(loss, cutoff, start, start + 64).tolist())
        start += 64
        if start <= last:
            continue
        # Climbs fall with n, so the terms of S left out add up to at most this.
        left_out = math.exp(-loss * (start - last) / 2) * climbs[-1] / rest
        if left_out <= 1e-10 * climbs[wanted - 1]:
            break
    sums = np.array([*climbs, climbs[-1] / rest, climbs[-1] / rest])
    for n in reversed(range(len(climbs))):
        sums[n] += shrink * sums[n + 2]
    return sums[:wanted]


def _climbs(loss: float, cutoff: int, start: int, stop: int) -> Floats:
    r"""Return :math:`\Psi(n) = \sum_{j < cutoff} \frac{n}{n + 2j}
    \binom{n + 2j}{j} p^{n + j} (1 - p)^j` for start <= n < stop (ballot theorem).
    """
    from scipy.special import gammaln

    n = np.arange(start, stop)[:, None]
    j = np.arange(cutoff)
    log_factorial = gammaln(np.arange(start + 1, stop + 2 * cutoff + 1))  # from start!
    log_paths = log_factorial[n - start + 2 * j] - log_factorial[n - start + j]
    log_paths -= gammaln(j + 1)
    log_up, log_down = -math.log1p(math.exp(-loss)), -np.logaddexp(0, loss)
    logs = np.log(n / (n + 2 * j)) + log_paths + (n + j) * log_up + j * log_down
    return np.asarray(np.exp(logs).sum(axis=1), dtype=np.float64)


_LATTICE_SIGMA = 2.9  # from here on sums of discrete Gaussians are discrete Gaussian


@lru_cache(maxsize=64)
def gaussian_curve(sigma: float, steps: int) -> Curve:
    r"""Return the privacy curve of unit steps under discrete Gaussian noise.

    The loss of x is :math:`(1 - 2x)/(2\sigma^2)`, so that of n steps is a function of
    their sum S alone:

    .. math:: \delta(\epsilon) = P(S < s) - e^\epsilon P(S < s - n),\quad
        s = n/2 - \sigma^2 \epsilon.

    Guarantee: exact up to rounding, which is upwards.
    Proof: docs/proofs/accounting.md
    """
    if (sigma < _LATTICE_SIGMA and steps > 10_000) or steps > 10_000 * sigma**2:
        return np.ones_like  # epsilon would be in the thousands: certify nothing
    log_cdf, off = _log_cdf_of_sum(sigma, steps), _tail_error(sigma, steps)

    def curve(epsilons: Floats) -> Floats:
        last = np.ceil(steps / 2 - sigma**2 * epsilons) - 1
        first_mass = np.exp(log_cdf(last)) * (INFLATE + off(last))
        second_mass = np.exp(log_cdf(last - steps) + epsilons)
        second_mass /= INFLATE + off(last - steps)
        rest = np.maximum(first_mass - second_mass, 0.0)
        return np.asarray(rest + 1e-16, dtype=np.float64)

    return curve


def gaussian_shift_curve(mu: float, epsilons: Floats) -> Floats:
    r"""Return the exact curve of the laws N(0, 1) and N(mu, 1), to within 1e-14.

    .. math:: G_\mu(\epsilon) = \Phi(\mu/2 - \epsilon/\mu)
        - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu).

    Dong, Roth, Su (2022), Corollary 2.13.
    """
    from scipy.special import log_ndtr, ndtr

    first = ndtr(mu / 2 - epsilons / mu)
    second = np.exp(log_ndtr(-mu / 2 - epsilons / mu) + epsilons)
    return np.asarray(first - second, dtype=np.float64)


SMOOTHING = 2  # t of the smoothing lemma: how much of the noise smooths the integers
LEAST_REST = Fraction(4, 25)  # what must be left of the squared scale
_ETA = 2.2e-34  # > 2.1 exp(-2 pi^2 t^2), the relative error of that smoothing


def smoothed_gaussian_curve(squared_shift: float, coordinates: int) -> Curve:
    r"""Return the curve of integers published with discrete Gaussian noise, whose
    squared shifts over :math:`\sigma^2 - t^2` add up to ``squared_shift``.

    .. math:: \delta(\epsilon) = (1 + \eta)^N
        G_\mu\Bigl(\epsilon - N \ln\frac{1 + \eta}{1 - \eta}\Bigr)

    Guarantee: holds for shifts chosen adaptively, along every history.
    Proof: docs/proofs/smoothing.md
    """
    mu = math.sqrt(squared_shift) * INFLATE
    slack = 2.1 * coordinates * _ETA  # > N ln((1 + eta)/(1 - eta)) > N ln(1 + eta)

    def curve(epsilons: Floats) -> Floats:
        from scipy.special import ndtr

        at = np.maximum(epsilons - slack, 0.0)
        found = np.maximum(gaussian_shift_curve(mu, at), 0.0)
        # The difference of two numbers, each of which is right to a relative 1e-13.
        rounding = 1e-12 * ndtr(mu / 2 - at / mu)
        return np.asarray(found * INFLATE + rounding + 3 * slack, dtype=np.float64)

    return curve


def _log_cdf_of_sum(sigma: float, steps: int) -> Curve:
    """Return s -> ln P(S <= s) for the sum S of discrete Gaussians, s an integer.

    From sigma = 2.9 on, S is discrete Gaussian of scale sigma sqrt(steps) to within a
    relative 1e-29, by Poisson's summation formula; a wide one has the tails of the
    normal law at s + 1/2 to within `_tail_error`. Beyond 14 scales there is less than
    1e-42.
    """
    from scipy.special import log_ndtr

    scale = sigma * math.sqrt(steps)
    if _is_wide(sigma, scale):
        return lambda s: np.asarray(log_ndtr((s + 0.5) / scale), dtype=np.float64)
    reach = math.ceil(14 * max(scale, 3))
    x = np.arange(-reach, reach + 1)
    if sigma >= _LATTICE_SIGMA:
        mass = np.exp(-(x**2) / (2 * scale**2))
    else:
        mass = _power(np.exp(-(x**2) / (2 * sigma**2)), steps)
    with np.errstate(divide="ignore"):
        logs = np.log(np.append(0.0, np.cumsum(mass) / mass.sum()))
    return lambda s: logs[np.clip(s + reach + 1, 0, 2 * reach + 1).astype(np.int64)]


def _is_wide(sigma: float, scale: float) -> bool:
    """Whether a sum of discrete Gaussians is so wide that its tails are normal."""
    return sigma >= _LATTICE_SIGMA and scale > 1e5


def _tail_error(sigma: float, steps: int) -> Curve:
    """Return s -> a bound on how far `_log_cdf_of_sum` is off, as a share.

    The midpoint rule is off by x^2/(24 scale^2) at x scales, and by terms that are
    smaller by x/scale; the bound is a fifth more.
    """
    scale = sigma * math.sqrt(steps)
    if not _is_wide(sigma, scale):
        return np.zeros_like
    return lambda s: np.asarray((2 + (s / scale) ** 2) / (20 * scale**2))


def _power(mass: Floats, n: int) -> Floats:
    """Return the n-fold convolution of a law on -reach..reach, cut to the same."""
    law: Floats = mass / mass.sum()
    if n == 1:
        return law
    half = _power(law, n // 2)
    even = np.convolve(half, half, mode="same")
    return np.convolve(even, law, mode="same") if n % 2 else even


def charged_abstention_renyi(loss: float, order: float) -> float:
    r"""Bound the Renyi divergence that one abstention costs, without threshold noise.

    :math:`\frac{1}{r - 1} \ln \max\left(\frac{p^r q^{1-r}}{1 - q^r p^{1-r}},
    \frac{q^r p^{1-r}}{1 - p^r q^{1-r}}, 1\right)` with :math:`p = 1/(1 + e^{-loss})`,
    q = 1 - p, for orders :math:`r < \ln(1 + e^{loss}) / loss`; infinite beyond.
    """
    log_p, log_q = -math.log1p(math.exp(-loss)), -float(np.logaddexp(0, loss))
    up = order * log_p + (1 - order) * log_q
    down = order * log_q + (1 - order) * log_p
    if up > -1e-6:  # at the end of the range, or so near that rounding decides
        return math.inf
    worst = max(up - math.log(-math.expm1(down)), down - math.log(-math.expm1(up)), 0.0)
    return (worst + _log_rounding(loss, order)) / (order - 1)


def pure_renyi(loss: float, order: float) -> float:
    """Renyi divergence of randomised response, the worst loss-DP mechanism."""
    log_p, log_q = -math.log1p(math.exp(-loss)), -np.logaddexp(0, loss)
    up = order * log_p + (1 - order) * log_q
    down = order * log_q + (1 - order) * log_p
    worst = max(0.0, float(np.logaddexp(up, down)))
    return (worst + _log_rounding(loss, order)) / (order - 1)


def _log_rounding(loss: float, order: float) -> float:
    """What rounding can take from a difference of logarithms near 1 and order loss."""
    return 1e-15 * (1 + order * (1 + loss))
