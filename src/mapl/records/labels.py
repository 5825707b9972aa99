"""Labels to class indices and back, label by label."""

import warnings
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from mapl.arrays import Array, Ints
from mapl.errors import ParameterError, PrivacyWarning
from mapl.privacy.votes import NO_VOTE
from mapl.records.columns import convert

UNKNOWN = -1  # the code of a label outside the classes
_ALIASES = {"0": "False", "1": "True", "False": "0", "True": "1"}


def declared_classes(classes: Any) -> Array:
    """Return the classes that the caller declares, sorted."""
    given = np.asarray(classes)
    if given.ndim != 1 or given.size == 0 or given.dtype == object:
        raise ParameterError(
            "classes must name every label that may occur: a list of texts or numbers."
        )
    return np.unique(given)


def classes_and_codes(y: Any, declared: Any) -> tuple[Array, Ints]:
    """Return the classes, and each label's index among them, `UNKNOWN` for others.

    Classes that nobody declares are read from the labels, with a warning.
    """
    if declared is not None:
        classes = declared_classes(declared)
        return classes, encode(y, classes)
    warnings.warn(
        "classes were read from y: which labels exist is not protected. Pass "
        "classes=[...] if a class could identify a person.",
        PrivacyWarning,
        stacklevel=4,
    )
    classes, codes = np.unique(checked_labels(y), return_inverse=True)
    return classes, np.asarray(codes, dtype=np.int64)


def encode(y: Any, classes: Array) -> Ints:
    """Return the class index of each label, `UNKNOWN` outside the classes.

    Labels are compared as texts, so 1, 1.0, True, "1" and "True" are one label: one
    text among the labels of a file turns all of them into texts, and a missing one
    turns integers into floats.
    """
    codes = _codes_by_text(classes)
    found = [codes.get(label, UNKNOWN) for label in convert(y, "text")]
    return np.array(found, dtype=np.int64)


def _codes_by_text(classes: Array) -> dict[str | None, int]:
    """Return the code of each text that stands for a class."""
    labels = convert(classes, "text").tolist()
    codes: dict[str | None, int] = {label: code for code, label in enumerate(labels)}
    aliases = {_ALIASES[name]: codes[name] for name in codes if name in _ALIASES}
    if len(codes) < len(labels) or aliases.keys() & codes.keys() or None in codes:
        raise ParameterError(
            "classes must differ as texts, and none may be missing: 1, 1.0 and True "
            "are one label."
        )
    return codes | aliases


def encode_predictions(predictions: Any, labels: Array, codes: Ints) -> Ints:
    """Return the vote for each predicted label, `NO_VOTE` for anything else."""
    given = np.asarray(predictions).reshape(-1)
    out = np.full(given.shape, NO_VOTE, dtype=np.int64)
    for label, code in zip(labels, codes, strict=True):
        out[given == label] = code
    return out


def checked_labels(y: Any) -> Any:
    """Check labels as scikit-learn does, without showing how many there are.

    A flat list is returned as it is: in an array one label decides the type of all.
    """
    try:
        array = np.asarray(column_or_1d(y, warn=True))
    except ValueError:
        raise ParameterError("y should be a 1d array of labels.") from None
    with warnings.catch_warnings():  # which may count labels
        warnings.simplefilter("ignore")
        assert_all_finite(array, input_name="y")
        check_classification_targets(array)
    nested = (list, tuple, np.ndarray)
    flat = isinstance(y, list | tuple) and not any(isinstance(c, nested) for c in y)
    return y if flat else array
