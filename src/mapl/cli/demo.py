"""``mapl demo``: the main job on real data, in under a minute.

UCI Adult: who earns more than 50,000 dollars? Two thirds of the people are at hand, the
last third keeps the score. First with a data dictionary and nothing else public; then
with one in five of the people as public and unlabelled records.
"""

import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import errors_in_one_line

EPSILONS, DELTA = (0.1, 0.3, 1.0, 4.0), 1e-5
_HEAD = "epsilon   certified   accuracy   ROC area   seconds"


@click.command()
@errors_in_one_line
def demo() -> None:
    """Train on the bundled UCI Adult data at four epsilons, in two ways."""
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


def run_demo(epsilons: tuple[float, ...] = EPSILONS) -> None:
    """Print what privacy costs, epsilon by epsilon."""
    from mapl.learners import default_classifier
    from mapl.publish.bundle import write_bundle
    from mapl.records.schema import Schema

    data = load_adult()
    schema = Schema.of_numbers_and_texts(data["X_public"])
    encoder, _ = schema.fit_encoder(schema.cast(data["X_public"]))
    X, X_test = (encoder.transform(schema.cast(data[n])) for n in ("X", "X_test"))
    open_score = default_classifier().fit(X, data["y"]).score(X_test, data["y_test"])
    majority = (data["y_test"] == "<=50K").mean()
    click.echo(
        f"UCI Adult: {len(data['X']):,} private records, {len(data['X_test']):,} for "
        f"the score.\nAlways the larger class: {majority:.1%}. Logistic regression "
        f"without privacy: {open_score:.1%}.\n\n"
        "Nothing public but a data dictionary: columns, ranges, categories.\n"
    )
    click.echo(_HEAD)
    for epsilon in epsilons:
        model = _fit_and_show(epsilon, data, dictionary=True)
    click.echo(
        f"\nWith {len(data['X_public']):,} public records without labels instead.\n"
    )
    click.echo(_HEAD)
    for epsilon in epsilons:
        _fit_and_show(epsilon, data, dictionary=False)
    out = Path(tempfile.mkdtemp(prefix="mapl-demo-"))
    write_bundle(out, model.student_, model, model.made_up_points_)
    click.echo(
        f"\nModel, certificate, labels and report.html of the first kind, epsilon "
        f"{epsilons[-1]:g}:\n{out}\n\n"
        "Each model may be published. Whatever anybody computes from it, its "
        "probability changes\nby at most a factor e^epsilon, up to delta "
        f"{DELTA:g}, if one person is added to the\nprivate records or removed."
    )


def _fit_and_show(epsilon: float, data: dict[str, Any], *, dictionary: bool) -> Any:
    """Fit at one epsilon, and print a line of the table."""
    from sklearn.metrics import roc_auc_score

    from mapl.estimator import PrivateClassifier
    from mapl.privacy import accounting

    schema = str(files("mapl") / "data" / "adult.schema.json") if dictionary else None
    points = None if dictionary else data["X_public"]
    start = time.perf_counter()
    model = PrivateClassifier(
        epsilon=epsilon,
        delta=DELTA,
        schema=schema,
        classes=["<=50K", ">50K"],
        random_state=0,
    ).fit(data["X"], data["y"], X_public=points, allow_overlap=True)
    seconds = time.perf_counter() - start
    certified = accounting.epsilon(model.events_, delta=DELTA)
    shares, truth = model.predict_proba(data["X_test"])[:, 1], data["y_test"] == ">50K"
    score, area = ((shares > 0.5) == truth).mean(), roc_auc_score(truth, shares)
    click.echo(
        f"{epsilon:7g} {certified:11.4f} {score:10.1%} {area:10.3f} {seconds:9.1f}"
    )
    return model
