"""UCI Adult, as private as you like: accuracy, time and memory of the learner.

    python benchmarks/bench_learner.py --data DIR [--runs 5] [--json]

Teachers on 80 % of the training file, the other 20 % as public pool, the test file for
the score, delta 1e-5. DIR holds adult.parquet.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mapl import PrivateClassifier, accounting
from mapl.partition import chunk_rows

EPSILONS = (0.3, 0.5, 1.0, 2.0, 4.0)


def load(folder: Path) -> tuple[Any, Any, Any, Any]:
    table = pd.read_parquet(folder / "adult.parquet").drop(columns="fnlwgt")
    train, test = (table[table.split == part] for part in ("train", "test"))
    sides = [
        (part.drop(columns=["income", "split"]), (part.income == ">50K").to_numpy())
        for part in (train, test)
    ]
    return *sides[0], *sides[1]


def encoder(pool: Any) -> Any:
    """One-hot codes and scales that the public pool alone decides."""
    numbers = [c for c in pool.columns if pool[c].dtype.kind in "if"]
    texts = [c for c in pool.columns if c not in numbers]
    return make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), texts)
    ).fit(pool)


def bare_loop(estimator: Any, X: Any, y: Any, chunks: Any, pool: Any) -> float:
    """The same fits and predictions under joblib, and nothing else."""

    def one(rows: Any) -> Any:
        if len(np.unique(y[rows])) < 2:
            return None
        return clone(estimator).fit(X[rows], y[rows]).predict(pool)

    start = time.perf_counter()
    joblib.Parallel(n_jobs=1)(joblib.delayed(one)(rows) for rows in chunks)
    return time.perf_counter() - start


def partition_figures(n: int, n_features: int, n_teachers: int) -> dict[str, Any]:
    X = np.random.default_rng(0).normal(size=(n, n_features))
    y = (X[:, 0] > 0).astype(np.int64)
    start = time.perf_counter()
    chunks = chunk_rows(X, y, None, n_chunks=n_teachers)
    for rows in chunks:
        X[rows]
    return {
        "records": n,
        "features": n_features,
        "teachers": n_teachers,
        "partition_and_slicing_seconds": round(time.perf_counter() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    X, y, X_test, y_test = load(options.data)
    estimator = LogisticRegression(C=10, max_iter=200)
    scores: dict[float, list[float]] = {epsilon: [] for epsilon in EPSILONS}
    times = []
    for run in range(options.runs):
        order = np.random.default_rng(run).permutation(len(X))
        public, private = order[: len(X) // 5], order[len(X) // 5 :]
        coder = encoder(X.iloc[public])
        pool, records, test = (
            np.asarray(part.toarray() if hasattr(part, "toarray") else part)
            for part in map(coder.transform, (X.iloc[public], X.iloc[private], X_test))
        )
        for epsilon in EPSILONS:
            model = PrivateClassifier(
                estimator,
                epsilon=epsilon,
                n_teachers=options.teachers,
                classes=[False, True],
                random_state=run,
            )
            start = time.perf_counter()
            model.fit(records, y[private], X_public=pool)
            times.append(time.perf_counter() - start)
            certified = accounting.epsilon(model.events_, delta=1e-5)
            assert certified <= epsilon
            scores[epsilon].append(model.score(test, y_test))
    chunks = chunk_rows(records, y[private], None, n_chunks=options.teachers)
    bare = bare_loop(estimator, records, y[private], chunks, pool)
    result = {
        "data": "UCI Adult",
        "teachers": options.teachers,
        "estimator": repr(estimator),
        "delta": 1e-5,
        "runs": options.runs,
        "pool": len(public),
        "accuracy": {e: round(100 * float(np.mean(s)), 2) for e, s in scores.items()},
        "spread": {e: round(100 * float(np.std(s)), 2) for e, s in scores.items()},
        "fit_seconds": round(float(np.median(times)), 2),
        "bare_loop_seconds": round(bare, 2),
        "partition": partition_figures(10**6, 50, 1000),
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
