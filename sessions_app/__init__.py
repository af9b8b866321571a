"""The Django app: the stored data in the ORM, and the desk on which staff work.

It needs the extra `desk`, which is checked here so that whoever lacks it is told what to install.
"""

import sys
from importlib.util import find_spec

_NEEDED = (
    "axes",
    "celery",
    "csp",
    "dj_database_url",
    "django",
    "django_htmx",
    "environs",
    "filetype",
    "jsonschema",
    "kombu",
    "psycopg",
    "re2",
    "redis",
    "template_partials",
    "waitress",
    "whitenoise",
)

if missing := [name for name in _NEEDED if name not in sys.modules and find_spec(name) is None]:
    raise ImportError(
        f"The desk needs the extra 'desk': pip install 'agentstate[desk]' (not installed: {', '.join(missing)})."
    )
