"""What the documents promise is there, and what is there is documented."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mapl
from mapl import errors
from mapl.publish.bundle import FILES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mapl"
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if not {"generated", "_build"} & set(page.parts)
]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path.name != "__init__.py"
)


def public_objects() -> list[tuple[str, Any]]:
    found = []
    for module in map(import_module, MODULES):
        for name, thing in vars(module).items():
            ours = getattr(thing, "__module__", None) == module.__name__
            if ours and not name.startswith("_") and callable(thing):
                found.append((f"{module.__name__}.{name}", thing))
                if inspect.isclass(thing):
                    found += [
                        (f"{module.__name__}.{name}.{key}", member)
                        for key, member in vars(thing).items()
                        if not key.startswith("_") and inspect.getdoc(member)
                    ]
    return found


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 60
    assert len(PAGES) > 20
    assert len(public_objects()) > 300


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} -> {target}"


@pytest.mark.parametrize(("name", "thing"), public_objects())
def test_every_guarantee_has_a_proof_page(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert text, f"{name} has no docstring"
    proofs = re.findall(r"docs/proofs/\w+\.md", text)
    if "Guarantee:" in text:
        assert proofs, f"{name} has a guarantee and no proof"
    for proof in proofs:
        assert (ROOT / proof).exists(), f"{name} -> {proof}"


def test_every_proof_page_has_its_parts_and_is_cited_in_the_code() -> None:
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    pages = set((ROOT / "docs" / "proofs").glob("*.md"))
    pages.remove(ROOT / "docs" / "proofs" / "index.md")
    assert len(pages) >= 11
    for page in pages:
        text = page.read_text()
        for part in ("Code:", "## Guarantee", "Checked by"):
            assert part in text, f"{page.name} lacks {part}"
        assert f"docs/proofs/{page.name}" in source, f"{page.name} is cited nowhere"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_files_that_the_documents_name_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"`((?:tests|benchmarks|docs|src)/[\w/]+\.\w+)`", text):
        assert (ROOT / path).exists(), f"{page.name} -> {path}"
    if page.name == "CHANGELOG.md":  # which speaks of the past
        return
    for name in set(re.findall(r"`(mapl(?:\.\w+)+)", text)):
        module, found = mapl, "mapl"
        for part in name.split(".")[1:]:
            if not hasattr(module, part):
                import_module(f"{found}.{part}")
            module, found = getattr(module, part), f"{found}.{part}"


def test_every_exception_is_in_the_tree_at_the_top_and_exported() -> None:
    tree = errors.__doc__ or ""
    for name, thing in vars(errors).items():
        if inspect.isclass(thing) and issubclass(thing, errors.MaplError):
            assert name in tree
            assert name in mapl.__all__


def test_every_public_name_has_a_type_and_a_value() -> None:
    stub = (SOURCE / "__init__.pyi").read_text()
    for name in mapl.__all__:
        assert getattr(mapl, name) is not None
        assert re.search(rf"\bas {name}$|^{name} = ", stub, re.M), name


def test_the_page_about_the_commands_is_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = import_module("make_cli").page()
    sys.modules.pop("make_cli")
    assert (ROOT / "docs" / "cli.md").read_text() == page, "run: make docs"
    for command in ("learn", "predict", "plan", "certificate verify", "ledger create"):
        assert f"## mapl {command}\n" in page


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(compile(code, "README.md", "exec"), {})
    score, epsilon = map(float, capsys.readouterr().out.split())
    assert score > 0.6
    assert 0.99 < epsilon <= 1


def test_the_demo_runs_on_its_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    import_module("mapl.cli.demo").run_demo(epsilons=(4.0,))
    shown = capsys.readouterr().out
    assert "UCI Adult: 26,0" in shown
    found = re.findall(r"^ +4 +[\d.]+ +([\d.]+)%", shown, re.M)
    assert len(found) == 2  # with a data dictionary alone, and with public records
    assert all(float(accuracy) > 85 for accuracy in found)
    (folder,) = re.findall(r"epsilon 4:\n(.+)", shown)
    assert {path.name for path in Path(folder).iterdir()} == set(FILES)
