"""Whether this is a clone of the project or an installed package: where its data is kept, and how its commands start.

A clone keeps its data in its own folder and has `manage.py`. An installed desk keeps them in the folder in which it is
started, and its commands begin with `agentstate desk`.
"""

from pathlib import Path

_PARENT = Path(__file__).resolve().parent.parent
IS_CLONE = (_PARENT / "manage.py").is_file() and (_PARENT / "pyproject.toml").is_file()

MANAGE = "manage.py" if IS_CLONE else "agentstate desk"
"""What people type before a command of the desk."""


def data_folder() -> Path:
    """The folder of the database, the secret key and the collected static files, unless settings say otherwise."""
    return _PARENT if IS_CLONE else Path.cwd()


def shared_folder(name: str) -> Path:
    """The folder `templates` or `static`: at the top level of a clone, and in `sessions_app` once it is installed."""
    return _PARENT / name if IS_CLONE else _PARENT / "sessions_app" / name
