"""Draw the pictures of the guides: python docs/draw_pictures.py."""

from html import escape
from pathlib import Path

HERE = Path(__file__).with_name("img")
BLUE, ORANGE, INK, LINE = "#2b6cb0", "#c05621", "#1a202c", "#718096"
STYLE = (
    "<style>text{font:14px system-ui,sans-serif;fill:#1a202c;text-anchor:middle}"
    ".small{font-size:12px;fill:#4a5568}.code{font-family:monospace;font-size:13px}"
    "</style><defs><marker id='a' viewBox='0 0 10 10' refX='9' refY='5' "
    "markerWidth='7' markerHeight='7' orient='auto'><path d='M0 0L10 5L0 10z' "
    f"fill='{LINE}'/></marker></defs>"
)


def box(x, y, w, h, *lines, fill="#ebf4ff", edge=BLUE, code=False):
    """Return a box with lines of text; x and y are its middle."""
    shape = (
        f"<rect x='{x - w / 2}' y='{y - h / 2}' width='{w}' height='{h}' rx='6' "
        f"fill='{fill}' stroke='{edge}'/>"
    )
    kind = " class='code'" if code else ""
    first = y + 5 - 9 * (len(lines) - 1)
    return shape + "".join(
        f"<text x='{x}' y='{first + 18 * i}'{kind}>{escape(line)}</text>"
        for i, line in enumerate(lines)
    )


def arrow(*points, label=None, at=None):
    """Return a line through points with a head at the end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    line = (
        f"<polyline points='{path}' fill='none' stroke='{LINE}' stroke-width='1.4' "
        "marker-end='url(#a)'/>"
    )
    if label:
        x, y = at or points[0]
        line += f"<text class='small' x='{x}' y='{y}'>{escape(label)}</text>"
    return line


def write(name, width, height, *parts):
    """Write a picture."""
    picture = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}'><rect width='100%' height='100%' "
        f"fill='#fff'/>{STYLE}{''.join(parts)}</svg>\n"
    )
    (HERE / name).write_text(picture)


def method():
    """Draw which method suits which situation."""
    ask = {"fill": "#fff", "edge": LINE}
    end = {"code": True}
    write(
        "method.svg",
        860,
        420,
        box(150, 40, 240, 48, "What is sensitive?", **ask),
        arrow((270, 40), (540, 40), label="only the labels", at=(400, 32)),
        box(690, 40, 300, 40, 'privacy="labels"', **end),
        arrow((150, 64), (150, 116), label="features, too", at=(200, 94)),
        box(150, 142, 240, 52, "1,000 public records", "like the private ones?", **ask),
        arrow((270, 142), (540, 142), label="no: describe the columns", at=(402, 134)),
        box(690, 142, 300, 40, "schema=", **end),
        arrow((150, 168), (150, 220), label="yes", at=(172, 198)),
        box(
            150,
            250,
            240,
            60,
            "Does your own learner know",
            "more than columns show?",
            **ask,
        ),
        arrow((270, 240), (540, 240), label="no, or do not know", at=(402, 232)),
        box(690, 240, 300, 40, "X_public=", **end),
        arrow(
            (270, 262),
            (400, 262),
            (400, 300),
            (540, 300),
            label="perhaps",
            at=(462, 292),
        ),
        box(690, 300, 300, 40, "PrivateClassifier(estimator)", **end),
        arrow((150, 280), (150, 360), (540, 360), label="certainly", at=(402, 352)),
        box(690, 360, 300, 40, 'method="votes"', **end),
        "<text class='small' x='430' y='408'>Single answers over months instead of a "
        "published model: a panel</text>",
    )


def sums():
    """Draw how records are added up."""
    parts = []
    for i, label in enumerate(("record 1", "record 2", "record n")):
        y = 50 + 60 * i + (30 if i == 2 else 0)
        parts += [
            box(80, y, 110, 36, label, fill="#fffaf0", edge=ORANGE),
            arrow((135, y), (190, y)),
            box(265, y, 150, 36, "a short vector", fill="#fffaf0", edge=ORANGE),
            arrow((340, y), (405, 120)),
        ]
    write(
        "sums.svg",
        860,
        290,
        "<text x='80' y='148'>...</text><text x='265' y='148'>...</text>",
        *parts,
        box(440, 120, 70, 44, "sum", fill="#fffaf0", edge=ORANGE),
        arrow((475, 120), (520, 120)),
        box(570, 120, 100, 44, "+ noise", fill="#fed7d7", edge="#c53030"),
        arrow((620, 120), (665, 120)),
        box(745, 120, 160, 44, "a better model"),
        arrow((745, 142), (745, 250), (80, 250), (80, 222)),
        "<text class='small' x='430' y='270'>two to five rounds: what to ask next follows "
        "from what was published</text>",
        "<text class='small' x='745' y='88'>public</text>",
        "<text class='small' x='80' y='22'>private</text>",
    )


def votes():
    """Draw teachers and their votes."""
    parts = []
    for i, label in enumerate(("1", "2", "k")):
        y = 50 + 60 * i + (30 if i == 2 else 0)
        parts += [
            arrow((120, 120), (165, y)),
            box(215, y, 100, 36, f"chunk {label}", fill="#fffaf0", edge=ORANGE),
            arrow((265, y), (305, y)),
            box(360, y, 110, 36, f"teacher {label}", fill="#fffaf0", edge=ORANGE),
            arrow((415, y), (462, 120)),
        ]
    write(
        "votes.svg",
        860,
        290,
        box(70, 120, 100, 44, "records", fill="#fffaf0", edge=ORANGE),
        *parts,
        "<text x='215' y='148'>...</text><text x='360' y='148'>...</text>",
        box(510, 120, 96, 44, "votes", fill="#fffaf0", edge=ORANGE),
        arrow((558, 120), (592, 120)),
        box(640, 120, 96, 44, "+ noise", fill="#fed7d7", edge="#c53030"),
        arrow((688, 120), (722, 120)),
        box(785, 120, 120, 44, "a student"),
        box(510, 250, 150, 40, "public points"),
        arrow((510, 230), (510, 142)),
        "<text class='small' x='215' y='22'>one record is in one chunk and changes one "
        "teacher</text>",
        arrow((785, 142), (785, 250), (587, 250)),
        "<text class='small' x='690' y='242'>a guess: only dissent costs</text>",
    )


def door():
    """Draw the door."""
    write(
        "door.svg",
        860,
        200,
        "<rect x='0' y='0' width='430' height='200' fill='#fffaf0'/>"
        "<rect x='430' y='0' width='430' height='200' fill='#ebf4ff'/>",
        "<text class='small' x='60' y='24'>private</text>"
        "<text class='small' x='800' y='24'>public</text>",
        box(
            110,
            100,
            170,
            60,
            "records, teachers,",
            "votes, sums",
            fill="#fff",
            edge=ORANGE,
        ),
        arrow((195, 100), (335, 100)),
        box(
            430,
            100,
            186,
            110,
            "the door",
            "1  charge the budget",
            "2  draw noise",
            "3  publish",
            fill="#fff",
            edge="#c53030",
        ),
        arrow((523, 100), (645, 100)),
        box(740, 100, 186, 60, "model, certificate,", "report", fill="#fff"),
        arrow((740, 130), (740, 182), (110, 182), (110, 132)),
        "<text class='small' x='430' y='176'>the next question</text>",
    )


if __name__ == "__main__":
    for draw in (method, sums, votes, door):
        draw()
