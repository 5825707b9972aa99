"""What a model file may hold: parts that run no code and stay within their tables.

Loading with skops keeps code out. But some of scikit-learn's compiled parts trust the
numbers that they are given: a crafted tree whose child is node 10,000,000 crashes
whoever asks it. So every part of a loaded model is visited and checked.
"""

from typing import Any

import numpy as np

from mapl.errors import CertificateError

# Parts that predict in numpy, which checks its own bounds, or that are checked below.
_MODULES = (
    "sklearn.calibration",
    "sklearn.compose",
    "sklearn.decomposition",
    "sklearn.discriminant_analysis",
    "sklearn.dummy",
    "sklearn.ensemble._bagging",
    "sklearn.ensemble._forest",
    "sklearn.ensemble._hist_gradient_boosting",
    "sklearn.ensemble._stacking",
    "sklearn.ensemble._voting",
    "sklearn.ensemble._weight_boosting",
    "sklearn.feature_extraction",
    "sklearn.feature_selection",
    "sklearn.impute._base",
    "sklearn.isotonic",
    "sklearn.kernel_approximation",
    "sklearn.linear_model",
    "sklearn.multiclass",
    "sklearn.naive_bayes",
    "sklearn.neural_network",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "sklearn.tree",
    "sklearn.utils",
    "sklearn._loss",
    "sklearn._config",
    "mapl.",
)
_CLASSES = ("sklearn.svm._classes.LinearSVC",)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, slice, range)
_NUMPY = (np.generic, np.dtype, np.random.RandomState, np.random.Generator, np.ufunc)
_DEEPEST = 60


def check_parts(model: Any) -> None:
    """Refuse a model with a part that is not known to be harmless.

    Raises
    ------
    CertificateError
        Naming the part.
    """
    _visit(model, width=None, depth=0, seen=set())


def _visit(part: Any, *, width: int | None, depth: int, seen: set[int]) -> None:
    """Check a part and what it holds; ``width`` is how many features reach it."""
    if isinstance(part, _PLAIN) or id(part) in seen:
        return
    if depth > _DEEPEST:
        raise CertificateError("The model is nested too deeply. Nothing was used.")
    seen.add(id(part))
    for inner in _parts_of(part, width):
        own = getattr(part, "n_features_in_", None)
        # Members of an ensemble are given what the ensemble was given.
        given = own if width is None or own is None else min(own, width)
        if type(part).__module__.startswith(("sklearn.pipeline", "sklearn.compose")):
            given = None
        _visit(inner, width=width if own is None else given, depth=depth + 1, seen=seen)


def _parts_of(part: Any, width: int | None) -> list[Any]:
    """Return what a part holds; refuse it if it is unknown."""
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    if isinstance(part, np.ndarray):
        return list(part.reshape(-1)) if part.dtype == object else []
    if isinstance(part, _NUMPY):
        return []
    if isinstance(part, dict):
        return [*part, *part.values()]
    if isinstance(part, list | tuple | set | frozenset):
        return list(part)
    if hasattr(part, "check_format") and hasattr(part, "indptr"):
        part.check_format(full_check=True)  # a sparse matrix
        return []
    if kind == "sklearn.tree._tree.Tree":
        _check_tree(part, width)
        return []
    if kind.endswith("predictor.TreePredictor"):
        _check_histogram_tree(part, width)
        return []
    if kind.startswith(_MODULES) or kind in _CLASSES:
        return list(getattr(part, "__dict__", {}).values())
    raise CertificateError(
        f"The model holds a part that cannot be checked: {kind}. Nothing was used."
    )


def _check_tree(tree: Any, width: int | None) -> None:
    """Check that questions lead down the tree, and ask about features that exist."""
    n = tree.node_count
    left, right, feature = tree.children_left, tree.children_right, tree.feature
    own = np.arange(n)
    leaf = left == -1
    inside = ((left > own) & (left < n) & (right > own) & (right < n)) | leaf
    known = leaf | ((feature >= 0) & (feature < min(tree.n_features, width or 0)))
    _require(n > 0 and bool(inside.all() and known.all()) and width is not None)


def _check_histogram_tree(tree: Any, width: int | None) -> None:
    """Check the same of a tree of histogram boosting; it may have no categories."""
    nodes = tree.nodes
    names = nodes.dtype.names or ()
    needed = ("left", "right", "feature_idx", "is_leaf", "is_categorical")
    _require(len(nodes) > 0 and set(needed) <= set(names) and width is not None)
    n, own = len(nodes), np.arange(len(nodes))
    left, right = nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)
    inside = (left > own) & (left < n) & (right > own) & (right < n)
    feature = nodes["feature_idx"]
    known = (feature >= 0) & (feature < (width or 0)) & (nodes["is_categorical"] == 0)
    _require(bool(((nodes["is_leaf"] != 0) | (inside & known)).all()))


def _require(holds: bool) -> None:
    if not holds:
        raise CertificateError(
            "A tree of the model leads out of its table. Nothing was used."
        )
