"""Records speak for themselves: noisy sums, a few Newton steps, a linear model.

Proof: docs/proofs/Moments.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline

from mapl.arrays import Array, Floats
from mapl.errors import ParameterError
from mapl.features.components import GRID
from mapl.features.contributions import Contributions, Source, linear_source
from mapl.features.maps import FeatureMap
from mapl.features.model import PublicFeatures
from mapl.methods.published import Published
from mapl.planning.choice import CALIBRATION, COUNT
from mapl.planning.settings import Setting
from mapl.privacy.gradients import RESIDUAL_GRID, WEIGHT_GRID
from mapl.privacy.linear_map import LARGEST_WEIGHT
from mapl.privacy.moments import MOST_RECORDS_EACH
from mapl.privacy.questions import Question
from mapl.progress import Progress
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.release.account import Account
from mapl.release.sums import Summer
from mapl.scale.records import StreamedRecords
from mapl.scale.sums import ContributionForm, StreamedContributions
from mapl.student.corrections import Corrections
from mapl.student.linear import LinearModel, class_logits
from mapl.student.newton import NewtonSteps, Points, n_steps, wave_components
from mapl.student.stacking import Stack

_MOST_POINTS = 12_000  # that curvature and metric are computed from
_ROWS = 2**12  # that are encoded at a time
_LABEL_STEPS = 6  # where labels alone are private: they cost nothing
_LABEL_CUT = 0.02  # of all length: what features exceed their bound by


@dataclass(frozen=True)
class PublicMap:
    """A feature map, and the public points as it shows them."""

    feature_map: FeatureMap
    points: Points
    table: Table  # of the points that were used
    dense_cells: Array  # their scaled values and components

    @classmethod
    def of(cls, table: Table, *, seed: int) -> PublicMap:
        """Fit a map to public points; of very many, to some."""
        rows = np.arange(len(table))
        if len(rows) > _MOST_POINTS:
            rng = np.random.default_rng(seed)
            rows = np.sort(rng.choice(rows, _MOST_POINTS, replace=False))
            table = table.take(rows)
        feature_map, kept = FeatureMap.of(table, seed=seed)
        used = table if len(kept) == len(table) else table.take(kept)
        images, dense = [], []
        for rows in np.array_split(np.arange(len(used)), 1 + len(used) // _ROWS):
            encoded = feature_map.encode(used.take(rows))
            cells = feature_map.whole(feature_map.components(encoded))
            images.append((cells / GRID).astype(np.float32))
            dense.append(feature_map.dense(encoded))
        points = Points(np.concatenate(images), feature_map.n_additive, GRID)
        return cls(feature_map, points, used, np.concatenate(dense))

    def with_waves(self, n: int) -> PublicMap:
        """Return the map with the leading components of the waves alone."""
        reduced = self.feature_map.with_waves(n)
        image, kept, start = self.points.image, [], 0
        for block, first in zip(self.feature_map.blocks, reduced.blocks, strict=True):
            ratio = first.scale / block.scale if block.scale else 1.0
            kept.append(image[:, start : start + first.n] * np.float32(ratio))
            start += block.n
        points = replace(self.points, image=np.hstack((*kept, image[:, -1:])))
        return replace(self, feature_map=reduced, points=points)

    @classmethod
    def or_error(cls, table: Table, *, seed: int) -> PublicMap:
        """Return `of`, or an error that says what else to do."""
        try:
            return cls.of(table, seed=seed)
        except Exception as error:  # nothing here is private
            raise ParameterError(
                f"X_public cannot be turned into features: {error} Use method='votes' "
                "and an estimator that reads it. Nothing was released."
            ) from error


@dataclass(frozen=True)
class Regression:
    """What the Newton steps came to. Public.

    ``logits`` are those of the public points of the map, one column a class.
    """

    weights: Floats
    logits: Floats

    def source(self) -> Source:
        """Return the model's logits as a function of each record alone."""
        return linear_source(self.weights)


def _contributions(
    private: PrivateRecords | StreamedRecords,
    public: PublicMap,
    most_each: int | None,
    n_threads: int,
) -> Any:
    """Return the records as what they contribute; keys order those of one unit."""
    if isinstance(private, StreamedRecords):
        return StreamedContributions(private, ContributionForm(public.feature_map))
    return Contributions(
        private.table,
        np.where(private.usable, private.codes, -1),
        public.feature_map,
        units=private.units,
        keys=None if private.units is None else private.keys,
        most_each=most_each,
        n_threads=n_threads,
    )


class MomentsFit:
    """Asks for sums over private records, step by step, and keeps account of them."""

    def __init__(
        self,
        private: PrivateRecords | StreamedRecords,
        public: PublicMap,
        account: Account,
        setting: Setting,
        *,
        n_classes: int,
        n_threads: int,
    ) -> None:
        self._contributions = _contributions(
            private, public, MOST_RECORDS_EACH, n_threads
        )
        self.public, self._n_classes = public, n_classes
        self.summer = Summer(self._contributions, account)
        self.mechanism = setting.make_moments()
        self.summer.open(self.mechanism)
        self._shift = math.sqrt(self.mechanism.event.squared_shift)
        self.spending = Spending()

    def count(self, n_records: int | None, part: Fraction) -> Floats:
        """Return a noisy count of each class; all together are the caller's number of
        records, if there is one.
        """
        found = shrunk_counts(*self.summer.count(self._n_classes, part))
        self.spending.note(self._n_classes, part)
        return found if n_records is None else found * (n_records / found.sum())

    def regress(self, counts: Floats, part: Fraction) -> Regression:
        """Take Newton steps for a part of the budget, from the classes' frequencies."""
        n_records, shift = float(counts.sum()), self._shift * math.sqrt(part)
        steps = n_steps(n_records, shift)
        n_waves = wave_components(n_records, shift, self._n_classes)
        self.public = self.public.with_waves(n_waves)
        self._contributions.feature_map = self.public.feature_map
        newton = NewtonSteps(
            self.public.points,
            n_classes=self._n_classes,
            n_records=n_records,
            parts=[part / steps] * steps,
        )
        newton.start_at(counts / n_records)
        with Progress("Summing over the records", steps) as progress:
            while not newton.done:
                asked, noisy = self.summer.gradient(newton.next())
                newton.take(asked, noisy)
                self.spending.note(noisy.total.size, asked.part)
                progress.advance(1)
        weights = newton.cell_weights(waves=True)
        logits = class_logits(newton.logits)
        return Regression(weights, logits)


class Spending:
    """How many numbers each step published, and the part of the price used by then."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []

    def note(self, numbers: int, part: Fraction) -> None:
        """Note a step."""
        before = self.steps[-1][1] if self.steps else 0.0
        self.steps.append((numbers, before + float(part)))


def stacked(
    summer: Summer,
    spending: Spending,
    sources: list[Source],
    logits: list[Floats],
    n_records: float,
    part: Fraction,
) -> Stack:
    """Weigh models' logits against the labels, for a part of the budget."""
    stack = Stack(logits, n_records=n_records, parts=[part / 2] * 2)
    while not stack.done:
        asked, noisy = summer.stacked(sources, stack.next())
        stack.take(noisy)
        spending.note(noisy.total.size, asked.part)
    return stack


def shrunk_counts(counts: Floats, sigma: float) -> Floats:
    """Return the most probable counts of classes, by how much they differ beyond noise:
    else a class would look rare by chance.
    """
    mean = float(counts.mean())
    signal = max(0.0, float(counts.var()) - sigma**2)
    kept = signal / max(signal + sigma**2, 1e-9)
    return np.maximum(mean + kept * (counts - mean), 1.0)


def learn_by_moments(
    private: PrivateRecords | StreamedRecords,
    table: Table,
    public: PublicMap,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    n_records: int | None,
    class_weight: str | Mapping[Any, float] | None = None,
    n_threads: int = 1,
) -> Published:
    """Publish a linear model of public features, calibrated against the labels."""
    shape = {"n_classes": len(classes), "n_threads": n_threads}
    fit = MomentsFit(private, public, account, setting, **shape)
    counts = fit.count(n_records, COUNT)
    found = fit.regress(counts, 1 - COUNT - CALIBRATION)
    n = float(counts.sum())
    models = [found.source()], [found.logits]
    stack = stacked(fit.summer, fit.spending, *models, n, CALIBRATION)
    return published_model(
        fit.public, table, found, stack, classes, class_weight, fit.spending.steps
    )


def published_model(
    public: PublicMap,
    table: Table,
    found: Regression,
    stack: Stack,
    classes: Array,
    class_weight: str | Mapping[Any, float] | None,
    spending: list[tuple[int, float]],
    forest: Corrections | None = None,
) -> Published:
    """Return the model as a pipeline (features, then regressions) and its labels."""
    features = PublicFeatures.of(public.feature_map, table.schema)
    biases = stack.biases + weight_biases(class_weight, classes, stack.probabilities())
    weights = public.feature_map.cell_weights(found.weights)
    model = pipeline_of(features, weights, stack, biases, classes, forest)
    if len(public.table) == len(table):  # every point's logits are there
        shares = stack.probabilities(biases)
    else:
        shares = model.predict_proba(table.data)
    return Published(model, shares.argmax(axis=1), shares, spending)


def pipeline_of(
    features: Any,
    weights: Floats,
    stack: Stack,
    biases: Floats,
    classes: Array,
    forest: Corrections | None,
) -> Any:
    """Return features and a linear model of them as one scikit-learn pipeline."""
    scaled = weights / WEIGHT_GRID
    linear = LinearModel(scaled, stack.scales, biases, classes, forest)
    return make_pipeline(features, linear)


def weight_biases(
    class_weight: str | Mapping[Any, float] | None, classes: Array, shares: Floats
) -> Floats:
    """Return what class weights add to each class's logit.

    A calibrated model that weighs a class twice as much has its odds doubled. How
    frequent classes are comes from the published model.
    """
    if class_weight is None:
        return np.zeros(len(classes))
    if isinstance(class_weight, str):  # balanced
        frequent = np.maximum(shares.mean(axis=0), 1e-6)
        return np.asarray(-np.log(frequent * len(classes)))
    given = {str(label): float(w) for label, w in class_weight.items()}
    return np.asarray(np.log([given.get(str(c), 1.0) for c in classes.tolist()]))


# Where labels alone are private -----------------------------------------------------


def learn_labels_by_moments(
    private: PrivateRecords | StreamedRecords,
    table: Table,
    public: PublicMap,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    class_weight: str | Mapping[Any, float] | None = None,
    n_threads: int = 1,
) -> Published:
    """Publish the sum of each class's features once; every step after it is free."""
    columns = 1 if len(classes) == 2 else len(classes)
    records = _contributions(private, public, None, n_threads)
    summer = Summer(records, account)
    summer.open(setting.make_moments())
    newton = NewtonSteps(
        public.points, n_classes=len(classes), n_records=len(records), parts=[]
    )
    waves, limit = newton.waves, newton.feature_bound(_LABEL_CUT)
    noisy = summer.labels(
        waves=waves, columns=columns, squared_length=limit, part=Fraction(1)
    )
    unit = GRID * LARGEST_WEIGHT
    total, sigma = (
        noisy.total / unit / RESIDUAL_GRID,
        noisy.sigma / unit / RESIDUAL_GRID,
    )
    for _ in range(_LABEL_STEPS):
        newton.look()
        asked = Question(newton.cell_weights(waves=True), waves, limit, Fraction(1))
        newton.follow(total - records.expected(asked) / unit, sigma, once=True)
    found = Regression(newton.cell_weights(waves=True), class_logits(newton.logits))
    stack = Stack([found.logits], n_records=len(records), parts=[])
    spending = [(noisy.total.size, 1.0)]
    return published_model(public, table, found, stack, classes, class_weight, spending)
