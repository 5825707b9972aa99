"""Which settings: a plan for the sizes that people have, from public numbers only.

The paper's theorems are here as well (`mapl.theorems`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.dissent import steps_per_query
from mapl.errors import ParameterError, integer, positive, probability
from mapl.mechanisms import SparseVector
from mapl.theorems import (
    Loop,
    cutoff,
    cutoff_needed,
    free_queries,
    hard_queries,
    learner_error,
    misclassification,
    misclassification_by_composition,
    n_teachers,
    noise_scale,
    private_classifier_error,
    public_points,
    sample_complexity,
    solve_loop,
    stability_needed,
    stable_threshold,
    student_points,
    threshold,
)

__all__ = [
    "Loop",
    "Option",
    "Plan",
    "cutoff",
    "cutoff_needed",
    "dissents_for",
    "free_queries",
    "hard_queries",
    "large_delta",
    "learner_error",
    "misclassification",
    "misclassification_by_composition",
    "mostly_noise",
    "n_teachers",
    "noise_scale",
    "percent",
    "plan",
    "private_classifier_error",
    "public_points",
    "sample_complexity",
    "solve_loop",
    "stability_needed",
    "stable_threshold",
    "student_points",
    "teachers_for",
    "threshold",
    "what_epsilon_means",
]

Floats = npt.NDArray[np.float64]

_FEWEST_RECORDS = 25  # of a teacher, to be worth asking
_FEWEST_DISSENTS, _FEWEST_ANSWERS = 10, 20  # to be worth learning from
_FEW_OF_A_CLASS = 10  # records of a teacher
_DIVIDED = 0.1  # lead at which a student is still often wrong
_CUTOFFS = (1, 3, 10, 30, 100, 300)


def teachers_for(
    epsilon: float,
    n_classes: int,
    n_records: int | None,
    *,
    mechanism: str = "dissent",
) -> int:
    """Return how many teachers suit an epsilon: public numbers only.

    More teachers drown more noise, and each knows less. The rule was fitted to UCI
    Adult, MNIST and covtype, the least number of records of a teacher to two more sets.
    A sparse vector takes as many as there can be.
    """
    k = max(5, round(min(150 * math.sqrt(n_classes / epsilon), 5000)))
    if n_records is None:
        return k
    most = min(max(5, n_records // _FEWEST_RECORDS), n_records)
    return most if mechanism == "sparse-vector" else min(k, most)


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

    @property
    def records_each(self) -> int:
        """How many records a teacher had."""


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

    The model of votes, unless a pilot has looked at real ones: of C classes, the part
    of the teachers that do not vote with the plurality of a query is at most 1 - 1/C,
    and has the law Beta(2f, 2 - 2f) on that range with mean ``teacher_error``: most
    queries are easy, some divide the teachers. Where few disagree they vote for one
    other class, the worst case for a threshold; where all that can do, for all alike.

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
    if n_teachers is not None:
        n_teachers = integer(n_teachers=n_teachers, at_least=1)
        if n_teachers > n_records:
            raise ParameterError(
                f"n_teachers must not exceed the {n_records:,} records, got "
                f"{n_teachers:,}."
            )
    price = accounting.gaussian_limit(epsilon=epsilon, delta=delta)
    sizes = epsilon, n_classes, n_records
    k = n_teachers or teachers_for(*sizes)
    many = n_teachers or teachers_for(*sizes, mechanism="sparse-vector")
    if pilot is None:
        votes = _Votes.by_law(teacher_error, best_error, n_classes)
        assumed = _assumed(votes, teacher_error, k, m, price)
    else:
        votes = _Votes(pilot.dissent, pilot.lead, pilot.best_error, n_classes)
        assumed = "Teachers are taken to vote as in the pilot."
    options = [
        _dissent_option(votes, k, n_records, m, price),
        _noisy_max_option(votes, k, n_records, m, price),
        _sparse_option(votes, many, n_records, m, epsilon, delta),
    ]
    rival = _dissent_option(votes, many, n_records, m, price)
    recommended, reason = _recommended(options, rival, m)
    if recommended is None:
        reason = _what_would_do(epsilon, delta, k, n_records, price)
    warnings = _warnings(n_records, n_classes, k, delta)
    if pilot is not None and not 2 / 3 <= pilot.records_each * k / n_records <= 3 / 2:
        warnings.append(
            f"The pilot's teachers had {pilot.records_each:,} records each, those of "
            f"the plan have {n_records // k:,}: they will agree more or less. Try "
            f"pilot(records_each={n_records // k})."
        )
    return Plan(options, recommended, reason, assumed, warnings)


def _recommended(
    options: list[Option], rival: Option, m: int
) -> tuple[str | None, str]:
    """Return what fits and answers most, and why. If that takes more teachers, the
    rival is dissent with as many.
    """
    fits = [option for option in options if option.feasible]
    if not fits:
        return None, ""
    best = max(fits, key=lambda option: option.expected_answers)
    more = ""
    if best is not options[0] and rival.expected_answers >= best.expected_answers:
        more = (
            f" With {rival.n_teachers:,} teachers dissent would answer "
            f"{rival.expected_answers:,}: plan with more of them, as long as each has "
            "records enough to learn from."
        )
        best = options[0] if options[0].feasible else best
    others = ", ".join(
        f"{option.name} {option.expected_answers:,}"
        for option in options
        if option is not best
    )
    return best.name, (
        f"{best.name} answers {best.expected_answers:,} of {m:,} queries with "
        f"{best.n_teachers:,} teachers ({others}).{more}"
    )


def _assumed(votes: _Votes, error: float, k: int, m: int, price: float) -> str:
    """Say which model of votes was taken, and how much hangs on it."""
    most, n = 1 - 1 / votes.n_classes, votes.n_classes
    others = []
    for other in (error / 2, min(2 * error, (error + most) / 2)):
        answers = _by_dissent(_Votes.by_law(other, 0.0, n), k, m, price)[1]
        others.append(f"at {other:.3g} dissent would answer {answers:,}")
    return (
        "Taken as given: a teacher differs from the plurality of all teachers on "
        f"{error:.3g} of the points ({', '.join(others)}); the plurality is wrong on "
        f"{votes.best_error:.3g} of them."
    )


def _warnings(n_records: int, n_classes: int, k: int, delta: float) -> list[str]:
    found = []
    if delta * n_records > 0.1 * (1 + 1e-9):
        found.append(large_delta(delta, n_records))
    if n_records // k < _FEW_OF_A_CLASS * n_classes:
        found.append(
            f"{k:,} teachers have {n_records // k:,} records each for {n_classes:,} "
            "classes: they will not learn the rare ones. Fewer teachers know more."
        )
    return found


def large_delta(delta: float, n_records: int) -> str:
    """Return what to say of a delta that is large for so many records."""
    what = "rather large"
    if delta * n_records >= 1:
        what = "too large: it would allow a method that publishes one record whole"
    unit = 10.0 ** math.floor(math.log10(0.1 / n_records))
    least = unit * math.floor(0.1 / n_records / unit)
    return (
        f"For {n_records:,} records delta {delta:g} is {what}. Take {least:.1g} or "
        "less, a tenth of 1/records."
    )


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
        best_error = best_error and positive(best_error=best_error)
        for name, value in (("teacher_error", error), ("best_error", best_error)):
            if not value < most:
                raise ParameterError(
                    f"{name} must be < {most:.3g}, as often as mere guesses among "
                    f"{n_classes:,} classes are wrong; got {value!r}."
                )
        levels = (np.arange(2000) + 0.5) / 2000
        part = np.asarray(betaincinv(2 * error / most, 2 - 2 * error / most, levels))
        dissent = most * part
        second = dissent * (1 - part * (n_classes - 2) / (n_classes - 1))
        return cls(dissent, 1 - dissent - second, float(best_error), n_classes)

    def flipped(self, noise: float) -> Floats:
        """Of each query, how often noise of that part of the teachers makes another
        class win: the second, or one of the others, which share what is left.
        """
        from scipy.special import ndtr

        if self.n_classes == 2:  # one count is noisy, the other follows
            return np.asarray(ndtr(-self.lead / (2 * noise)))
        others = self.n_classes - 2
        rest = np.maximum(2 * self.dissent + self.lead - 1, 0) / others
        ahead = (1 - self.dissent - rest)[:, None] / noise
        nodes, weights = np.polynomial.hermite_e.hermegauss(30)  # noise of the first
        stays = ndtr(self.lead[:, None] / noise + nodes) * ndtr(ahead + nodes) ** others
        return np.asarray(1 - stays @ weights / weights.sum())

    def misguessed(self) -> Floats:
        """Of each query, how often a student does not guess the plurality: where the
        teachers are divided, he may as well toss a coin.
        """
        return np.asarray(np.exp(-self.lead / _DIVIDED) / 2)

    def label_error(self, flipped: Floats, answered: Floats | float = 1.0) -> float:
        """How often a label is wrong that is so often not the plurality's, of queries
        that are so often answered.

        The plurality errs where teachers are divided, as exp(-lead/s) does for some s,
        and at most as often as a label drawn at random. There, another label is as good
        as that of the plurality.
        """
        most = 1 - 1 / self.n_classes
        narrow, wide = 1e-4, 1e3
        for _ in range(40):
            s = math.sqrt(narrow * wide)
            wrong = most * np.exp(-self.lead / s)
            enough = float(wrong.mean()) > self.best_error
            narrow, wide = (narrow, s) if enough else (s, wide)
        if float(wrong.mean()) > self.best_error:  # many lead by nothing
            wrong *= self.best_error / float(wrong.mean())
        error = answered * (wrong + flipped * (1 - wrong / most))
        return round(float(error.mean() / np.mean(answered)), 4)

    def withheld(self, k: int, mechanism: SparseVector) -> Floats:
        """Of each query, how often k teachers are not stable enough: distance plus
        Laplace noise.
        """
        distance = np.maximum(np.ceil(k * self.lead / 2) - 1, 0)
        above = (distance - mechanism.threshold) / float(mechanism.noise_scale)
        tail = np.exp(-np.abs(above)) / 2
        return np.asarray(np.where(above > 0, tail, 1 - tail))

    def guessed(self) -> float:
        """How often a teacher differs from a student's guess."""
        return float((self.dissent + self.misguessed() * self.lead).mean())


def _by_dissent(votes: _Votes, k: int, m: int, price: float) -> tuple[int, int]:
    """Return how often each of k teachers may disagree, and how many answers that is.

    Noise of a quarter of the teachers; a student guesses what the plurality says. Who
    disagrees often falls silent early, so it takes longer until all is used: 5 %, as
    measured (the model has teachers that differ equally often).
    """
    dissents = int((k / 4) ** 2 * price / 2)
    started = min(20, dissents)  # asked for while there is no student
    answers = started + 1.05 * max(0, dissents - started / 2) / votes.guessed()
    return dissents, min(m, int(answers))


def _dissent_option(
    votes: _Votes, k: int, n_records: int, m: int, price: float
) -> Option:
    """Its label weighs a student's guess with the counts, and is no worse than
    either.
    """
    dissents, answers = _by_dissent(votes, k, m, price)
    fits = dissents >= _FEWEST_DISSENTS
    flipped = np.minimum(votes.flipped(0.25), votes.misguessed())
    return Option(
        name="dissent",
        n_teachers=k,
        records_each=n_records // k,
        feasible=fits,
        expected_answers=answers,
        expected_error=votes.label_error(flipped) if answers else None,
        settings={"sigma": k / 4, "dissents": dissents},
        why=f"noise {k / 4:.0f} on counts of {k:,} votes; a teacher falls silent once "
        f"it has disagreed {dissents:,} times with a public guess"
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
    cutoffs = [T for T in _CUTOFFS if m >= T]

    @cache
    def calibrated(T: int) -> SparseVector:
        return SparseVector.for_budget(epsilon=epsilon, delta=delta, cutoff=T)

    def answers(T: int, k: int) -> float:
        withheld = float(votes.withheld(k, calibrated(T)).mean())
        return _asked_until(T, withheld, m) * (1 - withheld)

    enough = min(_FEWEST_ANSWERS, m)
    best, most = 1, 0.0
    for T in cutoffs:
        found = answers(T, k)
        if found <= most:
            break
        best, most = T, found
    bar = calibrated(best).threshold
    why = (
        f"answers where {bar:,} of {k:,} votes may change and the winner stays; stops "
        f"after {best} of the others"
    )
    fits = round(most) >= enough
    if not fits:
        needed = k
        while needed < 1e9 and max(answers(T, needed) for T in cutoffs) < enough - 0.5:
            needed = math.ceil(1.05 * needed)
        why = _too_few_for_a_sparse_vector(needed, n_records)
    answered = 1 - votes.withheld(k, calibrated(best))
    never = np.zeros(len(answered))  # is it another than the plurality
    return Option(
        name="sparse-vector",
        n_teachers=k,
        records_each=n_records // k,
        feasible=fits,
        expected_answers=round(most),
        expected_error=votes.label_error(never, answered) if round(most) else None,
        settings={"cutoff": best, "threshold": bar},
        why=why,
    )


def _too_few_for_a_sparse_vector(needed: int, n_records: int) -> str:
    if needed >= 1e9:
        return "the teachers are too divided, however many there are"
    if needed * _FEWEST_RECORDS <= n_records:
        return f"needs {needed:,} teachers; ask for so many"
    return (
        f"needs {needed:,} teachers of at least {_FEWEST_RECORDS} records; you have "
        f"{n_records:,} records: {n_records // needed} each"
    )


def _asked_until(T: int, withheld: float, m: int) -> float:
    """Return how many of m >= T queries are asked, on average, until T are withheld.

    The mean of min(N, m) for N, the number of the query that is the T-th withheld:
    T/w times P(N' <= m + 1), N' that of the next one, and m times P(N > m).
    """
    from scipy.special import betainc

    w = min(max(withheld, 1e-12), 1 - 1e-12)
    stopped = T / w * betainc(T + 1, float(m - T + 1), w)
    return float(stopped + m * betainc(float(m - T + 1), T, 1 - w))


def mostly_noise(k: int, *, epsilon: float, delta: float) -> str | None:
    """Say so if k teachers are far too few for what they publish to be of use."""
    price = accounting.gaussian_limit(epsilon=epsilon, delta=delta)
    if (k / 4) ** 2 * price / 2 >= 1:  # dissent at noise k/4
        return None
    least, teachers = _needed(epsilon, delta, k, price)
    return (
        f"What is published will be mostly noise: {k:,} teachers need an epsilon of "
        f"{least:g}, epsilon {epsilon:g} needs {teachers:,} teachers. See mapl plan."
    )


def _needed(epsilon: float, delta: float, k: int, price: float) -> tuple[float, int]:
    """Return the epsilon at which k teachers fit, and how many do at this one."""
    wanted = 2 * _FEWEST_DISSENTS / (k / 4) ** 2
    least = _rounded_up(accounting.gaussian_epsilon(wanted, delta=delta))
    return least, math.ceil(4 * math.sqrt(2 * _FEWEST_DISSENTS / price)) + 1


def _what_would_do(
    epsilon: float, delta: float, k: int, n_records: int, price: float
) -> str:
    """Say what would have to change for dissent to fit, and by how much."""
    least, teachers = _needed(epsilon, delta, k, price)
    records = _FEWEST_RECORDS * teachers
    have = " You have them: ask for so many teachers." if n_records >= records else ""
    return (
        f"Nothing fits. Dissent needs an epsilon of {least:g} if you ask for {k:,} "
        f"teachers, or {teachers:,} teachers at epsilon {epsilon:g}, hence about "
        f"{records:,} records.{have}"
    )


def _rounded_up(value: float) -> float:
    """To three digits, so that what is asked for is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(1.001 * value / unit) * unit


def what_epsilon_means(epsilon: float, *, prior: float = 0.5) -> float:
    r"""Return the most that a guess about one person can be raised to.

    Whoever believed with probability p that somebody's record is in the data believes
    so, whatever was published, with at most :math:`pe^\epsilon/(1 - p + pe^\epsilon)`,
    up to delta: an output that tells more is possible, and one that multiplies the odds
    by more than :math:`e^{\epsilon + t}` has probability :math:`\delta/(1 - e^{-t})` at
    most. Whoever thinks it an even chance guesses right with probability
    :math:`(e^\epsilon + \delta)/(1 + e^\epsilon)` at most.

    Examples
    --------
    >>> from mapl.planner import what_epsilon_means
    >>> round(what_epsilon_means(1.0), 2), round(what_epsilon_means(1.0, prior=0.01), 3)
    (0.73, 0.027)
    """
    epsilon, prior = positive(epsilon=epsilon), probability(prior=prior)
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def percent(share: float) -> str:
    """Return an upper bound as text, rounded up.

    Examples
    --------
    >>> from mapl.planner import percent
    >>> percent(0.7311), percent(0.88), percent(0.99997)
    ('73.2%', '88%', '100%')
    """
    return f"{math.ceil(1000 * share) / 10:g}%"
