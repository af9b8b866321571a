"""Looks up known vulnerabilities of everything that the lock files pin, with pip-audit: `make audit`.

Exits with 0 if there are none, 1 if there are some, 2 if nothing is known about some package: without the network, or
with an index that does not hand out vulnerabilities. pip-audit itself calls the last "No known vulnerabilities found".
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOCKS = sorted((Path(__file__).resolve().parent.parent / "requirements").glob("*.txt"))
SECONDS = 15


def ask(locks: Iterable[Path]) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on what the lock files pin. Nothing is installed or resolved."""
    files = [argument for lock in locks for argument in ("--requirement", str(lock))]
    command = (sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format=json")
    options = ("--progress-spinner=off", f"--timeout={SECONDS}")
    return subprocess.run((*command, *options, *files), capture_output=True, text=True)


def verdict(output: str, errors: str) -> tuple[int, str]:
    """The exit status and what to say, from what pip-audit wrote to stdout and stderr."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        reason = (errors.strip() or "pip-audit printed nothing.").splitlines()[-1]
        return 2, f"NOT AUDITED: the vulnerability database cannot be reached.\n{reason}"
    vulnerable = [
        f"{package['name']} {package['version']}: {vulnerability['id']}"
        + (f", fixed in {', '.join(vulnerability['fix_versions'])}" if vulnerability["fix_versions"] else "")
        for package in packages
        for vulnerability in package.get("vulns", ())
    ]
    names = {package["name"] for package in packages}
    unknown = sorted({package["name"] for package in packages if "skip_reason" in package})
    if vulnerable:
        lines = sorted(set(vulnerable))
        return 1, "\n".join((f"Known vulnerabilities: {len(lines)}", *lines))
    if unknown:
        which = "any package" if len(unknown) == len(names) else f"these packages: {', '.join(unknown)}"
        return 2, f"NOT AUDITED: the package index has no data on vulnerabilities of {which}."
    return 0, f"No known vulnerabilities in {len(names)} packages."


def main() -> int:
    done = ask(LOCKS)
    code, text = verdict(done.stdout, done.stderr)
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
