"""Which learners may train many teachers in one process.

A teacher is somebody else's code. scikit-learn's own classes keep no state outside the
model that they fit, so their teachers may share a process. Anything else (a class of
the user's, another library, a function as a parameter) trains each teacher in a process
of its own, and code that we do not know one teacher after the other. Decided by types
and parameters, never by data.
"""

import sys
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

_PLAIN = (type(None), bool, int, float, str, bytes, slice, np.generic, np.ufunc)
_SILENT = {"verbose": 0, "memory": None}
_KEEP_TO_THEMSELVES = ("sklearn", "xgboost", "lightgbm")
_SET_HERE = {*_SILENT, "random_state"}  # by mapl, in each teacher
_OWN_CLONE = BaseEstimator.__sklearn_clone__


def silent_clone(estimator: Any) -> Any:
    """Return a clone that prints nothing and caches nothing.

    A cache (``Pipeline(memory=...)``) would carry results from one teacher to the next
    and leave them on the disk.
    """
    blank = clone(estimator)
    if not isinstance(blank, BaseEstimator):
        return blank
    params = blank.get_params(deep=True)
    quiet = {
        name: _SILENT[last]
        for name, value in params.items()
        if (last := name.rpartition("__")[2]) in _SILENT and value
    }
    return blank.set_params(**quiet) if quiet else blank


def is_known(estimator: Any) -> bool:
    """Whether a learner is scikit-learn's own, with plain values as parameters.

    Estimators must be parameters themselves, where seeds and verbosity are set: not
    values of a search, say.
    """
    return _is_of(estimator, ("sklearn",))


def keeps_to_itself(estimator: Any) -> bool:
    """Whether teachers may be trained side by side, each in its own process.

    Unknown code may fill the disk or the memory, and so silence whoever is trained at
    the same time: such teachers are trained one after the other.
    """
    return _is_of(estimator, _KEEP_TO_THEMSELVES)


def _is_of(estimator: Any, libraries: tuple[str, ...]) -> bool:
    """Whether a learner consists of classes that libraries export, and plain values."""
    if not _is_own_class(type(estimator), libraries):
        return False
    reached = {id(value) for value in estimator.get_params(deep=True).values()}
    return _is_plain(estimator, reached | {id(estimator)}, libraries)


def _is_plain(value: Any, reached: set[int], libraries: tuple[str, ...]) -> bool:
    if isinstance(value, type):
        return value.__module__.split(".")[0] in ("builtins", "numpy")
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(part, reached, libraries) for part in value)
    if isinstance(value, dict):
        last = {str(key).rpartition("__")[2] for key in value}
        parts = [*value, *value.values()]
        sound = all(_is_plain(p, reached, libraries) for p in parts)
        return sound and not last & _SET_HERE
    if id(value) not in reached or not _is_own_class(type(value), libraries):
        return False
    inner = value.get_params(deep=False).values()
    return all(_is_plain(part, reached, libraries) for part in inner)


def _is_own_class(kind: type, libraries: tuple[str, ...]) -> bool:
    """Whether a class with parameters is one that a library exports."""
    module = sys.modules.get(kind.__module__)
    return (
        kind.__module__.split(".")[0] in libraries
        and getattr(module, kind.__name__, None) is kind
        and hasattr(kind, "get_params")
        # A frozen estimator is its own clone, and would be shared.
        and getattr(kind, "__sklearn_clone__", _OWN_CLONE) is _OWN_CLONE
    )
