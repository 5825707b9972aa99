"""The score of a model on a test file."""

from __future__ import annotations

from typing import Any

from mapl.cli.inputs import Inputs
from mapl.errors import ParameterError

SHOWN = ("accuracy", "always_most_frequent", "auc", "log_loss", "per_class")
_MOST_CATEGORIES = 200  # of a column; rarer ones share a code


def score_model(
    model: Any, table: Any, data: Inputs, target: str, fitted: Any
) -> dict[str, Any]:
    """Return the score on the test file, with the keys that the report reads."""
    from sklearn.metrics import confusion_matrix

    names = [str(name) for name in fitted.classes_]
    table = table[table[target].isin(names)]
    if not len(table):
        raise ParameterError(
            "The test file has none of the classes, so there is no score. The model "
            "is written, and was paid for."
        )
    truth, typed = table[target].to_numpy(), data.schema.cast(table)
    given = model.predict(typed)
    frequent = max((truth == name).mean() for name in names)
    return {
        "accuracy": float((truth == given).mean()),
        "always_most_frequent": float(frequent),
        **_ranking(model, typed, truth, names),
        "per_class": _per_class(truth, given, names),
        "classes": names,
        "confusion": confusion_matrix(truth, given, labels=names).tolist(),
    }


def _per_class(truth: Any, given: Any, names: list[str]) -> dict[str, Any]:
    """Return recall, precision and number of records of each class, and how often it
    was predicted as which.
    """
    found = {}
    for name in names:
        there, said = truth == name, given == name
        both = int((there & said).sum())
        found[name] = {
            "recall": both / max(1, int(there.sum())),
            "precision": both / max(1, int(said.sum())),
            "records": int(there.sum()),
            "predicted_as": {
                other: int((there & (given == other)).sum()) for other in names
            },
        }
    return found


def _ranking(model: Any, typed: Any, truth: Any, names: list[str]) -> dict[str, Any]:
    """Return the area under the ROC curve, over classes the mean, and the log loss;
    nothing for a model without probabilities.
    """
    import numpy as np
    from sklearn.metrics import roc_auc_score

    if not hasattr(model, "predict_proba"):
        return {}
    shares = np.zeros((len(truth), len(names)))
    known = [names.index(str(label)) for label in model.classes_]
    shares[:, known] = model.predict_proba(typed)
    own = shares[np.arange(len(truth)), [names.index(label) for label in truth]]
    found = {"log_loss": float(-np.log(np.maximum(own, 1e-15)).mean())}
    present = [k for k, name in enumerate(names) if 0 < (truth == name).mean() < 1]
    if present:
        areas = [roc_auc_score(truth == names[k], shares[:, k]) for k in present]
        found["auc"] = float(np.mean(areas))
    return found


def baseline_score(
    records: Any, table: Any, data: Inputs, target: str, names: list[str]
) -> dict[str, Any]:
    """Return the accuracy of boosting without privacy. For the holder alone.

    It sees the columns that a private model may learn from, one number for each cell.
    """
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    from mapl.records.table import canonical_table

    kept = [label in names if names else True for label in records.labels]
    rows = np.flatnonzero(kept)
    private = records.table.take(rows)
    numbers, texts = _columns_of(private, data)
    encoder = OrdinalEncoder(
        max_categories=_MOST_CATEGORIES,
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
    )
    if texts.shape[1]:
        encoder.fit(texts)
    model = HistGradientBoostingClassifier(
        categorical_features=np.arange(texts.shape[1]) + numbers.shape[1]
    )

    def encoded(numbers: Any, texts: Any) -> Any:
        if not texts.shape[1]:
            return numbers
        return np.hstack((numbers, encoder.transform(texts)))

    model.fit(encoded(numbers, texts), [records.labels[i] for i in rows])
    tested = canonical_table(table[list(data.schema.columns)], data.schema)
    given = model.predict(encoded(*_columns_of(tested, data)))
    right = float((table[target].to_numpy() == given).mean())
    return {"without_privacy_PRIVATE_accuracy": right}


def _columns_of(table: Any, data: Inputs) -> tuple[Any, Any]:
    """Return numbers, and the texts that are no sentences."""
    import numpy as np

    from mapl.features.columns import split

    numbers, texts = split(table)
    free, columns = set(data.free_texts()), data.schema.columns.items()
    names = [name for name, column in columns if column.kind in ("text", "category")]
    kept = [t for name, t in zip(names, texts, strict=True) if name not in free]
    if not kept:
        return numbers, np.empty((len(table), 0), dtype=object)
    return numbers, np.stack(kept, axis=1)
