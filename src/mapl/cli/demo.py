"""``mapl demo``: the main job on real data, in under a minute.

UCI Adult: who earns more than 50,000 dollars? Two thirds of the people are at hand, of
these one in five serves as public and unlabelled; the last third keeps the score.
"""

import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import errors_in_one_line

EPSILONS, DELTA, N_TEACHERS = (0.5, 1.0, 4.0), 1e-5, 250


@click.command()
@errors_in_one_line
def demo() -> None:
    """Train on the bundled UCI Adult data at three epsilons."""
    run_demo()


def load_adult() -> dict[str, Any]:
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


def run_demo(
    epsilons: tuple[float, ...] = EPSILONS, n_teachers: int = N_TEACHERS
) -> None:
    """Print what privacy costs, epsilon by epsilon."""
    from sklearn.pipeline import make_pipeline

    from mapl.learners import default_classifier
    from mapl.publish.bundle import write_bundle
    from mapl.records.schema import Schema

    data = load_adult()
    schema = Schema.of_numbers_and_texts(data["X_public"])
    encoder, pool = schema.fit_encoder(schema.cast(data["X_public"]))
    X, X_test = (encoder.transform(schema.cast(data[n])) for n in ("X", "X_test"))
    y, y_test = data["y"], data["y_test"]
    learner = default_classifier()
    open_score = learner.fit(X, y).score(X_test, y_test)
    click.echo(
        f"UCI Adult: {len(X):,} private records, {len(pool):,} public ones without "
        f"labels, {len(y_test):,} for the score.\n"
        f"Always the larger class: {(y_test == '<=50K').mean():.1%}. "
        f"Logistic regression without privacy: {open_score:.1%}.\n\n"
        f"{n_teachers} teachers, each on about {len(X) // n_teachers} records that no "
        f"other sees; delta {DELTA:g}.\n"
    )
    click.echo("epsilon   certified   accuracy   answered   abstained   seconds")
    for epsilon in epsilons:
        model = _fit_and_show(learner, epsilon, n_teachers, X, y, pool, X_test, y_test)
    out = Path(tempfile.mkdtemp(prefix="mapl-demo-"))
    whole = make_pipeline(encoder, model.student_)
    write_bundle(out, whole, model, data["X_public"])
    click.echo(
        f"\nModel, certificate, labels and report.html of the last: {out}\n\n"
        "Each student may be published, with the noisy votes it learned from. Whatever "
        "anybody\ncomputes from them, its probability changes by at most a factor "
        "e^epsilon, up to delta,\nif one person is added to the private records or "
        "removed."
    )


def _fit_and_show(
    learner: Any, epsilon: float, n_teachers: int, X: Any, y: Any, pool: Any, *test: Any
) -> Any:
    """Fit at one epsilon, and print a line of the table."""
    from mapl.estimator import PrivateClassifier
    from mapl.privacy import accounting
    from mapl.privacy.votes import ABSTAIN

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
    score, seconds = model.score(*test), time.perf_counter() - start
    abstained = int((model.public_labels_ == ABSTAIN).sum())
    click.echo(
        f"{epsilon:7g} {certified:11.4f} {score:10.1%} {len(pool) - abstained:10,} "
        f"{abstained:11,} {seconds:9.1f}"
    )
    return model
