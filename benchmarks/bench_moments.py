"""Moments against DP gradient descent and DP-EBM, on real data, in one run.

    python benchmarks/bench_moments.py --data DIR [--sets adult,magic] [--runs 5]
        [--epsilons 0.1,0.3,1,4] [--parts mapl,gd,ebm,maps,whitened,votes,rare,speed]
        [--most 40000] [--json]

delta is 1e-5 throughout. mapl runs with its defaults; nothing about it is chosen on a
test part. The alternatives are tuned *on the test part*, in their favour:

gd      full-batch DP gradient descent for (softmax) regression, continuous Gaussian
        noise, exact Gaussian accounting, number of records known: the best on the test
        part of all settings in GD (feature map, steps, step size, clipping)
ebm     DP-EBM of the package interpret (pip install interpret-core): defaults with the
        public points' ranges, and the best of two learning rates; sets of two classes
maps    moments on the features of single columns alone
whitened  moments with the public metric's power 1/2 (arXiv 2602.22282) instead of 1/4
votes   PrivateClassifier(LogisticRegression(C=10), method="votes"), and "both"
rare    sets with 1, 6 and 12 % positives: AUC, average precision, recall
speed   CPU seconds and memory of a fit, each in a process of its own
"""

import argparse
import json
import math
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, recall_score, roc_auc_score

import public_sets
from mapl import PrivateClassifier
from mapl.features import components
from mapl.features import maps as feature_maps
from mapl.features.components import GRID
from mapl.methods.pool import PublicMap
from mapl.privacy.gaussian_prices import gaussian_limit
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

DELTA = 1e-5
GD: dict[str, Any] = {"steps": (20, 80), "rate": (0.5, 2.0, 8.0), "clip": (0.5, 2.0)}
EBM_RATES = (0.1, 0.3)


def scores(shares: Any, y: Any) -> tuple[float, float]:
    """Return accuracy in % and area under the ROC curve, over classes the mean."""
    accuracy = 100 * float((shares.argmax(axis=1) == y).mean())
    if shares.shape[1] == 2:
        return accuracy, float(roc_auc_score(y, shares[:, 1]))
    present = [k for k in range(shares.shape[1]) if 0 < (y == k).sum() < len(y)]
    areas = [roc_auc_score(y == k, shares[:, k]) for k in present]
    return accuracy, float(np.mean(areas))


def classes_of(data: Any) -> list[int]:
    return list(range(int(max(data.y.max(), data.y_test.max())) + 1))


def mapl_shares(data: Any, epsilon: float, **kwargs: Any) -> Any:
    model = PrivateClassifier(epsilon=epsilon, classes=classes_of(data), **kwargs)
    return model.fit(
        data.X, data.y, X_public=data.pool, allow_overlap=True
    ).predict_proba(data.X_test)


# Alternatives -----------------------------------------------------------------------


class Images:
    """All parts of a set in the features that mapl makes of the public points."""

    def __init__(self, data: Any, seed: int) -> None:
        schema = Schema.of(data.pool)
        self.tables = [canonical_table(t, schema) for t in (data.X, data.X_test)]
        self.map = PublicMap.of(
            canonical_table(data.pool, schema), seed=seed
        ).feature_map

    def of(self, *, waves: bool) -> list[Any]:
        """Return private and test part, with or without waves."""
        return [
            np.vstack(
                [
                    (self._components(table, rows, waves) / GRID).astype(np.float32)
                    for rows in np.array_split(
                        np.arange(len(table)), 1 + len(table) // 4096
                    )
                ]
            )
            for table in self.tables
        ]

    def _components(self, table: Any, rows: Any, waves: bool) -> Any:
        found = self.map.components(self.map.encode(table.take(rows)))
        whole = self.map.whole(found)
        n = self.map.n_additive
        return whole if waves else np.hstack((whole[:, :n], whole[:, -1:]))


def descend(
    F: Any,
    y: Any,
    n_classes: int,
    mu: float,
    rng: Any,
    *,
    steps: int,
    rate: float,
    clip: float,
) -> Any:
    """DP gradient descent; returns the weights."""
    columns = 1 if n_classes == 2 else n_classes
    Y = (y[:, None] == ([1] if columns == 1 else np.arange(columns))).astype(np.float32)
    w = np.zeros((F.shape[1], columns), dtype=np.float32)
    lengths, sd = np.linalg.norm(F, axis=1), clip * math.sqrt(steps) / mu
    for _ in range(steps):
        R = Y - shares_of(F @ w)[:, -columns:]
        R *= np.minimum(
            1, clip / np.maximum(lengths * np.linalg.norm(R, axis=1), 1e-9)
        )[:, None]
        noisy = F.T @ R + sd * rng.normal(size=w.shape)
        w += (rate * noisy / len(F)).astype(np.float32)
    return w


def shares_of(logits: Any) -> Any:
    if logits.shape[1] == 1:
        p = 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
        return np.hstack((1 - p, p))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def gd_best(data: Any, images: Images, epsilons: Any, seed: int) -> dict[float, Any]:
    """Return the best accuracy and the best area, each over all settings."""
    n_classes = len(classes_of(data))
    found: dict[float, list[Any]] = {e: [] for e in epsilons}
    for waves in (False, True):
        F, test = images.of(waves=waves)
        for steps in GD["steps"]:
            for rate in GD["rate"]:
                for clip in GD["clip"]:
                    for epsilon in epsilons:
                        mu = math.sqrt(gaussian_limit(epsilon=epsilon, delta=DELTA))
                        rng = np.random.default_rng(seed)
                        setting: Any = {"steps": steps, "rate": rate, "clip": clip}
                        w = descend(F, data.y, n_classes, mu, rng, **setting)
                        found[epsilon].append(scores(shares_of(test @ w), data.y_test))
    return {e: tuple(np.max(values, axis=0)) for e, values in found.items()}


def ebm_shares(data: Any, epsilon: float, **kwargs: Any) -> Any:
    from interpret.privacy import DPExplainableBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    def plain(X: Any) -> Any:
        return X if hasattr(X, "columns") else np.asarray(X)

    pool = plain(data.pool)
    kinds, bounds = [], {}
    columns = list(pool.columns) if hasattr(pool, "columns") else range(pool.shape[1])
    coder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    texts = [
        c
        for c in columns
        if hasattr(pool, "columns") and pool[c].dtype.kind not in "fiub"
    ]
    if texts:
        coder.fit(pool[texts].astype(str))

    def encoded(X: Any) -> Any:
        if not hasattr(X, "columns"):
            return np.asarray(X, dtype=float)
        out = X.copy()
        if texts:
            out[texts] = coder.transform(X[texts].astype(str))
        return out[list(columns)].to_numpy(float)

    shown = encoded(pool)
    for j, c in enumerate(columns):
        nominal = c in texts
        kinds.append("nominal" if nominal else "continuous")
        if not nominal:
            bounds[j] = (float(shown[:, j].min()), float(shown[:, j].max()) + 1e-9)
    model = DPExplainableBoostingClassifier(
        feature_types=kinds,
        epsilon=epsilon,
        delta=DELTA,
        privacy_bounds=bounds,
        n_jobs=1,
        **kwargs,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(encoded(data.X), data.y).predict_proba(encoded(data.X_test))


# One set ----------------------------------------------------------------------------


def run_set(options: Any, name: str) -> dict[str, dict[float, list[Any]]]:
    """Return for each method and epsilon the scores of all runs."""
    found: dict[str, dict[float, list[Any]]] = {}

    def note(method: str, epsilon: float, score: Any) -> None:
        found.setdefault(method, {}).setdefault(epsilon, []).append(score)

    for seed in range(options.runs):
        data = public_sets.split(options.data, name, seed, most=options.most)
        for epsilon in options.epsilons:
            for method, kwargs in variants(options.parts).items():
                with patched(method):
                    shares = mapl_shares(data, epsilon, random_state=seed, **kwargs)
                note(method, epsilon, scores(shares, data.y_test))
        if "gd" in options.parts and seed < options.tuned_runs:
            best = gd_best(data, Images(data, seed), options.epsilons, seed)
            for epsilon, score in best.items():
                note("DP-GD, tuned on test", epsilon, score)
        tabular = getattr(data.pool, "ndim", 2) == 2
        if "ebm" in options.parts and len(classes_of(data)) == 2 and tabular:
            if seed >= options.tuned_runs:
                continue
            for epsilon in options.epsilons:
                note(
                    "DP-EBM, defaults",
                    epsilon,
                    scores(ebm_shares(data, epsilon), data.y_test),
                )
                tuned = [
                    scores(ebm_shares(data, epsilon, learning_rate=r), data.y_test)
                    for r in EBM_RATES
                ]
                note("DP-EBM, tuned on test", epsilon, tuple(np.max(tuned, axis=0)))
    return found


def variants(parts: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if "mapl" in parts:
        found["mapl"] = {}
    if "maps" in parts:
        found["mapl, column by column"] = {}
    if "whitened" in parts:
        found["mapl, whitened"] = {}
    if "votes" in parts:
        logistic = LogisticRegression(C=10, max_iter=200)
        found["mapl, votes"] = {"estimator": logistic, "method": "votes"}
        found["mapl, both"] = {"estimator": logistic}
    return found


class patched:  # noqa: N801 - reads like a function
    """Other constants than the defaults, while a variant runs."""

    def __init__(self, method: str) -> None:
        self._values: list[tuple[Any, str, Any]] = []
        if method == "mapl, column by column":
            names = ("FAMILIES", "OF_PROJECTIONS")
            self._values = [(feature_maps, name, ()) for name in names]
        if method == "mapl, whitened":
            self._values = [(components, "_POWER", 0.5)]

    def __enter__(self) -> None:
        self._before = [(m, n, getattr(m, n)) for m, n, _ in self._values]
        for module, name, value in self._values:
            setattr(module, name, value)

    def __exit__(self, *_: object) -> None:
        for module, name, value in self._before:
            setattr(module, name, value)


def show(name: str, found: dict[str, dict[float, list[Any]]]) -> None:
    for method, by in found.items():
        cells = [
            f"{e:g}: {np.mean(v, axis=0)[0]:.1f} ({np.mean(v, axis=0)[1]:.3f})"
            + (f" +-{np.std([x[0] for x in v]):.1f}" if len(v) > 1 else "")
            for e, v in by.items()
        ]
        print(f"{name:22} {method:26} {'  '.join(cells)}", flush=True)


def show_differences(everything: dict[str, Any], epsilons: Any) -> None:
    """Print by how much mapl leads the tuned alternatives, on average and at worst."""
    for other in ("DP-GD, tuned on test", "DP-EBM, tuned on test"):
        sets = [
            n for n, found in everything.items() if other in found and "mapl" in found
        ]
        if not sets:
            continue
        print(f"\nmapl minus {other}: mean over {len(sets)} sets (worst)")
        for epsilon in epsilons:
            lead = [
                np.mean(everything[n]["mapl"][epsilon], axis=0)
                - np.mean(everything[n][other][epsilon], axis=0)
                for n in sets
            ]
            worst = sets[int(np.argmin([x[0] for x in lead]))]
            mean = np.mean(lead, axis=0)
            print(
                f"  epsilon {epsilon:g}: accuracy {mean[0]:+.2f} "
                f"({min(x[0] for x in lead):+.2f} on {worst}), "
                f"AUC {mean[1]:+.4f} ({min(x[1] for x in lead):+.4f})"
            )


# Rare classes, speed ----------------------------------------------------------------


def run_rare(options: Any) -> None:
    print(
        "\nRare positives: AUC / average precision / recall at the published threshold"
    )
    for name in ("adult", "magic", "credit_default"):
        for share in (0.01, 0.06, 0.12):
            data = public_sets.split(options.data, name, 0, rare=share)
            images = Images(data, 0)
            for epsilon in options.epsilons:
                row = [("mapl", mapl_shares(data, epsilon))]
                balanced = mapl_shares(data, epsilon, class_weight="balanced")
                row.append(("balanced", balanced))
                row.append(("DP-GD", gd_best_ranked(data, images, epsilon)))
                cells = [f"{who} {rare_scores(p, data.y_test)}" for who, p in row]
                print(
                    f"{name} {share:.0%} epsilon {epsilon:g}: " + "; ".join(cells),
                    flush=True,
                )


def rare_scores(shares: Any, y: Any) -> str:
    area = roc_auc_score(y, shares[:, 1])
    precision = average_precision_score(y, shares[:, 1])
    recall = recall_score(y, shares.argmax(axis=1))
    return f"{area:.3f} / {precision:.3f} / {recall:.2f}"


def gd_best_ranked(data: Any, images: Images, epsilon: float) -> Any:
    """The setting with the largest area on the test part."""
    best, found = -1.0, None
    mu = math.sqrt(gaussian_limit(epsilon=epsilon, delta=DELTA))
    for waves in (False, True):
        F, test = images.of(waves=waves)
        for steps in GD["steps"]:
            for rate in GD["rate"]:
                for clip in GD["clip"]:
                    rng = np.random.default_rng(0)
                    w = descend(
                        F, data.y, 2, mu, rng, steps=steps, rate=rate, clip=clip
                    )
                    shares = shares_of(test @ w)
                    area = roc_auc_score(data.y_test, shares[:, 1])
                    if area > best:
                        best, found = area, shares
    return found


def run_speed(options: Any) -> None:
    print("\nA fit at epsilon 1 in a process of its own")
    for name in ("adult", "mnist", "letter", "covtype"):
        here, there = get_context("spawn").Pipe(duplex=False)
        child = get_context("spawn").Process(
            target=speed_alone, args=(there, options.data, name)
        )
        child.start()
        n, seconds, wall, peak = here.recv()
        child.join()
        print(
            f"{name}: {n:,} records, {seconds:.1f} CPU s, {wall:.1f} s, "
            f"{peak:.0f} MB beyond the input",
            flush=True,
        )


def speed_alone(there: Any, folder: Path, name: str) -> None:
    import resource

    import mapl.estimator  # noqa: F401 - loaded before the clock starts

    data = public_sets.split(folder, name, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, wall = time.process_time(), time.perf_counter()
    mapl_model = PrivateClassifier(epsilon=1, classes=classes_of(data))
    mapl_model.fit(data.X, data.y, X_public=data.pool, allow_overlap=True)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = time.process_time() - start
    there.send((len(data.y), seconds, time.perf_counter() - wall, peak))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    every = (*public_sets.SETTLED, *public_sets.CONFIRMED)
    parser.add_argument("--sets", default=",".join(every))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tuned-runs", type=int, default=1)
    parser.add_argument("--epsilons", default="0.1,0.3,1,4")
    parser.add_argument("--parts", default="mapl,gd,ebm")
    parser.add_argument("--most", type=int, default=400_000, help="private records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.epsilons = [float(e) for e in options.epsilons.split(",")]
    options.parts = options.parts.split(",")
    warnings.filterwarnings("ignore", "No public point gets class")
    print(
        f"{vars(options)}\ndelta {DELTA:g}, GD {GD}, EBM rates {EBM_RATES}", flush=True
    )
    everything = {}
    if set(options.parts) - {"rare", "speed"}:
        for name in options.sets.split(","):
            kind = "settled on" if name in public_sets.SETTLED else "confirmed on"
            everything[name] = run_set(options, name)
            show(f"{name} ({kind[0]})", everything[name])
        show_differences(everything, options.epsilons)
    if "rare" in options.parts:
        run_rare(options)
    if "speed" in options.parts:
        run_speed(options)
    if options.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
