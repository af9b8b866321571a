"""All benchmarks, each in a process of its own: a database is chosen when Django starts."""

import subprocess
import sys

for arguments in ([], ["--postgres"]):
    subprocess.run([sys.executable, "-m", "benchmarks.steps", *arguments], check=True)
