"""Which way to learn, and what to run: from public numbers and parameters."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mapl.errors import ParameterError
from mapl.ledger.rules import check_alone
from mapl.planning.settings import Setting, setting_for, teachers_for, too_few
from mapl.privacy.calibration import largest_squared_shift
from mapl.privacy.events import MomentsEvent
from mapl.privacy.sparse_vector import SparseVector
from mapl.student.steps import n_steps, signal_of

METHODS = ("moments", "votes", "both")
# How stored jobs name a method; another number where its steps have changed.
REQUESTS = {"moments": "moments/3", "both": "both/4"}
COUNT = Fraction(1, 50)  # part of the budget for the number of records
CALIBRATION = Fraction(1, 50)  # for scales and biases
SKETCH = Fraction(1, 10)  # for counts of cells, where there are no public records
COPULA = Fraction(1, 20)  # for how columns go together there
SKETCHED_TOGETHER = Fraction(1, 3)  # the same, where nothing else is published
VOTES = Fraction(1, 10)  # for teachers who correct the moments
_COORDINATES = 10**8  # of all sums; they cost next to nothing
_LEAST_SHIFT = Fraction(1, 5 * 10**6)  # squared
LEAST_SIGNAL = 50  # records times shift: below, sums are mostly noise


def choose_method(
    method: str, plan: Any, *, estimator: Any, mechanism: str, privacy: str
) -> str:
    """Return what to learn from, by the parameters alone."""
    planned = getattr(plan, "name", None)
    if planned is not None:
        method = planned if planned in METHODS else "votes"
    elif method == "auto":
        method = "moments" if estimator is None else "both"
        labels_only = privacy == "labels" and estimator is not None
        if mechanism != "auto" or labels_only:
            method = "votes"
    if method != "votes" and mechanism not in ("auto", "dissent"):
        raise ParameterError(
            f"mechanism must be 'auto' where method is {method!r}, got {mechanism!r}. "
            "Set method='votes'."
        )
    if method == "both" and privacy == "labels":
        raise ParameterError(
            "method must be 'moments' or 'votes' where only labels are private."
        )
    return method


def moments_setting(
    *,
    n_points: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    n_records: int | None,
    n_teachers: int = 0,
) -> Setting:
    """Return the setting of sums over all records; with teachers, of both."""
    shift = largest_squared_shift(
        epsilon=epsilon, delta=delta, coordinates=_COORDINATES
    )
    event = MomentsEvent(squared_shift=shift, coordinates=_COORDINATES)
    mu = math.sqrt(shift)
    feasible = n_records is None or n_records * mu >= LEAST_SIGNAL
    feasible &= shift >= _LEAST_SHIFT
    steps = "some"
    if n_records is not None:
        steps = str(n_steps(signal_of(n_records, mu, n_classes), n_classes))
    each = n_records // n_teachers if n_records and n_teachers else None
    why = f"sums over all records in {steps} steps, each record for itself"
    if n_teachers:
        why += "; teachers correct what that leaves"
    return Setting(
        name="both" if n_teachers else "moments",
        n_teachers=n_teachers,
        n_points=n_points,
        n_classes=n_classes,
        event=event,
        records_each=each,
        feasible=feasible,
        expected_answers=n_points if feasible else 0,
        expected_error=None,
        settings={"squared_shift": float(shift)},
        why=why + too_few(feasible),
    )


def choose_setting(
    plan: Setting | None,
    *,
    method: str,
    mechanism: str,
    n_teachers: int | str,
    n_points: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    n_records: int | None,
) -> tuple[int, Setting | None]:
    """Return how many teachers there are and what to run, from public numbers: as
    planned, or by the same rules. With one class there is nothing to run.
    """
    if plan is not None:
        if not isinstance(plan, Setting):
            raise ParameterError(
                f"plan must be a setting of mapl.planning.plan, got "
                f"{type(plan).__name__}. Pass plan(...).setting()."
            )
        plan.check_sizes(n_points=n_points, n_classes=n_classes)
        check_alone(plan.event, epsilon=epsilon, delta=delta)
        return int(plan.n_teachers), plan
    name = "dissent" if mechanism == "auto" else mechanism
    teachers = (
        teachers_for(epsilon, n_classes, n_records, mechanism=name)
        if n_teachers == "auto"
        else int(n_teachers)
    )
    if method == "moments":
        teachers = 0
    if n_classes < 2:
        return teachers, None
    if method != "votes":
        sums = moments_setting(
            n_points=n_points,
            n_classes=n_classes,
            epsilon=epsilon,
            delta=delta,
            n_records=n_records,
            n_teachers=teachers,
        )
        if sums.make_moments().event.squared_shift < _LEAST_SHIFT:
            raise ParameterError(
                f"epsilon must be at least about 0.001 for sums, got {epsilon:g}: "
                "below that, their noise cannot be drawn. Nothing was released."
            )
        return teachers, sums
    setting = setting_for(
        name,
        n_teachers=teachers,
        n_points=n_points,
        n_classes=n_classes,
        epsilon=epsilon,
        delta=delta,
        n_records=n_records,
    )
    _refuse_hopeless(setting)
    return teachers, setting


def _refuse_hopeless(setting: Setting) -> None:
    """Refuse a sparse vector whose threshold its teachers can hardly reach."""
    mechanism = setting.make_mechanism()
    if not isinstance(mechanism, SparseVector):
        return
    if mechanism.threshold > setting.n_teachers / 2 + 3 * mechanism.noise_scale:
        raise ParameterError(
            "mechanism='sparse-vector' would withhold every answer: its threshold is "
            f"{mechanism.threshold} for {setting.n_teachers} teachers. Use "
            "mechanism='auto', or more teachers. Nothing was released."
        )
