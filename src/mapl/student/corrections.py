"""What teachers know better than a published model, learned by trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mapl.arrays import Floats
from mapl.privacy.gradients import WEIGHT_GRID

_TREES, _LEAF_NOISE, _SMALLEST_LEAF = 50, 0.06, 5
_GAIN = 8  # logits of a share that is 1 larger
_COARSE = 2**10  # steps of a logit of 1 where it is a feature of a tree


class Corrections:
    """A forest of what shares of the vote add to a model's probabilities.

    Trees compare and look up: for private records, too, what they say is a function of
    each record alone, in integers.
    """

    def __init__(self, forest: Any, n_features: int) -> None:
        self.forest, self.n_features = forest, n_features

    @classmethod
    def of(
        cls, features: Floats, logits: Floats, target: Floats, noise: float
    ) -> Corrections:
        """Fit the forest; a leaf has so many points that its noise is small."""
        from sklearn.ensemble import ExtraTreesRegressor

        leaf = max(_SMALLEST_LEAF, math.ceil((noise / _LEAF_NOISE) ** 2))
        forest = ExtraTreesRegressor(
            _TREES, min_samples_leaf=leaf, max_features=0.5, random_state=0
        )
        inputs = _inputs(features, logits * WEIGHT_GRID, features.shape[1])
        forest.fit(inputs, target)
        return cls(forest, features.shape[1])

    def logits(self, cells: Any, logits: Floats) -> Floats:
        """Return what is added to each class, as logits; in floating point."""
        return self.exact(cells, np.rint(logits * WEIGHT_GRID)) / WEIGHT_GRID

    def exact(self, cells: Any, logits: Floats) -> Floats:
        """Return the same for logits in integer steps, in integer steps."""
        points = _inputs(cells, logits, self.n_features)
        total = np.zeros(logits.shape)
        for tree, table in zip(self.forest.estimators_, self._tables(), strict=True):
            total += table[tree.tree_.apply(points)]
        return total

    def _tables(self) -> list[Floats]:
        """Return the values of each tree's leaves, as integers."""
        unit = _GAIN * WEIGHT_GRID / _TREES
        return [
            np.rint(tree.tree_.value[:, :, 0] * unit)
            for tree in self.forest.estimators_
        ]


def _inputs(features: Any, logits: Floats, width: int) -> Any:
    """Return integers that single precision holds exactly, as trees read them."""
    coarse = np.rint(logits / (WEIGHT_GRID // _COARSE))
    return np.concatenate((features[:, :width], coarse), axis=1).astype(np.float32)
