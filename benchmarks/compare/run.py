"""mapl beside what else one would use, on real data, in one command.

    python benchmarks/compare/run.py [--data DIR] [--sets adult,magic] [--seeds 3]
        [--epsilons 0.1,0.3,1,2,4,8] [--only dp-sgd,mapl] [--jobs 2]
        [--work DIR] [--page FILE]

Without --data, the Adult data of the package. Each peer runs in an environment of its
own, which is made in --work when it is first needed. A fit that is done is not done
again: results are kept by a digest of data, code, versions and parameters.

delta is 1e-5 throughout. Neighbours differ by one record that is added or removed. A
fifth of the training part is public, without labels, for the methods that use public
records; the others have it as private records. The data dictionary stands for one
written by hand: kinds, categories, and ranges of the whole set rounded outwards to 1, 2
or 5 times a power of ten. Regressions and networks get columns that are standardised by
their true means and deviations, as if these were public.

mapl runs with its defaults. Every other method runs with its defaults, or with a
plausible setting where it has none, and again with the setting that is best ON THE TEST
PART, which nobody could choose: rows with "tuned" favour the peer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import page  # noqa: E402
from sklearn.metrics import log_loss, roc_auc_score  # noqa: E402

import public_sets  # noqa: E402
from bench_schema import as_frame, dictionary  # noqa: E402
from mapl.progress import Progress  # noqa: E402

PEERS = HERE / "peers.py"
TABLES = ["pandas", "pyarrow", "scikit-learn"]
ENVIRONMENTS = {
    "opacus": ["torch==2.13.0", "opacus==1.6.0", *TABLES],
    "interpret": ["interpret-core==0.7.8", *TABLES],
    "diffprivlib": ["diffprivlib==0.6.6", "pandas", "pyarrow", "scikit-learn<1.8"],
    "dpmm": ["dpmm==0.1.9", "pandas", "pyarrow<18", "scikit-learn"],
}


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    peer: str
    settings: list[dict[str, Any]]  # the first is the default
    environment: str = ""  # that of this interpreter
    needs: str = ""
    most_classes: int = 1000
    most_columns: int = 1000
    options: dict[str, Any] = field(default_factory=dict)


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """Return all combinations; the first one is the default."""
    found: list[dict[str, Any]] = [{}]
    for name, listed in values.items():
        found = [own | {name: value} for own in found for value in listed]
    return found


DICTIONARY, POOL = "data dictionary", "public records"
SCALE, RANGES = "means, deviations", "ranges"
SGD: list[dict[str, Any]] = [
    {"epochs": 20, "rate": 0.005, "clip": 1.0, "batch": 1024},
    {"epochs": 40, "rate": 0.02, "clip": 1.0, "batch": 1024},
]
GD = grid(steps=[80, 200], rate=[8.0, 2.0], clip=[1.0, 3.0])
METHODS = [
    Method("mapl, dictionary", "mapl", [{}], needs=DICTIONARY),
    Method("mapl, public records", "mapl", [{"public": True}], needs=POOL),
    *(
        Method(f"mapl, {name} as learner", "mapl", [own], needs=needs)
        for name, own, needs in [
            ("logistic", {"learner": "logistic", "public": True}, POOL),
            ("boosting", {"learner": "boosting", "public": True}, POOL),
            ("forest", {"learner": "forest", "public": True}, POOL),
        ]
    ),
    *(
        Method(
            f"mapl, {name} as learner, no public records",
            "mapl",
            [{"learner": name}],
            needs=DICTIONARY,
        )
        for name in ("logistic", "boosting", "forest")
    ),
    Method(
        "DP-SGD logistic regression (Opacus)",
        "dp-sgd",
        [{"hidden": 0} | own for own in SGD],
        "opacus",
        SCALE,
    ),
    Method(
        "DP-SGD network (Opacus)",
        "dp-sgd",
        [{"hidden": 64} | own for own in SGD],
        "opacus",
        SCALE,
    ),
    Method("DP gradient descent", "dp-gd", GD, needs=SCALE + ", n"),
    Method(
        "DP gradient descent, public moments (2602.22282)",
        "dp-gd",
        [{"whitened": True, "public": True} | own for own in GD],
        needs=SCALE + ", n, " + POOL,
    ),
    Method(
        "DP-EBM (interpret)",
        "dp-ebm",
        [{}, {"learning_rate": 0.1}, {"learning_rate": 0.3}],
        "interpret",
        RANGES,
        most_classes=2,
    ),
    Method(
        "logistic regression (diffprivlib)",
        "diffprivlib",
        grid(C=[1.0, 0.1, 0.01]),
        "diffprivlib",
        SCALE,
    ),
    Method(
        "noisy max (PATE 2018)",
        "mapl",
        [
            {"learner": "logistic", "public": True, "method": "votes"}
            | {"mechanism": "noisy-max"}
            | own
            for own in grid(n_teachers=["auto", 250])
        ],
        needs=POOL,
    ),
    Method(
        "synthetic data (MST), then boosting",
        "synthetic",
        [{"method": "MST"}],
        "dpmm",
        DICTIONARY,
        most_columns=30,
    ),
    *(
        Method(f"no privacy: {name}", "no-privacy", [{"learner": name}])
        for name in ("logistic", "forest", "boosting")
    ),
]


# Data -------------------------------------------------------------------------------


def write_case(work: Path, data: Path | None, name: str, seed: int, most: int) -> Path:
    """Write a set in parts; the folder goes by a digest of what it holds."""
    if data is None:
        X, y, test = packaged_adult()
    else:
        X, y, test = public_sets.load(data, name)
    X = as_frame(X)
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(~test))[:most]
    held = np.flatnonzero(test)
    cut = min(len(order) // 5, public_sets.MOST_PUBLIC)
    form = dictionary(X) | {"n_classes": int(y.max()) + 1}
    for column, entry in form["columns"].items():
        if "categories" in entry:  # one form for a category, in all libraries
            X[column] = X[column].astype(object).where(X[column].notna(), None)
            X[column] = X[column].map(str, na_action="ignore")
            entry["categories"] = [str(c) for c in entry["categories"]]
        else:
            values = X[column].iloc[order].astype(float)
            entry["standard"] = [values.mean(), float(values.std()) or 1.0]
    parts = {"public": order[:cut], "private": order[cut:], "test": held}
    digest = sha256(json.dumps(form, sort_keys=True).encode())
    for rows in parts.values():
        digest.update(pd.util.hash_pandas_object(X.iloc[rows]).to_numpy().tobytes())
        digest.update(y[rows].tobytes())
    folder = work / "cases" / f"{name}-{seed}-{digest.hexdigest()[:12]}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for part, rows in parts.items():
            table = X.iloc[rows].reset_index(drop=True)
            if part != "test":
                table = table.assign(target=y[rows])
            table.to_parquet(folder / f"{part}.parquet")
        np.save(folder / "test.npy", y[held])
        (folder / "schema.json").write_text(json.dumps(form))
        (folder / "done").touch()
    return folder


def packaged_adult() -> tuple[Any, Any, Any]:
    """Return the Adult data of the package; a third, drawn once, is the test part."""
    from importlib.resources import files

    with (files("mapl") / "data" / "adult.parquet").open("rb") as file:
        table = pd.read_parquet(file).drop(columns="fnlwgt")
    y = (table.pop("income") == ">50K").to_numpy(np.int64)
    return table, y, np.random.default_rng(99).random(len(y)) < 1 / 3


# Fits -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One fit of one setting."""

    method: Method
    setting: int
    folder: Path
    epsilon: float
    seed: int

    def key(self, code: str) -> str:
        """Return what identifies the result."""
        own = self.method.settings[self.setting]
        packages = ENVIRONMENTS.get(self.method.environment, [])
        parts = self.method.peer, own, self.folder.name, self.epsilon, self.seed
        return sha256(repr((parts, packages, code)).encode()).hexdigest()[:24]


def code_digest(peer: str) -> str:
    """Return a digest of the code that a peer runs: of mapl, all of it."""
    files = [PEERS]
    if peer == "mapl":
        files += sorted((HERE.parent.parent / "src" / "mapl").rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def interpreter(work: Path, name: str) -> Path:
    """Return the interpreter of an environment, which is made if it is not there."""
    if not name:
        return Path(sys.executable)
    place = work / "environments" / name
    python, done = place / "bin" / "python", place / "done"
    wanted = "\n".join(ENVIRONMENTS[name])
    if not done.exists() or done.read_text() != wanted:
        print(f"Making the environment of {name} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([str(p) for p in (*pip, *ENVIRONMENTS[name])], check=True)
        done.write_text(wanted)
    return python


def run(fit: Fit, work: Path, code: str, most_seconds: float) -> dict[str, Any]:
    """Return the figures of a fit, from an earlier run if there was one."""
    kept = work / "results" / f"{fit.key(code)}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    kept.parent.mkdir(parents=True, exist_ok=True)
    out = kept.with_suffix(".npz")
    options = json.dumps(fit.method.settings[fit.setting])
    python = interpreter(work, fit.method.environment)
    given = fit.method.peer, fit.folder, fit.epsilon, fit.seed, options, out
    command = [str(python), str(PEERS), *map(str, given)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=most_seconds, check=False
        )
        failed = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        failed = [f"more than {most_seconds:g} s"]
    if failed or not out.exists():
        found: dict[str, Any] = {"failed": " ".join(failed) or "no result"}
    else:
        found = figures(np.load(out), np.load(fit.folder / "test.npy"))
        out.unlink()
    kept.write_text(json.dumps(found))
    return found


def figures(result: Any, y: Any) -> dict[str, float]:
    """Return accuracy in %, area under the ROC curve, log loss, seconds, megabytes."""
    shares = np.clip(result["shares"].astype(float), 1e-6, None)
    shares /= shares.sum(axis=1, keepdims=True)
    present = [k for k in range(shares.shape[1]) if 0 < (y == k).sum() < len(y)]
    areas = [roc_auc_score(y == k, shares[:, k]) for k in present]
    return {
        "accuracy": 100 * float((shares.argmax(axis=1) == y).mean()),
        "auc": float(np.mean(areas)),
        "log_loss": float(log_loss(y, shares, labels=range(shares.shape[1]))),
        "seconds": float(result["seconds"]),
        "megabytes": float(result["megabytes"]),
    }


def fits_of(
    method: Method, folder: Path, form: dict[str, Any], epsilons: list[float], seed: int
) -> Iterator[Fit]:
    """Yield the fits of a method to a set."""
    wide = len(form["columns"]) > method.most_columns
    if wide or form["n_classes"] > method.most_classes:
        return
    private = method.peer != "no-privacy"
    for epsilon in epsilons if private else epsilons[:1]:
        for setting in range(len(method.settings)):
            yield Fit(method, setting, folder, epsilon, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="adult")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilons", default="0.3,1,4")
    parser.add_argument("--only", default="")
    parser.add_argument("--without", default="")
    parser.add_argument("--most", type=int, default=40_000)
    parser.add_argument("--most-seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/compare"))
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.data is not None and not args.data.is_dir():
        parser.error(f"--data: {args.data} is not a folder.")
    epsilons = [float(e) for e in args.epsilons.split(",")]
    work = args.work.resolve()
    print({**vars(args), "delta": 1e-5}, flush=True)
    left_out = args.without.split(",")
    wanted = args.only.split(",") if args.only else [m.peer for m in METHODS]
    chosen = [m for m in METHODS if m.peer in wanted and m.peer not in left_out]
    if not chosen:
        parser.error(f"--only: choose among {', '.join({m.peer for m in METHODS})}.")
    fits = []
    for name in args.sets.split(","):
        for seed in range(args.seeds):
            folder = write_case(work, args.data, name, seed, args.most)
            form = json.loads((folder / "schema.json").read_text())
            for method in chosen:
                fits += list(fits_of(method, folder, form, epsilons, seed))
    for environment in dict.fromkeys(fit.method.environment for fit in fits):
        interpreter(work, environment)
    codes = {method.peer: code_digest(method.peer) for method in chosen}
    with (
        Progress("Comparing", len(fits)) as progress,
        ThreadPoolExecutor(args.jobs) as pool,
    ):

        def one(fit: Fit) -> dict[str, Any]:
            found = run(fit, work, codes[fit.method.peer], args.most_seconds)
            progress.advance(1)
            return found

        results = list(pool.map(one, fits))
    rows = [
        {
            "set": fit.folder.name.split("-")[0],
            "seed": fit.seed,
            "method": fit.method.name,
            "needs": fit.method.needs,
            "setting": fit.setting,
            "parameters": fit.method.settings[fit.setting],
            "epsilon": fit.epsilon if fit.method.peer != "no-privacy" else None,
            **found,
        }
        for fit, found in zip(fits, results, strict=True)
    ]
    (work / "results.json").write_text(json.dumps(rows, indent=1))
    print(page.write(rows, args.page or work / "comparison.md"))


if __name__ == "__main__":
    main()
