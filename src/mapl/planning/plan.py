"""Which mechanism, how many teachers, what to expect: from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mapl.errors import ParameterError, integer, positive, probability
from mapl.planning.choice import moments_setting
from mapl.planning.settings import (
    FEWEST_DISSENTS,
    FEWEST_RECORDS,
    MECHANISMS,
    TEACHER_ERROR,
    Setting,
    dissents_at_quarter_noise,
    setting_for,
    teachers_for,
)
from mapl.planning.vote_model import VoteModel
from mapl.privacy.gaussian_prices import gaussian_epsilon, gaussian_limit

if TYPE_CHECKING:
    from mapl.planning.pilot import Pilot

_FEW_OF_A_CLASS = 10  # records of a teacher
_AS_GOOD = 0.95  # of the right answers of the best mechanism


@dataclass(frozen=True)
class Plan:
    """What to expect of each mechanism, and which to take: None if nothing fits.

    ``assumed`` says what of it was not measured, ``warnings`` what is unsafe or unwise.
    """

    options: list[Setting]
    recommended: str | None
    reason: str
    assumed: str
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "mechanisms": [option.to_json() for option in self.options],
            "recommended": self.recommended,
            "reason": self.reason,
            "assumed": self.assumed,
            "warnings": self.warnings,
        }

    def setting(self, mechanism: str | None = None) -> Setting:
        """Return the setting of a mechanism, the recommended one by default."""
        return find_setting(self.to_json(), mechanism)


def find_setting(plan: Mapping[str, Any], mechanism: str | None = None) -> Setting:
    """Return a setting out of the JSON form of a plan."""
    name = mechanism or plan.get("recommended")
    if name is None:
        raise ParameterError(
            "The plan recommends nothing: no mechanism fits these numbers. Choose one "
            "with mechanism, or plan with a larger epsilon."
        )
    try:
        found = [form for form in plan["mechanisms"] if form["name"] == name]
    except (KeyError, TypeError):  # not what a plan writes
        found = []
    if len(found) != 1:
        raise ParameterError(f"The plan has no mechanism {name!r}.")
    return Setting.from_json(found[0])


def plan(
    *,
    n_records: int,
    n_queries: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    teacher_error: float = TEACHER_ERROR,
    best_error: float = 0.0,
    n_teachers: int | None = None,
    pilot: Pilot | None = None,
) -> Plan:
    r"""Plan what `PrivateClassifier.fit` will do with each mechanism.

    Parameters
    ----------
    n_records, n_queries, n_classes : int
        Private records, public points, classes: public sizes, or guesses.
    epsilon, delta : float
        What everything may cost.
    teacher_error : float
        How often a teacher differs from the plurality: from a pilot on public data.
    best_error : float
        How often the plurality itself is wrong.
    n_teachers : int or None
        How many to plan for; by default what suits each mechanism.
    pilot : Pilot or None
        What `mapl.planning.pilot.pilot` found on public records; it replaces the two
        errors.

    Examples
    --------
    >>> from mapl.planning import plan
    >>> found = plan(
    ...     n_records=30_000, n_queries=5000, n_classes=2, epsilon=1, delta=1e-5
    ... )
    >>> found.recommended, found.setting("dissent").event.steps
    ('moments', 5000)
    """
    _check_arguments(n_records, n_queries, n_classes, epsilon, delta, n_teachers)
    if pilot is None:
        votes = VoteModel.by_law(teacher_error, best_error, n_classes)
    else:
        votes = VoteModel(pilot.dissent, pilot.lead, pilot.best_error, n_classes)

    def setting(mechanism: str, votes: VoteModel = votes) -> Setting:
        k = n_teachers or teachers_for(
            epsilon, n_classes, n_records, mechanism=mechanism
        )
        return setting_for(
            mechanism,
            n_teachers=k,
            n_points=n_queries,
            n_classes=n_classes,
            epsilon=epsilon,
            delta=delta,
            n_records=n_records,
            votes=votes,
        )

    votes_only = [setting(mechanism) for mechanism in MECHANISMS]
    sums = moments_setting(
        n_points=n_queries,
        n_classes=n_classes,
        epsilon=epsilon,
        delta=delta,
        n_records=n_records,
    )
    options = [*votes_only, sums]
    k = votes_only[0].n_teachers
    recommended, reason = _recommend(options)
    if recommended is None:
        reason = infeasible_message(epsilon, delta, k, n_records)
    warnings = _warnings(n_records, n_classes, k, delta)
    if pilot is None:
        assumed = _assumption(votes, teacher_error, setting)
    else:
        assumed = "Teachers are taken to vote as in the pilot."
        warnings += _pilot_warnings(pilot, k, n_records)
    return Plan(options, recommended, reason, assumed, warnings)


def _check_arguments(
    n_records: int,
    n_queries: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    n_teachers: int | None,
) -> None:
    """Refuse what no plan can be made for."""
    integer(n_records=n_records, at_least=1)
    integer(n_queries=n_queries, at_least=1)
    integer(n_classes=n_classes, at_least=2)
    positive(epsilon=epsilon)
    probability(delta=delta)
    if not (1e-6 <= epsilon <= 1e6 and delta >= 1e-12):
        raise ParameterError(
            "Plans are made for epsilon from 1e-6 to 1e6 and delta from 1e-12 on, got "
            f"epsilon {epsilon:g} and delta {delta:g}."
        )
    if n_teachers is not None:
        integer(n_teachers=n_teachers, at_least=1)
        if n_teachers > n_records:
            raise ParameterError(
                f"n_teachers must not exceed the {n_records:,} records, got "
                f"{n_teachers:,}."
            )


def _recommend(options: list[Setting]) -> tuple[str | None, str]:
    """Return moments if they fit; else the mechanism with most right answers, dissent
    if it is as good.
    """
    *votes, sums = options
    feasible = [option for option in votes if option.feasible]
    best = max(feasible, key=_right_answers, default=None)
    if best is not None and votes[0].feasible:
        as_good = _right_answers(votes[0]) >= _AS_GOOD * _right_answers(best)
        best = votes[0] if as_good else best
    by_votes = None if best is None else _expected(best, votes)
    if sums.feasible:
        rest = f" With votes alone, {by_votes}" if by_votes else ""
        return sums.name, (
            f"{sums.name} lets every record speak for itself, labels all "
            f"{sums.n_points:,} points, and has been more accurate than votes wherever "
            f"it was tried (benchmarks/bench_moments.py).{rest}"
        )
    return (None, "") if best is None or by_votes is None else (best.name, by_votes)


def _expected(best: Setting, options: list[Setting]) -> str:
    others = ", ".join(
        f"{option.name} {option.expected_answers:,}"
        for option in options
        if option is not best
    )
    return (
        f"{best.name} is expected to label {best.expected_answers:,} of "
        f"{best.n_points:,} points with {best.n_teachers:,} teachers ({others})."
    )


def _right_answers(option: Setting) -> float:
    return option.expected_answers * (1 - (option.expected_error or 0.0))


def _assumption(votes: VoteModel, error: float, setting: Any) -> str:
    """Say which votes were assumed, and how much depends on that."""
    most, n = 1 - 1 / votes.n_classes, votes.n_classes
    others = []
    for other in (error / 2, min(2 * error, (error + most) / 2)):
        found = setting("dissent", VoteModel.by_law(other, 0.0, n))
        others.append(f"at {other:.3g} dissent would label {found.expected_answers:,}")
    return (
        "Assumed: a teacher differs from the plurality of all teachers on "
        f"{error:.3g} of the points ({', '.join(others)}); the plurality is wrong on "
        f"{votes.best_error:.3g} of them."
    )


# Warnings ---------------------------------------------------------------------------


def _warnings(n_records: int, n_classes: int, k: int, delta: float) -> list[str]:
    """Return what is unsafe or unwise about these numbers."""
    found = []
    if is_large_delta(delta, n_records):
        found.append(large_delta_message(delta, n_records))
    if n_records // k < _FEW_OF_A_CLASS * n_classes:
        found.append(
            f"{k:,} teachers have {n_records // k:,} records each for {n_classes:,} "
            "classes: they will not learn the rare ones. Fewer teachers know more."
        )
    return found


def _pilot_warnings(pilot: Pilot, k: int, n_records: int) -> list[str]:
    """Warn if the pilot's teachers were of another size."""
    if 2 / 3 <= pilot.records_each * k / n_records <= 3 / 2:
        return []
    return [
        f"The pilot's teachers had {pilot.records_each:,} records each, those of the "
        f"plan have {n_records // k:,}: they will agree more or less. Try "
        f"pilot(records_each={n_records // k})."
    ]


def is_large_delta(delta: float, n_records: int) -> bool:
    """Whether delta is more than a tenth of 1 over the number of records."""
    return delta * n_records > 0.1 * (1 + 1e-9)


def large_delta_message(delta: float, n_records: int) -> str:
    """Return what to say of a delta that is large for so many records."""
    what = "rather large"
    if delta * n_records >= 1:
        what = "too large: it would allow a method that publishes one record whole"
    unit = 10.0 ** math.floor(math.log10(0.1 / n_records))
    advised = unit * math.floor(0.1 / n_records / unit)
    return (
        f"For {n_records:,} records delta {delta:g} is {what}. Take {advised:.1g} or "
        "less, a tenth of 1/records."
    )


def mostly_noise_message(k: int, *, epsilon: float, delta: float) -> str | None:
    """Return a warning if k teachers are far too few for this budget."""
    price = gaussian_limit(epsilon=epsilon, delta=delta)
    if dissents_at_quarter_noise(k, price) >= 1:
        return None
    least, teachers = _needed(epsilon, delta, k)
    return (
        f"What is published will be mostly noise: {k:,} teachers need an epsilon of "
        f"{least:g}, epsilon {epsilon:g} needs {teachers:,} teachers. See mapl plan."
    )


def infeasible_message(epsilon: float, delta: float, k: int, n_records: int) -> str:
    """Say what would have to change for dissent to fit, and by how much."""
    least, teachers = _needed(epsilon, delta, k)
    records = FEWEST_RECORDS * teachers
    have = " You have them: ask for that many teachers." if n_records >= records else ""
    return (
        f"Nothing fits. Dissent needs an epsilon of {least:g} with {k:,} teachers, or "
        f"{teachers:,} teachers at epsilon {epsilon:g}, hence about {records:,} "
        f"records.{have}"
    )


def _needed(epsilon: float, delta: float, k: int) -> tuple[float, int]:
    """Return the epsilon at which k teachers fit, and how many fit at this one."""
    wanted = 2 * FEWEST_DISSENTS / (k / 4) ** 2
    least = _three_digits_up(gaussian_epsilon(wanted, delta=delta))
    price = gaussian_limit(epsilon=epsilon, delta=delta)
    return least, math.ceil(4 * math.sqrt(2 * FEWEST_DISSENTS / price)) + 1


def _three_digits_up(value: float) -> float:
    """Round up to three digits and a little more, so that what is advised is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(1.001 * value / unit) * unit
