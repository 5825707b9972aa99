"""What can fail for a public reason is tried before anything is charged.

Teacher and student are fitted to public records with made-up labels, the way the fit
will do it. Nothing here is private, so errors are shown as they are.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing, get_tags

from mapl.arrays import Array, Floats, n_rows
from mapl.errors import ParameterError
from mapl.learners import fit_made_up_labels
from mapl.records.cells import NAT
from mapl.records.table import Table, copy_of
from mapl.student.fitting import fit_to_shares

_FEWEST, _MOST = 50, 400  # public points
_FOR_STUDENT = 100  # of them
_BLANK_EVERY = 10  # cells of a column, where missing values are tried


@dataclass(frozen=True)
class Rehearsal:
    """What was learned from trying: public numbers.

    ``takes_missing`` says whether the learner takes records with missing cells,
    ``seconds_each`` about how long one teacher takes.
    """

    takes_missing: bool
    seconds_each: float


def rehearse(
    estimator: Any | None,
    student: Any | None,
    table: Table,
    pool: Any,
    classes: Array,
    *,
    soft: bool,
) -> Rehearsal:
    """Try teacher and student on public points; refuse what fails.

    ``table`` has the points as teachers see them, ``pool`` as the student does;
    ``soft`` says whether the student learns from shares. Either may be None.
    """
    if len(classes) < 2:
        return Rehearsal(takes_missing=True, seconds_each=0.0)
    n = n_rows(pool)
    rows = np.resize(np.arange(n), min(max(n, _FEWEST), _MOST))  # few are repeated
    points = table.take(rows)
    sample = _safe_indexing(pool, rows[:_FOR_STUDENT])
    start = time.perf_counter()
    if estimator is not None:
        _try("estimator", lambda: _fit_and_predict(estimator, points, classes))
    seconds = time.perf_counter() - start
    if student is not None:
        _try("student", lambda: _fit_student(student, sample, classes, soft=soft))
    takes_missing = estimator is None or _takes_missing(estimator, table, classes)
    return Rehearsal(takes_missing, seconds)


def _try(name: str, what: Any) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            what()
    except Exception as error:  # it would come again later
        raise ParameterError(
            f"{name} fails on the public records with made-up labels: {error} Put what "
            "prepares the columns into a pipeline with it. Nothing was released."
        ) from error


def _fit_and_predict(learner: Any, points: Table, classes: Array) -> None:
    data = points.data
    fit_made_up_labels(learner, copy_of(data), classes).predict(copy_of(data))


def _fit_student(learner: Any, sample: Any, classes: Array, *, soft: bool) -> None:
    own = copy_of(sample)
    if soft:
        shares = _made_up_shares(n_rows(sample), len(classes))
        fit_to_shares(clone(learner), own, shares, classes).predict(own)
    else:
        fit_made_up_labels(learner, own, classes).predict(own)


def _made_up_shares(n: int, n_classes: int) -> Floats:
    shares = np.full((n, n_classes), 0.3 / max(1, n_classes - 1))
    shares[np.arange(n), np.arange(n) % n_classes] = 0.7
    return shares


def _takes_missing(learner: Any, table: Table, classes: Array) -> bool:
    """Whether a learner can be fitted to records with blank cells, and asked about
    them.
    """
    if get_tags(learner).input_tags.allow_nan:
        return True
    blanked = _with_blanks(table.take(np.resize(np.arange(len(table)), _FEWEST)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _fit_and_predict(learner, blanked, classes)
    except Exception:
        return False
    return True


def _with_blanks(table: Table) -> Table:
    """Return the table with a blank in every column, in some records."""
    if table.schema.container == "sparse":
        matrix = table.columns[0].tolil()
        matrix[::_BLANK_EVERY, 0] = np.nan
        return Table(table.schema, [matrix.tocsr()], table.readable)
    blank = {"number": np.nan, "text": None, "category": -1}
    kinds = [column.kind for column in table.schema.columns.values()]
    columns = [column.copy() for column in table.columns]
    for i, column in enumerate(columns):
        kind = "number" if table.schema.container == "array" else kinds[i]
        column[i % _BLANK_EVERY :: _BLANK_EVERY] = blank.get(kind, NAT)
    return Table(table.schema, columns, table.readable)
