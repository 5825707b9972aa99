"""No public records: columns are sketched first, then every record speaks for itself.

A data dictionary fixes the cells. Noisy counts of cells tell how columns look, and made
up records with such columns stand in for public ones. Proofs: docs/proofs/Sketch.md,
docs/proofs/Coupling.md, docs/proofs/Moments.md
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats
from mapl.errors import ParameterError, one_of
from mapl.features.cell_model import CellFeatures
from mapl.features.cell_records import CellContributions
from mapl.features.grids import Grid, cells_of, grid_of
from mapl.features.sketch import N_DRAWN, Sketch, SketchForm, drawn_table
from mapl.features.tables import GRID, CellMap
from mapl.learners import seed_of
from mapl.ledger.budget import releases
from mapl.methods.both import Asked, hear_teachers
from mapl.methods.moments import (
    Regression,
    Spending,
    pipeline_of,
    shrunk_counts,
    weight_biases,
)
from mapl.methods.published import Published
from mapl.methods.votes import Panel
from mapl.planning.choice import (
    CALIBRATION,
    LEAST_SIGNAL,
    PAIRS,
    SKETCH,
    VOTES,
    moments_setting,
)
from mapl.planning.settings import Setting
from mapl.privacy.events import Event
from mapl.privacy.gradients import WEIGHT_GRID
from mapl.progress import Progress
from mapl.records.dictionary import Dictionary
from mapl.records.labels import classes_and_codes
from mapl.records.private import PrivateRecords, private_records
from mapl.records.table import Table
from mapl.release.account import Account, open_account
from mapl.release.sums import Summer
from mapl.scale.records import StreamedRecords
from mapl.scale.sums import ContributionForm, StreamedContributions
from mapl.student.coupled import CellPoints, CoupledSteps
from mapl.student.linear import class_logits
from mapl.student.newton import n_steps
from mapl.student.stacking import Stack

FEW_PUBLIC = 1000  # public records: fewer do not show how columns go together
N_REHEARSED = 400  # made-up records that a learner is tried on
NOTHING_PUBLIC = (
    "X_public must be given: records without labels that are not sensitive. Without "
    "any, describe the columns: schema='schema.json' (mapl schema draft). If only the "
    "labels are private, use privacy='labels'."
)
_MORE_STEPS = 2  # than with public points: pieces of a step may be far too short


@dataclass(frozen=True)
class Outline:
    """What is known before anything is published: the cells of each column. Public.

    ``public`` are a few public records that refine what is sketched, if there are any.
    """

    dictionary: Dictionary
    grids: list[Grid | None]
    public: Table | None = None

    @classmethod
    def of(cls, dictionary: Dictionary, public: Table | None = None) -> Outline:
        """Take the cells from a dictionary that has all ranges."""
        dictionary.require_ranges()
        grids = [grid_of(entry) for entry in dictionary.columns.values()]
        return cls(dictionary, grids, public)

    @property
    def used(self) -> list[Grid]:
        """The cells of the columns that are learned from: all but free text."""
        return [grid for grid in self.grids if grid is not None]

    def points(self, n: int) -> Table:
        """Return made-up records that follow the dictionary alone, without gaps."""
        rng = np.random.default_rng(0)
        cells = [rng.integers(0, grid.n_cells - 1, n) for grid in self.used]
        schema = self.dictionary.schema
        return drawn_table(schema, self.grids, np.stack(cells, axis=1), rng)

    def to_json(self) -> list[Any]:
        """Return what identifies it: all that decides what is asked for."""
        own = None if self.public is None else self.public.digest().hex()
        return [self.dictionary.cells_json(), own]

    def refined(self, sketch: Sketch) -> Sketch:
        """Add the cells of public records to what was sketched."""
        if self.public is None or not len(self.public):
            return sketch
        cells, n = cells_of(self.public, self.grids), sketch.n_units
        shares = [
            (share * n + np.bincount(own, minlength=len(share))) / (n + len(cells))
            for share, own in zip(sketch.shares, cells.T, strict=True)
        ]
        return replace(sketch, shares=shares)


def outline_for(
    dictionary: Dictionary | None, public: Table | None, model: Any
) -> Outline:
    """Return the outline of a fit; refuse what needs public records."""
    assert dictionary is not None
    if model.method_ == "votes" or model.privacy == "labels":
        raise ParameterError(
            "A schema instead of public records goes with method 'moments' or 'both' "
            "and privacy='records'. Give at least 1000 records as X_public."
        )
    return Outline.of(dictionary, public)


@dataclass(frozen=True)
class Sketched:
    """What a sketch came to: columns, features, made-up records' cells. Public."""

    sketch: Sketch
    cell_map: CellMap
    cells: Array

    @classmethod
    def of(cls, outline: Outline, sketch: Sketch, shift: float, seed: int) -> Sketched:
        """Draw made-up records from published shares."""
        cells = sketch.draw(N_DRAWN, np.random.default_rng(seed))
        return cls(sketch, CellMap.of(outline.used, sketch, shift), cells)


@dataclass(frozen=True)
class MadeUp:
    """Made-up records for people and learners, with a model's logits. Public."""

    table: Table
    features: Any  # one-hot codes of cells
    model: Regression

    @classmethod
    def of(
        cls,
        outline: Outline,
        found: Sketched,
        weights: Floats,
        seed: int,
        *,
        missing: bool,
    ) -> MadeUp:
        """Draw records with missing values or without: not all learners take them."""
        rng = np.random.default_rng([seed, 1])
        cells = found.sketch.draw(N_DRAWN, rng, missing=missing)
        features = found.cell_map.one_hot(cells)
        logits = class_logits(np.asarray(features @ weights / WEIGHT_GRID))
        table = drawn_table(outline.dictionary.schema, outline.grids, cells, rng)
        return cls(table, features, Regression(weights, logits))


class SketchedFit:
    """Asks for a sketch and then for sums, step by step, and keeps account of them."""

    def __init__(
        self,
        private: PrivateRecords | StreamedRecords,
        outline: Outline,
        account: Account,
        setting: Setting,
        *,
        n_classes: int,
        n_threads: int = 1,
    ) -> None:
        self._records = _cell_records(private, outline.grids, n_threads)
        self._outline, self._n_classes, self._seed = outline, n_classes, account.seed
        self.summer = Summer(self._records, account)
        mechanism = setting.make_moments()
        self.summer.open(mechanism)
        self._shift = math.sqrt(mechanism.event.squared_shift)
        self.spending = Spending()

    def sketch(self, part: Any) -> Sketched:
        """Publish how columns look."""
        form = SketchForm.of(self._outline.used, self._n_classes)
        sketch = self._outline.refined(self.summer.sketch(form, part))
        self.spending.note(sum(form.sizes), part)
        found = Sketched.of(self._outline, sketch, self._shift, self._seed)
        self._records.show(found.cell_map)
        return found

    def warn_of_noise(self, found: Sketched) -> None:
        """Say that there is too little to learn from, by the published count."""
        n = found.sketch.n_units
        if n * self._shift < LEAST_SIGNAL:
            warnings.warn(
                f"There are about {n:,.0f} units by the published count: too few for "
                "this epsilon. The model is mostly noise.",
                stacklevel=7,
            )

    def regress(self, found: Sketched, n_records: int | None, part: Any) -> Floats:
        """Take Newton steps for a part of the budget; return the weights of cells."""
        sketch = found.sketch
        n = float(n_records or sketch.n_units)
        steps = n_steps(n, self._shift * math.sqrt(part)) + _MORE_STEPS
        each = (part - PAIRS) / steps, PAIRS / steps
        tables = [table / GRID for table in found.cell_map.tables]
        newton = CoupledSteps(
            CellPoints(found.cells, tables, GRID),
            n_classes=self._n_classes,
            n_records=n,
            parts=[each] * steps,
        )
        counts = shrunk_counts(sketch.class_counts, sketch.sigma)
        newton.start_at(counts / counts.sum())
        with Progress("Summing over the records", steps) as progress:
            while not newton.done:
                asked, noisy = self.summer.gradient(newton.next())
                self.spending.note(noisy.total.size, asked.part)
                pairs, overlap = self.summer.pairs(newton.take(noisy))
                newton.take_pairs(pairs, overlap)
                self.spending.note(overlap.total.size, pairs.part)
                progress.advance(1)
        return newton.cell_weights()


def _cell_records(
    private: PrivateRecords | StreamedRecords, grids: list[Grid | None], n_threads: int
) -> Any:
    """Return the records as one cell a column."""
    if isinstance(private, StreamedRecords):
        return StreamedContributions(private, ContributionForm(grids=grids))
    return CellContributions(
        private.table,
        np.where(private.usable, private.codes, -1),
        grids,
        units=private.units,
        keys=None if private.units is None else private.keys,
        n_threads=n_threads,
    )


def learn_by_sketch(
    private: PrivateRecords | StreamedRecords,
    outline: Outline,
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
    """Publish an additive model of the columns; teachers, if any, correct it.

    ``missing`` says whether made-up records may have missing values.
    """
    shape = {"n_classes": len(classes), "n_threads": n_threads}
    fit = SketchedFit(private, outline, account, setting, **shape)
    found = fit.sketch(SKETCH)
    fit.warn_of_noise(found)
    rest = 1 - SKETCH - (0 if panel is None else VOTES + CALIBRATION)
    weights = fit.regress(found, n_records, rest)
    points = MadeUp.of(outline, found, weights, account.seed, missing=missing)
    if panel is None:
        stack, forest = Stack([points.model.logits], n_records=1, parts=[]), None
    else:
        n = float(n_records or found.sketch.n_units)
        asked = Asked.some(points.table, points.features, account.seed)
        noted = n, fit.summer, fit.spending
        with account.checkpoints() as kept:
            shares = asked.votes(panel, private, classes, account.seed, kept)
            heard = hear_teachers(panel, shares, asked, points.model, *noted, classes)
        stack, forest = heard
    features = CellFeatures.of(outline.dictionary.schema, outline.grids)
    biases = stack.biases + weight_biases(class_weight, classes, stack.probabilities())
    model = pipeline_of(features, weights, stack, biases, classes, forest)
    shown, spending = stack.probabilities(biases), fit.spending.steps
    return Published(model, shown.argmax(axis=1), shown, spending, points.table)


# The sketch alone -------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedSketch:
    """How columns look, and made-up records like them. Public."""

    sketch: Sketch
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
    request = repr(("sketch/1", outline.to_json(), classes.tolist(), seed)).encode()
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
    fit = SketchedFit(private, outline, account, setting, n_classes=len(classes))
    sketch = fit.sketch(Fraction(1)).sketch
    rng = np.random.default_rng(account.seed)
    drawn = drawn_table(dictionary.schema, outline.grids, sketch.draw(n_rows, rng), rng)
    return PublishedSketch(
        sketch=sketch,
        outline=outline,
        points=drawn,
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
