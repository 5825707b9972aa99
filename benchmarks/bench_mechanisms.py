"""From votes to released labels, beside a bare numpy sum of the same array.

    python benchmarks/bench_mechanisms.py [--queries 1000000] [--json]

Also: the time of SparseVector.for_budget for cutoffs up to 1000, and of the import.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import Votes


def make_votes(n_teachers: int, n_queries: int, n_classes: int, agree: float) -> Any:
    """Each teacher gives the query's own class with probability ``agree``."""
    rng = np.random.default_rng(0)
    right = rng.integers(0, n_classes, size=n_queries, dtype=np.int8)
    votes = rng.integers(0, n_classes, size=(n_teachers, n_queries), dtype=np.int8)
    for row in votes:  # one teacher at a time: no temporary of the whole size
        np.copyto(row, right, where=rng.random(n_queries, dtype=np.float32) < agree)
    return votes


def seconds(run: Any, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def import_seconds(module: str) -> float:
    run = [sys.executable, "-c", f"import {module}"]
    return seconds(lambda: subprocess.run(run, check=True), repeats=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=10**6)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--agree", type=float, default=0.9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    votes = make_votes(
        options.teachers, options.queries, options.classes, options.agree
    )
    bare = seconds(lambda: votes.sum(axis=0))
    before = peak_bytes()

    def release() -> Any:
        mechanism = SparseVector(noise_scale=5, threshold=40, cutoff=options.queries)
        return mechanism.answer(
            Votes.from_predictions(votes, n_classes=options.classes)
        )

    answered = float(release().answered.mean())
    ours = seconds(release)
    copies = (peak_bytes() - before) / votes.nbytes
    budgets = {}
    for cutoff in (1, 10, 100, 1000):
        start = time.perf_counter()
        SparseVector.for_budget(epsilon=1, delta=1e-5, cutoff=cutoff)
        budgets[cutoff] = round(time.perf_counter() - start, 3)
    imports = {name: round(import_seconds(name), 3) for name in ("numpy", "mapl")}
    everything = round(import_seconds("mapl.privacy.sparse_vector"), 3)
    result = {
        "teachers": options.teachers,
        "queries": options.queries,
        "classes": options.classes,
        "answered": round(answered, 4),
        "numpy_sum_seconds": round(bare, 3),
        "release_seconds": round(ours, 3),
        "ratio": round(ours / bare, 2),
        "extra_copies": round(copies, 2),
        "for_budget_seconds": budgets,
        "import_seconds": {**imports, "mapl.privacy.sparse_vector": everything},
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
