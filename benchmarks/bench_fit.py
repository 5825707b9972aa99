"""A whole fit, all that a user waits for, beside what it is compared with, in one run.

    python benchmarks/bench_fit.py [--parts PART,...] [--plot FILE] [--json]

Parts:
    teachers  PrivateClassifier(estimator) against a joblib loop with as many workers
              that only trains and asks the same teachers: with workers that are already
              started, and as a script meets it, workers included
    default   PrivateClassifier() against scikit-learn's LogisticRegression on the same
              records as encoded by mapl
    workers   two workers against one
    start     importing mapl, `mapl --help`, `mapl learn` on 1,000 records
    dpsgd     against one run of Opacus to the same accuracy (needs opacus and torch)
    growth    seconds as records, public points, classes or features double

Records are made up (scikit-learn's make_classification): nothing depends on which they
are but accuracy. Every figure is the least of `--repeat` runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from mapl import PrivateClassifier
from mapl.methods.pool import PublicMap
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

RECORDS, POOL, FEATURES, TEACHERS, JOBS = 40_000, 5_000, 20, 500, 2


def data(
    n: int = RECORDS, pool: int = POOL, features: int = FEATURES, classes: int = 2
) -> tuple[Any, Any, Any]:
    X, y = make_classification(
        n + pool,
        n_features=features,
        n_informative=min(features, 15),
        n_redundant=0,
        n_classes=classes,
        n_clusters_per_class=2 if classes == 2 else 1,
        random_state=0,
    )
    return X[:n], y[:n], X[n:]


def seconds(repeat: int, work: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    found = []
    for _ in range(repeat):
        start = time.perf_counter()
        work(*args, **kwargs)
        found.append(time.perf_counter() - start)
    return min(found)


def fit(estimator: Any, case: Any, **kwargs: Any) -> Any:
    X, y, pool = case
    classes = list(range(int(y.max()) + 1))
    model = PrivateClassifier(estimator, classes=classes, random_state=0, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, X_public=pool, allow_overlap=True)


def one_teacher(estimator: Any, X: Any, y: Any, pool: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y).predict(pool)


def teachers(repeat: int) -> list[dict[str, Any]]:
    cases = [
        (LogisticRegression(), {}, TEACHERS),
        (LogisticRegression(), {"classes": 26}, TEACHERS),
        (RandomForestClassifier(50, random_state=0), {}, 200),
        (HistGradientBoostingClassifier(max_iter=20), {}, 100),
        (GaussianNB(), {}, 2000),
    ]
    return [against_a_loop(*case, repeat) for case in cases]


def against_a_loop(
    estimator: Any, shape: dict[str, int], n: int, repeat: int
) -> dict[str, Any]:
    X, y, pool = data(**shape)
    order = np.random.default_rng(0).permutation(len(X))
    chunks = np.array_split(order, n)
    workers, task = joblib.Parallel(n_jobs=JOBS), joblib.delayed(one_teacher)

    def train_and_ask() -> None:
        workers(task(estimator, X[c], y[c], pool) for c in chunks)

    get_reusable_executor().shutdown()
    first = seconds(1, train_and_ask)
    loop = seconds(repeat, train_and_ask)
    case = X, y, pool
    whole = seconds(repeat, fit, estimator, case, n_teachers=n, n_jobs=JOBS)
    return {
        "learner": type(estimator).__name__,
        "classes": shape.get("classes", 2),
        "teachers": n,
        "loop, seconds": round(loop, 2),
        "loop with start of workers, seconds": round(first, 2),
        "whole fit, seconds": round(whole, 2),
        "loop over fit": round(loop / whole, 2),
        "loop with start over fit": round(first / whole, 2),
    }


def default(repeat: int) -> list[dict[str, Any]]:
    found = []
    for classes in (2, 26):
        X, y, pool = data(classes=classes)
        schema = Schema.of(pool)
        feature_map = PublicMap.of(canonical_table(pool, schema), seed=0).feature_map
        table = canonical_table(X, schema)
        cells = feature_map.components(feature_map.encode(table)) / 2048.0
        case = X, y, pool
        # joblib.Parallel does not help one regression; BLAS has all cores.
        plain = seconds(repeat, LogisticRegression().fit, cells, y)
        whole = seconds(repeat, fit, None, case, n_jobs=JOBS)
        found.append(
            {
                "classes": classes,
                "encoded features": cells.shape[1],
                "LogisticRegression, seconds": round(plain, 2),
                "whole fit, seconds": round(whole, 2),
                "fit over regression": round(whole / plain, 2),
            }
        )
    return found


def workers(repeat: int) -> list[dict[str, Any]]:
    found = []
    for estimator, n in (
        (RandomForestClassifier(10, random_state=0), 200),
        (RandomForestClassifier(50, random_state=0), 200),
        (LogisticRegression(), 500),
        (None, 100),
    ):
        case = data()
        one, two = (
            seconds(repeat, fit, estimator, case, n_teachers=n, n_jobs=jobs)
            for jobs in (1, 2)
        )
        found.append(
            {
                "learner": repr(estimator),
                "one worker, seconds": round(one, 2),
                "two workers, seconds": round(two, 2),
                "two over one": round(two / one, 2),
            }
        )
    return found


def start(repeat: int) -> list[dict[str, Any]]:
    mapl = str(Path(sys.executable).parent / "mapl")
    with tempfile.TemporaryDirectory() as folder:
        X, y, pool = data(1000, 1000)
        names = [f"x{i}" for i in range(X.shape[1])]
        frame = pd.DataFrame(X, columns=names).assign(y=y)
        frame.to_csv(f"{folder}/private.csv", index=False)
        pd.DataFrame(pool, columns=names).to_csv(f"{folder}/public.csv", index=False)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import mapl": [sys.executable, "-c", "import mapl"],
            "mapl --help": [mapl, "--help"],
            "mapl learn, 1,000 records": [
                *(mapl, "learn", f"{folder}/private.csv", "--target", "y"),
                *("--classes", "0,1", "--public", f"{folder}/public.csv"),
                *("--epsilon", "1", "--out", f"{folder}/model", "--overwrite"),
            ],
        }

        def run(command: list[str]) -> None:
            subprocess.run(command, check=True, capture_output=True)

        return [
            {"command": name, "seconds": round(seconds(repeat, run, command), 2)}
            for name, command in commands.items()
        ]


def dpsgd(repeat: int) -> list[dict[str, Any]]:
    """One run of DP-SGD that stops at mapl's accuracy, or after twenty epochs."""
    try:
        import torch
        from opacus import PrivacyEngine
    except ImportError:
        return [{"skipped": "opacus is not installed"}]
    X, y, pool = data()
    mean, scale = pool.mean(axis=0), pool.std(axis=0)
    model = fit(None, (X, y, pool), n_jobs=JOBS)
    goal = model.score(X, y)
    whole = seconds(repeat, fit, None, (X, y, pool), n_jobs=JOBS)
    inputs = torch.tensor((X - mean) / scale, dtype=torch.float32)
    labels = torch.tensor(y)
    net: Any = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=2.0)
    set_of = torch.utils.data.TensorDataset(inputs, labels)
    loader: Any = torch.utils.data.DataLoader(set_of, batch_size=512)
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=1,
        target_delta=1e-5,
        epochs=20,
        max_grad_norm=1.0,
    )
    begun, accuracy, epochs = time.perf_counter(), 0.0, 0
    while accuracy < goal and epochs < 20:
        for some, wanted in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(some), wanted).backward()
            optimizer.step()
        epochs += 1
        with torch.no_grad():
            accuracy = float((net(inputs).argmax(dim=1) == labels).float().mean())
    taken = time.perf_counter() - begun
    return [
        {
            "mapl, seconds": round(whole, 2),
            "mapl, accuracy on the records": round(goal, 4),
            "DP-SGD (64 hidden units), seconds": round(taken, 2),
            "DP-SGD, epochs": epochs,
            "DP-SGD, accuracy on the records": round(accuracy, 4),
            "DP-SGD over mapl": round(taken / whole, 1),
        }
    ]


def growth(repeat: int) -> list[dict[str, Any]]:
    base = {"n": 20_000, "pool": 2_500, "classes": 5, "features": 16}
    names = {"n": "records", "pool": "public points"}
    found = []
    for name in base:
        sizes = [base[name] * by for by in (1, 2, 4)]
        cases = [data(**base | {name: size}) for size in sizes]
        times = [seconds(repeat, fit, None, case) for case in cases]
        ratios = [times[1] / times[0], times[2] / times[1]]
        found.append(
            {
                "doubled": names.get(name, name),
                "sizes": sizes,
                "seconds": [round(t, 2) for t in times],
                "ratios": [round(ratio, 2) for ratio in ratios],
            }
        )
    return found


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for row in rows:
        times = np.array(row["seconds"]) / row["seconds"][0]
        label = f"{row['doubled']} (from {row['sizes'][0]:,})"
        ax.plot([1, 2, 4], times, marker="o", label=label)
    ax.plot([1, 2, 4], [1, 2, 4], color="grey", linestyle=":", label="proportional")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xticks([1, 2, 4])
    ax.set_xlabel("times as many")
    ax.set_ylabel("times as long")
    ax.legend(frameon=False)
    fig.savefig(path)


PARTS = {
    "teachers": teachers,
    "default": default,
    "workers": workers,
    "start": start,
    "dpsgd": dpsgd,
    "growth": growth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="of part growth")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "parameters": {
            "records": RECORDS,
            "public points": POOL,
            "features": FEATURES,
            "workers": JOBS,
            "epsilon": 1,
            "repeat": options.repeat,
        }
    }
    for name in options.parts.split(","):
        found[name] = PARTS[name](options.repeat)
        if not options.json:
            print(name, *(f"  {row}" for row in found[name]), sep="\n", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))
    if options.plot and "growth" in found:
        plot(found["growth"], options.plot)


if __name__ == "__main__":
    main()
