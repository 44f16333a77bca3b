"""`make wheel-test`: the wheel that a user gets, in a clean environment. An editable install hides missing files.

Builds the wheel, installs it into a new environment, and there runs the demo and the commands; looks into the wheel
for what must not be missing and what must not be in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNITS = tuple(f"acpd/cli/units/{whose}/acpd.{kind}" for whose in ("user", "system") for kind in ("service", "socket"))
MUST = (
    *UNITS,
    "acpd/py.typed",
    "acpd/cli/entry.py",
    "acpd/native/entry.py",
    "acpd_backends/stores.py",
    "acpd_backends/py.typed",
)


def run(*words: str | Path, cwd: Path) -> None:
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], cwd=cwd, check=True)


def look_into(wheel: Path) -> None:
    """Raises SystemExit if a file is missing, or one is there that would take a name from somebody else."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in MUST if name not in names]
    tops = {name.split("/")[0] for name in names} - {"acpd", "acpd_backends"}
    strange = [top for top in tops if not top.endswith(".dist-info")]
    if missing or strange or not any(name.endswith("licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name}: missing {missing}, strange {strange}, or no licence")
    print(f"{wheel.name}: {len(names)} files")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="acpd-wheel-") as name:
        there = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", there, ROOT, cwd=there)
        wheel = next(there.glob("acpd-*.whl"))
        look_into(wheel)
        venv.create(there / "venv", with_pip=True)
        python = there / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=there)
        run(python.with_name("acpd"), "--version", cwd=there)
        run(python.with_name("acpd-agent"), "--version", cwd=there)
        run(python.with_name("acpd"), "service", "install", "--dry-run", cwd=there)
        # -I: neither this folder nor the sources may be in the path
        run(python, "-I", "-c", "import acpd, acpd_backends; print(acpd.__file__, acpd_backends.__file__)", cwd=there)
        run(python, "-I", ROOT / "tests" / "demo.py", cwd=there)


if __name__ == "__main__":
    main()
