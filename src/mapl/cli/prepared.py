"""What ``mapl learn`` gives to a learner, and what it is tested on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapl.cli.inputs import Inputs
from mapl.errors import ParameterError


@dataclass(frozen=True, repr=False)
class Prepared:
    """The public records as a learner reads them, and what makes them so.

    Moments take columns as they are; an estimator is given numbers.
    """

    encoder: Any | None
    points: Any

    @classmethod
    def of(cls, data: Inputs, model: Any, *, streamed: bool) -> Prepared:
        """Encode the public records, if there is an estimator; where records are read
        in parts, teachers encode them.
        """
        from mapl.publish.bundle import check_writable

        if data.dictionary is not None:
            if model.estimator is not None:
                model.estimator = data.schema.encoding_pipeline(model.estimator)
            model.schema = data.dictionary
            return cls(None, data.public)
        typed = data.schema.cast(data.public)
        if model.estimator is None:
            return cls(None, typed)
        if streamed or data.free_texts():  # which the moments read, teachers do not
            if data.free_texts() and model.method == "votes":
                raise ParameterError(
                    "--method votes does not read free text (column "
                    f"{data.free_texts()[0]!r}). Leave --method and --estimator out."
                )
            model.estimator = data.schema.encoding_pipeline(model.estimator)
            return cls(None, typed)
        encoder, points = data.schema.fit_encoder(typed)
        check_writable(model.estimator, points)
        return cls(encoder, points)

    def fit(
        self, model: Any, data: Inputs, records: Any, *, allow_overlap: bool
    ) -> None:
        """Fit a model to records; without any, to those that are read in parts."""
        public = {"X_public": self.points, "allow_overlap": allow_overlap}
        if records is None:
            columns = {"target": data.target, "groups": data.groups}
            model.fit_files(data.private, **columns, **public)
        else:
            X = self.encode(data, records)
            model.fit(X, records.labels, groups=records.groups, **public)

    def encode(self, data: Inputs, records: Any) -> Any:
        """Return the private records in the same form."""
        if self.encoder is None:
            return records.table.data
        return data.encode(self.encoder, records, self.points.shape[1])

    def whole(self, student: Any) -> Any:
        """Return a model of records as they are in a file."""
        from sklearn.pipeline import make_pipeline

        return student if self.encoder is None else make_pipeline(self.encoder, student)


def read_test_file(path: Path, data: Inputs, target: str, classes: list[str]) -> Any:
    """Read the test file; what is wrong with it shows before anything is spent."""
    from mapl.records.files import as_texts, check_column, is_missing, read_table

    table = read_table(path)
    for name in (*data.schema.columns, target):
        check_column(name, table.columns, path)
    labels = as_texts(table[target])
    kept = [not is_missing(label, classes) for label in labels]
    table = table.assign(**{target: labels})[kept]
    if not len(table):
        raise ParameterError(f"{path} has no record with a {target!r}.")
    if not set(table[target]) <= set(classes or table[target]):
        raise ParameterError(
            f"{path} has a {target!r} that is not among --classes {','.join(classes)}."
        )
    return table
