"""The rivals' own virtual environment, made once from the pinned `requirements.txt`."""

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
# Inside that of the project, which every tool leaves alone.
FOLDER = Path(__file__).parent.parent.parent / ".venv" / "rivals"


def python(folder: Path = FOLDER) -> Path:
    """The interpreter of the environment; made, or made again, where it is not what the requirements say."""
    stamp, interpreter = folder / "requirements.txt", folder / "bin" / "python"
    wanted = REQUIREMENTS.read_text()
    if not (stamp.exists() and stamp.read_text() == wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [
            str(interpreter),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--quiet",
        ]
        subprocess.run([*pip, "--require-hashes", "--requirement", str(REQUIREMENTS)], check=True)
        stamp.write_text(wanted)
    return interpreter
