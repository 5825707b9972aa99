"""One fit: counts and copula, pool, features, steps, votes, calibration, model.

Every record speaks for itself, in noisy sums. What one sum asks depends on what was
published before. Proofs: docs/proofs/Moments.md, docs/proofs/Sketch.md,
docs/proofs/Copula.md, docs/proofs/Gram.md
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline

from mapl.arrays import Array, Floats
from mapl.errors import ParameterError, one_of
from mapl.features.components import GRID
from mapl.features.contributions import Source, linear_source
from mapl.features.copula import Copula, CopulaForm, independent
from mapl.features.grids import Grid
from mapl.features.model import PublicFeatures
from mapl.features.sketch import Sketch, SketchForm
from mapl.learners import seed_of
from mapl.ledger.budget import releases
from mapl.methods.both import Heard, hear_teachers
from mapl.methods.pool import Outline, PublicMap
from mapl.methods.published import Published
from mapl.methods.votes import Panel
from mapl.planning.choice import (
    CALIBRATION,
    COPULA,
    COUNT,
    LEAST_SIGNAL,
    SKETCH,
    SKETCHED_TOGETHER,
    VOTES,
    moments_setting,
)
from mapl.planning.settings import Setting
from mapl.privacy.events import Event
from mapl.privacy.gradients import RESIDUAL_GRID, WEIGHT_GRID
from mapl.privacy.questions import Question
from mapl.progress import Progress
from mapl.records.dictionary import Dictionary
from mapl.records.labels import classes_and_codes
from mapl.records.private import PrivateRecords, private_records
from mapl.records.table import Table
from mapl.release.account import Account, open_account
from mapl.release.sums import Summer
from mapl.scale.records import StreamedRecords
from mapl.scale.sums import contributions
from mapl.student.corrections import Corrections
from mapl.student.linear import LinearModel, class_logits
from mapl.student.stacking import Stack
from mapl.student.steps import (
    NewtonSteps,
    gram_share,
    n_bins,
    n_steps,
    signal_of,
)
from mapl.teachers.voting import Checkpoints

_MOST_CORRELATED = 1000  # columns: the scores of more would be too long
_LABEL_STEPS = 6  # where labels alone are private: they cost nothing
_LABEL_CUT = 0.02  # of all length: what features exceed their bound by
_FAINT = 1 / math.sqrt(10)  # of the noise: components below say nothing


@dataclass(frozen=True)
class Regression:
    """What the steps came to. Public.

    ``logits`` are those of the points of the pool, one column a class.
    """

    weights: Floats
    logits: Floats

    def source(self) -> Source:
        """Return the model's logits as a function of each record alone."""
        return linear_source(self.weights)

    def seen_at(self, pool: PublicMap) -> Regression:
        """Return it with the logits of other points."""
        logits = pool.points.image @ (self.weights * (GRID / WEIGHT_GRID))
        return Regression(self.weights, class_logits(logits))


class Spending:
    """How many numbers each step published, and the part of the price used by then."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []

    def note(self, numbers: int, part: Fraction) -> None:
        """Note a step."""
        before = self.steps[-1][1] if self.steps else 0.0
        self.steps.append((numbers, before + float(part)))


class SumsFit:
    """Asks for sums over private records, stage by stage, and keeps account of them.

    ``grids`` cut columns into cells, where there is no public pool.
    """

    def __init__(
        self,
        private: PrivateRecords | StreamedRecords,
        account: Account,
        setting: Setting,
        *,
        n_classes: int,
        n_threads: int = 1,
        grids: list[Grid | None] | None = None,
        labels_only: bool = False,
    ) -> None:
        self.records = contributions(
            private, grids, n_threads=n_threads, labels_only=labels_only
        )
        self._n_classes = n_classes
        self.summer = Summer(self.records, account)
        mechanism = setting.make_moments()
        self.summer.open(mechanism)
        self.shift = math.sqrt(mechanism.event.squared_shift)
        self.spending = Spending()

    # Without public records ------------------------------------------------------

    def sketch(self, outline: Outline, part: Fraction) -> Sketch:
        """Publish how often each cell of each column occurs."""
        form = SketchForm.of(outline.used, self._n_classes)
        found = outline.refined(self.summer.sketch(form, part))
        self.spending.note(sum(form.sizes), part)
        return found

    def copula(self, outline: Outline, sketch: Sketch, part: Fraction) -> Copula:
        """Publish how columns go together."""
        if not 2 <= len(outline.used) <= _MOST_CORRELATED:
            return independent(outline.used, sketch)
        form = CopulaForm.of(outline.used, sketch, part)
        _, noisy = self.summer.copula(form.question)
        self.spending.note(noisy.total.size, part)
        return form.read(noisy)

    def warn_of_noise(self, n: float) -> None:
        """Say that there is too little to learn from, by the published count."""
        if n * self.shift < LEAST_SIGNAL:
            warnings.warn(
                f"There are about {n:,.0f} units by the published count: too few for "
                "this epsilon. The model is mostly noise.",
                stacklevel=8,
            )

    # With a pool -----------------------------------------------------------------

    def count(self, n_records: int | None, part: Fraction) -> Floats:
        """Return a noisy count of each class; all together are the caller's number of
        records, if there is one.
        """
        found = shrunk_counts(*self.summer.count(self._n_classes, part))
        self.spending.note(self._n_classes, part)
        return found if n_records is None else found * (n_records / found.sum())

    def regress(
        self, fitted: Callable[[int], PublicMap], counts: Floats, part: Fraction
    ) -> tuple[PublicMap, Regression]:
        """Take steps for a part of the budget; return them, and the map that has only
        the components that can say something.

        ``fitted`` returns the map with so many bins in a column of numbers.
        """
        n, shift = float(counts.sum()), self.shift * math.sqrt(part)
        signal = signal_of(n, shift, self._n_classes)
        sizes = signal, self._n_classes
        steps, share = n_steps(*sizes), gram_share(*sizes)
        each = shift * math.sqrt((1 - share) / steps)
        pool = fitted(n_bins(signal))
        n_blocks = len(pool.feature_map.blocks)
        pool = pool.leading(_FAINT * math.sqrt(min(n_blocks, 5)) / (each * n))
        self.records.show(pool.feature_map)
        newton = NewtonSteps(
            pool.points,
            n_classes=self._n_classes,
            n_records=n,
            parts=[((1 - share) * part / steps, share * part / steps)] * steps,
        )
        newton.start_at(counts / n)
        with Progress("Summing over the records", 2 * steps) as progress:
            while not newton.done:
                asked, noisy = self.summer.gradient(newton.next())
                self.spending.note(noisy.total.size, asked.part)
                progress.advance(1)
                gram, noisy = self.summer.gram(newton.take(noisy))
                newton.take_gram(gram, noisy)
                self.spending.note(noisy.total.size, gram.part)
                progress.advance(1)
        found = Regression(newton.cell_weights(), class_logits(newton.logits))
        return pool, found

    def stacked(
        self, sources: list[Source], logits: list[Floats], n: float, part: Fraction
    ) -> Stack:
        """Weigh models' logits against the labels, for a part of the budget."""
        stack = Stack(logits, n_records=n, parts=[part / 2] * 2)
        while not stack.done:
            asked, noisy = self.summer.stacked(sources, stack.next())
            stack.take(noisy)
            self.spending.note(noisy.total.size, asked.part)
        return stack


def shrunk_counts(counts: Floats, sigma: float) -> Floats:
    """Return the most probable counts of classes, by how much they differ beyond noise:
    else a class would look rare by chance.
    """
    mean = float(counts.mean())
    signal = max(0.0, float(counts.var()) - sigma**2)
    kept = signal / max(signal + sigma**2, 1e-9)
    return np.maximum(mean + kept * (counts - mean), 1.0)


# The whole way ----------------------------------------------------------------------


def learn_by_moments(
    private: PrivateRecords | StreamedRecords,
    table: Table,
    pool: PublicMap | Outline,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    n_records: int | None,
    class_weight: str | Mapping[Any, float] | None = None,
    n_threads: int = 1,
    panel: Panel | None = None,
    missing: bool = True,
) -> Published:
    """Publish a linear model of the pool's features, corrected by teachers if there are
    any, and calibrated against the labels.

    ``missing`` says whether made-up records that are published, or shown to teachers,
    may have missing values.
    """
    rest = 1 - CALIBRATION - (VOTES if panel else 0)
    shape: dict[str, Any] = {"n_classes": len(classes), "n_threads": n_threads}
    with account.checkpoints() as kept:
        if isinstance(pool, PublicMap):
            heard = _heard(panel, pool, private, classes, account.seed, kept)
            fit = SumsFit(private, account, setting, **shape)
            counts = fit.count(n_records, COUNT)
            public, found = fit.regress(pool.with_bins, counts, rest - COUNT)
            shown, points = public, None
        else:
            fit = SumsFit(private, account, setting, **shape, grids=pool.grids)
            sketch = fit.sketch(pool, SKETCH)
            fit.warn_of_noise(sketch.n_units)
            copula = fit.copula(pool, sketch, COPULA)
            rng = np.random.default_rng(account.seed)
            drawn = pool.drawn(copula, rng)

            def fitted(n_bins: int) -> PublicMap:
                kwargs: Any = {"seed": account.seed, "n_bins": n_bins}
                return PublicMap.of(drawn, **kwargs, made_up=True)

            counts = shrunk_counts(sketch.class_counts, sketch.sigma)
            counts *= (n_records or sketch.n_units) / counts.sum()
            public, found = fit.regress(fitted, counts, rest - SKETCH - COPULA)
            shown = public
            if not missing:
                table = pool.drawn(copula, rng, missing=False)
                shown = public.shown_at(table)
                found = found.seen_at(shown)
            table = points = shown.table
            heard = _heard(panel, shown, private, classes, account.seed, kept)
        n = float(counts.sum())
        if heard is None:
            stack = fit.stacked([found.source()], [found.logits], n, CALIBRATION)
            forest = None
        else:
            asked = heard.at(shown)
            stack, forest = hear_teachers(fit, asked, found, n, classes)
    return published_model(
        *(shown, table, found, stack, classes, class_weight, fit.spending.steps),
        forest=forest,
        points=points,
    )


def _heard(
    panel: Panel | None,
    pool: PublicMap,
    private: PrivateRecords | StreamedRecords,
    classes: Array,
    seed: int,
    kept: Checkpoints | None,
) -> Heard | None:
    """Ask teachers about some points of the pool, if there are teachers."""
    if panel is None:
        return None
    return Heard.of(panel, pool.table, private, classes, seed, kept)


def published_model(
    public: PublicMap,
    table: Table,
    found: Regression,
    stack: Stack,
    classes: Array,
    class_weight: str | Mapping[Any, float] | None,
    spending: list[tuple[int, float]],
    forest: Corrections | None = None,
    points: Table | None = None,
) -> Published:
    """Return the model as a pipeline (features, then regressions) and its labels."""
    features = PublicFeatures.of(public.feature_map, table.schema)
    biases = stack.biases + weight_biases(class_weight, classes, stack.probabilities())
    weights = public.feature_map.cell_weights(found.weights) / WEIGHT_GRID
    linear = LinearModel(weights, stack.scales, biases, classes, forest)
    model = make_pipeline(features, linear)
    if len(public.table) == len(table):  # every point's logits are there
        shares = stack.probabilities(biases)
    else:
        shares = model.predict_proba(table.data)
    return Published(model, shares.argmax(axis=1), shares, spending, points)


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
    pool: PublicMap,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    class_weight: str | Mapping[Any, float] | None = None,
    n_threads: int = 1,
) -> Published:
    """Publish the sum of each class's features once; every step after it is free."""
    columns = 1 if len(classes) == 2 else len(classes)
    shape: dict[str, Any] = {"n_classes": len(classes), "n_threads": n_threads}
    fit = SumsFit(private, account, setting, **shape, labels_only=True)
    fit.records.show(pool.feature_map)
    n = len(fit.records)
    newton = NewtonSteps(pool.points, n_classes=len(classes), n_records=n, parts=[])
    limit, part = newton.feature_bound(_LABEL_CUT), Fraction(1)
    noisy = fit.summer.labels(columns=columns, squared_length=limit, part=part)
    total, sigma = noisy.total / RESIDUAL_GRID, noisy.sigma / RESIDUAL_GRID
    for _ in range(_LABEL_STEPS):
        asked = Question(newton.cell_weights(), limit, part)
        expected = fit.records.expected(asked)
        newton.follow_labels((total - expected) / GRID, sigma / GRID)
    found = Regression(newton.cell_weights(), class_logits(newton.logits))
    stack = Stack([found.logits], n_records=n, parts=[])
    spending = [(noisy.total.size, 1.0)]
    return published_model(pool, table, found, stack, classes, class_weight, spending)


# The sketch alone -------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedSketch:
    """How columns look, alone and together, and made-up records like them. Public."""

    sketch: Sketch
    copula: Copula
    outline: Outline
    points: Table
    classes: Array
    events: list[Event]
    receipt: str | Mapping[str, Any]
    delta: float
    grouped: bool
    on_invalid: str


@releases
def sketch_records(
    table: Table,
    labels: Any,
    dictionary: Dictionary,
    *,
    groups: Any,
    n_rows: int,
    epsilon: float,
    delta: float,
    on_invalid: str = "error",
    seed: int | None = None,
    ledger: str | None = None,
    dataset: str | None = None,
) -> PublishedSketch:
    """Publish how the columns of private records look, for a whole budget."""
    one_of("error", "drop", on_invalid=on_invalid)
    outline = Outline.of(dictionary)
    classes, codes = classes_and_codes(labels, _declared_classes(dictionary))
    private = private_records(
        table, codes, groups, takes_missing=True, on_invalid=on_invalid
    )
    setting = moments_setting(
        n_points=n_rows,
        n_classes=len(classes),
        epsilon=epsilon,
        delta=delta,
        n_records=None,
    )
    request = repr(("sketch/2", outline.to_json(), classes.tolist(), seed)).encode()
    account = open_account(
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        dataset=dataset,
        request=request + repr((epsilon, delta, groups is not None)).encode(),
        note=f"sketch of {len(outline.used)} columns",
        seed=seed_of(seed),
        keys=private.digests,
        assignment=lambda salt: private.assignment(1, salt=salt),
        quiet=on_invalid == "drop",
    )
    account.check(setting.event)
    fit = SumsFit(
        private, account, setting, n_classes=len(classes), grids=outline.grids
    )
    sketch = fit.sketch(outline, 1 - SKETCHED_TOGETHER)
    copula = fit.copula(outline, sketch, SKETCHED_TOGETHER)
    rng = np.random.default_rng(account.seed)
    return PublishedSketch(
        sketch=sketch,
        copula=copula,
        outline=outline,
        points=outline.drawn(copula, rng, n_rows),
        classes=classes,
        events=account.events,
        receipt=account.receipt(),
        delta=delta,
        grouped=groups is not None,
        on_invalid=on_invalid,
    )


def _declared_classes(dictionary: Dictionary) -> tuple[Any, ...]:
    if not dictionary.classes:
        raise ParameterError(
            "The schema must list the classes of its target: which labels occur is "
            "private, too."
        )
    return dictionary.classes
