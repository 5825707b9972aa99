"""The two files of a panel: what may be known of it, and its teachers."""

import json
import os
from pathlib import Path
from typing import Any

from mapl.errors import ParameterError

FORM = "mapl panel/1"
PUBLIC, SECRET = "panel.json", "teachers.bin"


def read_public(folder: Path) -> dict[str, Any]:
    """Return what may be known of the panel in a folder."""
    try:
        public: dict[str, Any] = json.loads((folder / PUBLIC).read_text())
        form = public["form"]
    except (OSError, ValueError, TypeError, KeyError):
        raise ParameterError(
            f"{folder} holds no panel. Make one: mapl panel train"
        ) from None
    if form != FORM:
        raise ParameterError(
            f"Panel form {form!r:.40} is unknown to this version. Upgrade mapl."
        )
    return public


def write_for_owner(path: Path, data: bytes) -> None:
    """Write a file for its owner alone: all of it, or the old one stays."""
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
