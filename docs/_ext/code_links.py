"""Names in the text lead to what they name: modules to the source, tests to the tests."""

from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/mapl/", "tests/", "benchmarks/", "examples/serve/")
PLACE = "generated/code"


def file_of(text: str) -> str | None:
    """Return the file that a literal names: a path, or a name of mapl."""
    if text.startswith(FOLDERS) and (ROOT / text).is_file():
        return text
    parts = text.split(".")
    if (
        parts[0] != "mapl"
        or len(parts) == 1
        or not text.replace(".", "").isidentifier()
    ):
        return None
    for n in range(len(parts), 1, -1):
        path = "src/" + "/".join(parts[:n])
        for name in (f"{path}.py", f"{path}/__init__.py"):
            if (ROOT / name).is_file():
                return name
    home = getattr(import_module("mapl"), "_HOMES", {}).get(parts[1])
    return None if home is None else f"src/{home.replace('.', '/')}.py"


def page_of(path: str) -> str:
    """Return the document that shows a file."""
    return f"{PLACE}/{path.replace('/', '-').removesuffix('.py')}"


def write_pages(app: Sphinx) -> None:
    """Write a page for each file that some document names."""
    import re

    source = Path(app.srcdir)
    named = set()
    for page in [*source.glob("*.md"), *source.glob("*/*.md")]:
        named |= set(re.findall(r"`([\w./]+)`", page.read_text(encoding="utf-8")))
    folder = source / PLACE
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted({path for name in named if (path := file_of(name))})
    for path in found:
        text = (
            f"---\norphan: true\nhtml_theme.sidebar_secondary.remove: true\n---\n\n"
            f"# {path}\n\n```{{literalinclude}} /../{path}\n:linenos:\n```\n"
        )
        page = source / f"{page_of(path)}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


class CodeLinks(SphinxPostTransform):
    """Turn literals that name a file of the project into links."""

    default_priority = 50

    def run(self, **_: Any) -> None:
        """Link every literal of a document once."""
        if self.app.builder.format != "html":
            return
        here = self.env.docname
        for node in list(self.document.findall(nodes.literal)):
            path = file_of(node.astext())
            if path is None or isinstance(node.parent, nodes.reference):
                continue
            target = page_of(path)
            if target == here or target not in self.env.found_docs:
                continue
            builder = self.app.builder
            node.replace_self(
                make_refnode(builder, here, target, "", node.deepcopy(), path)
            )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", write_pages)
    app.add_post_transform(CodeLinks)
    return {"version": "1", "parallel_read_safe": True}
