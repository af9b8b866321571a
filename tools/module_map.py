"""Writes docs/modules.md: every module of the project with the first sentence of its docstring.

`python -m tools.module_map` writes the file; `tests/test_architecture.py` fails while it is out of date.
"""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "modules.md"
PACKAGES = ("agentstate", "sessions_app", "tools", "benchmarks")
HEAD = """# Modules

Every module with its purpose, made from their docstrings by `python -m tools.module_map`.
[architecture.md](architecture.md) says how they work together.
"""


def module_map() -> str:
    """The whole text of docs/modules.md."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    modules = [path for path in paths if "migrations" not in path.parts and path.read_text().strip()]
    return "\n".join([HEAD, *_sections(sorted(modules, key=lambda path: (path.parent, path.name)))])


def _sections(paths: list[Path]) -> Iterator[str]:
    for folder, members in groupby(paths, key=lambda path: path.parent):
        modules = list(members)
        package = next((path for path in modules if path.name == "__init__.py"), None)
        yield f"## `{folder.relative_to(ROOT)}/`\n"
        if package is not None:
            yield f"{_purpose(package)}\n"
        rows = [f"| `{path.name}` | {_purpose(path)} |" for path in modules if path != package]
        if rows:
            yield "\n".join(["| module | purpose |", "|---|---|", *rows, ""])


def _purpose(path: Path) -> str:
    """The first paragraph of the module's docstring, on one line.

    :raises ValueError: for a module without a docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring.")
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(module_map())
