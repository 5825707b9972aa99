"""What a model file may hold: parts that run no code and stay within their tables.

Loading with skops keeps code out. But some of scikit-learn's compiled parts trust the
numbers that they are given: a crafted tree whose child is node 10,000,000 crashes
whoever asks it. So every part of a loaded model is visited and checked.
"""

from typing import Any

import numpy as np

from mapl.errors import CertificateError

# Parts whose predictions numpy computes from arrays, or that are checked below.
_MODULES = (
    "sklearn.discriminant_analysis",
    "sklearn.dummy",
    "sklearn.ensemble._forest",
    "sklearn.ensemble._hist_gradient_boosting",
    "sklearn.linear_model",
    "sklearn.naive_bayes",
    "sklearn.preprocessing._label",
    "sklearn.tree",
    "sklearn.utils",
    "sklearn._loss",
    "_loss.Cy",  # the same in scikit-learn 1.6
    "mapl.learners",
)
_CLASSES = ("sklearn.svm._classes.LinearSVC",)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, slice, range)
_NUMPY = (np.generic, np.dtype, np.random.RandomState, np.random.Generator, np.ufunc)
_DEEPEST = 60


def check_parts(model: Any, *, width: int | None = None) -> None:
    """Refuse a classifier with a part that is not known to be harmless.

    ``width`` is how many features it will be given.

    Raises
    ------
    CertificateError
        Naming the part.
    """
    given = getattr(model, "n_features_in_", width) if width is None else width
    _visit(model, width=given, depth=0, seen=set())


def _visit(part: Any, *, width: Any, depth: int, seen: set[tuple[int, Any]]) -> None:
    """Check a part and what it holds; ``width`` is how many features reach it."""
    if isinstance(part, _PLAIN) or (id(part), width) in seen:
        return
    if depth > _DEEPEST:
        raise CertificateError("The model is nested too deeply. Nothing was used.")
    seen.add((id(part), width))
    if getattr(part, "n_features_in_", width) != width:
        raise CertificateError("The model's parts do not fit. Nothing was used.")
    if getattr(part, "n_jobs", None) is not None:
        part.n_jobs = None  # how many processes are started is not the file's to say
    for inner in _parts_of(part, width):
        _visit(inner, width=width, depth=depth + 1, seen=seen)


def _parts_of(part: Any, width: int | None) -> list[Any]:
    """Return what a part holds; refuse it if it is unknown."""
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    if isinstance(part, np.ndarray):
        return list(part.reshape(-1)) if part.dtype == object else []
    if isinstance(part, _NUMPY):
        return []
    if isinstance(part, dict):
        return [*part, *part.values()]
    if isinstance(part, list | tuple):
        return list(part)
    if kind == "sklearn.tree._tree.Tree":
        _check_tree(part, width)
        return []
    if kind.endswith("predictor.TreePredictor"):
        _check_histogram_tree(part, width)
        return []
    if kind.startswith(_MODULES) or kind in _CLASSES:
        if getattr(part, "_in_fit", False):
            raise CertificateError("A model that is being fitted cannot be used.")
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
            "A table of the model leads out of its bounds. Nothing was used."
        )


def rebuilt_encoder(encoder: Any) -> Any:
    """Return a new encoder with the plain numbers and texts of a loaded one.

    Its other attributes are those of a fit of our own: a crafted one could make
    compiled code write out of bounds.
    """
    import pandas as pd

    from mapl.records.schema import Schema

    schema = Schema.of_encoder(encoder)
    names = [str(name) for name in schema.columns]
    blank = pd.DataFrame({n: ["x"] for n in names}, dtype=object)
    for name in schema.number_columns:
        blank[name] = [0.0]
    fresh, _ = schema.fit_encoder(schema.cast(blank))
    for new, old in zip(fresh.transformers_, encoder.transformers_, strict=False):
        if not len(new[2]):
            continue
        if isinstance(new[1][-1], type(fresh.transformers_[1][1][-1])):
            _copy_categories(new[1][-1], old[1][-1], len(new[2]))
        else:
            n = len(new[2])
            new[1][0].statistics_ = _numbers(old[1][0].statistics_, n)
            new[1][1].mean_ = _numbers(old[1][1].mean_, n)
            new[1][1].scale_ = _numbers(old[1][1].scale_, n)
    return fresh


def _copy_categories(new: Any, old: Any, n: int) -> None:
    listed = [sorted({str(c) for c in one}) for one in old.categories_]
    _require(len(listed) == n and all(listed))
    new.categories_ = [np.array(one, dtype=object) for one in listed]
    new._n_features_outs = [len(one) for one in listed]


def _numbers(values: Any, n: int) -> Any:
    found = np.asarray(values, dtype=np.float64)
    _require(found.shape == (n,))
    return found.copy()


def checked_classifier(classifier: Any, *, width: int) -> Any:
    """Return a classifier of so many features, if every part is harmless."""
    from sklearn.pipeline import Pipeline

    if isinstance(classifier, Pipeline):
        _require(len(classifier) == 2)
        return checked_moments(*(part for _, part in classifier.steps))
    check_parts(classifier, width=width)
    return classifier


def checked_moments(first: Any, classifier: Any) -> Any:
    """Return a model of moments, made again from its numbers and texts."""
    from sklearn.pipeline import make_pipeline

    from mapl.features.model import PublicFeatures, from_plain
    from mapl.student.linear import LinearModel

    known = isinstance(first, PublicFeatures)
    _require(known and isinstance(classifier, LinearModel))
    feature_map, _ = from_plain(first.plain)
    n_inputs, n_seen = feature_map.n_cells, feature_map.n_dense
    weights = np.asarray(classifier.weights, dtype=np.float64)
    biases = np.asarray(classifier.biases, dtype=np.float64)
    classes = np.asarray(classifier.classes)
    n, forest = len(classes), classifier.forest
    _require(classes.ndim == 1 and n >= 2 and biases.shape == (n,))
    _require(weights.shape == (n_inputs, 1 if n == 2 else n))
    scales = _numbers(classifier.scales, 1 if forest is None else 2)
    if forest is not None:
        forest = _checked_forest(forest, n_seen, n)
    model = LinearModel(weights, scales, biases, classes, forest)
    return make_pipeline(type(first)(first.plain), model)


def _checked_forest(corrections: Any, width: int, n_classes: int) -> Any:
    """Return corrections by trees whose every table stays within its bounds."""
    from sklearn.ensemble import ExtraTreesRegressor

    from mapl.student.corrections import Corrections

    known = isinstance(corrections, Corrections)
    _require(known and type(corrections.forest) is ExtraTreesRegressor)
    _require(corrections.n_features == width)
    forest = corrections.forest
    check_parts(forest, width=width + n_classes)
    _require(all(t.tree_.value.shape[1:] == (n_classes, 1) for t in forest.estimators_))
    return Corrections(forest, width)
