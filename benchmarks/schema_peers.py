"""The peers of `bench_schema.py`, run by an interpreter that has them.

    PYTHON schema_peers.py FOLDER EPSILON CLASSES

Reads train.parquet (with the column target), test.parquet and schema.json of FOLDER,
and writes one file of probabilities a peer. What is not installed is left out.
"""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DELTA = 1e-5
MOST_COLUMNS = 30  # MST takes many minutes beyond


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def as_numbers(X: Any, columns: dict[str, Any]) -> Any:
    """Return numbers scaled to 0..1 by their range, and one-hot codes; records are at
    most 1 long.
    """
    parts = []
    for name, entry in columns.items():
        if entry["kind"] == "category":
            listed = np.array(entry["categories"], dtype=object)
            parts.append(X[name].astype(object).to_numpy()[:, None] == listed)
        else:
            low, high = entry["range"]
            values = X[name].astype(float).fillna((low + high) / 2).clip(low, high)
            parts.append(((values - low) / (high - low)).to_numpy()[:, None])
    found = np.hstack([part.astype(float) for part in parts])
    return found / np.sqrt(len(columns))


def spread(shares: Any, classes: Any, n_classes: int) -> Any:
    out = np.zeros((len(shares), n_classes))
    out[:, np.asarray(classes).astype(int)] = shares
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    folder, epsilon, n_classes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    train = pd.read_parquet(folder / "train.parquet")
    test = pd.read_parquet(folder / "test.parquet")
    y = train.pop("target").to_numpy()
    columns = json.loads((folder / "schema.json").read_text())["columns"]
    if has("diffprivlib"):
        from diffprivlib.models import LogisticRegression

        X, X_test = (as_numbers(table, columns) for table in (train, test))
        for c in (0.01, 0.1, 1.0):
            model = LogisticRegression(epsilon=epsilon, data_norm=1, C=c, max_iter=500)
            shares = model.fit(X, y).predict_proba(X_test)
            out = folder / f"diffprivlib-c-{c:g}.npy"
            np.save(out, spread(shares, model.classes_, n_classes))
    if has("interpret") and n_classes == 2:
        from interpret.privacy import DPExplainableBoostingClassifier

        bounds = {
            i: entry["range"]
            for i, entry in enumerate(columns.values())
            if "range" in entry
        }
        kinds = [
            "nominal" if "categories" in e else "continuous" for e in columns.values()
        ]
        for name, kwargs in (("ebm", {}), ("ebm-rate-0.1", {"learning_rate": 0.1})):
            model = DPExplainableBoostingClassifier(
                epsilon=epsilon,
                delta=DELTA,
                feature_types=kinds,
                privacy_bounds=bounds,
                **kwargs,
            )
            model.fit(train, y)
            shares = model.predict_proba(test)
            np.save(folder / f"{name}.npy", spread(shares, model.classes_, n_classes))
    if has("dpmm") and len(columns) <= MOST_COLUMNS:
        synthetic(folder, epsilon, n_classes, train.assign(target=y), test, columns)


def synthetic(
    folder: Path, epsilon: float, n_classes: int, train: Any, test: Any, columns: Any
) -> None:
    """MST with its own private bins, then gradient boosting on what it draws."""
    from dpmm.pipelines import MSTPipeline
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    domain: dict[str, Any] = {}
    for name, entry in columns.items():
        if "categories" in entry:
            domain[name] = {"categories": entry["categories"]}
            train[name] = train[name].astype(str)
        else:
            low, high = entry["range"]
            domain[name] = {"lower": low, "upper": high}
            train[name] = train[name].astype(float).fillna(low).clip(low, high)
    domain["target"] = {"categories": [str(k) for k in range(n_classes)]}
    train["target"] = train["target"].astype(str)
    pipeline = MSTPipeline(epsilon=epsilon, delta=DELTA)
    pipeline.fit(train, domain)
    drawn = pipeline.generate(n_records=len(train))
    texts = [name for name, entry in columns.items() if "categories" in entry]
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    if texts:
        drawn[texts] = encoder.fit_transform(drawn[texts].astype(str))
        test = test.assign(
            **dict(
                zip(texts, encoder.transform(test[texts].astype(str)).T, strict=True)
            )
        )
    names = list(columns)
    model = HistGradientBoostingClassifier()
    model.fit(drawn[names].astype(float), drawn["target"].astype(int))
    shares = model.predict_proba(test[names].astype(float))
    np.save(folder / "mst-boosting.npy", spread(shares, model.classes_, n_classes))


if __name__ == "__main__":
    main()
