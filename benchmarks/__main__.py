"""All benchmarks, each in a process of its own: a database is chosen when Django starts."""

import subprocess
import sys

for module in ("benchmarks.steps", "benchmarks.search"):
    for arguments in ([], ["--postgres"]):
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)
