"""One fit of one competitor, in an environment that has it.

    PYTHON peers.py PEER FOLDER EPSILON SEED SETTING OUT

Reads private.parquet, public.parquet (both with the column target), test.parquet and
schema.json of FOLDER, and writes probabilities of the test records, seconds and memory
to OUT (npz). SETTING is JSON. Needs numpy, pandas and what the peer itself needs.
"""

import json
import math
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DELTA = 1e-5


@dataclass
class Task:
    """What a peer is given. Records hold numbers and categories as texts."""

    X: Any
    y: Any
    pool: Any  # public records; None for peers that use none, who have them in X
    X_test: Any
    columns: dict[str, Any]
    n_classes: int
    epsilon: float
    seed: int

    def encoded(self) -> list[Any]:
        """Return private, public and test records as numbers: standardised by the true
        mean and deviation and clipped at 4 deviations, and one-hot codes.
        """
        tables = [self.X, self.pool, self.X_test]
        return [None if t is None else self._encode(t) for t in tables]

    def _encode(self, X: Any) -> Any:
        parts = []
        for name, entry in self.columns.items():
            if "categories" in entry:
                listed = np.array([str(c) for c in entry["categories"]], dtype=object)
                cells = X[name].astype(str).to_numpy(object)
                parts.append((cells[:, None] == listed).astype(np.float32))
            else:
                mean, deviation = entry["standard"]
                values = (X[name].astype(float).fillna(mean) - mean) / deviation
                parts.append(values.clip(-4, 4).to_numpy(np.float32)[:, None])
        return np.hstack(parts)

    def spread(self, shares: Any, classes: Any) -> Any:
        """Return probabilities with a column for each class."""
        out = np.zeros((len(shares), self.n_classes))
        out[:, np.asarray(classes).astype(int)] = shares
        return out


# mapl -------------------------------------------------------------------------------


def mapl(task: Task, *, learner: str = "none", **params: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    from mapl import PrivateClassifier
    from mapl.records.dictionary import Dictionary
    from mapl.records.schema import Schema

    learners = {
        "none": None,
        "logistic": LogisticRegression(C=10, max_iter=200),
        "boosting": HistGradientBoostingClassifier(),
        "forest": RandomForestClassifier(50),
    }
    own = ("kind", "range", "categories")
    columns = {
        name: {key: entry[key] for key in own if key in entry}
        for name, entry in task.columns.items()
    }
    form = {"columns": columns}
    estimator = learners[learner]
    if estimator is not None:
        types = Dictionary.read(form).schema
        if task.pool is not None:
            types = Schema.of_numbers_and_texts(task.pool)
        estimator = types.encoding_pipeline(estimator)
    model = PrivateClassifier(
        estimator,
        epsilon=task.epsilon,
        delta=DELTA,
        classes=list(range(task.n_classes)),
        schema=form if task.pool is None else None,
        random_state=task.seed,
        **params,
    )
    model.fit(task.X, task.y, X_public=task.pool, allow_overlap=True)
    return model.predict_proba(task.X_test)


def no_privacy(task: Task, *, learner: str) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    learners = {
        "logistic": LogisticRegression(max_iter=500),
        "boosting": HistGradientBoostingClassifier(random_state=task.seed),
        "forest": RandomForestClassifier(random_state=task.seed),
    }
    X, _, X_test = task.encoded()
    model = learners[learner].fit(X, task.y)
    return task.spread(model.predict_proba(X_test), model.classes_)


# Gradient descent -------------------------------------------------------------------


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def dp_gd(
    task: Task, *, steps: int, rate: float, clip: float, whitened: bool = False
) -> Any:
    """Full-batch gradient descent for softmax regression with continuous noise; the
    number of records is taken as known.
    """
    X, pool, X_test = task.encoded()
    mean = np.zeros(X.shape[1]) if pool is None else pool.mean(axis=0)
    turn = np.eye(X.shape[1])
    if whitened:  # by the second moments of public records (arXiv 2602.22282)
        moments = (pool - mean).T @ (pool - mean) / len(pool)
        values, vectors = np.linalg.eigh(moments)
        floor = 1e-3 * values.max()
        turn = vectors / np.sqrt(np.maximum(values, floor)) / math.sqrt(X.shape[1])
    F, F_test = (
        np.hstack([(part - mean) @ turn, np.ones((len(part), 1))])
        for part in (X, X_test)
    )
    Y = np.eye(task.n_classes)[task.y]
    rng, w = np.random.default_rng(), np.zeros((F.shape[1], task.n_classes))
    sd = clip * math.sqrt(steps) / gaussian_shift(task.epsilon)
    lengths = np.linalg.norm(F, axis=1)
    for _ in range(steps):
        R = Y - softmax(F @ w)
        R *= np.minimum(
            1, clip / np.maximum(lengths * np.linalg.norm(R, axis=1), 1e-9)
        )[:, None]
        w += rate * (F.T @ R + sd * rng.normal(size=w.shape)) / len(F)
    return softmax(F_test @ w)


def gaussian_shift(epsilon: float) -> float:
    """Return the largest shift of one unit Gaussian that is (epsilon, DELTA)-private
    (Balle and Wang 2018).
    """
    from statistics import NormalDist

    low, high, normal = 1e-6, 50.0, NormalDist()
    for _ in range(80):
        mu = (low + high) / 2
        lost = normal.cdf(mu / 2 - epsilon / mu)
        lost -= math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if lost <= DELTA else (low, mu)
    return low


def dp_sgd(
    task: Task, *, hidden: int, epochs: int, rate: float, clip: float, batch: int
) -> Any:
    import torch
    from opacus import PrivacyEngine
    from torch import nn

    torch.manual_seed(task.seed)
    torch.set_num_threads(1)
    records, _, tested = task.encoded()
    X, X_test = torch.tensor(records), torch.tensor(tested)
    data = torch.utils.data.TensorDataset(X, torch.tensor(task.y))
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    width = X.shape[1]
    layers = [nn.Linear(width, task.n_classes)]
    if hidden:
        layers = [
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, task.n_classes),
        ]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=task.epsilon,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=clip,
    )
    for _ in range(epochs):
        for records, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(records), labels).backward()
            optimizer.step()
    with torch.no_grad():
        return torch.softmax(net(X_test), dim=1).numpy()


# Libraries --------------------------------------------------------------------------


def dp_ebm(task: Task, **params: Any) -> Any:
    from interpret.privacy import DPExplainableBoostingClassifier

    entries = list(task.columns.values())
    bounds = {i: e["range"] for i, e in enumerate(entries) if "range" in e}
    kinds = ["nominal" if "categories" in e else "continuous" for e in entries]
    model = DPExplainableBoostingClassifier(
        epsilon=task.epsilon,
        delta=DELTA,
        feature_types=kinds,
        privacy_bounds=bounds,
        random_state=None,
        **params,
    )
    names = list(task.columns)
    model.fit(task.X[names], task.y)
    return task.spread(model.predict_proba(task.X_test[names]), model.classes_)


def diffprivlib(task: Task, *, C: float) -> Any:
    from diffprivlib.models import LogisticRegression

    X, _, X_test = task.encoded()
    longest = math.sqrt(len(task.columns))  # diffprivlib clips what is longer
    model = LogisticRegression(
        epsilon=task.epsilon, data_norm=1.0, C=C, max_iter=500
    ).fit(X / longest, task.y)
    return task.spread(model.predict_proba(X_test / longest), model.classes_)


def synthetic(task: Task, *, method: str) -> Any:
    """Records drawn by MST or AIM, and gradient boosting on them."""
    from dpmm import pipelines
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    train, test = task.X.assign(target=task.y.astype(str)), task.X_test.copy()
    domain: dict[str, Any] = {}
    for name, entry in task.columns.items():
        if "categories" in entry:
            listed = [*map(str, entry["categories"]), "nan", "None"]
            domain[name] = {"categories": listed}
            train[name] = train[name].astype(str)
            test[name] = test[name].astype(str)
        else:
            low, high = entry["range"]
            domain[name] = {"lower": low, "upper": high}
            train[name] = train[name].astype(float).fillna(low).clip(low, high)
            test[name] = test[name].astype(float)
    domain["target"] = {"categories": [str(k) for k in range(task.n_classes)]}
    made = getattr(pipelines, f"{method}Pipeline")(epsilon=task.epsilon, delta=DELTA)
    made.fit(train, domain)
    drawn = made.generate(n_records=len(train))
    texts = [name for name, entry in task.columns.items() if "categories" in entry]
    if texts:
        encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        drawn[texts] = encoder.fit_transform(drawn[texts].astype(str))
        test[texts] = encoder.transform(test[texts].astype(str))
    names = list(task.columns)
    model = HistGradientBoostingClassifier()
    model.fit(drawn[names].astype(float), drawn["target"].astype(int))
    return task.spread(model.predict_proba(test[names].astype(float)), model.classes_)


PEERS: dict[str, Callable[..., Any]] = {
    "mapl": mapl,
    "no-privacy": no_privacy,
    "dp-gd": dp_gd,
    "dp-sgd": dp_sgd,
    "dp-ebm": dp_ebm,
    "diffprivlib": diffprivlib,
    "synthetic": synthetic,
}


def main() -> None:
    warnings.simplefilter("ignore")
    peer, folder, epsilon, seed, setting, out = sys.argv[1:]
    place, options = Path(folder), json.loads(setting)
    private, public = (
        pd.read_parquet(place / f"{name}.parquet") for name in ("private", "public")
    )
    form = json.loads((place / "schema.json").read_text())
    if not options.pop("public", False):
        private, public = pd.concat([private, public], ignore_index=True), None
    y = private.pop("target").to_numpy(np.int64)
    task = Task(
        X=private,
        y=y,
        pool=None if public is None else public.drop(columns="target"),
        X_test=pd.read_parquet(place / "test.parquet"),
        columns=form["columns"],
        n_classes=form["n_classes"],
        epsilon=float(epsilon),
        seed=int(seed),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    shares = PEERS[peer](task, **options)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = np.asarray(shares, dtype=np.float32)
    np.savez(out, shares=kept, seconds=seconds, megabytes=(peak - before) / 1024)


if __name__ == "__main__":
    main()
