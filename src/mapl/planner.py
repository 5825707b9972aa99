r"""Which settings: the paper's theorems as functions, and a plan from public numbers.

The first part has the statements of *Model-Agnostic Private Learning* (Bassily,
Thakkar, Thakurta, NeurIPS 2018) with the constants where the paper has them. Where it
writes O or \tilde{O}, ``constant`` is the factor that is chosen openly, and logarithms
that a tilde hides are left out. All take arrays. Logarithms are natural.

The second part plans for the sizes that people have. It looks at public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.dissent import steps_per_query
from mapl.errors import ParameterError, integer, positive, probability
from mapl.mechanisms import SparseVector

Floats = npt.NDArray[np.float64]
Numbers = npt.ArrayLike

# The paper --------------------------------------------------------------------------


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
    them are withheld or wrong, if each of k teachers has that error with probability
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
    r"""Return :math:`B/\xi`: of classifiers that make at most B mistakes each, more
    than a part xi are wrong on fewer queries than that; on none if B is 0 (Lemma 3.3,
    :math:`0 < \xi \le 1/2`).
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
    feasible: npt.NDArray[np.bool_]


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
    """Solve Theorem 3.2's circle: the cutoff needs the teachers' error, which needs
    their number, which needs the cutoff.

    The least T is found by going round from T = 1; each round raises it. There is no
    solution where T reaches m, or a teacher has less than one record.

    Examples
    --------
    >>> from mapl import planner
    >>> loop = planner.solve_loop(
    ...     10**9, 10, 100, epsilon=1, delta=1e-5, beta=0.05
    ... )
    >>> bool(loop.feasible), round(float(loop.T), 1)
    (True, 1.4)
    """
    named = (n, vc_dim, m, epsilon, delta, beta, gamma)
    n_, v, m_, e, d, b, g = np.broadcast_arrays(*map(_array, named))
    T = np.ones(n_.shape)
    for _ in range(200):
        k = _array(np.maximum(n_teachers(e, d, T, m_, b), 1.0))
        each = np.maximum(n_ / k, 1e-12)
        alpha = learner_error(each, v, b / k, realizable=realizable, constant=constant)
        wrong = cutoff(m_, g + alpha, b)
        T = _array(np.clip(wrong, 1.0, m_))
    feasible = np.asarray((m_ > wrong) & (n_ / k >= 1))
    return Loop(T, k, alpha, _array(np.minimum(1, wrong / m_)), feasible)


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
    learns from more: `student_points`.
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


# A plan -----------------------------------------------------------------------------

_FEWEST_RECORDS = 25  # of a teacher, to be worth asking
_FEWEST_DISSENTS, _FEWEST_ANSWERS = 10, 20  # to be worth learning from
_FEW_OF_A_CLASS = 10  # records of a teacher
_DIVIDED = 0.1  # lead at which a student is still often wrong
_CUTOFFS = (1, 3, 10, 30, 100, 300)


def teachers_for(epsilon: float, n_classes: int, n_records: int | None) -> int:
    """Return how many teachers suit an epsilon: public numbers only.

    More teachers drown more noise, and each knows less. The rule was fitted to UCI
    Adult, MNIST and covtype, the least number of records of a teacher to two more sets.
    """
    k = min(max(5, round(150 * math.sqrt(n_classes / epsilon))), 5000)
    if n_records is None:
        return k
    return min(k, max(5, n_records // _FEWEST_RECORDS), n_records)


def dissents_for(n_points: int) -> int:
    """Return how often a teacher may disagree, for a pool of so many points.

    What matters is dissents/sigma**2, so this need not be guessed well: with half of
    the pool, a good guess can be asked for each point several times.
    """
    return max(1, n_points // 2)


class Pilot(Protocol):
    """What a plan wants to know of a pilot: see `mapl.pilot.Pilot`."""

    @property
    def dissent(self) -> Floats:
        """Of each query, the part of teachers that are not with the plurality."""

    @property
    def lead(self) -> Floats:
        """Of each query, by what part of the teachers the first class leads."""

    @property
    def best_error(self) -> float:
        """How often the plurality is wrong."""


@dataclass(frozen=True)
class Option:
    """One mechanism's part of a plan: what it needs and what it would give.

    ``expected_error`` is how often an answer is wrong; as far as that is known: it is
    that of the noise alone if the plurality is taken to be right.
    """

    name: str
    n_teachers: int
    records_each: int
    feasible: bool
    expected_answers: int
    expected_error: float | None
    settings: dict[str, float]
    why: str


@dataclass(frozen=True)
class Plan:
    """What to expect of each mechanism, and which to take: None if nothing fits.

    ``assumed`` says what of it was not measured, ``warnings`` what is unsafe or unwise.
    """

    options: list[Option]
    recommended: str | None
    reason: str
    assumed: str
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        named = vars(self).copy()
        return {
            "mechanisms": [vars(option) for option in named.pop("options")],
            **named,
        }


def plan(
    *,
    n_records: int,
    n_queries: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    teacher_error: float = 0.15,
    best_error: float = 0.0,
    n_teachers: int | None = None,
    pilot: Pilot | None = None,
) -> Plan:
    r"""Plan from public numbers: which mechanism, how many teachers, what to expect.

    The model of votes, unless a pilot has looked at real ones: the part of the teachers
    that do not vote with the plurality of a query has the law Beta(3e, 3 - 3e) with
    mean e = ``teacher_error``: most queries are easy, some divide the teachers. All who
    disagree vote for one other class, which is the worst case for a threshold.

    Parameters
    ----------
    n_records, n_queries, n_classes : int
        Sizes that are public, or guesses.
    epsilon, delta : float
        What everything may cost.
    teacher_error : float
        How often a teacher differs from the plurality: from a pilot on public data.
    best_error : float
        How often the plurality itself is wrong.
    n_teachers : int or None
        How many to plan for; by default what suits each mechanism.
    pilot : Pilot or None
        What `mapl.pilot.pilot` saw on public records; it replaces the two errors.

    Examples
    --------
    >>> from mapl.planner import plan
    >>> made = plan(
    ...     n_records=30_000, n_queries=5000, n_classes=2, epsilon=1, delta=1e-5
    ... )
    >>> made.recommended
    'dissent'
    """
    n_records = integer(n_records=n_records, at_least=1)
    m = integer(n_queries=n_queries, at_least=1)
    n_classes = integer(n_classes=n_classes, at_least=2)
    epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
    if not (1e-6 <= epsilon <= 1e6 and delta >= 1e-12):
        raise ParameterError(
            "Plans are made for epsilon from 1e-6 to 1e6 and delta from 1e-12 on, got "
            f"epsilon {epsilon:g} and delta {delta:g}."
        )
    if (
        n_teachers is not None
        and integer(n_teachers=n_teachers, at_least=1) > n_records
    ):
        raise ParameterError(
            f"n_teachers must not exceed the {n_records:,} records, got {n_teachers:,}."
        )
    price = accounting.gaussian_limit(epsilon=epsilon, delta=delta)
    k = n_teachers or teachers_for(epsilon, n_classes, n_records)
    if pilot is None:
        votes = _Votes.by_law(teacher_error, best_error, n_classes)
        assumed = _assumed(votes, teacher_error, k, m, price)
    else:
        votes = _Votes(pilot.dissent, pilot.lead, pilot.best_error, n_classes)
        assumed = "Teachers are taken to vote as in the pilot."
    many = n_teachers or max(1, n_records // _FEWEST_RECORDS)
    options = [
        _dissent_option(votes, k, n_records, m, price),
        _noisy_max_option(votes, k, n_records, m, price),
        _sparse_option(votes, many, n_records, m, epsilon, delta),
    ]
    rival = _dissent_option(votes, many, n_records, m, price)
    warnings = _warnings(n_records, n_classes, k, delta)
    fits = [option for option in options if option.feasible]
    if not fits:
        return Plan(
            options,
            None,
            _what_would_do(epsilon, delta, k, n_records, price),
            assumed,
            warnings,
        )
    best = max(fits, key=lambda option: option.expected_answers)
    reason = _reason(best, options, m)
    if best is options[2] and rival.expected_answers >= best.expected_answers:
        best, fewer = options[0], best  # more teachers do it, not the mechanism
        reason = (
            f"{_reason(best, options, m)} With the {many:,} teachers of {fewer.name} "
            f"it would answer {rival.expected_answers:,}: plan with more of them, as "
            "long as each has records enough to learn from."
        )
    return Plan(options, best.name, reason, assumed, warnings)


def _assumed(votes: _Votes, error: float, k: int, m: int, price: float) -> str:
    """Say which model of votes was taken, and how much hangs on it."""
    most, n = 1 - 1 / votes.n_classes, votes.n_classes
    others = []
    for other in (error / 2, min(2 * error, (error + most) / 2)):
        option = _dissent_option(_Votes.by_law(other, 0.0, n), k, k, m, price)
        others.append(
            f"at {other:.3g} dissent would answer {option.expected_answers:,}"
        )
    return (
        "Assumed, not measured: a teacher differs from the plurality of all teachers "
        f"on {error:.3g} of the points ({', '.join(others)}); the plurality is wrong "
        f"on {votes.best_error:.3g} of them."
    )


def _warnings(n_records: int, n_classes: int, k: int, delta: float) -> list[str]:
    found = []
    if delta * n_records >= 0.1:
        found.append(
            f"delta {delta:g} is too large for {n_records:,} records: it would allow "
            "to publish one of them."
            if delta * n_records >= 1
            else f"delta {delta:g} is rather large for {n_records:,} records."
        )
        found[0] += f" Take {0.1 / n_records:.1g} or less, a tenth of 1/records."
    if n_records // k < _FEW_OF_A_CLASS * n_classes:
        found.append(
            f"{k:,} teachers have {n_records // k:,} records each for {n_classes:,} "
            "classes: rare ones they will not know. Fewer teachers know more."
        )
    return found


class _Votes:
    """What teachers do on queries: the part that disagrees, and the lead of the first
    class over the second, one of each for a sample of queries.
    """

    def __init__(
        self, dissent: Floats, lead: Floats, best_error: float, n_classes: int
    ) -> None:
        self.dissent, self.lead = dissent, lead
        self.best_error, self.n_classes = best_error, n_classes

    @classmethod
    def by_law(cls, error: float, best_error: float, n_classes: int) -> _Votes:
        """By the stated law, as quantiles."""
        from scipy.special import betaincinv

        most = 1 - 1 / n_classes
        error = positive(teacher_error=error)
        for name, value in (("teacher_error", error), ("best_error", best_error)):
            if not 0 <= value < most:
                raise ParameterError(
                    f"{name} must be below {most:.3g} and not below 0, got {value:g}. "
                    f"With {n_classes} classes, mere guesses are wrong that often."
                )
        levels = (np.arange(2000) + 0.5) / 2000
        dissent = _array(betaincinv(3 * error, 3 - 3 * error, levels))
        lead = np.maximum(1 - 2 * dissent, 0)
        return cls(dissent, lead, float(best_error), n_classes)

    def flipped(self, noise: float) -> Floats:
        """Of each query, how often noise of that part of the teachers makes another
        class win.
        """
        from scipy.special import ndtr

        # With two classes one count is noisy, else the difference of two.
        spread = noise * (2 if self.n_classes == 2 else math.sqrt(2))
        return _array(ndtr(-self.lead / spread))

    def misguessed(self) -> Floats:
        """Of each query, how often a student does not guess the plurality: where the
        teachers are divided, he may as well toss a coin.
        """
        return _array(np.exp(-self.lead / _DIVIDED) / 2)

    def label_error(self, flipped: Floats) -> float:
        """How often a label is wrong that is so often not the plurality's.

        The plurality errs where teachers are divided, as exp(-lead/s) does for some s,
        and at most as often as a label drawn at random. There, another label is as good
        as that of the plurality.
        """
        most = 1 - 1 / self.n_classes
        narrow, wide = 1e-3, 1e3
        for _ in range(40):
            s = math.sqrt(narrow * wide)
            wrong = most * np.exp(-self.lead / s)
            enough = float(wrong.mean()) > self.best_error
            narrow, wide = (narrow, s) if enough else (s, wide)
        return round(float((wrong + flipped * (1 - wrong / most)).mean()), 4)

    def withheld(self, k: int, mechanism: SparseVector) -> float:
        """How often k teachers are not stable enough: distance plus Laplace noise."""
        distance = np.maximum(np.ceil(k * self.lead / 2) - 1, 0)
        above = (distance - mechanism.threshold) / float(mechanism.noise_scale)
        tail = np.exp(-np.abs(above)) / 2
        return float(np.where(above > 0, tail, 1 - tail).mean())

    def guessed(self) -> float:
        """How often a teacher differs from a student's guess."""
        return float((self.dissent + self.misguessed() * self.lead).mean())


def _dissent_option(
    votes: _Votes, k: int, n_records: int, m: int, price: float
) -> Option:
    """Noise of a quarter of the teachers; a student guesses what the plurality says.

    Its label weighs his guess with the counts, and is no worse than either.
    """
    sigma = k / 4
    dissents = int(sigma**2 * price / 2)
    started = min(20, dissents)  # asked for while there is no student
    answers = started + 0.95 * max(0, dissents - started / 2) / votes.guessed()
    answers = min(m, int(answers))
    fits = dissents >= _FEWEST_DISSENTS
    flipped = np.minimum(votes.flipped(0.25), votes.misguessed())
    return Option(
        name="dissent",
        n_teachers=k,
        records_each=n_records // k,
        feasible=fits,
        expected_answers=answers,
        expected_error=votes.label_error(flipped) if answers else None,
        settings={"sigma": sigma, "dissents": dissents},
        why=f"noise {sigma:.0f} on counts of {k:,} votes; a teacher is silent after it "
        f"disagreed {dissents:,} times with a public guess"
        + ("" if fits else ": too few to learn from"),
    )


def _noisy_max_option(
    votes: _Votes, k: int, n_records: int, m: int, price: float
) -> Option:
    sigma = k / 6
    answers = min(m, int(sigma**2 * price / steps_per_query(votes.n_classes)))
    fits = answers >= min(_FEWEST_ANSWERS, m)
    return Option(
        name="noisy-max",
        n_teachers=k,
        records_each=n_records // k,
        feasible=fits,
        expected_answers=answers,
        expected_error=votes.label_error(votes.flipped(1 / 6)) if answers else None,
        settings={"sigma": sigma},
        why=f"noise {sigma:.0f} on counts of {k:,} votes; every answer is paid for"
        + ("" if fits else ": too few to learn from"),
    )


def _sparse_option(
    votes: _Votes, k: int, n_records: int, m: int, epsilon: float, delta: float
) -> Option:
    """The cutoff that answers most with k teachers, if any does."""
    tried: dict[int, SparseVector] = {}

    def answers(T: int, k: int) -> float:
        if T not in tried:
            two: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
            tried[T] = SparseVector.for_budget(**two, cutoff=T)
        withheld = votes.withheld(k, tried[T])
        return _asked_until(T, withheld, m) * (1 - withheld)

    enough = min(_FEWEST_ANSWERS, m)
    best, most = 1, 0.0
    for T in _CUTOFFS:
        found = answers(T, k) if m >= T else 0.0
        if found <= max(most, 0.5):
            break
        best, most = T, found
    if round(most) >= enough:
        bar = tried[best].threshold
        return Option(
            name="sparse-vector",
            n_teachers=k,
            records_each=n_records // k,
            feasible=True,
            expected_answers=round(most),
            expected_error=round(votes.best_error, 4),
            settings={"cutoff": best, "threshold": bar},
            why=f"answers where {bar:,} of {k:,} votes may change and the winner "
            f"stays; stops after {best} of the others",
        )
    some = [T for T in _CUTOFFS[:3] if m >= T]
    needed = k
    while needed < 1e9 and max(answers(T, needed) for T in some) < enough - 0.5:
        needed = math.ceil(1.05 * needed)
    return Option(
        name="sparse-vector",
        n_teachers=needed,
        records_each=n_records // needed,
        feasible=False,
        expected_answers=round(most),
        expected_error=round(votes.best_error, 4) if round(most) else None,
        settings={},
        why=f"needs {needed:,} teachers of at least {_FEWEST_RECORDS} records; you "
        f"have {n_records:,} records: {n_records // needed} each"
        if needed < 1e9
        else f"the teachers are too divided: stops before {enough} answers",
    )


def _asked_until(T: int, withheld: float, m: int) -> float:
    """Return how many of m queries are asked, on average, until T are withheld.

    The mean of min(N, m) for N, the number of the query that is the T-th withheld:
    T/w times P(N' <= m + 1), N' that of the next one, and m times P(N > m).
    """
    from scipy.special import betainc

    if m < T:
        return float(m)
    w = min(max(withheld, 1e-12), 1 - 1e-12)
    stopped = T / w * betainc(T + 1, float(m - T + 1), w)
    return float(stopped + m * betainc(float(m - T + 1), T, 1 - w))


def _what_would_do(
    epsilon: float, delta: float, k: int, n_records: int, price: float
) -> str:
    """Say what would have to change for dissent to fit, and by how much."""
    wanted = 2 * _FEWEST_DISSENTS / (k / 4) ** 2
    least = _rounded_up(accounting.gaussian_epsilon(wanted, delta=delta))
    teachers = math.ceil(4 * math.sqrt(2 * _FEWEST_DISSENTS / price)) + 1
    records = _FEWEST_RECORDS * teachers
    return (
        f"Nothing fits. With {k:,} teachers dissent needs an epsilon of {least:g}; at "
        f"epsilon {epsilon:g} it needs {teachers:,} teachers, hence about {records:,} "
        "records." + (" Ask for so many teachers." if n_records >= records else "")
    )


def _rounded_up(value: float) -> float:
    """To three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(1.001 * value / unit) * unit


def _reason(best: Option, options: list[Option], m: int) -> str:
    others = ", ".join(
        f"{option.name} {option.expected_answers:,}"
        for option in options
        if option is not best
    )
    return (
        f"{best.name} answers {best.expected_answers:,} of {m:,} queries with "
        f"{best.n_teachers:,} teachers ({others})."
    )


def what_epsilon_means(epsilon: float, *, prior: float = 0.5) -> float:
    r"""Return the most that a guess about one person can be raised to.

    Whoever believed with probability p that somebody's record is in the data believes
    so, whatever was published, with at most :math:`pe^\epsilon/(1 - p + pe^\epsilon)`,
    except with probability delta.

    Examples
    --------
    >>> from mapl.planner import what_epsilon_means
    >>> round(what_epsilon_means(1.0), 2), round(what_epsilon_means(1.0, prior=0.01), 3)
    (0.73, 0.027)
    """
    epsilon, prior = positive(epsilon=epsilon), probability(prior=prior)
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))
