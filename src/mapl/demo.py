"""What the mechanisms do, on a table of votes: ``python -m mapl.demo``.

The teachers' votes are simulated (there are no records in this demonstration); the
mechanisms, their noise and the epsilons are the real ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.mechanisms import SparseVector
from mapl.votes import Votes

EPSILON, DELTA, CUTOFF = 1.0, 1e-5, 20
N_QUERIES, N_CLASSES = 2000, 3


def simulated_votes(n_teachers: int) -> tuple[npt.NDArray[np.int8], Votes]:
    """Return true classes and votes; 1 % of the queries are hard for every teacher."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, N_CLASSES, size=N_QUERIES, dtype=np.int8)
    hard = rng.random(N_QUERIES) < 0.01
    error = np.where(hard, 0.6, 0.03)
    wrong = rng.random((n_teachers, N_QUERIES)) < error
    other = rng.integers(1, N_CLASSES, size=wrong.shape, dtype=np.int8)
    predictions = np.where(wrong, (truth + other) % N_CLASSES, truth)
    return truth, Votes.from_predictions(predictions, n_classes=N_CLASSES)


def main() -> None:
    """Answer the same queries with the paper's constants and with ours."""
    print(
        f"{N_QUERIES} queries, {N_CLASSES} classes, 3 % error a teacher, 1 % of the "
        f"queries hard.\nBudget: epsilon {EPSILON:g}, delta {DELTA:g}; halts after "
        f"{CUTOFF} abstentions.\n"
    )
    print("teachers  mechanism   threshold  certified  answered  right  halted")
    for n_teachers in (250, 1200, 4000):
        truth, votes = simulated_votes(n_teachers)
        mechanisms = {
            "published": SparseVector.published(
                epsilon=EPSILON, delta=DELTA, cutoff=CUTOFF, n_queries=N_QUERIES
            ),
            "tight": SparseVector.for_budget(
                epsilon=EPSILON, delta=DELTA, cutoff=CUTOFF
            ),
        }
        for name, mechanism in mechanisms.items():
            certified = accounting.epsilon([mechanism.event], delta=DELTA)
            answer = mechanism.answer(votes)
            given = answer.labels[answer.answered]
            right = (given == truth[answer.answered]).mean() if given.size else np.nan
            flips = mechanism.threshold / mechanism.event.sensitivity
            print(
                f"{n_teachers:8}  {name:10} {flips:10.0f} {certified:10.3f} "
                f"{given.size:9} {right:6.1%}  {'yes' if mechanism.halted else 'no'}"
            )
    print(
        "\nThe threshold is how many teachers' votes must be able to flip without "
        "changing the\nanswer. Budget is spent where teachers disagree, not for each "
        "query: docs/sparse-vector.md."
    )


if __name__ == "__main__":
    main()
