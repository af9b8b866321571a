"""An empty virtual environment with the project's wheel and exactly what its metadata requires; works offline.

What the wheel requires is taken from the environment that runs this: each distribution's own files are linked into the
new one. So nothing is downloaded, and nothing is there that `pip install` of the same requirements would not bring.

    python -m tools.clean_environment FOLDER     builds the wheel into FOLDER
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.processes import PROJECT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "agentstate", "sessions_app", "templates", "static")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources: nothing is left in the project, or taken from an older build."""
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            shutil.copytree(
                PROJECT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
            )
        else:
            shutil.copy(PROJECT / name, sources / name)
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    [wheel] = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, *extras: str) -> Path:
    """The environment's interpreter, with the wheel and its requirements for these extras."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    site = next((folder / "lib").glob("python*/site-packages"))
    [metadata] = site.glob("agentstate-*.dist-info")
    for required in required_by(Distribution.at(metadata), extras):
        _link(required, site)
    _pip("--python", str(python), "check")
    return python


def required_by(root: Distribution, extras: Iterable[str]) -> list[Distribution]:
    """All that a distribution requires with these extras, here and on this machine."""
    required: dict[str, Distribution] = {}
    open_requirements = [(root, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_requirements:
        owner, its_extras = open_requirements.pop()
        for text in owner.requires or ():
            requirement = Requirement(text)
            if not _applies(requirement, its_extras):
                continue
            name, extras_of_it = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if (name, extras_of_it) not in seen:
                seen.add((name, extras_of_it))
                required[name] = distribution(name)
                open_requirements.append((required[name], extras_of_it))
    return list(required.values())


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def _link(installed: Distribution, site: Path) -> None:
    for file in installed.files or ():
        source, target = Path(str(installed.locate_file(file))), site / file
        if ".." in file.parts or (file.suffix == ".pyc" and not source.exists()):
            continue  # a program, or what the interpreter makes again
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            try:
                os.link(source, target)
            except OSError:  # on another file system
                shutil.copy2(
                    source, target
                )  # with the time at which it was written, which its compiled form names


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)} failed: {done.stdout}{done.stderr}")


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as workshop:
        wheel = build_wheel(Path(workshop))
        Path(folder).mkdir(exist_ok=True)
        shutil.copy(wheel, folder)
        sys.stdout.write(f"{folder}/{wheel.name}\n")


if __name__ == "__main__":
    main(sys.argv[1])
