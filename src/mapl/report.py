"""The files that may be published: model, certificate, labels, and a page about them.

Public values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mapl import certificate as certificates
from mapl.planner import percent
from mapl.votes import ABSTAIN

_HOW = {
    "dissent": "noisy shares of the vote; a teacher pays where it disagrees with a "
    "public guess (dissent)",
    "noisy-max": "the class with most votes after noise; every answer is paid for "
    "(noisy-max)",
    "sparse-vector": "the class with most votes where the lead is clear after noise; "
    "only answers that are withheld are paid for (sparse-vector)",
}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mapl report</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 46rem;
       margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.guarantee {{ background: #ebf4ff; border-left: 4px solid #2b6cb0;
             padding: .8rem 1rem; }}
table {{ border-collapse: collapse; }} td, th {{ text-align: left; padding: .2rem 1rem
.2rem 0; vertical-align: top; }} td.number {{ text-align: right; }}
.bar {{ background: #2b6cb0; height: .8rem; display: inline-block; }}
</style>
</head>
<body>
<h1>A private classifier</h1>
<p class="guarantee">{guarantee}</p>
<p>{plain}</p>
<h2>What was released</h2>
<table>{facts}</table>
<h2>Labels published for the public points</h2>
<table>{labels}</table>
<h2>Spending over the queries</h2>
<p>The whole price was charged before the first answer. What of it was used, batch by
batch, as far as the published values tell (a point may be asked for several
times):</p>
<table><tr><th>batch</th><th>points asked for</th><th>used until then</th></tr>
{spending}</table>
{score}
<h2>What you may conclude</h2>
<ul>
<li>The model, the published labels and this page may be passed on: no further use of
them weakens the guarantee.</li>
<li>It holds whatever anybody else knows, and for every unit in the private data.</li>
</ul>
<h2>What you may not conclude</h2>
<ul>
<li>That nothing about a person can be inferred: what is true of people in general is
learned, and is meant to be.</li>
<li>That other releases from the same data are covered. Their costs add up.</li>
<li>That the public points, the list of classes or the parameters are protected: they
were declared public.</li>
</ul>
<p>Check it: <code>mapl certificate verify certificate.json</code></p>
</body>
</html>
"""


def write(
    out: str | Path,
    model: Any,
    fitted: Any,
    public: Any,
    score: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the four files to a folder, and return the certificate.

    Parameters
    ----------
    out : str or Path
        The folder; made if need be.
    model : classifier
        What is to be published: the student, and what prepares its columns.
    fitted : PrivateClassifier
        What has fitted it.
    public : DataFrame
        The public points.
    score : mapping or None
        Accuracy and confusion on a test file that was declared public.
    """
    import numpy as np
    import skops.io

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    skops.io.dump(model, out / "model.skops")
    signed = certificates.with_model(fitted.certificate_, out / "model.skops")
    certificates.write(signed, out / "certificate.json")
    codes = fitted.public_labels_
    names = np.array([*fitted.classes_, None], dtype=object)  # None for ABSTAIN
    public.assign(label=names[codes]).to_parquet(out / "labels.parquet", index=False)
    counts = {str(c): int((codes == i).sum()) for i, c in enumerate(fitted.classes_)}
    counts["no answer"] = int((codes == ABSTAIN).sum())
    page = render(signed, counts, spending=fitted.spending_, score=score)
    (out / "report.html").write_text(page, encoding="utf-8")
    return signed


def render(
    certificate: Mapping[str, Any],
    counts: Mapping[str, int],
    *,
    spending: Sequence[tuple[int, float]] = (),
    score: Mapping[str, Any] | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    certificate : mapping
        As made by `mapl.certificate`.
    counts : mapping
        How many public points got which label.
    spending : sequence of (int, float)
        For each batch, how many points it had, and the part used until then.
    score : mapping or None
        Accuracy and confusion on a test file that was declared public.
    """
    public = certificate["public"]
    facts = {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "protected unit": certificate["unit"],
        "teachers": public["n_teachers"],
        "public points": public["n_public"],
        "how votes were released": _HOW[certificate["mechanism"]],
        "budget": _budget(certificate["ledger"]),
        "assumed": public["assumed"],
        "classes": "declared by the caller"
        if public["classes_declared"]
        else "read from the private labels, hence not protected",
    }
    return _PAGE.format(
        guarantee=escape(certificate["guarantee"]),
        plain=_in_plain_words(certificate),
        facts=_rows([(name, str(value)) for name, value in facts.items()]),
        labels=_bars(counts),
        spending=_spending(spending),
        score=_score(score) if score else "",
    )


def _in_plain_words(certificate: Mapping[str, Any]) -> str:
    epsilon = certificate["epsilon"]
    if epsilon is None:  # the guarantee is that there is none
        return ""
    one = "a certain record"
    if certificate["unit"] != "a record":
        one = "the records of a certain group, a person for instance"
    what = {
        "records": f"the private data hold {one} or do not",
        "labels": f"{one} may be labelled in two ways",
    }[certificate["public"]["privacy"]]
    # A guess at even odds is right with (e^epsilon + delta)/(e^epsilon + 1) at most.
    odds, slack = math.exp(-epsilon), certificate["delta"]
    return (
        f"In plain words: {what}. Somebody who thinks both equally likely, knows "
        "everything else and sees all that was published guesses right with a "
        f"probability of at most {percent((1 + slack * odds) / (1 + odds))}."
    )


def _rows(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in pairs
    )


def _budget(ledger: str | Mapping[str, Any]) -> str:
    if isinstance(ledger, str):
        return ledger
    rows = ", ".join(map(str, ledger["rows"]))
    return f"of {ledger['dataset']!r} in ledger {ledger['id']}, row {rows}"


def _spending(spending: Sequence[tuple[int, float]]) -> str:
    bar = "<span class='bar' style='width: {:.2f}rem'></span>"
    return "".join(
        f"<tr><td>{number}</td><td class='number'>{asked:,}</td>"
        f"<td>{bar.format(12 * min(part, 1))} {min(part, 1):.0%}</td></tr>"
        for number, (asked, part) in enumerate(spending, start=1)
    )


def _bars(counts: Mapping[str, int]) -> str:
    most = max(counts.values(), default=1) or 1
    bar = "<span class='bar' style='width: {:.2f}rem'></span>"
    return "".join(
        f"<tr><th>{escape(name)}</th><td class='number'>{count:,}</td>"
        f"<td>{bar.format(18 * count / most)}</td></tr>"
        for name, count in counts.items()
    )


def _score(score: Mapping[str, Any]) -> str:
    classes = [escape(name) for name in score["classes"]]
    head = "".join(f"<th>{name}</th>" for name in classes)
    body = "".join(
        f"<tr><th>{name}</th>"
        + "".join(f"<td class='number'>{count:,}</td>" for count in row)
        + "</tr>"
        for name, row in zip(classes, score["confusion"], strict=True)
    )
    return (
        f"<h2>Score on the public test file</h2><p>Accuracy {score['accuracy']:.2%}. "
        "True classes down, predicted across:</p>"
        f"<table><tr><td></td>{head}</tr>{body}</table>"
    )
