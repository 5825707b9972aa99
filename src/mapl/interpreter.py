"""Other processes of this Python, for code that must run apart from the caller's.

They find modules where this process does, and nowhere else: not in the folder that they
start in, which may be a stranger's.
"""

import json
import os
import sys

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_THREADS, "1")
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""For processes that others start: their own folder is no place for modules."""

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from importlib import import_module; "
    "import_module(sys.argv[2]).serve(*sys.argv[3:])"
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls ``serve(*arguments)`` of a module."""
    places = json.dumps([os.path.abspath(place) for place in sys.path])
    return [sys.executable, "-P", "-c", _START, places, module, *arguments]
