"""One JSON object a line on stderr: what happened, and no record, label or message that
could hold one.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mapl.service")


class JsonLines(logging.Formatter):
    """Formats a log record as a line of JSON; of an error, its type and place alone."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage() if record.exc_info is None else "error",
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None and record.exc_info[1] is not None:
            line["error"] = where(record.exc_info[1])
        return json.dumps(line)


def where(error: BaseException) -> str:
    """Say what went wrong without its message, which may hold values."""
    places = traceback.extract_tb(error.__traceback__)
    place = (
        f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    )
    return f"{type(error).__name__}{place}"


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line."""
    LOG.log(level, event, extra={"fields": fields})


def configure() -> None:
    """Send everything, the server's own messages too, to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    for name in ("mapl.service", "uvicorn", "uvicorn.error", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "mapl.service" else logging.WARNING)
    logging.getLogger("uvicorn.error").handlers = []
    logging.getLogger("uvicorn.error").propagate = True
