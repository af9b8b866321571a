"""System checks of what the settings name: the collected static files.

They are part of `manage.py check --deploy`: `manage.py up` collects the files itself.
"""

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.storage import ManifestFilesMixin
from django.core.checks import CheckMessage, Warning, register
from django.core.files.storage import storages

from agentstate.installation import MANAGE


@register("agentstate", deploy=True)
def static_files_are_collected(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Else each page that names a file which is not in the manifest is a bare error 500."""
    if settings.DEBUG:
        return []
    try:
        storage = storages.create_storage(settings.STORAGES["staticfiles"])
    except (OSError, ValueError) as error:
        return [_not_collected(f"The manifest in STATIC_ROOT cannot be read: {error}")]
    if not isinstance(storage, ManifestFilesMixin):
        return []
    missing = next((name for name in _names() if storage.hash_key(name) not in storage.hashed_files), None)
    if missing is None:
        return []
    return [
        _not_collected(f"STATIC_ROOT ({settings.STATIC_ROOT}) lacks files of the pages, such as {missing}.")
    ]


def _names() -> Iterator[str]:
    for finder in get_finders():
        for name, _ in finder.list([]):
            yield name.replace("\\", "/")


def _not_collected(what: str) -> CheckMessage:
    return Warning(
        f"{what} Pages that need them fail.",
        hint=f"Run `{MANAGE} collectstatic --noinput` with the settings of the web processes.",
        id="agentstate.W006",
    )
