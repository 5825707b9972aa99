"""Labels to class indices and back, label by label."""

import re
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from mapl.arrays import Array, Ints
from mapl.errors import ParameterError
from mapl.privacy.votes import NO_VOTE

UNKNOWN = -1  # the code of a label outside the classes
_ALIASES = {"0": "False", "1": "True", "False": "0", "True": "1"}
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


def declared_classes(classes: Any) -> Array:
    """Return the classes that the caller declares, sorted."""
    if len(classes) == 0:
        raise ParameterError("classes must name every label that may occur.")
    return np.unique(np.asarray(classes))


def encode(y: Any, classes: Array) -> Ints:
    """Return the class index of each label, `UNKNOWN` outside the classes.

    Labels are compared as texts, so 1, 1.0, True, "1" and "True" are one label: one
    text among the labels of a file turns all of them into texts, and a missing one
    turns integers into floats.
    """
    codes = _codes_by_text(classes)
    distinct, index = _distinct(y)
    found = [codes.get(label_text(label), UNKNOWN) for label in distinct]
    return np.array(found, dtype=np.int64)[index]


def _codes_by_text(classes: Array) -> dict[str, int]:
    """Return the code of each text that stands for a class."""
    labels = _times_as_text(classes).tolist()
    codes = {label_text(label): code for code, label in enumerate(labels)}
    aliases = {_ALIASES[text]: codes[text] for text in codes if text in _ALIASES}
    if len(codes) < len(labels) or aliases.keys() & codes.keys():
        raise ParameterError(
            "classes must differ as texts: 1, 1.0 and True are one label."
        )
    return codes | aliases


def encode_declared(y: Any, classes: Array) -> Ints:
    """Return the class index of each label; refuse other labels."""
    codes = encode(y, classes)
    if (codes == UNKNOWN).any():
        raise ParameterError(
            "y holds a label that is not among classes. Declare every label that may "
            "occur."
        )
    return codes


def encode_predictions(predictions: Any, labels: Array, codes: Ints) -> Ints:
    """Return the vote for each predicted label, `NO_VOTE` for anything else."""
    given = np.asarray(predictions).reshape(-1)
    out = np.full(given.shape, NO_VOTE, dtype=np.int64)
    for label, code in zip(labels, codes, strict=True):
        out[given == label] = code
    return out


def label_text(label: Any) -> str:
    """Return one label as text; numbers, and texts that are Python's own form of a
    float, in one form: 1, 1.0 and "1.0" are "1", but "01" is not.
    """
    if isinstance(label, str) and _FLOAT.fullmatch(label):
        number = float(label)
        label = number if repr(number) == label else label
    if isinstance(label, float | np.floating) and label.is_integer():
        return str(int(label))
    return str(label)


def checked_labels(y: Any) -> Any:
    """Check labels as scikit-learn does, without showing how many there are.

    A flat list is returned as it is: in an array one label decides the type of all.
    """
    try:
        array = np.asarray(column_or_1d(y, warn=True))
    except ValueError:
        raise ParameterError("y should be a 1d array of labels.") from None
    assert_all_finite(array, input_name="y")
    check_classification_targets(array)
    nested = (list, tuple, np.ndarray)
    flat = isinstance(y, list | tuple) and not any(isinstance(c, nested) for c in y)
    return y if flat else array


def _distinct(y: Any) -> tuple[list[Any], Ints]:
    """Return the distinct labels, and the place of each label among them."""
    y = _times_as_text(y)
    if isinstance(y, np.ndarray) and y.dtype.kind in "biufUS":
        distinct, index = np.unique(y, return_inverse=True)
        return distinct.tolist(), index.reshape(-1)
    names = ("to_pylist", "tolist")  # pyarrow; numpy and pandas
    listed = next((getattr(y, name) for name in names if hasattr(y, name)), None)
    labels = list(y) if listed is None else listed()
    places: dict[str, int] = {}
    order = [places.setdefault(label_text(label), len(places)) for label in labels]
    return list(places), np.array(order, dtype=np.int64)


def _times_as_text(values: Any) -> Any:
    """Return numpy times as texts, whatever their unit; other values unchanged."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return np.datetime_as_string(values, unit="ns")
    return values
