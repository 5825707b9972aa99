"""report.html: what was published and what may be concluded, public values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

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
<h2>What was released</h2>
<table>{facts}</table>
<h2>Labels published for the public points</h2>
<table>{labels}</table>
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


def render(
    certificate: Mapping[str, Any],
    counts: Mapping[str, int],
    *,
    score: Mapping[str, Any] | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    certificate : mapping
        As made by `mapl.certificate`.
    counts : mapping
        How many public points got which label.
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
        "mechanism": certificate["mechanism"],
        "budget": certificate["ledger"],
        "assumed": public["assumed"],
        "classes": "declared by the caller"
        if public["classes_declared"]
        else "read from the private labels, hence not protected",
    }
    return _PAGE.format(
        guarantee=escape(certificate["guarantee"]),
        facts=_rows([(name, str(value)) for name, value in facts.items()]),
        labels=_bars(counts),
        score=_score(score) if score else "",
    )


def _rows(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in pairs
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
