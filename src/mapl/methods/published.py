"""What a fit made public."""

from dataclasses import dataclass, replace
from typing import Any

from mapl.arrays import Array, Floats, Ints
from mapl.learners import set_seeds
from mapl.records.table import Table
from mapl.student.fitting import fit_to_shares


@dataclass(frozen=True)
class Published:
    """A model, and what was published on the way. Public.

    ``labels`` has a class number for each public point, ABSTAIN for none; ``shares``
    the classes' shares or probabilities, if there are any. ``spending`` lists how much
    was asked in each batch, and the part of the price used by then. ``points`` are
    made-up ones, where no public points were given.
    """

    student: Any
    labels: Ints
    shares: Floats | None
    spending: list[tuple[int, float]]
    points: Table | None = None


def distilled(
    published: Published, student: Any, pool: Any, classes: Array, seed: int
) -> Published:
    """Return the same with a student that learned the probabilities of the pool."""
    assert published.shares is not None
    set_seeds(student, seed)
    fitted = fit_to_shares(student, pool, published.shares, classes)
    return replace(published, student=fitted)
