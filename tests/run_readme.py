"""Install the wheel in a fresh environment, and run the README with nothing else.

python tests/run_readme.py DIST
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)
SAMPLES = """
from importlib.resources import files
import pandas as pd
adult = pd.read_parquet(files("mapl.data") / "adult.parquet").drop(columns="fnlwgt")
adult = adult.sample(frac=1, random_state=0)
adult[:3000].to_csv("private.csv", index=False)
adult[3000:3200].to_csv("sample.csv", index=False)
adult[3200:3300].drop(columns="income").to_csv("new.csv", index=False)
"""


def main() -> None:
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    (sdist,) = Path(sys.argv[1]).glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="mapl-dist-") as name:
        place = Path(name)
        subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
        python = place / "env" / "bin" / "python"
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, wheel.resolve()], check=True)
        work = place / "work"
        work.mkdir()
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        env |= {"PATH": f"{python.parent}:{env['PATH']}", "MAPL_STATE": str(place)}
        run = {"cwd": work, "env": env, "check": True}
        subprocess.run([python, "-c", SAMPLES], **run)
        for kind, code in BLOCK.findall((ROOT / "README.md").read_text()):
            shell = ["bash", "-euo", "pipefail", "-c", code]
            subprocess.run(shell if kind == "sh" else [python, "-c", code], **run)
        # The sdist makes the same package.
        subprocess.run(
            [*pip, "--no-deps", "--force-reinstall", sdist.resolve()], check=True
        )
        subprocess.run([python.with_name("mapl"), "--version"], **run)


if __name__ == "__main__":
    main()
