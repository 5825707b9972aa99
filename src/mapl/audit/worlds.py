"""The records of an audit: as they are, and with a canary."""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from mapl.arrays import Array
from mapl.audit.canaries import CANARIES, as_frame, as_given, with_canary
from mapl.errors import ParameterError
from mapl.estimator import PrivateClassifier
from mapl.records.dictionary import Dictionary, groups_by_schema
from mapl.records.labels import UNKNOWN
from mapl.release.account import nobody_pays


@dataclass(frozen=True, repr=False)
class Data:
    """What a classifier is fitted to. Private.

    Labels are objects, so that none changes another's type.
    """

    X: Any
    y: Array
    groups: list[Any] | None
    X_public: Any

    @classmethod
    def of(cls, model: Any, X: Any, y: Any, groups: Any, X_public: Any) -> Data:
        """Check what an audit is given."""
        if not isinstance(model_of(model), PrivateClassifier):
            raise ParameterError(
                "model must be a PrivateClassifier, or a Pipeline that ends in one."
            )
        frame = as_frame(X)
        if not frame.columns.is_unique:
            raise ParameterError("X must not have two columns of one name.")
        schema = model_of(model).schema
        dictionary = None if schema is None else Dictionary.read(schema)
        groups = groups_by_schema(dictionary, X, groups)
        labels = np.empty(len(frame), dtype=object)
        labels[:] = list(np.asarray(y).tolist())
        if len(set(labels)) < 2 or len(classes_of(model, labels)) < 2:
            raise ParameterError("An audit needs records of two labels or more.")
        owners = None if groups is None else [str(owner) for owner in groups]
        return cls(X, labels, owners, X_public)

    def rows_of(self, classes: list[Any]) -> Array:
        """Return the rows whose label is among the classes."""
        return np.flatnonzero([label in classes for label in self.y])

    def with_records(self, rows: Any, labels: list[Any]) -> Data:
        """Return the data with some records in front, each of an owner of its own."""
        own = [secrets.token_hex(8) for _ in labels]
        return replace(
            self,
            X=with_canary(self.X, as_given(rows, self.X)) if len(labels) else self.X,
            y=np.concatenate([as_objects(labels), self.y]),
            groups=None if self.groups is None else [*own, *self.groups],
        )

    def neighbours(self, model: Any, canary: str, seed: int) -> tuple[Data, Data, Any]:
        """Return the data without a canary and with it, and the canary with its label.

        Where labels alone are private it is in both, with two labels.
        """
        known = classes_of(model, self.y)
        usable = self.rows_of(known)
        rng = np.random.default_rng(seed)
        frame = as_frame(self.X).iloc[usable]
        row, label = CANARIES[canary](frame, self.y[usable], known, rng)
        with_ = self.with_records(row, [label])
        without = self
        if model_of(model).privacy == "labels":
            other = next(one for one in known if one != label)
            without = self.with_records(row, [other])
        _check_counted(model, without, with_)
        return without, with_, (as_given(row, self.X), label)


def as_objects(values: list[Any]) -> Array:
    """Return a list as an array that changes no value."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def classes_of(model: Any, y: Any) -> list[Any]:
    """Return the labels that may occur, as they are declared or found."""
    private = model_of(model)
    declared = private.classes
    if declared is None and private.schema is not None:
        declared = Dictionary.read(private.schema).classes or None
    return sorted(set(y), key=str) if declared is None else list(declared)


def model_of(model: Any) -> Any:
    """Return the private classifier, which may stand at the end of a pipeline."""
    return model[-1] if hasattr(model, "steps") else model


def fit_apart(model: Any, data: Data) -> Any:
    """Fit a clone that charges nobody, and says nothing."""
    made = clone(model)
    model_of(made).set_params(ledger=None, dataset=None, verbose=0)
    more: dict[str, Any] = {} if data.groups is None else {"groups": data.groups}
    if data.X_public is not None:
        more |= {"X_public": data.X_public, "allow_overlap": True}
    if made is not model_of(made):  # a pipeline hands on what its last step takes
        more = {f"{made.steps[-1][0]}__{name}": value for name, value in more.items()}
    with nobody_pays(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made.fit(data.X, data.y.tolist(), **more)


class _Counting(PrivateClassifier):
    """It reads, and counts the records that it would learn from."""

    counted: int

    def _publish(self, private: Any, table: Any, pool: Any) -> Any:
        self.counted = int((private.usable & (private.codes != UNKNOWN)).sum())
        return self


def _check_counted(model: Any, without: Data, with_: Data) -> None:
    """Refuse a canary that the fit would leave out: its absence would prove nothing."""
    private, counted = model_of(model), []
    if private is not model:
        return  # its records are seen when they come out of the pipeline
    for data in (without, with_):
        reader = _Counting(**private.get_params(deep=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.fit(
                data.X,
                data.y.tolist(),
                groups=data.groups,
                X_public=data.X_public,
                allow_overlap=True,
            )
        counted.append(reader.counted)
    if counted[1] - counted[0] != (private.privacy == "records"):
        raise ParameterError(
            "This fit leaves the canary out: a missing cell, or a label outside "
            "classes. Take another canary, or another seed."
        )
