"""Training and asking teachers: a bare loop, joblib, bagging, and mapl.

    python benchmarks/bench_teachers.py --data DIR [--only PART ...] [--json]

Every way trains the same learner on the same chunks and asks the same points; fit and
ask are timed apart, in one run, on `--jobs` workers (the bare loop on one). joblib's
workers are started before the clock is. Bagging is scikit-learn's BaggingClassifier
with subsets of the same size, the nearest thing one would reach for: it draws its own
subsets (as weights of all records, where the learner takes weights), and its answer is
one label, not a vote of each; it is timed with two teachers and scaled up.
`agree` is the share of votes that are those of the loop, or, where learners draw, those
of predict of the same models.

Parts: adult, covtype, forests, others, growth, memory.
"""

import argparse
import json
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from bench_learner import encoder, load
from mapl.teachers.panel import Panel
from mapl.teachers.training import train

SEED = 0
N_QUERIES = 10_000
Case = tuple[Any, Any, Any]


def adult(data: Path) -> Case:
    """Records, labels and public points, encoded in a public way."""
    X, y, X_test, _ = load(data)
    encode = encoder(X)
    return encode.transform(X), y, encode.transform(X_test)[:N_QUERIES]


def covtype(data: Path) -> Case:
    frame = pd.read_parquet(data / "covtype.parquet")
    frame = frame.sample(frac=1, random_state=SEED)
    X = frame.iloc[:, :54].to_numpy(dtype=np.float64)
    y = frame.iloc[:, 54].to_numpy(dtype=np.int64) - 1
    pool = X[:N_QUERIES]
    X = (X - pool.mean(axis=0)) / np.maximum(pool.std(axis=0), 1e-3)
    return X[N_QUERIES:], y[N_QUERIES:], X[:N_QUERIES]


def cut(n: int, n_chunks: int, size: int) -> list[Any]:
    order = np.random.default_rng(SEED).permutation(n)
    return [order[j * size : (j + 1) * size] for j in range(n_chunks)]


def clock(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def fit_one(model: Any, X: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y) if len(np.unique(y)) > 1 else int(y[0])


def ask_one(model: Any, pool: Any) -> Any:
    return np.full(len(pool), model) if isinstance(model, int) else model.predict(pool)


def compare(
    learner: Any, case: Case, chunks: list[Any], jobs: int, *, loop_share: int
) -> dict[str, Any]:
    """Time all ways. The bare loop runs over a share of the chunks and is scaled up."""
    X, y, pool = case
    few = chunks[::loop_share]
    with threadpool_limits(1):
        loop_fit, own = clock(
            lambda: [fit_one(clone(learner), X[c], y[c]) for c in few]
        )
        loop_ask, said = clock(lambda: [ask_one(model, pool) for model in own])
    workers = joblib.Parallel(n_jobs=jobs)
    fit, ask = joblib.delayed(fit_one), joblib.delayed(ask_one)
    workers(fit(clone(learner), X[c], y[c]) for c in chunks[: 4 * jobs])
    joblib_fit, models = clock(
        lambda: workers(fit(clone(learner), X[c], y[c]) for c in chunks)
    )
    joblib_ask, _ = clock(lambda: workers(ask(model, pool) for model in models))
    some = 2
    bagging = BaggingClassifier(
        learner,
        some,
        max_samples=len(chunks[0]),
        bootstrap=False,
        n_jobs=jobs,
        random_state=SEED,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bagging_fit, _ = clock(lambda: bagging.fit(X, y))
        bagging_ask, _ = clock(lambda: bagging.predict(pool))
    classes = np.unique(y)
    mapl_fit, teachers = clock(
        lambda: train(learner, X, y, chunks, labels=classes, random_state=SEED)
    )
    mapl_ask, votes = clock(lambda: Panel(teachers, n_classes=len(classes)).ask(pool))
    if "random_state" in learner.get_params() and "solver" not in learner.get_params():
        some_teachers = teachers[::loop_share]  # other seeds, other models: ask these
        said = [one.model.predict(pool) for one in some_teachers if one is not None]
    seconds = {
        "loop": (loop_fit * len(chunks) / len(few), loop_ask * len(chunks) / len(few)),
        "joblib": (joblib_fit, joblib_ask),
        "bagging": (
            bagging_fit * len(chunks) / some,
            bagging_ask * len(chunks) / some,
        ),
        "mapl": (mapl_fit, mapl_ask),
    }
    return {
        "learner": repr(learner),
        "teachers": len(chunks),
        "records each": len(chunks[0]),
        "features": X.shape[1],
        "queries": len(pool),
        "seconds (fit, ask)": {
            name: [round(value, 3) for value in both] for name, both in seconds.items()
        },
        "times faster than joblib": {
            "fit": round(joblib_fit / mapl_fit, 2),
            "ask": round(joblib_ask / mapl_ask, 2),
            "both": round((joblib_fit + joblib_ask) / (mapl_fit + mapl_ask), 2),
        },
        "agree": round(float((votes[::loop_share] == np.array(said)).mean()), 5),
    }


def one_point(learner: Any, case: Case, chunks: list[Any]) -> dict[str, Any]:
    """Ask all teachers about one point, as an online service does."""
    X, y, pool = case
    classes = np.unique(y)
    teachers = train(learner, X, y, chunks, labels=classes, random_state=SEED)
    made, panel = clock(lambda: Panel(teachers, n_classes=len(classes)))
    panel.ask(pool[:1])
    ours = [clock(lambda i=i: panel.ask(pool[i : i + 1]))[0] for i in range(20)]
    models = [one.model for one in teachers if one is not None and one.model]
    theirs = [
        clock(lambda i=i: [model.predict(pool[i : i + 1]) for model in models])[0]
        for i in range(3)
    ]
    mean = float(np.median(ours))
    return {
        "getting ready, seconds": round(made, 3),
        "one point, milliseconds": round(1000 * mean, 2),
        "loop of predict, milliseconds": round(1000 * float(np.median(theirs)), 1),
        "times faster": round(float(np.median(theirs)) / mean),
    }


def growth(case: Case, jobs: int) -> dict[str, Any]:
    """Seconds to train and ask logistic regressions as one size doubles, twice."""
    X, y, pool = case

    def run(records: int, teachers: int, queries: int, features: int) -> float:
        chunks = cut(records, teachers, records // teachers)
        some, points = X[:, :features], pool[:queries, :features]

        def work() -> None:
            made = train(
                LogisticRegression(),
                some,
                y,
                chunks,
                labels=np.unique(y),
                random_state=SEED,
            )
            Panel(made, n_classes=2).ask(points)

        return min(clock(work)[0] for _ in range(3))

    base = {"records": 8000, "teachers": 200, "queries": 2500, "features": 26}
    return {
        name: [round(run(**base | {name: base[name] * by}), 3) for by in (1, 2, 4)]
        for name in base
    }


def memory(n: int, n_teachers: int) -> dict[str, Any]:
    """Train on memory-mapped records in a process of its own; watch its own memory."""
    with tempfile.TemporaryDirectory() as folder:
        X = np.lib.format.open_memmap(
            f"{folder}/X.npy", "w+", dtype=np.float64, shape=(n, 20)
        )
        rng = np.random.default_rng(SEED)
        for start in range(0, n, 10**6):
            X[start : start + 10**6] = rng.normal(size=(min(10**6, n - start), 20))
        X.flush()
        context = get_context("spawn")
        there, here = context.Pipe()
        child = context.Process(target=watched, args=(here, folder, n_teachers))
        child.start()
        result: dict[str, Any] = there.recv()
        child.join()
        return result


def watched(pipe: Any, folder: str, n_teachers: int) -> None:
    X = np.load(f"{folder}/X.npy", mmap_mode="r")
    n = len(X)
    y = np.empty(n, dtype=np.int64)
    for start in range(0, n, 10**6):
        y[start : start + 10**6] = X[start : start + 10**6, :4].sum(axis=1) > 0
    chunks = [np.arange(j, n, n_teachers) for j in range(n_teachers)]
    before, peak, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds, teachers = clock(
        lambda: train(
            LogisticRegression(), X, y, chunks, labels=np.arange(2), random_state=SEED
        )
    )
    done.set()
    watcher.join()
    from mapl.teachers.stacked import _STACK_CELLS

    models = n_teachers * (21 * 8 + 2000)
    pipe.send(
        {
            "records": n,
            "features": 20,
            "teachers": n_teachers,
            "fit seconds": round(seconds, 1),
            "data, MB": round(n * 20 * 8 / 1e6),
            "one stack of chunks, MB": round(_STACK_CELLS * 8 / 1e6, 1),
            "models, about, MB": round(models / 1e6, 1),
            "peak above start, MB": round((peak[0] - before) / 1e6, 1),
            "trained": sum(teacher is not None for teacher in teachers),
        }
    )


def anonymous() -> int:
    """Memory of this process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--records", type=int, default=10**7, help="of part memory")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "adult": lambda: compare(
            LogisticRegression(max_iter=300),
            adult(options.data),
            cut(26_000, 1000, 26),
            options.jobs,
            loop_share=10,
        ),
        "covtype": lambda: compare(
            LogisticRegression(max_iter=300),
            covtype(options.data),
            cut(500_000, 1000, 500),
            options.jobs,
            loop_share=20,
        ),
        "forests": lambda: compare(
            RandomForestClassifier(100),
            adult(options.data),
            cut(26_000, 250, 104),
            options.jobs,
            loop_share=25,
        ),
        "one point, 250 forests": lambda: one_point(
            RandomForestClassifier(100), adult(options.data), cut(26_000, 250, 104)
        ),
        "others: naive Bayes": lambda: compare(
            GaussianNB(),
            adult(options.data),
            cut(26_000, 250, 104),
            options.jobs,
            loop_share=5,
        ),
        "others: neighbours": lambda: compare(
            KNeighborsClassifier(),
            adult(options.data),
            cut(26_000, 250, 104),
            options.jobs,
            loop_share=25,
        ),
        "growth": lambda: growth(adult(options.data), options.jobs),
        "memory": lambda: memory(options.records, 2000),
    }
    result = {}
    for name, part in parts.items():
        if options.only and not any(name.startswith(only) for only in options.only):
            continue
        result[name] = part()
        if not options.json:
            print(f"{name}\n  {json.dumps(result[name], indent=2)}", flush=True)
    if options.json:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
