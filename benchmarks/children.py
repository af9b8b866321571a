"""Runs the programs of the benchmarks: each prints what it measured as JSON, on the last line."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def ask(
    module: str, *arguments: str, interpreter: str = sys.executable, env: Mapping[str, str] | None = None
) -> Any:
    """
    :raises subprocess.CalledProcessError: if the program fails; its errors have been shown.
    """
    done = subprocess.run(
        [interpreter, "-m", module, *arguments],
        cwd=ROOT,
        env={**(os.environ if env is None else env), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def say(text: str) -> None:
    """A line of progress."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)
