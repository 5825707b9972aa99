"""The two files of a panel: what may be known of it, and its teachers."""

import json
from collections.abc import Mapping
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
        if form != FORM:
            raise ParameterError(
                f"Panel form {form!r:.40} is unknown to this version. Upgrade mapl."
            )
        fixed_part(public)
        _ = [opening["closed"] for opening in public["openings"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(
            f"{folder} holds no panel. Make one: mapl panel train"
        ) from None
    return public


def fixed_part(public: Mapping[str, Any]) -> bytes:
    """Return what never changes of a panel: its teachers are encrypted for this."""
    names = ("id", "dataset", "estimator", "n_teachers", "classes", "columns")
    return json.dumps([public[name] for name in names]).encode()
