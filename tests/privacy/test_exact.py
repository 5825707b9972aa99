"""Every guarantee of the core, checked on all outputs of the real code.

Each check is shown to fail on planted bugs. `EPSILONS` has values where the pattern
decides and, at the end, one so large that only the leaks are left.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from exact import (
    NOT_ASKED,
    Law,
    Output,
    State,
    Table,
    clipped_law,
    laplace_above,
    laplace_pmf,
    neighbour_pairs,
    output_table,
    outputs,
    worst_divergence,
)
from mapl import accounting
from mapl.privacy import sparse_vector
from mapl.privacy.events import SparseVectorEvent, StableReleaseEvent
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.stable_release import StableRelease
from mapl.privacy.votes import Votes

STATES: list[State] = [(0, 0), (0, 1), (0, 2), (1, 0)]
EPSILONS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.2, 3.0, 30.0)
TOLERANCE = 1e-12  # rounding of sums of at most 10^5 terms


def excess(table: Table, event: Any, *, move: int = 1) -> tuple[float, float]:
    """How far the worst adversary gets above the claims, and the tightest ratio.

    Two claims: the whole, and the pattern alone where values never differ. A bug too
    small for the first shows in the second.
    """
    pattern = replace(event, threshold=2**60)
    levels = [
        (event, neighbour_pairs(STATES, move)),
        (pattern, neighbour_pairs(STATES[:3], move)),
    ]
    above, ratio = -math.inf, 0.0
    for (claimed, pairs), epsilon in itertools.product(levels, EPSILONS):
        claim = accounting.delta([claimed], epsilon=epsilon)
        found = worst_divergence(table, pairs, epsilon)
        above = max(above, found - claim)
        ratio = max(ratio, found / claim if claim > 1e-9 else 0.0)
    return above, ratio


# Algorithm 1 ----------------------------------------------------------------------

STABLE = StableReleaseEvent(noise_scale=Fraction(2), threshold=1)


def stable_table(event: StableReleaseEvent) -> Table:
    law = clipped_law(event.threshold - 2, event.threshold + 1, event.noise_scale)
    return output_table(
        lambda: StableRelease(noise_scale=event.noise_scale, threshold=event.threshold),
        [(state,) for state in STATES],
        {event.noise_scale: law},
    )


def test_stable_release_never_exceeds_its_claim_and_reaches_it() -> None:
    above, ratio = excess(stable_table(STABLE), STABLE)
    assert above <= TOLERANCE
    assert ratio == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(
    "bug",
    [
        replace(STABLE, noise_scale=STABLE.noise_scale / 2),
        replace(STABLE, threshold=STABLE.threshold - 1),  # the same as >= for >
    ],
    ids=["half the noise", ">= for >"],
)
def test_stable_release_check_catches(bug: StableReleaseEvent) -> None:
    above, _ = excess(stable_table(bug), STABLE)
    assert above > 0.01


def test_stable_release_check_catches_sensitivity_2() -> None:
    above, _ = excess(stable_table(STABLE), STABLE, move=2)
    assert above > 0.01


# Algorithm 2, the three kinds of threshold noise ----------------------------------


def sparse_event(
    threshold_noise_scale: Fraction, *, redrawn: bool = False, cutoff: int = 1
) -> SparseVectorEvent:
    scale = Fraction(2) if threshold_noise_scale == 0 else Fraction(1, 2)
    return SparseVectorEvent(
        noise_scale=scale,
        threshold=1,
        threshold_noise_scale=threshold_noise_scale,
        redrawn=redrawn,
        cutoff=cutoff,
    )


NONE = sparse_event(Fraction(0), cutoff=2)
ONCE = sparse_event(Fraction(1, 3), cutoff=2)
REDRAWN = sparse_event(Fraction(1, 3), redrawn=True, cutoff=2)

# The tails that clipping moves: P(|A| > 5) and P(|X| > 8), up to 4 draws.
CLIPPED = 4 * (2 * laplace_above(5, 1 / 3) + 2 * laplace_above(8, 1 / 2))


def sparse_laws(event: SparseVectorEvent) -> dict[Fraction, Law]:
    if event.threshold_noise_scale == 0:
        low, high = event.threshold - 2, event.threshold + 1
        return {event.noise_scale: clipped_law(low, high, event.noise_scale)}
    return {
        event.noise_scale: clipped_law(-8, 8, event.noise_scale),
        event.threshold_noise_scale: clipped_law(-5, 5, event.threshold_noise_scale),
    }


def sparse_table(
    event: SparseVectorEvent,
    *,
    n_queries: int,
    make: Callable[[SparseVectorEvent], Any] = SparseVector.from_event,
    run: Callable[[Any, Any, Any], Output] = outputs,
    laws: dict[Fraction, Law] | None = None,
) -> Table:
    sequences = itertools.product(STATES, repeat=n_queries)
    return output_table(lambda: make(event), sequences, laws or sparse_laws(event), run)


@pytest.mark.parametrize(
    ("event", "n_queries", "least_ratio"),
    [(NONE, 3, 0.8), (replace(NONE, cutoff=1), 3, 0.9), (ONCE, 2, 0.5)],
    ids=["none, cutoff 2", "none, cutoff 1", "once, cutoff 2"],
)
def test_sparse_vector_never_exceeds_its_claim(
    event: SparseVectorEvent, n_queries: int, least_ratio: float
) -> None:
    above, ratio = excess(sparse_table(event, n_queries=n_queries), event)
    assert above <= TOLERANCE + CLIPPED * bool(event.threshold_noise_scale)
    assert ratio >= least_ratio


def test_sparse_vector_with_redrawn_threshold_never_exceeds_its_claim() -> None:
    # Fewer distances: with two thresholds and two queries the table is large.
    law = {
        REDRAWN.noise_scale: clipped_law(-6, 6, REDRAWN.noise_scale),
        REDRAWN.threshold_noise_scale: clipped_law(
            -3, 3, REDRAWN.threshold_noise_scale
        ),
    }
    clipped = 4 * (2 * laplace_above(3, 1 / 3) + 2 * laplace_above(6, 1 / 2))
    table = sparse_table(REDRAWN, n_queries=2, laws=law)
    above, ratio = excess(table, REDRAWN)
    assert above <= clipped
    assert ratio > 0.5


def test_outputs_of_the_real_code_follow_the_model() -> None:
    """Ties the enumeration to P(abstain) = P(X <= threshold - distance)."""
    event = replace(NONE, cutoff=1)
    table = sparse_table(event, n_queries=3)
    for states, row in table.items():
        abstain = [
            1 - laplace_above(event.threshold - distance, float(event.noise_scale))
            for _, distance in states
        ]
        answered = 1.0
        for i, p in enumerate(abstain):
            values = [state[0] for state in states[:i]]
            stopped = (*values, -1, *[NOT_ASKED] * (2 - i))
            assert row[stopped] == pytest.approx(answered * p, abs=1e-14)
            answered *= 1 - p
        assert row[tuple(s[0] for s in states)] == pytest.approx(answered, abs=1e-14)


class ReusedNoise(SparseVector):
    """Planted bug: one draw of noise for the whole batch."""

    def _run(self, distances: Any) -> Any:
        fresh = sparse_vector.discrete_laplace

        def reused(scale: Any, size: int, *, source: Any) -> Any:
            return np.repeat(fresh(scale, 1, source=source), size)

        sparse_vector.discrete_laplace = reused
        try:
            return super()._run(distances)
        finally:
            sparse_vector.discrete_laplace = fresh


def publishes_noisy_distance(mechanism: Any, values: Any, distances: Any) -> Output:
    """Planted bug, Lyu, Su, Li (2017), Algorithm 3: the noisy value leaves too."""
    seen: list[int] = []
    fresh = sparse_vector.discrete_laplace

    def spy(scale: Any, size: int, *, source: Any) -> Any:
        noise = fresh(scale, size, source=source)
        seen.extend(int(x) for x in noise)
        return noise

    sparse_vector.discrete_laplace = spy
    try:
        plain = outputs(mechanism, values, distances)
    finally:
        sparse_vector.discrete_laplace = fresh
    return tuple(
        100 + distance + x if label == -1 else label
        for label, distance, x in zip(plain, distances, seen, strict=False)
    )


SPARSE_BUGS = {
    "half the noise": replace(NONE, noise_scale=NONE.noise_scale / 2),
    "cutoff + 1": replace(NONE, cutoff=NONE.cutoff + 1),
    ">= for >, or a threshold one below": replace(NONE, threshold=0),
    "no noise on the queries (Lyu, Su, Li: Algorithm 5)": replace(
        NONE, noise_scale=Fraction(1, 1000)
    ),
    "no cutoff (Lyu, Su, Li: Algorithm 6)": replace(NONE, cutoff=10**6),
}


@pytest.mark.parametrize("bug", SPARSE_BUGS.values(), ids=SPARSE_BUGS.keys())
def test_sparse_vector_check_catches(bug: SparseVectorEvent) -> None:
    above, _ = excess(sparse_table(bug, n_queries=3), NONE)
    assert above > 1e-3


def test_sparse_vector_check_catches_sensitivity_2() -> None:
    above, _ = excess(sparse_table(NONE, n_queries=3), NONE, move=2)
    assert above > 1e-3


def test_sparse_vector_check_catches_noise_reused_for_two_queries() -> None:
    table = sparse_table(NONE, n_queries=3, make=ReusedNoise.from_event)
    above, _ = excess(table, NONE)
    assert above > 1e-3


def test_sparse_vector_check_catches_a_published_noisy_distance() -> None:
    low, high = NONE.threshold - 8, NONE.threshold + 8
    law = {NONE.noise_scale: clipped_law(low, high, NONE.noise_scale)}
    table = sparse_table(
        replace(NONE, cutoff=1), n_queries=2, run=publishes_noisy_distance, laws=law
    )
    above, _ = excess(table, replace(NONE, cutoff=1))
    assert above > 1e-3


def worst_loss(
    threshold_scale: float, scale: float, *, answers: int, abstentions: int
) -> float:
    """Ln P/Q of n answers, then abstentions, where each query moves against us.

    With distance 1 before an answer and 0 before an abstention, and the other way
    round for the neighbour, summed over the hidden threshold.
    """
    t = np.arange(-400, 401)
    weight = np.array([laplace_pmf(int(x), threshold_scale) for x in t])
    above = np.array([laplace_above(int(x), scale) for x in range(-402, 402)])
    log_above = np.log(above)
    log_below = np.log(
        np.array([laplace_above(-x - 1, scale) for x in range(-402, 402)])
    )

    def log_probability(when_answered: int, when_withheld: int) -> float:
        at = t + 402  # the index of X > t
        logs = (
            np.log(weight)
            + answers * log_above[at - when_answered]
            + abstentions * log_below[at - when_withheld]
        )
        return float(np.logaddexp.reduce(logs))

    return log_probability(1, 0) - log_probability(0, 1)


@pytest.mark.parametrize("cutoff", [1, 2, 5])
def test_pure_epsilon_with_threshold_noise_is_never_exceeded_and_reached(
    cutoff: int,
) -> None:
    """One threshold: 1/a + 2 cutoff/b. With cutoff 1 this is one redrawn segment."""
    event = sparse_event(Fraction(3), cutoff=cutoff)
    event = replace(event, noise_scale=Fraction(5))
    pure = accounting._pure_parts(event)[0]
    losses = [worst_loss(3, 5, answers=10**n, abstentions=cutoff) for n in range(8)]
    assert max(losses) <= pure + 1e-9
    assert max(losses) >= 0.99 * pure


def test_pure_check_catches_noise_that_ignores_the_cutoff() -> None:
    """Lyu, Su, Li (2017), Algorithm 4: query noise not scaled with the cutoff."""
    claimed = 1 / 3 + 2 * 4 / 20
    assert worst_loss(3, 20, answers=10**7, abstentions=4) <= claimed + 1e-9
    assert worst_loss(3, 20 / 4, answers=10**7, abstentions=4) > 2 * claimed


# Real votes -----------------------------------------------------------------------


def vote_rows(n_classes: int, n_queries: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(-1, n_classes), repeat=n_queries))


@pytest.mark.parametrize(
    ("n_teachers", "n_classes", "n_queries"), [(3, 2, 2), (4, 3, 1), (5, 2, 1)]
)
def test_all_neighbouring_vote_tables_stay_below_the_claim(
    n_teachers: int, n_classes: int, n_queries: int
) -> None:
    """Every table of votes, every neighbour: one teacher says anything else."""
    event = replace(NONE, threshold=0)
    rows = vote_rows(n_classes, n_queries)
    tables = list(itertools.combinations_with_replacement(rows, n_teachers))
    laws = {event.noise_scale: clipped_law(-n_teachers, 1, event.noise_scale)}
    known: dict[tuple[State, ...], dict[Output, float]] = {}

    def states(table: tuple[tuple[int, ...], ...]) -> tuple[State, ...]:
        votes = Votes.from_predictions(np.array(table), n_classes=n_classes)
        return tuple(zip(votes.winner.tolist(), votes.distance.tolist(), strict=True))

    claims = {e: accounting.delta([event], epsilon=e) for e in EPSILONS}
    seen: set[tuple[tuple[State, ...], tuple[State, ...]]] = set()
    for table in tables:
        for other in rows:
            pair = (states(table), states((other, *table[1:])))
            seen |= {pair, pair[::-1]}
    make = lambda: SparseVector.from_event(event)  # noqa: E731
    known = output_table(make, {s for s, _ in seen}, laws)
    for first, second in seen:
        p, q = known[first], known[second]
        for epsilon, claim in claims.items():
            divergence = sum(
                max(0.0, p[o] - math.exp(epsilon) * q.get(o, 0.0)) for o in p
            )
            assert divergence <= claim + TOLERANCE


# The published constants ----------------------------------------------------------


def test_published_distance_needs_sensitivity_2_and_instability_1() -> None:
    """Over all tables of 5 votes; and where a tie changes the winner."""
    moves, unstable = set(), set()
    for table in itertools.product((0, 1), repeat=5):
        for other in (0, 1, -1):
            pair = np.array([table, (other, *table[1:])]).T
            votes = Votes.from_predictions(pair, n_classes=2)
            distance, winner = votes.margin_distance, votes.winner
            moves.add(abs(int(distance[0] - distance[1])))
            if winner[0] != winner[1]:
                unstable.add(int(distance.max()))
    assert moves == {0, 1, 2}
    assert max(unstable) <= 1
    # With an even number of votes the tie is reached, and the distance is 1 there.
    pair = np.array([(1, 1, 1, 0), (1, 1, 0, 0)]).T
    votes = Votes.from_predictions(pair, n_classes=2)
    assert votes.winner.tolist() == [1, 0]
    assert votes.margin_distance.tolist() == [1, 0]


@pytest.mark.parametrize("instability", [0, 1])
def test_published_leak_is_reached_at_distance_1(instability: int) -> None:
    """A claim with instability 0 would be too small: values differ at distance 1."""
    event = SparseVectorEvent(
        noise_scale=Fraction(1, 2),
        threshold=2,
        threshold_noise_scale=Fraction(1, 3),
        redrawn=True,
        cutoff=1,
        sensitivity=2,
        instability=instability,
    )
    table = output_table(
        lambda: SparseVector.from_event(event),
        [((0, 1),), ((1, 0),)],
        sparse_laws(event),
    )
    found = worst_divergence(table, [((0, 1), (1, 0))], 30.0)
    claim = accounting.delta([event], epsilon=30.0)
    assert (found <= claim + CLIPPED) == (instability == 1)
