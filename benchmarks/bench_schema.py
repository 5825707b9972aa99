"""Nothing public but a data dictionary: mapl against its peers, on real data.

    python benchmarks/bench_schema.py --data DIR [--sets adult,magic] [--runs 5]
        [--epsilons 0.3,1,4] [--parts schema,pool,wide,peers,speed] [--most 40000]
        [--peers PYTHON]

delta is 1e-5 throughout; mapl runs with its defaults. A fifth of the training part is
public for the part "pool" and private for all others, so every part sees the same
people. The data dictionary stands for one written by hand: kinds, category lists and
ranges of the whole set, each range rounded outwards to 1, 2 or 5 times a power of ten.

schema  PrivateClassifier(schema=...), all of the training part private
pool    PrivateClassifier() with a fifth of it as public, unlabelled records
wide    as schema, with ranges ten times as wide
peers   run by another interpreter, that of --peers, which has what it finds of these:
        diffprivlib (logistic regression, bounds from the dictionary), interpret
        (DP-EBM, defaults and learning rate 0.1, ranges from the dictionary), dpmm (MST,
        then gradient boosting on its synthetic records)
speed   CPU seconds and memory for 10^6 made-up records of 20 columns
"""

import argparse
import math
import resource
import subprocess
import tempfile
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import public_sets
from bench_moments import scores
from mapl import PrivateClassifier

DELTA = 1e-5
# Constants were settled on the first, and confirmed on the others.
SETTLED = ("adult", "magic", "electricity", "letter", "mushroom", "phishing", "a9a")
CONFIRMED = (
    *("credit_default", "nycflights13", "covtype", "shuttle"),
    *("kddcup99_10percent", "diabetes_readmission"),
)


def as_frame(X: Any) -> Any:
    if not hasattr(X, "columns"):
        X = pd.DataFrame(np.asarray(X), columns=[f"x{i}" for i in range(X.shape[1])])
    return X.set_axis([str(name) for name in X.columns], axis=1)


def outwards(value: float, *, up: bool) -> float:
    """Round to 1, 2 or 5 times a power of ten, away from the values."""
    if value == 0:
        return 0.0
    away = up == (value > 0)
    power = 10.0 ** math.floor(math.log10(abs(value)))
    steps = [power * k for k in (1, 2, 5, 10)]
    found = [s for s in steps if (s >= abs(value) if away else s <= abs(value))]
    return math.copysign(min(found) if away else max(found), value)


def dictionary(X: Any, wide: float = 1.0) -> dict[str, Any]:
    """Return a data dictionary of a whole set."""
    columns: dict[str, Any] = {}
    for name in X.columns:
        values = X[name].dropna()
        if values.dtype.kind in "fiub":
            whole = bool((values == np.rint(values)).all())
            low = outwards(float(values.min()), up=False)
            high = outwards(float(values.max()), up=True)
            high = high if high > low else low + 1
            if not (whole and (low, high) == (0, 1)):
                low, high = min(low * wide, low), high * wide
            kind = "integer" if whole else "number"
            columns[name] = {"kind": kind, "range": [low, high]}
        else:
            listed = sorted({str(value) for value in values})
            columns[name] = {"kind": "category", "categories": listed}
    return {"columns": columns}


class Parts:
    """One split of a set, with its dictionary."""

    def __init__(self, folder: Path, name: str, seed: int, most: int) -> None:
        data = public_sets.split(folder, name, seed, most=most)
        frames = [as_frame(X) for X in (data.X, data.pool, data.X_test)]
        self.X, self.pool, self.X_test = frames
        self.y, self.y_test = data.y, data.y_test
        X, y, test = public_sets.load(folder, name)
        self.everything = as_frame(X)
        # The public fifth again, with its labels: private for all parts but "pool".
        order = np.random.default_rng(seed).permutation(np.flatnonzero(~test))
        self.y_pool = y[order[: len(self.pool)]]
        self.classes = list(range(int(max(y.max(), 1)) + 1))

    def whole(self) -> tuple[Any, Any]:
        """Return all of the training part."""
        X = pd.concat([self.X, self.pool], ignore_index=True)
        return X, np.concatenate([self.y, self.y_pool])


def mapl_shares(parts: Parts, epsilon: float, part: str) -> Any:
    model = PrivateClassifier(epsilon=epsilon, classes=parts.classes)
    if part == "pool":
        model.fit(parts.X, parts.y, X_public=parts.pool, allow_overlap=True)
    else:
        model.schema = dictionary(parts.everything, 10.0 if part == "wide" else 1.0)
        model.fit(*parts.whole())
    return model.predict_proba(parts.X_test)


def peer_shares(parts: Parts, epsilon: float, python: str) -> dict[str, Any]:
    """Return the peers' probabilities, from another interpreter."""
    script = Path(__file__).with_name("schema_peers.py")
    X, y = parts.whole()
    form = dictionary(parts.everything)["columns"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        X.assign(target=y).to_parquet(place / "train.parquet")
        parts.X_test.to_parquet(place / "test.parquet")
        pd.Series({"columns": form}).to_json(place / "schema.json")
        command = [python, str(script), folder, str(epsilon), str(len(parts.classes))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {p.stem: np.load(p) for p in sorted(place.glob("*.npy"))}


def run_set(name: str, args: Any) -> dict[str, Any]:
    """Return each part's mean accuracy and area, by epsilon."""
    found: dict[str, dict[float, list[Any]]] = {}
    for seed in range(args.runs):
        parts = Parts(args.data, name, seed, args.most)
        for epsilon in args.epsilons:
            shares = {
                part: mapl_shares(parts, epsilon, part)
                for part in args.parts
                if part in ("schema", "pool", "wide")
            }
            if "peers" in args.parts:
                shares |= peer_shares(parts, epsilon, args.peers)
            for part, own in shares.items():
                score = scores(own, parts.y_test)
                found.setdefault(part, {}).setdefault(epsilon, []).append(score)
    return {
        part: {e: np.mean(each, axis=0) for e, each in by_epsilon.items()}
        for part, by_epsilon in found.items()
    }


def speed(_: int) -> str:
    """Fit 10^6 records of 20 columns, in a process of its own."""
    rng, n = np.random.default_rng(0), 10**6
    X = pd.DataFrame({f"x{i}": rng.normal(size=n) for i in range(16)})
    for i in range(4):
        X[f"c{i}"] = rng.choice(["a", "b", "c", "d"], n).astype(object)
    y = (X["x0"] + X["x1"] * 2 + rng.logistic(size=n) > 0).to_numpy(int)
    form = dictionary(X[:1000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    PrivateClassifier(epsilon=1, classes=[0, 1], schema=form).fit(X, y)
    used = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (
        f"10^6 records, 20 columns: {used:.1f} CPU seconds, {peak / 1024:.0f} MB at "
        f"the peak, {before / 1024:.0f} MB of it the records"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join((*SETTLED, *CONFIRMED)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilons", default="0.3,1,4")
    parser.add_argument("--parts", default="schema,pool,wide")
    parser.add_argument("--most", type=int, default=40_000)
    parser.add_argument("--peers", default="python3")
    args = parser.parse_args()
    args.epsilons = [float(e) for e in args.epsilons.split(",")]
    args.parts = args.parts.split(",")
    print(vars(args), "delta", DELTA, flush=True)
    warnings.simplefilter("ignore")
    if "speed" in args.parts:
        with get_context("spawn").Pool(1) as pool:
            print(pool.apply(speed, (0,)), flush=True)
    results: dict[str, Any] = {}
    for name in args.sets.split(",") if set(args.parts) != {"speed"} else []:
        results[name] = run_set(name, args)
        kind = "settled" if name in SETTLED else "confirmed"
        for part, by_epsilon in results[name].items():
            line = "  ".join(
                f"{e:g}: {a:.1f} ({b:.3f})" for e, (a, b) in by_epsilon.items()
            )
            print(f"{name:22} {kind:9} {part:18} {line}", flush=True)
    show_differences(results, args.epsilons)


def show_differences(results: dict[str, Any], epsilons: list[float]) -> None:
    """Print how far the schema is ahead of each other part, over the sets."""
    others = {part for found in results.values() for part in found} - {"schema"}
    for part in sorted(others):
        for e in epsilons:
            gaps = {
                name: found["schema"][e] - found[part][e]
                for name, found in results.items()
                if part in found
            }
            mean = np.mean(list(gaps.values()), axis=0)
            worst = min(gaps, key=lambda name: gaps[name][0])
            print(
                f"schema minus {part}, epsilon {e:g}: accuracy {mean[0]:+.2f} "
                f"({gaps[worst][0]:+.2f} on {worst}), AUC {mean[1]:+.4f}, "
                f"{len(gaps)} sets"
            )


if __name__ == "__main__":
    main()
