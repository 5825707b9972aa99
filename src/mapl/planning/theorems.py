r"""The paper's theorems as functions.

The statements of *Model-Agnostic Private Learning* (Bassily, Thakkar, Thakurta, NeurIPS
2018) with the constants where the paper has them. Where it writes O or \tilde{O},
``constant`` is the factor that is chosen openly, and logarithms that a tilde hides are
left out. All take arrays. Logarithms are natural.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mapl.arrays import Bools, Floats
from mapl.errors import ParameterError

Numbers = npt.ArrayLike


def stable_threshold(epsilon: Numbers, delta: Numbers) -> Floats:
    r"""Return Algorithm 1's threshold, :math:`\ln(1/\delta)/\epsilon` (Theorem 2.4)."""
    return _array(np.log(1 / _array(delta)) / _array(epsilon))


def stability_needed(epsilon: Numbers, delta: Numbers, beta: Numbers) -> Floats:
    r"""Return how stable a value must be to be released with probability 1 - beta:
    :math:`(\ln(1/\delta) + \ln(1/\beta))/\epsilon` (Theorem 2.5).
    """
    logs = np.log(1 / _array(delta)) + np.log(1 / _array(beta))
    return _array(logs / _array(epsilon))


def cutoff(m: Numbers, error: Numbers, beta: Numbers) -> Floats:
    r"""Return T of Theorem 3.2, :math:`3(em + \sqrt{em \ln(m/\beta)/2})`, for teachers
    of error :math:`e = \gamma + \alpha`.

    With probability :math:`1 - 2\beta` all m queries are answered, and at most T of
    them are withheld or wrong, if k is that of Algorithm 2, the queries are independent
    of each other, and each teacher has that error with probability
    :math:`1 - \beta/k`.
    """
    wrong = _array(error) * _array(m)
    return _array(3 * (wrong + np.sqrt(wrong * np.log(_array(m) / _array(beta)) / 2)))


def noise_scale(epsilon: Numbers, delta: Numbers, T: Numbers) -> Floats:
    r"""Return :math:`\lambda = \sqrt{32 T \ln(2/\delta)}/\epsilon` of Algorithm 2."""
    return _array(np.sqrt(32 * _array(T) * np.log(2 / _array(delta))) / epsilon)


def threshold(epsilon: Numbers, delta: Numbers, T: Numbers, m: Numbers) -> Floats:
    r"""Return :math:`w = 2 \lambda \ln(2m/\delta)` of Algorithm 2, in margins."""
    scale = noise_scale(epsilon, delta, T)
    return _array(2 * scale * np.log(2 * _array(m) / _array(delta)))


def n_teachers(
    epsilon: Numbers, delta: Numbers, T: Numbers, m: Numbers, beta: Numbers
) -> Floats:
    r"""Return k of Algorithm 2,
    :math:`34\sqrt{2} \lambda \ln(4mT/\min(\delta, \beta/2))`.
    """
    least = np.minimum(_array(delta), _array(beta) / 2)
    logs = np.log(4 * _array(m) * _array(T) / least)
    return _array(34 * math.sqrt(2) * noise_scale(epsilon, delta, T) * logs)


def hard_queries(mistakes: Numbers, xi: Numbers = 1 / 3) -> Floats:
    r"""Return :math:`B/\xi`: if each classifier errs on at most B queries, then on
    fewer queries than that more than a part xi of the classifiers err; on none if B
    is 0 (Lemma 3.3, :math:`0 < \xi \le 1/2`).
    """
    return _array(_array(mistakes) / _array(xi))


def learner_error(
    n: Numbers,
    vc_dim: Numbers,
    beta: Numbers,
    *,
    realizable: bool,
    constant: float = 1.0,
) -> Floats:
    r"""Return alpha of a learner with n records: excess over the best hypothesis.

    Agnostic: :math:`\sqrt{c(V + \ln(1/\beta))/n}`. Realizable:
    :math:`c(V + \ln(1/\beta))/n`, without the logarithm that multiplies V. (As used in
    the proofs of Theorems 3.4 and 3.5; Shalev-Shwartz, Ben-David 2014, Theorem 6.8.)
    """
    rate = constant * (_array(vc_dim) + np.log(1 / _array(beta))) / _array(n)
    return _array(np.minimum(1.0, rate if realizable else np.sqrt(rate)))


@dataclass(frozen=True)
class Loop:
    """The solution of T -> alpha -> k -> T; ``feasible`` where there is one.

    T and k are at least 1, being a number of noisy answers and one of chunks;
    ``misclassification`` is Theorem 3.2's T over m whatever T is.
    """

    T: Floats
    k: Floats
    alpha: Floats
    misclassification: Floats
    feasible: Bools


def solve_loop(
    n: Numbers,
    vc_dim: Numbers,
    m: Numbers,
    *,
    epsilon: Numbers,
    delta: Numbers,
    beta: Numbers,
    gamma: Numbers = 0.0,
    realizable: bool = True,
    constant: float = 1.0,
) -> Loop:
    """Solve Theorem 3.2's loop: the cutoff needs the teachers' error, which needs their
    number, which needs the cutoff.

    The least T is found by iterating from T = 1; each round raises it. There is no
    solution where T reaches m, or a teacher has less than one record.

    Examples
    --------
    >>> from mapl.planning import theorems
    >>> loop = theorems.solve_loop(
    ...     10**9, 10, 100, epsilon=1, delta=1e-5, beta=0.05
    ... )
    >>> bool(loop.feasible), round(float(loop.T), 1)
    (True, 1.4)
    """
    arguments = (n, vc_dim, m, epsilon, delta, beta, gamma)
    n_, v, m_, e, d, b, g = np.broadcast_arrays(*map(_array, arguments))
    positive = (n_ > 0) & (v > 0) & (m_ > 0) & (e > 0)
    parts = (d > 0) & (d < 1) & (b > 0) & (b < 1) & (g >= 0) & (g < 1)
    if not (positive & parts).all():
        raise ParameterError(
            "n, vc_dim, m and epsilon must be > 0; delta and beta > 0 and < 1; gamma "
            ">= 0 and < 1."
        )
    if realizable and g.any():
        raise ParameterError("realizable means that gamma is 0: pass realizable=False.")
    T = np.ones(n_.shape)
    for _ in range(200):
        k = _array(np.maximum(n_teachers(e, d, T, m_, b), 1.0))
        each = np.maximum(n_ / k, 1e-12)
        alpha = learner_error(each, v, b / k, realizable=realizable, constant=constant)
        wrong = cutoff(m_, g + alpha, b)
        T = _array(np.clip(wrong, 1.0, m_))
    feasible = np.asarray((m_ > wrong) & (n_ / k >= 1))
    return Loop(T, k, alpha, _array(np.minimum(1, wrong / m_)), feasible)


def records_for_half(vc_dim: float, m: float, **assumed: Any) -> float | None:
    """Return from about how many records on Theorem 3.2 promises that at most half of
    the answers are wrong or withheld; None if no number does.
    """
    sizes = np.logspace(0, 30, 601)
    loop = solve_loop(sizes, vc_dim, m, **assumed)
    enough = sizes[loop.feasible & (loop.misclassification <= 0.5)]
    return float(enough.min()) if len(enough) else None


def free_queries(
    n: Numbers,
    vc_dim: Numbers,
    epsilon: Numbers,
    *,
    gamma: Numbers = 0.0,
    realizable: bool = True,
    constant: float = 1.0,
) -> Floats:
    r"""Return M, the queries that come at no cost for privacy: :math:`\epsilon n/V`
    (Theorem 3.4), or :math:`\min(1/\gamma, \sqrt{\epsilon n/V})` (Theorem 3.5).
    Realizable means that gamma is 0, whatever was given.
    """
    ratio = _array(epsilon) * _array(n) / _array(vc_dim)
    if realizable:
        return _array(constant * ratio)
    with np.errstate(divide="ignore"):
        limit = 1 / _array(gamma)
    return _array(constant * np.minimum(limit, np.sqrt(ratio)))


def misclassification(
    m: Numbers,
    n: Numbers,
    vc_dim: Numbers,
    epsilon: Numbers,
    *,
    gamma: Numbers = 0.0,
    realizable: bool = True,
    constant: float = 1.0,
) -> Floats:
    r"""Return the rate of Theorem 3.4, :math:`V/\epsilon n` for up to M queries and
    :math:`mV^2/\epsilon^2n^2` beyond; or of Theorem 3.5,
    :math:`\gamma + \sqrt{V/\epsilon n}` and
    :math:`\gamma + (mV^2/\epsilon^2n^2)^{1/3}`. The constant multiplies all of it and
    does not change M.
    """
    share = _array(vc_dim) / (_array(epsilon) * _array(n))
    free = free_queries(n, vc_dim, epsilon, gamma=gamma, realizable=realizable)
    beyond = _array(m) > free
    if realizable:
        rate = np.where(beyond, _array(m) * share**2, share)
    else:
        rate = np.where(beyond, np.cbrt(_array(m) * share**2), np.sqrt(share))
        rate = rate + _array(gamma)
    return _array(np.minimum(1.0, constant * rate))


def misclassification_by_composition(
    m: Numbers,
    n: Numbers,
    vc_dim: Numbers,
    epsilon: Numbers,
    *,
    constant: float = 1.0,
) -> Floats:
    r"""Return :math:`\sqrt{m}V/\epsilon n`, the rate if each query were paid for by
    advanced composition (after Theorem 3.4): about :math:`\sqrt{m}/\epsilon` teachers,
    each of that error.
    """
    rate = np.sqrt(_array(m)) * _array(vc_dim) / (_array(epsilon) * _array(n))
    return _array(np.minimum(1.0, constant * rate))


def cutoff_needed(
    m: Numbers,
    n: Numbers,
    vc_dim: Numbers,
    epsilon: Numbers,
    *,
    gamma: Numbers = 0.0,
    realizable: bool = True,
    constant: float = 1.0,
) -> Floats:
    r"""Return T of Theorem 3.4, :math:`\bar m^2V^2/\epsilon^2n^2`, or of Theorem 3.5,
    :math:`\bar m\gamma + \bar m^{4/3}V^{2/3}/(\epsilon n)^{2/3}`, where
    :math:`\bar m = \max(M, m)`.
    """
    share = _array(vc_dim) / (_array(epsilon) * _array(n))
    free = free_queries(n, vc_dim, epsilon, gamma=gamma, realizable=realizable)
    most = np.maximum(free, _array(m))
    if realizable:
        return _array(constant * (most * share) ** 2)
    return _array(constant * (most * _array(gamma) + most * np.cbrt(most * share**2)))


def private_classifier_error(alpha: Numbers, gamma: Numbers = 0.0) -> Floats:
    r"""Return :math:`3\gamma + 7\alpha`, the error of Algorithm 2 as a classifier, with
    probability :math:`1 - 2\beta` (Claim 4.1, :math:`0 < \beta \le \alpha < 1`); it
    needs `public_points` unlabelled points.
    """
    return _array(3 * _array(gamma) + 7 * _array(alpha))


def public_points(alpha: Numbers, beta: Numbers) -> Floats:
    r"""Return :math:`4 \ln(1/\alpha\beta)/\alpha`, what Claim 4.1 asks of m. A student
    has needs of its own, `student_points`: the larger number serves both.
    """
    return _array(4 * np.log(1 / (_array(alpha) * _array(beta))) / _array(alpha))


def student_points(
    alpha: Numbers, vc_dim: Numbers, beta: Numbers, *, constant: float = 1.0
) -> dict[str, Floats]:
    r"""Return how many unlabelled points Algorithm 3's student learns from, by the
    ways of `sample_complexity`: :math:`(V + \ln(1/\beta))/\alpha^2` (Theorems 4.2 and
    4.3), :math:`V/\alpha` (Remarks 2 and 3).
    """
    a, v = _array(alpha), _array(vc_dim)
    plain, fewer = (v + np.log(1 / _array(beta))) / a**2, v / a
    found = {
        "realizable": plain,
        "realizable, ERM": fewer,
        "realizable, efficient": fewer,
        "agnostic": plain,
    }
    return {name: _array(constant * value) for name, value in found.items()}


def sample_complexity(
    alpha: Numbers, vc_dim: Numbers, epsilon: Numbers, *, constant: float = 1.0
) -> dict[str, Floats]:
    r"""Return how many private records suffice for error O(alpha), in the agnostic case
    :math:`O(\alpha + \gamma)`, with probability :math:`1 - 3\beta`, way by way; for
    epsilon of order 1, since privacy never takes fewer records than its absence.

    Theorem 4.2, :math:`V^{3/2}/\epsilon\alpha^{3/2}` (the error is at most 15 alpha);
    Remark 2 (an ERM learner), :math:`V^{3/2}/\epsilon\alpha`; Remark 3 (an efficient
    one), :math:`V^2/\epsilon\alpha`; Theorem 4.3 (agnostic),
    :math:`V^{3/2}/\epsilon\alpha^{5/2}`. Beside them learning without privacy,
    :math:`V/\alpha` and :math:`V/\alpha^2`, and the same construction with every query
    paid for by advanced composition: :math:`\sqrt{m}/\epsilon` teachers for
    :math:`m = V/\alpha^2` points.
    """
    a, v, e = map(_array, (alpha, vc_dim, epsilon))
    root = v**1.5 / e
    found = {
        "realizable": root / a**1.5,
        "realizable, ERM": root / a,
        "realizable, efficient": v**2 / (e * a),
        "realizable, advanced composition": root / a**2,
        "realizable, not private": v / a,
        "agnostic": root / a**2.5,
        "agnostic, advanced composition": root / a**3,
        "agnostic, not private": v / a**2,
    }
    return {name: _array(constant * value) for name, value in found.items()}


def _array(value: Any) -> Floats:
    return np.asarray(value, dtype=np.float64)
