"""How teachers vote, as far as public numbers tell: a model that plans stand on."""

from __future__ import annotations

import math

import numpy as np

from mapl.arrays import Floats
from mapl.errors import ParameterError, positive
from mapl.privacy.search import least_root
from mapl.privacy.sparse_vector import SparseVector

_MISFIT = 0.1  # error of a student's lead without noise
_PARAMETERS = 30  # fitted by a student, effectively
_OPEN_LEAD = 0.1  # below this lead a label is not two thirds certain


class VoteModel:
    """The votes on a sample of queries.

    For each query, ``dissent`` is the share of teachers that differ from the plurality,
    and ``lead`` by what share the first class leads the second.
    """

    def __init__(
        self, dissent: Floats, lead: Floats, best_error: float, n_classes: int
    ) -> None:
        self.dissent, self.lead = dissent, lead
        self.best_error, self.n_classes = best_error, n_classes

    @classmethod
    def by_law(cls, error: float, best_error: float, n_classes: int) -> VoteModel:
        """Return the model for votes that nobody has seen, as quantiles.

        Of C classes, the share of teachers that differ from the plurality is 1 - 1/C
        times Beta(2f, 2 - 2f), with mean ``error``: most queries are easy, some divide
        the teachers. Where few differ they vote for one other class, the worst case for
        a threshold; where all that can differ, for all classes alike.
        """
        from scipy.special import betaincinv

        most = 1 - 1 / n_classes
        error = positive(teacher_error=error)
        best_error = best_error and positive(best_error=best_error)
        for name, value in (("teacher_error", error), ("best_error", best_error)):
            if not value < most:
                raise ParameterError(
                    f"{name} must be < {most:.3g}, the error of random guesses among "
                    f"{n_classes:,} classes; got {value!r}."
                )
        levels = (np.arange(2000) + 0.5) / 2000
        part = np.asarray(betaincinv(2 * error / most, 2 - 2 * error / most, levels))
        dissent = most * part
        second = dissent * (1 - part * (n_classes - 2) / (n_classes - 1))
        return cls(dissent, 1 - dissent - second, float(best_error), n_classes)

    def flipped(self, noise: float) -> Floats:
        """Return how often noise makes another class win, query by query.

        ``noise`` is in shares of the teachers. The other class is the second, or one of
        those that share the rest.
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

    def withheld(self, k: int, mechanism: SparseVector) -> Floats:
        """Return how often a sparse vector withholds the votes of k teachers."""
        distance = np.maximum(np.ceil(k * self.lead / 2) - 1, 0)
        above = (distance - mechanism.threshold) / float(mechanism.noise_scale)
        tail = np.exp(-np.abs(above)) / 2
        return np.asarray(np.where(above > 0, tail, 1 - tail))

    def dissent_from_student(self) -> float:
        """Return how often a teacher differs from a good student's guess."""
        from scipy.special import ndtr

        misguessed = np.asarray(ndtr(-self.lead / _MISFIT))
        return float((self.dissent + misguessed * self.lead).mean())

    def labelled_by_student(self, noise: float, n_asks: float) -> tuple[Floats, Floats]:
        """Return how often a student's label is given, and how often it then differs
        from the plurality, query by query.

        The student averages over ``n_asks`` shares with the given noise each, and fits
        about `_PARAMETERS` numbers to them. A label is left open where the lead that
        the student sees is below `_OPEN_LEAD`.
        """
        from scipy.special import ndtr

        spread = math.hypot(_MISFIT, 2 * noise * math.sqrt(_PARAMETERS / n_asks))
        right = ndtr((self.lead - _OPEN_LEAD) / spread)
        wrong = ndtr((-self.lead - _OPEN_LEAD) / spread)
        answered = right + wrong
        return np.asarray(answered), np.asarray(wrong / answered)

    def label_error(self, flipped: Floats, answered: Floats | float = 1.0) -> float:
        """Return how often a label is wrong.

        ``flipped`` says how often it is not that of the plurality, ``answered`` how
        often there is one. The plurality errs where teachers are divided, in proportion
        to exp(-lead/s) for some s, and at most as often as a label drawn at random.
        There, another label is as good as that of the plurality.
        """
        most = 1 - 1 / self.n_classes

        def wrong(s: float) -> Floats:
            return np.asarray(most * np.exp(-self.lead / s))

        s = least_root(lambda s: wrong(s).mean() > self.best_error, precision=1e-6)
        error = wrong(s)
        error *= self.best_error / error.mean()  # less than 1 where many have no lead
        error = answered * (error + flipped * (1 - error / most))
        return round(float(error.mean() / np.mean(answered)), 4)
