"""Write docs/cli.md from the commands themselves: python docs/make_cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mapl.cli import main

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# Command line

<!-- Made by docs/make_cli.py from the commands themselves; `make docs` updates it. -->

`--json` prints JSON instead of text. Errors are one sentence; those of options come in a frame. Exit codes: 0 done; 1 a condition of `mapl report check` does not hold; 2 bad input, nothing to learn from, or a certificate that does not hold; 3 budget spent; 4 a ledger that is damaged or an old copy of itself; 5 a claim that an audit refutes.

What the options mean in practice: [planning](planner.md), [learners](learners.md), [ledger](ledger.md).
"""


def page() -> str:
    """Return the page."""
    sections = [_section(["mapl", name], command) for name, command in _sorted(main)]
    return "\n".join([INTRODUCTION, *sections])


def _sorted(group: Any) -> list[tuple[str, Any]]:
    order = ["learn", "predict", "plan", "certificate", "ledger", "demo"]
    known = {name: place for place, name in enumerate(order)}
    return sorted(group.commands.items(), key=lambda item: known.get(item[0], 99))


def _section(words: list[str], command: Any) -> str:
    if hasattr(command, "commands"):
        inner = [
            _section([*words, name], inner) for name, inner in command.commands.items()
        ]
        return "\n".join(inner)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([*words, *(a.human_readable_name for a in arguments)])
    required = " ".join(f"{o.opts[0]} {_value(o)}" for o in options if o.required)
    rows = "".join(f"| {_names(o)} | {_help(o)} |\n" for o in options)
    table = f"| option | |\n|---|---|\n{rows}" if rows else ""
    text = " ".join(command.help.split("\n\n")[0].split())
    more = [" ".join(part.split()) for part in command.help.split("\n\n")[1:]]
    body = "\n\n".join([text, *more])
    return f"## {' '.join(words)}\n\n    {usage} {required}".rstrip() + (
        f"\n\n{body}\n\n{table}"
    )


def _value(option: Any) -> str:
    """Return what stands for an option's value."""
    kind = option.type.name
    if kind in ("file", "directory"):
        return "FILE" if kind == "file" else "DIR"
    return {"integer": "N", "float": "X"}.get(kind, option.opts[0].strip("-").upper())


def _names(option: Any) -> str:
    return f"`{option.opts[0]}" + ("`" if option.is_flag else f" {_value(option)}`")


def _help(option: Any) -> str:
    text = " ".join(option.help.split())
    if option.show_default and not option.is_flag:
        text += f" Default: {option.default}."
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
