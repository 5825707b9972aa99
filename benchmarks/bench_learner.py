"""UCI Adult, as private as you like: accuracy, time and memory of the learner.

    python benchmarks/bench_learner.py --data DIR [--runs 5] [--json]

Teachers on 80 % of the training file, the other 20 % as public pool, the test file for
the score, delta 1e-5. DIR holds adult.parquet.
"""

import argparse
import json
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from mapl import PrivateClassifier, accounting
from mapl.records.keys import chunk_rows, record_keys
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

EPSILONS = (0.3, 0.5, 1.0, 2.0, 4.0)


def load(folder: Path) -> tuple[Any, Any, Any, Any]:
    table = pd.read_parquet(folder / "adult.parquet").drop(columns="fnlwgt")
    train, test = (table[table.split == part] for part in ("train", "test"))
    sides = [
        (part.drop(columns=["income", "split"]), (part.income == ">50K").to_numpy(int))
        for part in (train, test)
    ]
    return *sides[0], *sides[1]


def encoder(pool: Any) -> Any:
    """One-hot codes and scales that the public pool alone decides."""
    schema = Schema.of_numbers_and_texts(pool)
    return schema.fit_encoder(schema.cast(pool))[0]


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
    """Partition and slice in a process of its own, whose peak memory is read."""
    here, there = get_context("spawn").Pipe(duplex=False)
    arguments = (there, n, n_features, n_teachers)
    child = get_context("spawn").Process(target=partition_alone, args=arguments)
    child.start()
    seconds, peak, size = here.recv()
    child.join()
    return {
        "records": n,
        "features": n_features,
        "teachers": n_teachers,
        "partition_and_slicing_seconds": round(seconds, 2),
        "peak_memory_over_data": round(peak / size, 2),
    }


def partition_alone(there: Any, n: int, n_features: int, n_teachers: int) -> None:
    few = canonical_table(np.ones((9, 2)), Schema.of(np.ones((1, 2))))
    chunk_rows(record_keys(few, None), None, n_chunks=2)  # load everything
    before = peak_memory()
    X = np.random.default_rng(0).normal(size=(n, n_features))
    y = (X[:, 0] > 0).astype(np.int64)
    start = time.perf_counter()
    table = canonical_table(X, Schema.of(X[:1]))
    chunks = chunk_rows(record_keys(table, y), None, n_chunks=n_teachers)
    for rows in chunks:
        table.data[rows]
    seconds = time.perf_counter() - start
    there.send((seconds, peak_memory() - before, X.nbytes))


def peak_memory() -> int:
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--teachers", default="250", help="a number, or auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    n_teachers = int(options.teachers) if options.teachers.isdigit() else "auto"
    X, y, X_test, y_test = load(options.data)
    estimator = LogisticRegression(C=10, max_iter=200)
    scores: dict[float, list[float]] = {epsilon: [] for epsilon in EPSILONS}
    times = []
    for run in range(options.runs):
        order = np.random.default_rng(run).permutation(len(X))
        public, private = order[: len(X) // 5], order[len(X) // 5 :]
        coder = encoder(X.iloc[public])
        parts = X.iloc[public], X.iloc[private], X_test
        pool, records, test = map(coder.transform, parts)
        for epsilon in EPSILONS:
            model = PrivateClassifier(
                estimator,
                method="votes",
                epsilon=epsilon,
                n_teachers=n_teachers,
                n_records=len(private),
                classes=[0, 1],
                random_state=run,
            )
            start = time.perf_counter()
            model.fit(records, y[private], X_public=pool, allow_overlap=True)
            times.append(time.perf_counter() - start)
            certified = accounting.epsilon(model.events_, delta=1e-5)
            assert certified <= epsilon
            scores[epsilon].append(model.score(test, y_test))
    chunks = chunk_rows(
        record_keys(records, y[private]), None, n_chunks=model.n_teachers_
    )
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
        "fit_seconds": round(float(times[-1]), 2),
        "bare_loop_seconds": round(bare, 2),
        "fit_over_bare_loop": round(float(times[-1]) / bare, 2),
        "partition": partition_figures(10**6, 50, 1000),
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
