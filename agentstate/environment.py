"""How the settings read the environment. An invalid value is refused with a sentence that says what to do."""

from collections.abc import Sequence
from typing import Final, TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from environs import Env

from agentstate.prices import Price, read_prices

DAY: Final = 24 * 60 * 60

env = Env()
Default = TypeVar("Default", bound=int | None)


def names(name: str, default: Sequence[str] = ()) -> list[str]:
    """Entries separated by commas; empty ones are left out."""
    return [entry for entry in env.list(name, list(default), subcast=str.strip) if entry]


def seconds(name: str, default: float, *, or_none: bool = False, most: float = DAY) -> float:
    value: float = env.float(name, default)
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


def redis_url(name: str, default: str = "") -> str:
    url: str = env.str(name, "") or default
    if url and not url.startswith(("redis://", "rediss://")):
        raise ImproperlyConfigured(
            f"{name} must begin with redis:// or rediss://, unlike {url.partition(':')[0]}:."
        )
    check_port(name, url)
    return url


def check_port(name: str, url: str) -> None:
    """:raises ImproperlyConfigured: for an address with a wrong port. The sentence shows nothing of a password."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ImproperlyConfigured(
            f"{name}: the host and colon are not followed by a port from 1 to 65535. If a port is there, a character "
            "of the user's name or password has to be encoded: / as %2F, # as %23, ? as %3F, [ as %5B."
        ) from None


def count(name: str, default: Default, *, least: int) -> int | Default:
    number: int | None = env.int(name, None)
    if number is None:
        return default
    if number < least:
        raise ImproperlyConfigured(f"{name} must be at least {least}, not {number}.")
    return number
