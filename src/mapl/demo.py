"""The main job on real data: ``python -m mapl.demo``, in under a minute.

UCI Adult: who earns more than 50,000 dollars? Two thirds of the people are at hand, of
these one in five serves as public and unlabelled; the last third keeps the score.
"""

from __future__ import annotations

import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from mapl import accounting, report
from mapl.estimator import PrivateClassifier
from mapl.votes import ABSTAIN

EPSILONS, DELTA, N_TEACHERS = (0.5, 1.0, 4.0), 1e-5, 250


def load() -> dict[str, Any]:
    """Return private and public records and a test set, as frames and labels."""
    import pandas as pd

    with (files("mapl") / "data" / "adult.parquet").open("rb") as file:
        table = pd.read_parquet(file).drop(columns="fnlwgt")
    table = table.sample(frac=1, random_state=0)
    features, labels = table.drop(columns="income"), table["income"].to_numpy()
    third, pool = len(table) // 3, len(table) * 2 // 15
    return {
        "X_test": features[:third],
        "y_test": labels[:third],
        "X_public": features[third : third + pool],
        "X": features[third + pool :],
        "y": labels[third + pool :],
    }


def encoded(data: dict[str, Any]) -> dict[str, Any]:
    """Turn frames into numbers; categories and scales come from the public part."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    coder = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            make_column_selector(dtype_exclude="number"),
        ),
    ).fit(data["X_public"])
    coded = {name: coder.transform(data[name]) for name in ("X", "X_public", "X_test")}
    return {**data, **coded, "coder": coder, "frame": data["X_public"]}


def main(epsilons: tuple[float, ...] = EPSILONS, n_teachers: int = N_TEACHERS) -> None:
    """Print what privacy costs, epsilon by epsilon."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = encoded(load())
    X, y, pool = data["X"], data["y"], data["X_public"]
    learner = LogisticRegression(C=10, max_iter=200)
    open_score = learner.fit(X, y).score(data["X_test"], data["y_test"])
    majority = float(np.mean(data["y_test"] == "<=50K"))
    print(
        f"UCI Adult: {len(X):,} private records, {len(pool):,} public ones without "
        f"labels, {len(data['y_test']):,} for the score.\n"
        f"Always the larger class: {majority:.1%}. "
        f"Logistic regression without privacy: {open_score:.1%}.\n\n"
        f"{n_teachers} teachers, each on about {len(X) // n_teachers} records that no "
        f"other sees; delta {DELTA:g}.\n"
    )
    print("epsilon   certified   accuracy   answered   abstained   seconds")
    for epsilon in epsilons:
        start = time.perf_counter()
        model = PrivateClassifier(
            learner,
            epsilon=epsilon,
            delta=DELTA,
            n_teachers=n_teachers,
            classes=["<=50K", ">50K"],
            random_state=0,
        ).fit(X, y, X_public=pool)
        certified = accounting.epsilon(model.events_, delta=DELTA)
        score = model.score(data["X_test"], data["y_test"])
        seconds = time.perf_counter() - start
        abstained = int((model.public_labels_ == ABSTAIN).sum())
        print(
            f"{epsilon:7g} {certified:11.4f} {score:10.1%} {len(pool) - abstained:10,} "
            f"{abstained:11,} {seconds:9.1f}"
        )
    out = Path(tempfile.mkdtemp(prefix="mapl-demo-"))
    report.write(
        out, make_pipeline(data["coder"], model.student_), model, data["frame"]
    )
    print(f"\nModel, certificate, labels and report.html of the last: {out}")
    print(
        "\nEach student may be published, with the noisy votes it learned from. What"
        "ever anybody\ncomputes from them, its probability changes by at most a factor "
        "e^epsilon, up to delta,\nif one person is added to the private records or "
        "removed."
    )


if __name__ == "__main__":
    main()
