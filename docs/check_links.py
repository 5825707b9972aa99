"""See that every local link and picture of a built site leads somewhere: the pages, and
the anchors in them. python docs/check_links.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what may be a link or a target."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            if value and name in ("href", "src"):
                self.links.append(value)


def dead_links(root: Path) -> list[str]:
    """Return each link that leads nowhere."""
    root = root.resolve()
    found = [p for p in root.rglob("*.html") if "_static" not in p.parts]
    pages = {path: Page(path) for path in found}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (
                (path.parent / unquote(parts.path)).resolve() if parts.path else path
            )
            known = pages.get(target)
            lost = known and parts.fragment and parts.fragment not in known.anchors
            if not target.exists() or lost:
                dead.append(f"{path.relative_to(root)} -> {link}")
    return dead


def main() -> None:
    found = dead_links(Path(sys.argv[1]))
    sys.stderr.write("".join(f"dead link: {link}\n" for link in sorted(set(found))))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
