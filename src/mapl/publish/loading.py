"""A published folder as a model in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats
from mapl.errors import CertificateError, ParameterError
from mapl.publish import certificate as certificates
from mapl.publish.bundle import MODEL, as_read, column_names_of, load_model, schema_of
from mapl.records.labels import UNKNOWN, encode


class PublishedModel:
    """A model that was loaded from a folder, with its certificate.

    Attributes
    ----------
    classes_ : ndarray
        The labels.
    certificate_ : dict
        The guarantee, what it stands on and what it assumes; it was verified.
    feature_names_in_ : list of str
        The columns that records must have.
    """

    def __init__(self, pipeline: Any, certificate: dict[str, Any]) -> None:
        self._pipeline, self.certificate_ = pipeline, certificate

    @property
    def classes_(self) -> Array:
        """The labels."""
        found: Array = self._pipeline.classes_
        return found

    @property
    def feature_names_in_(self) -> list[str]:
        """The columns that records must have."""
        return column_names_of(self._pipeline)

    @property
    def column_kinds(self) -> dict[str, str]:
        """The kind of each column, such as "number" or "text"."""
        columns = schema_of(self._pipeline).columns.items()
        return {str(name): column.kind for name, column in columns}

    @property
    def has_probabilities(self) -> bool:
        """Whether there is `predict_proba`."""
        return hasattr(self._pipeline, "predict_proba")

    def predict(self, X: Any) -> Array:
        """Return the label of each record."""
        found: Array = self._pipeline.predict(as_read(self._pipeline, X))
        return found

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, in the order of ``classes_``."""
        if not self.has_probabilities:
            raise AttributeError("This model has no probabilities.")
        found: Floats = self._pipeline.predict_proba(as_read(self._pipeline, X))
        return found

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy on labelled records; labels are compared as texts."""
        wanted = encode(y, self.classes_)
        if (wanted == UNKNOWN).all():
            known = ", ".join(map(str, self.classes_))
            raise ParameterError(f"y holds none of the model's labels: {known}.")
        return float(np.mean(encode(self.predict(X), self.classes_) == wanted))

    def __repr__(self) -> str:
        epsilon, delta = (self.certificate_[name] for name in ("epsilon", "delta"))
        return f"PublishedModel(epsilon={epsilon:g}, delta={delta:g})"


def load(folder: str | Path, *, public_key: str | Path | None = None) -> PublishedModel:
    """Load the model in a folder that `mapl learn` or ``model.save`` wrote.

    The certificate is verified first, with the digests of all files that it covers. It
    must cover the model: what is loaded are the bytes that were compared with it, read
    without pickle, and checked part by part.

    Parameters
    ----------
    folder : path
        The folder.
    public_key : path or None
        An Ed25519 key in PEM that the certificate must be signed by.
    """
    read, path = verified(folder, public_key=public_key), Path(folder) / MODEL
    data = certificates.content(read, Path(folder), MODEL)
    return PublishedModel(load_model(path, data), read)


def verified(
    folder: str | Path, *, public_key: str | Path | None = None
) -> dict[str, Any]:
    """Return the certificate of a folder, when all that it says was checked."""
    folder = Path(folder)
    if not (folder / "certificate.json").is_file():
        raise CertificateError(
            f"{folder} holds no certificate.json: it is no folder that mapl wrote."
        )
    read = certificates.read(folder / "certificate.json")
    key = None if public_key is None else Path(public_key).read_bytes()
    certificates.verify(read, folder=folder, public_key=key)
    return read
