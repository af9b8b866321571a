"""The Django project's settings. What differs between installations is read from the environment.

Without any variable this is the embedded configuration of `manage.py up`: SQLite, an in-process broker, plain
HTTP on this machine. An invalid value is refused at start with a sentence that says what to do.
"""

import contextlib
import logging
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any

# Haystack reads it when it is imported, wherever that happens first.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")

import dj_database_url
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from environs import Env, EnvError

BASE_DIR = Path(__file__).resolve().parent.parent

env = Env()


def _secret_key(file: Path) -> str:
    """The key in `file`, created at the first start; processes that start at once agree on one."""
    try:
        if not file.exists():
            descriptor, draft = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
            try:
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(secrets.token_urlsafe(50))
                with contextlib.suppress(FileExistsError):
                    os.link(draft, file)
            finally:
                os.unlink(draft)
        return file.read_text()
    except OSError as error:
        raise ImproperlyConfigured(
            f"SECRET_KEY is not set, and none can be stored in {file}: {error}."
        ) from error


def _names(name: str, default: str) -> list[str]:
    return [entry.strip() for entry in env.str(name, default).split(",") if entry.strip()]


def _seconds(name: str, default: float) -> float:
    value: float = env.float(name, default)
    if value <= 0:
        raise ImproperlyConfigured(f"{name} must be a number of seconds above 0, not {value:g}.")
    return value


def _context_windows() -> dict[str, int]:
    """Tokens by agent key; "" stands for every other agent."""
    windows = {}
    for entry in _names("AGENTSTATE_CONTEXT_WINDOW", ""):
        agent, _, tokens = entry.rpartition("=")
        if not tokens.strip().isdecimal() or int(tokens) == 0:
            raise ImproperlyConfigured(
                f"AGENTSTATE_CONTEXT_WINDOW must be a number of tokens, or AGENT=TOKENS for one agent, not {entry!r}."
            )
        windows[agent.strip()] = int(tokens)
    return windows


def _patterns(name: str) -> list[str]:
    """Regular expressions, one per line."""
    patterns = [line for line in env.str(name, "").splitlines() if line.strip()]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ImproperlyConfigured(
                f"{name}: {pattern!r} is not a valid regular expression: {error}. Write one per line."
            ) from error
    return patterns


def _redis_url() -> str:
    url: str = env.str("REDIS_URL", "")
    if url and not url.startswith(("redis://", "rediss://")):
        raise ImproperlyConfigured(
            f"REDIS_URL must begin with redis:// or rediss://, unlike {url.partition(':')[0]}:."
        )
    return url


def _database() -> dict[str, Any]:
    url = env.str("DATABASE_URL", "") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}"
    if not url.startswith(("sqlite:", "postgres:", "postgresql:")):
        raise ImproperlyConfigured(
            "DATABASE_URL must begin with sqlite:/// or postgres://, the supported databases."
        )
    database: dict[str, Any] = {**dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True)}
    if url.startswith("sqlite:"):
        # IMMEDIATE: a transaction takes the write lock when it begins, so that writers wait instead of failing.
        database["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000;",
            **database.get("OPTIONS", {}),
        }
    return database


try:
    DEBUG = env.bool("DEBUG", False)
    # Whether browsers connect over TLS; `manage.py up` serves plain HTTP unless this says that a proxy adds TLS.
    HTTPS: bool | None = env.bool("HTTPS", None)
    ALLOWED_HOSTS = _names("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    CSRF_TRUSTED_ORIGINS = _names("CSRF_TRUSTED_ORIGINS", "")
    DATABASES = {"default": _database()}
    REDIS_URL = _redis_url()
    LOG_LEVEL = env.log_level("LOG_LEVEL", logging.INFO)
    SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", 3600 * 24 * 365)

    AGENTSTATE_AGENTS = _names("AGENTSTATE_AGENTS", "agentstate.demo.agents")
    AGENTSTATE_MAX_ATTEMPTS: int = env.int("AGENTSTATE_MAX_ATTEMPTS", 5)
    AGENTSTATE_LEASE_SECONDS = _seconds("AGENTSTATE_LEASE_SECONDS", 12)
    AGENTSTATE_HEARTBEAT_SECONDS = _seconds("AGENTSTATE_HEARTBEAT_SECONDS", 5)
    AGENTSTATE_SWEEP_SECONDS = _seconds("AGENTSTATE_SWEEP_SECONDS", 5)
    AGENTSTATE_SLICE_SECONDS = _seconds("AGENTSTATE_SLICE_SECONDS", 20)
    AGENTSTATE_RETRY_SECONDS = _seconds("AGENTSTATE_RETRY_SECONDS", 2)
    AGENTSTATE_CONTEXT_WINDOW = _context_windows()
    AGENTSTATE_MASK_KEYS = _names("AGENTSTATE_MASK_KEYS", "")
    AGENTSTATE_MASK_PATTERNS = _patterns("AGENTSTATE_MASK_PATTERNS")
except EnvError as error:
    raise ImproperlyConfigured(str(error)) from error

if AGENTSTATE_LEASE_SECONDS < 2 * AGENTSTATE_HEARTBEAT_SECONDS:
    raise ImproperlyConfigured(
        f"AGENTSTATE_LEASE_SECONDS ({AGENTSTATE_LEASE_SECONDS:g}) must be at least twice AGENTSTATE_HEARTBEAT_SECONDS "
        f"({AGENTSTATE_HEARTBEAT_SECONDS:g}), or a healthy worker loses its sessions when one beat is late."
    )
if AGENTSTATE_MAX_ATTEMPTS < 1:
    raise ImproperlyConfigured(f"AGENTSTATE_MAX_ATTEMPTS must be at least 1, not {AGENTSTATE_MAX_ATTEMPTS}.")

SECRET_KEY = env.str("SECRET_KEY", "") or _secret_key(BASE_DIR / ".secret_key")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "django_htmx",
    "template_partials",
    "sessions_app",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "sessions_app.desk.malformed.refuse_malformed_requests",
]

ROOT_URLCONF = "agentstate.urls"
WSGI_APPLICATION = "agentstate.wsgi.application"
ASGI_APPLICATION = "agentstate.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Django's shared caches pickle their values, and nothing here may be unpickled; see `runtime.tool_cache`.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

STATIC_URL = "static/"
STATIC_ROOT = env.path("STATIC_ROOT", BASE_DIR / "staticfiles")
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "object-src": [NONE],
    },
}

# Outside development TLS is the default; an installation over plain HTTP has to set HTTPS=False.
_over_tls = not DEBUG if HTTPS is None else HTTPS
SECURE_SSL_REDIRECT = _over_tls
SESSION_COOKIE_SECURE = _over_tls
CSRF_COOKIE_SECURE = _over_tls
SESSION_COOKIE_HTTPONLY = True
if _over_tls:
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    # A proxy that terminates TLS must set this header itself and drop the client's.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
else:
    SECURE_HSTS_SECONDS = 0
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": "NOTSET", "propagate": True},
        # They log two lines for each wake-up.
        "celery.worker.strategy": {"level": max(LOG_LEVEL, logging.WARNING)},
        "celery.app.trace": {"level": max(LOG_LEVEL, logging.WARNING)},
    },
}
