"""The project's settings as tests need them: nothing from the developer's environment but DATABASE_URL."""

import os

for _name in (
    "ALLOWED_HOSTS",
    "DEBUG",
    "HTTPS",
    "TRUSTED_PROXIES",
    "REDIS_URL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
):
    os.environ.pop(_name, None)
for _name in [
    name for name in os.environ if name.startswith("AGENTSTATE_") and not name.startswith("AGENTSTATE_TEST_")
]:
    del os.environ[_name]
os.environ["SECRET_KEY"] = "only for tests; long enough, and known to everyone"
os.environ["HTTPS"] = "false"

from agentstate.settings import *  # noqa: E402, F403
from agentstate.settings import DATABASES, STORAGES  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
# Static files are found where they are written; nothing is collected first.
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = True
if "sqlite" in DATABASES["default"]["ENGINE"]:
    # No test cuts the power; a killed process loses nothing either way.
    DATABASES["default"]["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
