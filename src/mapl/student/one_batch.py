"""Asking once, and learning from the labels that were given."""

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from mapl.arrays import Array, Ints
from mapl.errors import ParameterError
from mapl.learners import fit_labels
from mapl.privacy.noisy_max import NoisyMax
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import ABSTAIN


class OneBatch:
    """Asks about as many points as the mechanism answers, chosen at random.

    The mechanism's public parameters are used here; it is not asked.
    """

    def __init__(
        self, n_points: int, mechanism: NoisyMax | SparseVector, *, seed: int
    ) -> None:
        self._rng, self._mechanism = np.random.default_rng(seed), mechanism
        order: Ints = self._rng.permutation(n_points)
        self.rows = np.sort(order[: getattr(mechanism, "n_queries", n_points)])
        self.labels: Ints = np.full(n_points, ABSTAIN, dtype=np.int64)

    def take(self, labels: Ints) -> None:
        """Take the labels published for ``rows``."""
        self.labels[self.rows] = labels

    def spending(self) -> tuple[int, float]:
        """Return how many points were asked about, and the part of the price used."""
        if isinstance(self._mechanism, NoisyMax):
            return self._mechanism.n_queries, 1.0
        abstained = int((self.labels == ABSTAIN).sum())
        return len(self.labels), min(1.0, abstained / self._mechanism.cutoff)

    def fit(self, student: Any, pool: Any, classes: Array, *, on_abstain: str) -> Any:
        """Fit a student to the labels; "random" fills in those that are missing."""
        codes = self.labels.copy()
        if on_abstain == "random":
            missing = codes == ABSTAIN
            codes[missing] = self._rng.integers(0, len(classes), size=missing.sum())
        rows = np.flatnonzero(codes != ABSTAIN)
        if rows.size == 0:
            raise ParameterError(
                "mechanism='sparse-vector' withheld every answer: the teachers are too "
                "few for this epsilon. Use mechanism='auto', or more teachers. The "
                "budget of this fit is spent."
            )
        return fit_labels(student, _safe_indexing(pool, rows), classes[codes[rows]])
