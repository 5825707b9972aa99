"""One setting of a mechanism: what `mapl plan` shows is what `fit` opens.

Everything is computed from public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mapl.errors import ParameterError, integer
from mapl.planning.vote_model import VoteModel
from mapl.privacy.calibration import least_sigma
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import (
    Event,
    GaussianEvent,
    MomentsEvent,
    SparseVectorEvent,
    from_json,
)
from mapl.privacy.gaussian_prices import gaussian_limit
from mapl.privacy.moments import Moments
from mapl.privacy.noisy_counts import steps_per_query
from mapl.privacy.noisy_max import NoisyMax
from mapl.privacy.search import least_integer
from mapl.privacy.sparse_vector import SparseVector
from mapl.release.labeler import Mechanism
from mapl.student.rounds import MOST_ASKS

MECHANISMS = ("dissent", "noisy-max", "sparse-vector")
TEACHER_ERROR = 0.15  # assumed, without better knowledge
FEWEST_RECORDS = 25  # of a teacher, to be worth asking
FEWEST_DISSENTS, FEWEST_ANSWERS = 10, 20  # to be worth learning from
_NOISY_MAX_NOISE = 1 / 6  # of the teachers
_HIGHEST_THRESHOLD = 0.35  # of the teachers, for a sparse vector
_LARGEST_CUTOFF = 1000


@dataclass(frozen=True)
class Setting:
    """A mechanism with its parameters, and what to expect of it. Public.

    ``event`` is what it costs: a fit opens the mechanism with this event. It was made
    for ``n_teachers``, ``n_points`` and ``n_classes``. ``feasible`` says whether enough
    is expected of it to learn from, ``expected_answers`` how many public points are
    expected to get a label, and ``expected_error`` how often such a label is wrong: due
    to noise alone, if the plurality is taken to be right. ``settings`` has the
    parameters by name, ``why`` says what they do.
    """

    name: str
    n_teachers: int
    n_points: int
    n_classes: int
    event: Event
    records_each: int | None
    feasible: bool
    expected_answers: int
    expected_error: float | None
    settings: dict[str, float]
    why: str

    def check_sizes(self, *, n_points: int, n_classes: int) -> None:
        """Refuse other sizes than those it was made for."""
        for what, planned, found in (
            ("public points", self.n_points, n_points),
            ("classes", self.n_classes, n_classes),
        ):
            if planned != found:
                raise ParameterError(
                    f"plan is for {planned:,} {what}, got {found:,}. Plan again."
                )

    def make_moments(self) -> Moments:
        """Return the mechanism of sums, for a summer to open."""
        if not isinstance(self.event, MomentsEvent):
            raise ParameterError(f"{self.name!r} has no event {self.event.kind!r}.")
        return Moments(
            squared_shift=self.event.squared_shift, coordinates=self.event.coordinates
        )

    def make_mechanism(self) -> Mechanism:
        """Return the mechanism, for a labeler to open."""
        event = self.event
        if self.name == "sparse-vector" and isinstance(event, SparseVectorEvent):
            return SparseVector.from_event(event)
        counts = self.name in ("dissent", "noisy-max")
        if not (counts and isinstance(event, GaussianEvent)):
            raise ParameterError(f"{self.name!r} has no event {event.kind!r}.")
        if self.name == "noisy-max":
            n_queries = event.steps // steps_per_query(self.n_classes)
            return NoisyMax(
                sigma=event.sigma, n_queries=n_queries, n_classes=self.n_classes
            )
        return ChargedDissent(
            sigma=event.sigma,
            dissents=event.steps // 2,
            n_teachers=self.n_teachers,
            n_classes=self.n_classes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the setting as JSON values."""
        return {**vars(self), "event": self.event.to_json()}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Setting:
        """Return the setting whose `to_json` is ``form``."""
        try:
            setting = cls(**{**form, "event": from_json(form["event"])})
            integer(n_points=setting.n_points, at_least=1)
            moments = isinstance(setting.event, MomentsEvent)
            integer(n_teachers=setting.n_teachers, at_least=0 if moments else 1)
            mechanism: Mechanism | Moments
            mechanism = setting.make_moments() if moments else setting.make_mechanism()
        except (TypeError, KeyError, AttributeError) as error:
            raise ParameterError(f"This is not a setting of a plan: {error}.") from None
        if mechanism.event != setting.event:
            raise ParameterError("This is not a setting of a plan: its event differs.")
        return setting


def teachers_for(
    epsilon: float,
    n_classes: int,
    n_records: int | None,
    *,
    mechanism: str = "dissent",
) -> int:
    """Return how many teachers suit an epsilon.

    More teachers drown more noise, and each knows less. The rule was fitted to UCI
    Adult, MNIST and covtype, the least number of records of a teacher to two more sets.
    A sparse vector takes as many as there can be.
    """
    k = max(5, round(min(150 * math.sqrt(n_classes / epsilon), 5000)))
    if n_records is None:
        return k
    most = min(max(5, n_records // FEWEST_RECORDS), n_records)
    return most if mechanism == "sparse-vector" else min(k, most)


def dissents_for(n_points: int) -> int:
    """Return how often a teacher may disagree, for a pool of so many points.

    What matters is dissents/sigma**2, so this need not be guessed well: with half of
    the pool, a good guess can be asked for each point several times.
    """
    return max(1, n_points // 2)


def dissents_at_quarter_noise(k: int, price: float) -> float:
    """Return how many dissents noise of a quarter of k teachers would allow.

    A measure of how much can be learned at all; ``price`` is the squared Gaussian shift
    that the budget allows.
    """
    return (k / 4) ** 2 * price / 2


def setting_for(
    mechanism: str,
    *,
    n_teachers: int,
    n_points: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    n_records: int | None = None,
    votes: VoteModel | None = None,
) -> Setting:
    """Return the setting of a mechanism for a budget.

    ``n_records`` is about how many private records there are, if that is public. How
    teachers vote changes what is expected, and nothing else.
    """
    if votes is None:
        votes = VoteModel.by_law(TEACHER_ERROR, 0.0, n_classes)
    sizes = _Sizes(n_teachers, n_points, n_classes, epsilon, delta, n_records)
    return _MAKERS[mechanism](sizes, votes)


@dataclass(frozen=True)
class _Sizes:
    n_teachers: int
    n_points: int
    n_classes: int
    epsilon: float
    delta: float
    n_records: int | None

    def setting(self, name: str, **found: Any) -> Setting:
        each = None if self.n_records is None else self.n_records // self.n_teachers
        return Setting(
            name=name,
            n_teachers=self.n_teachers,
            n_points=self.n_points,
            n_classes=self.n_classes,
            records_each=each,
            **found,
        )


def _dissent_setting(sizes: _Sizes, votes: VoteModel) -> Setting:
    """Half of the pool as dissents; the votes decide what is expected, only."""
    k, m = sizes.n_teachers, sizes.n_points
    dissents = dissents_for(m)
    mechanism = ChargedDissent.for_budget(
        epsilon=sizes.epsilon,
        delta=sizes.delta,
        dissents=dissents,
        n_teachers=k,
        n_classes=sizes.n_classes,
    )
    sigma = float(mechanism.sigma)
    asks = max(1.0, min(MOST_ASKS * m, dissents / votes.dissent_from_student()))
    answered, differs = votes.labelled_by_student(sigma / k, asks)
    price = gaussian_limit(epsilon=sizes.epsilon, delta=sizes.delta)
    feasible = dissents_at_quarter_noise(k, price) >= FEWEST_DISSENTS
    return sizes.setting(
        "dissent",
        event=mechanism.event,
        feasible=feasible,
        expected_answers=round(m * float(answered.mean())),
        expected_error=votes.label_error(differs, answered),
        settings={"sigma": sigma, "dissents": dissents, "asks_per_point": asks / m},
        why=f"noise {sigma:.0f} on counts of {k:,} votes, asked about {asks / m:.1f} "
        f"times per point; a teacher is silent after it has disagreed {dissents:,} "
        "times with a public guess" + too_few(feasible),
    )


def _noisy_max_setting(sizes: _Sizes, votes: VoteModel) -> Setting:
    """As many queries as noise of a sixth of the teachers allows."""
    k, m = sizes.n_teachers, sizes.n_points
    budget: dict[str, Any] = {"epsilon": sizes.epsilon, "delta": sizes.delta}
    mechanism = NoisyMax.for_budget(
        n_queries=_most_queries(m, sizes.n_classes, _NOISY_MAX_NOISE * k, **budget),
        n_classes=sizes.n_classes,
        **budget,
    )
    sigma, answers = float(mechanism.sigma), mechanism.n_queries
    feasible = answers >= min(FEWEST_ANSWERS, m) and sigma <= k / 2
    return sizes.setting(
        "noisy-max",
        event=mechanism.event,
        feasible=feasible,
        expected_answers=answers,
        expected_error=votes.label_error(votes.flipped(sigma / k)),
        settings={"sigma": sigma, "n_queries": answers},
        why=f"noise {sigma:.0f} on counts of {k:,} votes; every answer is paid for"
        + too_few(feasible),
    )


def _sparse_vector_setting(sizes: _Sizes, votes: VoteModel) -> Setting:
    """The cutoff follows from the number of teachers, not from how they vote."""
    k, m = sizes.n_teachers, sizes.n_points
    mechanism = _sparse_vector_for(k, m, sizes.epsilon, sizes.delta)
    withheld = votes.withheld(k, mechanism)
    answers = round(_answers_of_sparse_vector(mechanism, withheld, m))
    feasible = answers >= min(FEWEST_ANSWERS, m)
    never = np.zeros(len(withheld))  # does the label differ from the plurality
    error = votes.label_error(never, 1 - withheld) if answers else None
    return sizes.setting(
        "sparse-vector",
        event=mechanism.event,
        feasible=feasible,
        expected_answers=answers,
        expected_error=error,
        settings={"cutoff": mechanism.cutoff, "threshold": mechanism.threshold},
        why=f"answers where {mechanism.threshold:,} of {k:,} votes may change and the "
        f"winner stays; stops after {mechanism.cutoff} of the others"
        if feasible
        else _teachers_needed(sizes, votes),
    )


_MAKERS = {
    "dissent": _dissent_setting,
    "noisy-max": _noisy_max_setting,
    "sparse-vector": _sparse_vector_setting,
}


def too_few(feasible: bool) -> str:
    """Return what a reason ends with where it is too little."""
    return "" if feasible else ": too little to learn from"


def _most_queries(
    n: int, n_classes: int, sigma: float, *, epsilon: float, delta: float
) -> int:
    """Return how many queries noise of about ``sigma`` allows, at most n."""
    at_100 = float(least_sigma(epsilon=epsilon, delta=delta, steps=100))
    steps = 100 * (sigma / at_100) ** 2  # noise grows with the root of the steps
    return max(1, min(n, int(steps / steps_per_query(n_classes))))


@lru_cache(maxsize=256)
def _calibrated(cutoff: int, epsilon: float, delta: float) -> SparseVectorEvent:
    found = SparseVector.for_budget(epsilon=epsilon, delta=delta, cutoff=cutoff)
    return found.event


def _sparse_vector_for(k: int, m: int, epsilon: float, delta: float) -> SparseVector:
    """Return the sparse vector with the largest cutoff whose threshold is low enough
    for k teachers; with a cutoff of 1, if none is.
    """
    cutoffs, largest = [1], min(m, _LARGEST_CUTOFF)
    while (larger := cutoffs[-1] + max(1, cutoffs[-1] // 4)) <= largest:
        cutoffs.append(larger)

    def too_high(i: int) -> bool:  # thresholds rise with the cutoff: bisection works
        threshold = _calibrated(cutoffs[i], epsilon, delta).threshold
        return threshold > _HIGHEST_THRESHOLD * k

    first = least_integer(too_high, above=-1, at_most=len(cutoffs))
    event = _calibrated(cutoffs[max(0, first - 1)], epsilon, delta)
    return SparseVector.from_event(event)


def _answers_of_sparse_vector(mechanism: SparseVector, withheld: Any, m: int) -> float:
    rate = float(withheld.mean())
    return _asked_until(mechanism.cutoff, rate, m) * (1 - rate)


def _teachers_needed(sizes: _Sizes, votes: VoteModel) -> str:
    """Say with how many teachers a sparse vector would answer enough."""
    m, enough = sizes.n_points, min(FEWEST_ANSWERS, sizes.n_points)

    def expected_answers(k: int) -> float:
        mechanism = _sparse_vector_for(k, m, sizes.epsilon, sizes.delta)
        return _answers_of_sparse_vector(mechanism, votes.withheld(k, mechanism), m)

    needed, most = sizes.n_teachers, 10**9
    while needed < most and expected_answers(needed) < enough - 0.5:
        needed = math.ceil(1.05 * needed)
    if needed >= most:
        return "the teachers are too divided, however many there are"
    if sizes.n_records is None or needed * FEWEST_RECORDS <= sizes.n_records:
        return f"needs {needed:,} teachers; ask for that many"
    return (
        f"needs {needed:,} teachers of at least {FEWEST_RECORDS} records; you have "
        f"{sizes.n_records:,} records: {sizes.n_records // needed} each"
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
