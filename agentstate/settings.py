"""The Django project's settings. What differs between installations is read from the environment.

Without any variable this is the embedded configuration of `manage.py up`: SQLite, an in-process broker, plain
HTTP on this machine. An invalid value is refused at start with a sentence that says what to do.
"""

import contextlib
import logging
import os
import secrets
import tempfile
from datetime import timedelta
from pathlib import Path

# Haystack reads it when it is imported, wherever that happens first.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from agentstate.database_url import database
from agentstate.durations import LONGEST_SECONDS
from agentstate.environment import (
    DAY,
    context_windows,
    count,
    currency,
    flag,
    flag_or_none,
    hidden_keys,
    hosts,
    log_level,
    names,
    origins,
    patterns,
    prices,
    redis_url,
    seconds,
    text,
)
from agentstate.installation import IS_CLONE, data_folder, shared_folder

BASE_DIR = data_folder()


def _secret_key(file: Path) -> str:
    """The key in `file`, created at the first start; processes that start at once agree on one.

    A file that is empty or damaged, as a power failure may leave it, is refused.
    """
    try:
        if not file.exists():
            descriptor, draft = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
            try:
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(secrets.token_urlsafe(50))
                    stream.flush()
                    os.fsync(stream.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(draft, file)
            finally:
                os.unlink(draft)
        key = file.read_text()
    except OSError as error:
        raise ImproperlyConfigured(
            f"SECRET_KEY is not set, and none can be stored in {file}: {error}."
        ) from error
    except UnicodeDecodeError:
        key = ""
    if not key.strip() or "\0" in key:
        raise ImproperlyConfigured(
            f"SECRET_KEY is not set, and {file} holds no key: it is empty or damaged. Set SECRET_KEY, restore the "
            "file, or delete it: then the next start makes a new key, and everyone has to sign in again."
        )
    return key


DEBUG = flag("DEBUG", False)
# Whether browsers connect over TLS; `manage.py up` serves plain HTTP unless this says that a proxy adds TLS.
HTTPS = flag_or_none("HTTPS")
# Whose X-Forwarded-Proto and X-Forwarded-For are believed: without a proxy, anybody can send them.
TRUSTED_PROXIES = count("TRUSTED_PROXIES", None, least=0)
ALLOWED_HOSTS = hosts("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = origins("CSRF_TRUSTED_ORIGINS")
REDIS_URL = redis_url("REDIS_URL", of_celery=True)
LOG_LEVEL = log_level("LOG_LEVEL", logging.INFO)
SECURE_HSTS_SECONDS = count("SECURE_HSTS_SECONDS", 3600 * 24 * 365, least=0)

AGENTSTATE_AGENTS = names("AGENTSTATE_AGENTS", ["agentstate.demo.agents"])
AGENTSTATE_MAX_ATTEMPTS = count("AGENTSTATE_MAX_ATTEMPTS", 5, least=1)
AGENTSTATE_LEASE_SECONDS = seconds("AGENTSTATE_LEASE_SECONDS", 12)
# PostgreSQL itself accepts no higher max_connections.
AGENTSTATE_CONNECTIONS = count("AGENTSTATE_CONNECTIONS", 10, least=0, most=262_143)
AGENTSTATE_PROCESSES = count("AGENTSTATE_PROCESSES", None, least=1)
DATABASES = {"default": database(BASE_DIR, AGENTSTATE_LEASE_SECONDS, AGENTSTATE_CONNECTIONS)}
AGENTSTATE_HEARTBEAT_SECONDS = seconds("AGENTSTATE_HEARTBEAT_SECONDS", 5)
AGENTSTATE_SWEEP_SECONDS = seconds("AGENTSTATE_SWEEP_SECONDS", 5)
AGENTSTATE_SLICE_SECONDS = seconds("AGENTSTATE_SLICE_SECONDS", 20)
AGENTSTATE_RESERVED_THREADS = count("AGENTSTATE_RESERVED_THREADS", 2, least=0)
AGENTSTATE_KEEP_MB = count("AGENTSTATE_KEEP_MB", 32, least=0)
AGENTSTATE_RETRY_SECONDS = seconds("AGENTSTATE_RETRY_SECONDS", 2)
AGENTSTATE_CONTEXT_WINDOW = context_windows()
AGENTSTATE_PRICES = prices()
AGENTSTATE_CURRENCY = currency("AGENTSTATE_CURRENCY", "USD")
AGENTSTATE_MIRROR_URL = redis_url("AGENTSTATE_MIRROR_URL", REDIS_URL)
AGENTSTATE_MIRROR = flag("AGENTSTATE_MIRROR", True) and bool(AGENTSTATE_MIRROR_URL)
AGENTSTATE_MIRROR_SECONDS = seconds("AGENTSTATE_MIRROR_SECONDS", DAY, most=LONGEST_SECONDS)
AGENTSTATE_STREAMS = count("AGENTSTATE_STREAMS", 500, least=0)
AGENTSTATE_MASK_KEYS = hidden_keys("AGENTSTATE_MASK_KEYS")
AGENTSTATE_MASK_PATTERNS = patterns("AGENTSTATE_MASK_PATTERNS")
# The demo, which does without Django, reads it each time that it waits.
seconds("AGENTSTATE_DEMO_DELAY", 0, or_none=True)

if AGENTSTATE_LEASE_SECONDS < 2 * AGENTSTATE_HEARTBEAT_SECONDS:
    raise ImproperlyConfigured(
        f"AGENTSTATE_LEASE_SECONDS ({AGENTSTATE_LEASE_SECONDS:g}) must be at least twice AGENTSTATE_HEARTBEAT_SECONDS "
        f"({AGENTSTATE_HEARTBEAT_SECONDS:g}), or a healthy worker loses its sessions when one heartbeat is late."
    )

SECRET_KEY = text("SECRET_KEY") or _secret_key(BASE_DIR / ".secret_key")
if not SECRET_KEY.strip():
    raise ImproperlyConfigured(
        "SECRET_KEY holds nothing but blanks: anyone could sign a login with it. Set another one."
    )

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "axes",
    "csp",
    "django_htmx",
    "template_partials",
    "sessions_app",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "sessions_app.desk.middleware.keep_private",
    "sessions_app.desk.middleware.answer_head_and_options",
    "sessions_app.desk.middleware.ignore_cookies_with_nul",
    "sessions_app.desk.middleware.refuse_large_bodies",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "sessions_app.desk.visible.show_invisible_characters",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "sessions_app.desk.middleware.end_logins_of_closed_accounts",
    "django.contrib.messages.middleware.MessageMiddleware",
    "sessions_app.desk.locked.LockedDatabaseMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "sessions_app.desk.malformed.refuse_malformed_requests",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "agentstate.urls"
WSGI_APPLICATION = "agentstate.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # Those of the desk come before those of the apps that it uses.
        "DIRS": [shared_folder("templates")],
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
FORMAT_MODULE_PATH = "agentstate.formats"

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "sessions_app.access.logins.Backend"]
SESSION_ENGINE = "sessions_app.access.logins"
MESSAGE_STORAGE = "sessions_app.desk.toast_storage.ToastStorage"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Wrong passwords; `sessions_app.desk.login` counts them by these and answers those who must wait.
AXES_HANDLER = "sessions_app.desk.login.Throttle"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"], "ip_address", "username"]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = True
AXES_USERNAME_CALLABLE = "sessions_app.desk.login.client_name"
AXES_CLIENT_IP_CALLABLE = "sessions_app.desk.login.client_address"
AXES_CLIENT_STR_CALLABLE = "sessions_app.desk.login.client_text"
AXES_LOCKOUT_CALLABLE = "sessions_app.desk.login.locked_out"
# What axes records is for its counting only, and is deleted when it is out of date.
AXES_ENABLE_ADMIN = False
# Beside the one of the login pages. They are stored as asterisks.
AXES_SENSITIVE_PARAMETERS = ["username", "ip_address", "old_password", "new_password1", "new_password2"]
AXES_DISABLE_ACCESS_LOG = True

STATIC_URL = "static/"
STATIC_ROOT = Path(text("STATIC_ROOT") or BASE_DIR / "staticfiles")
# An installed desk has them in its app, where Django finds them.
STATICFILES_DIRS = [shared_folder("static")] if IS_CLONE else []
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# The desk has no file inputs, and nothing that people type is larger.
DATA_UPLOAD_MAX_NUMBER_FILES = 0
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440

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
else:
    SECURE_HSTS_SECONDS = 0
if TRUSTED_PROXIES:
    # The proxy that ends TLS must set this header itself and drop the client's.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "sessions_app.log_lines.LineFormatter",
            "format": "{asctime} {levelname} {name}: {message}",
            "style": "{",
        }
    },
    "filters": {"failed_tasks": {"()": "sessions_app.log_lines.FailedTasks"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": "NOTSET", "propagate": True},
        # Each sign-in; one that fails is a warning.
        "axes": {"level": max(LOG_LEVEL, logging.WARNING)},
        # They log two lines for each wake-up.
        "celery.worker.strategy": {"level": max(LOG_LEVEL, logging.WARNING)},
        "celery.app.trace": {"level": max(LOG_LEVEL, logging.WARNING), "filters": ["failed_tasks"]},
        # One for each sweep.
        "celery.beat": {"level": max(LOG_LEVEL, logging.WARNING)},
        # And this one three for each use of a connection.
        "psycopg.pool": {"level": max(LOG_LEVEL, logging.WARNING)},
    },
}
