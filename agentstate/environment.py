"""How the settings read the environment. An invalid value is refused with a sentence that says what to do.

An empty value counts as none, since a file of variables for systemd or a container often has such lines.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from django.core.exceptions import ImproperlyConfigured
from environs import Env, EnvError

from agentstate.prices import Price, read_prices

DAY: Final = 24 * 60 * 60
CERTIFICATES: Final = ("none", "optional", "required")
ENCODED: Final = (
    "If that is not meant, a character of the user's name or password has to be encoded: / as %2F, # as %23, ? as %3F, "
    "[ as %5B, ; as %3B, @ as %40."
)

# A host name, also with the dot that lets in its subdomains; an IPv6 address in brackets; or any host.
_HOST = re.compile(r"\.?[\w.-]+|\[[0-9A-Fa-f:.]+\]|\*")
# As a browser sends it, in small letters, or with a star for all subdomains.
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:(?:\*\.)?[\w.-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d+))?"
)
_PORTS_NOT_SENT = (("http", "80"), ("https", "443"))
_CURRENCY = re.compile("[A-Z]{3}")

env = Env()
Default = TypeVar("Default", bound=int | None)
Value = TypeVar("Value")


def _given(read: Callable[[str], Value], name: str, kind: str) -> Value | None:
    given = text(name)
    if not given:
        return None
    try:
        return read(name)
    except EnvError:
        raise ImproperlyConfigured(f"{name} must be {kind}, not {given!r}.") from None


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "") or default


def flag(name: str, default: bool) -> bool:
    given = flag_or_none(name)
    return default if given is None else given


def flag_or_none(name: str) -> bool | None:
    return _given(env.bool, name, "true or false")


def log_level(name: str, default: int) -> int:
    level = _given(env.log_level, name, "DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return default if level is None else level


def names(name: str, default: Sequence[str] = ()) -> list[str]:
    """Entries separated by commas; empty ones are left out."""
    if not text(name):
        return list(default)
    return [entry for entry in env.list(name, subcast=str.strip) if entry]


def hosts(name: str, default: Sequence[str]) -> list[str]:
    """Hosts as Django compares them with that of a request, without its port."""
    given = names(name, default)
    for host in given:
        if not _HOST.fullmatch(host):
            raise ImproperlyConfigured(
                f"{name} must be hosts alone, without scheme, port and path, such as desk.example.com, 192.0.2.1 or "
                f"[::1], and commas between them; not {host!r}."
            )
    return given


def origins(name: str) -> list[str]:
    """Origins as Django compares them with that of a request: letter by letter."""
    given = [origin.lower() for origin in names(name)]
    for origin in given:
        parts = _ORIGIN.fullmatch(origin)
        if parts is None or (parts["scheme"], parts["port"]) in _PORTS_NOT_SENT:
            raise ImproperlyConfigured(
                f"{name} must be origins as browsers send them, such as https://desk.example.com, "
                "https://*.example.com or http://localhost:8080: with the scheme, without a path or a slash at the "
                f"end, without the ports 443 of https and 80 of http, and with commas between them; not {origin!r}."
            )
    return given


def currency(name: str, default: str) -> str:
    given = text(name, default)
    if not _CURRENCY.fullmatch(given):
        raise ImproperlyConfigured(
            f"{name} must be the three capital letters of a currency in ISO 4217, such as EUR, not {given!r}."
        )
    return given


def seconds(name: str, default: float, *, or_none: bool = False, most: float = DAY) -> float:
    given = _given(env.float, name, "a number of seconds")
    value = default if given is None else given
    if value < 0 or (value == 0 and not or_none):
        least = "from" if or_none else "above"
        raise ImproperlyConfigured(f"{name} must be a number of seconds {least} 0, not {value:g}.")
    if value > most:
        raise ImproperlyConfigured(f"{name} must be at most {most:,} seconds, not {value:g}.")
    return value


def context_windows() -> dict[str, int]:
    """Tokens by agent key; "" stands for every other agent."""
    windows = {}
    for entry in names("AGENTSTATE_CONTEXT_WINDOW"):
        agent, _, tokens = entry.rpartition("=")
        if not tokens.strip().isdecimal() or int(tokens) == 0:
            raise ImproperlyConfigured(
                f"AGENTSTATE_CONTEXT_WINDOW must be a number of tokens, or AGENT=TOKENS for one agent, not {entry!r}."
            )
        windows[agent.strip()] = int(tokens)
    return windows


def prices() -> dict[str, Price]:
    try:
        return read_prices(names("AGENTSTATE_PRICES"))
    except ValueError as error:
        raise ImproperlyConfigured(f"AGENTSTATE_PRICES: {error}") from error


def patterns(name: str) -> list[str]:
    """Regular expressions, one per line."""
    from sessions_app.access.hiding.patterns import HiddenPattern, PatternError

    lines: list[str] = env.list(name, [], subcast=lambda line: line.rstrip("\r"), delimiter="\n")
    given = [line for line in lines if line.strip()]
    for pattern in given:
        try:
            HiddenPattern(pattern)
        except PatternError as error:
            raise ImproperlyConfigured(f"{name}: {error} Write one per line.") from error
    return given


def hidden_keys(name: str) -> list[str]:
    """Names of keys whose values are hidden, separated by commas or, as the patterns are, by line ends."""
    from sessions_app.access.hiding.names import HiddenNames, normalized

    given = [key for entry in names(name) for key in map(str.strip, entry.splitlines()) if key]
    for key in given:
        if not HiddenNames([normalized(key)]).hides(key):
            raise ImproperlyConfigured(
                f"{name}: a value with the name {key!r} itself would not be hidden. Write names of letters and digits, "
                "with only blanks, '_', '-' and '.' between them, and commas between the names: iban,card_number."
            )
    return given


def redis_url(name: str, default: str = "", *, of_celery: bool = False) -> str:
    """No sentence of a refusal shows anything of a password.

    :param of_celery: Celery reads the address, too, and takes fewer options in it than redis-py.
    """
    url = text(name, default)
    if not url:
        return url
    if not url.startswith(("redis://", "rediss://")):
        raise ImproperlyConfigured(
            f"{name} must begin with redis:// or rediss://, unlike {url.partition(':')[0]}:."
        )
    check_host_and_port(name, url)
    if wrong := _wrong_in_redis_url(url, of_celery=of_celery):
        raise ImproperlyConfigured(f"{name} {wrong} {ENCODED}")
    return url


def _wrong_in_redis_url(url: str, *, of_celery: bool) -> str:
    from redis import ConnectionPool, RedisError

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = parts.path.removeprefix("/")
    if parts.fragment or ";" in url:
        return "must contain neither # nor ;."
    if database and not database.isdecimal():
        return "must have nothing but the number of a database behind the host, such as redis://localhost:6379/0."
    if of_celery and any(not option.startswith("ssl_") for option in options):
        return (
            "may have no options but those for TLS, which begin with ssl_. Give the database as in "
            "redis://localhost:6379/0."
        )
    if options.get("ssl_cert_reqs", CERTIFICATES[0]) not in CERTIFICATES:
        return f"must have one of {', '.join(CERTIFICATES)} as its ssl_cert_reqs."
    try:
        ConnectionPool.from_url(url).make_connection()  # which does not connect yet
    except (RedisError, TypeError, ValueError):
        return "has an option that does not exist or has a wrong value. Options for TLS need rediss://."
    return ""


def check_host_and_port(name: str, url: str) -> None:
    """
    :raises ImproperlyConfigured: for an address with a wrong port, or with a blank in its host. The sentence shows
        nothing of a password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ImproperlyConfigured(
            f"{name}: the host and colon are not followed by a port from 1 to 65535. {ENCODED}"
        ) from None
    if " " in (parts.hostname or ""):
        raise ImproperlyConfigured(f"{name}: the name of the host contains a blank. Remove it. {ENCODED}")


def count(name: str, default: Default, *, least: int, most: int | None = None) -> int | Default:
    number = _given(env.int, name, "a whole number")
    if number is None:
        return default
    if number < least:
        raise ImproperlyConfigured(f"{name} must be at least {least}, not {number}.")
    if most is not None and number > most:
        raise ImproperlyConfigured(f"{name} must be at most {most:,}, not {number}.")
    return number
