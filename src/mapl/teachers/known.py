"""Which learners may train many teachers in one process.

A teacher is somebody else's code. scikit-learn's own classes keep no state outside the
model that they fit, so their teachers may share a process. Anything else (a class of
the user's, another library, a function as a parameter) trains each teacher in a process
of its own. Decided by types and parameters, never by data.
"""

import sys
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

_PLAIN = (type(None), bool, int, float, str, bytes, slice, np.generic, np.ufunc)
_SILENT = {"verbose": 0, "memory": None}


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
    """Whether a learner is scikit-learn's own, with plain values as parameters."""
    if isinstance(estimator, type):
        return estimator.__module__.split(".")[0] in ("builtins", "numpy")
    if isinstance(estimator, _PLAIN):
        return True
    if isinstance(estimator, np.ndarray):
        return bool(estimator.dtype != object)
    if isinstance(estimator, list | tuple | set | frozenset):
        return all(map(is_known, estimator))
    if isinstance(estimator, dict):
        return all(map(is_known, [*estimator, *estimator.values()]))
    return _is_own_class(type(estimator)) and all(
        map(is_known, estimator.get_params(deep=False).values())
    )


def _is_own_class(kind: type) -> bool:
    """Whether a class with parameters is one that scikit-learn exports."""
    module = sys.modules.get(kind.__module__)
    return (
        kind.__module__.split(".")[0] == "sklearn"
        and getattr(module, kind.__name__, None) is kind
        and hasattr(kind, "get_params")
    )
