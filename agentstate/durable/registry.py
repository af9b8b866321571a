"""The registered agents: for each a key, a factory, and the policies of its tools.

An agent is registered by one decorated function. The setting `AGENTSTATE_AGENTS` names the modules with such functions;
no code is ever named by stored data. Needs no Haystack until a factory is called.
"""

import functools
import importlib
import re
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from agentstate.articles import an
from agentstate.durable.breakpoints import Breakpoint, checked_breakpoints
from agentstate.durable.interruptions import contained, raised_by
from agentstate.durable.policy import DEFAULT, ToolPolicy, checked_policies
from agentstate.durable.semantic_cache import SemanticCache

Factory = TypeVar("Factory", bound=Callable[[], Any])
# A key is a part of the address of the agent's page.
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class AgentError(Exception):
    """An agent that is not available. The message says what to do."""


class AgentNotRegistered(AgentError):
    pass


class AgentModuleMissing(AgentError):
    pass


class AgentBuildFailed(AgentError):
    pass


class AsyncOnly(AgentError):
    """The agent has parts that only `run_async` can use."""

    def __init__(self, key: str, parts: Sequence[str]) -> None:
        super().__init__(
            f"The agent {key!r} has parts that are async only: {', '.join(parts)}. Call `await run_async(...)` "
            "instead of `run(...)`, and `resume_async` instead of `resume`."
        )


# A text such as "no" would count as true.
_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("key", str, "a text"),
    ("title", str, "a text"),
    ("description", str, "a text"),
    ("run_async", bool | None, "True, False or None"),
    ("stream", bool, "True or False"),
    ("embedder", Callable | None, "a function or class that makes the embedder"),
    ("semantic_cache", SemanticCache | None, "a SemanticCache(...)"),
)


@dataclass(frozen=True, slots=True)
class Registration:
    key: str
    title: str
    factory: Callable[[], Any]
    policies: Mapping[str, ToolPolicy] = field(default_factory=dict)
    description: str = ""
    run_async: bool | None = None
    embedder: Callable[[], Any] | None = None
    semantic_cache: SemanticCache | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    stream: bool = False

    def __post_init__(self) -> None:
        """
        :raises TypeError: for a value of another type than that of its field.
        :raises ValueError: for a key that could not stand in an address, a semantic cache without an embedder, or a
        breakpoint that is to stop once.
        """
        for name, kind, what in _FIELDS:
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"The agent {self.key!r}: {name} must be {what}, not {value!r}.")
        if any(breakpoint.once for breakpoint in self.breakpoints):
            raise ValueError(
                f"The agent {self.key!r} has a breakpoint with once=True: one that is registered stops every session, "
                "each time. Set it on a session instead."
            )
        if self.semantic_cache is not None and self.embedder is None:
            raise ValueError(f"The agent {self.key!r} has a semantic_cache, which needs an embedder too.")
        if not _KEY.fullmatch(self.key):
            raise ValueError(
                f"The agent key {self.key!r} is invalid: use at most 100 letters, digits, '_', '-' and '.', "
                "beginning with a letter or digit."
            )

    @property
    def module(self) -> str:
        return str(getattr(self.factory, "__module__", ""))

    def policy(self, tool: str) -> ToolPolicy:
        """The tool's policy. A tool without one is not idempotent and needs no approval."""
        return self.policies.get(tool, DEFAULT)


def describe_code_error(error: BaseException) -> str:
    """What is wrong with an agent's code, and where: ``shop/agents.py, line 3: SyntaxError: invalid syntax``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    text = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_library(frame.filename)
    ]
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}: {text}" if frames else text


def _is_library(filename: str) -> bool:
    """Whether the file is Python's, an installed package's, or this engine's, and not the developer's own."""
    path = Path(filename)
    return (
        path.parent == Path(__file__).parent
        or "site-packages" in path.parts
        or filename.startswith(sysconfig.get_path("stdlib"))
    )


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class Registry:
    """A set of registrations. `load` may be called from several threads; a module is imported once."""

    def __init__(self) -> None:
        self._by_key: dict[str, Registration] = {}
        self._lock = threading.RLock()

    def add(self, registration: Registration) -> None:
        with self._lock:
            other = self._by_key.get(registration.key)
            if other is not None and _origin(other) != _origin(registration):
                raise ValueError(
                    f"Two agents are registered as {registration.key!r}: {_origin(other)} and {_origin(registration)}. "
                    "Give one of them another key."
                )
            self._by_key[registration.key] = registration

    def load(self, modules: Iterable[str]) -> None:
        """Import the modules that register agents.

        :raises AgentModuleMissing: naming the module, for one that cannot be imported.
        """
        for module in modules:
            try:
                with contained():
                    importlib.import_module(module)
            except Exception as error:
                is_misnamed = isinstance(error, ModuleNotFoundError) and error.name == module
                cure = "AGENTSTATE_AGENTS" if is_misnamed else "the module, then restart the workers"
                why = describe_code_error(raised_by(error)).rstrip(".")
                raise AgentModuleMissing(
                    f"The agent module {module!r} cannot be imported: {why}. Correct {cure}."
                ) from error

    def get(self, key: str) -> Registration:
        """:raises AgentNotRegistered: for an unknown key."""
        try:
            return self._by_key[key]
        except KeyError:
            known_keys = ", ".join(sorted(self._by_key)) or "none"
            raise AgentNotRegistered(
                f"No agent is registered as {key!r}; registered are: {known_keys}. Add its module to AGENTSTATE_AGENTS."
            ) from None

    def find(self, key: str, modules: Iterable[str]) -> Registration:
        """The agent of this key. Imports the modules one by one until one of them has registered it.

        :raises AgentModuleMissing: for a key that no module has registered, if some of them cannot be imported.
        :raises AgentNotRegistered: for any other unknown key.
        """
        if key in self._by_key:
            return self._by_key[key]
        problems: dict[str, AgentModuleMissing] = {}
        for module in modules:
            try:
                self.load([module])
            except AgentModuleMissing as error:
                problems[module] = error
            found = self._by_key.get(key)
            # What a module has registered before it failed is not all of it.
            if found is not None and not any(is_part_of(found.module, failed) for failed in problems):
                return found
        if not problems:
            return self.get(key)
        raise AgentModuleMissing(
            f"No agent is registered as {key!r} by the modules that can be imported. "
            + " ".join(map(str, problems.values()))
        ) from next(iter(problems.values()))

    def all(self) -> list[Registration]:
        return sorted(self._by_key.values(), key=lambda registration: registration.key)


registry = Registry()
# The registrations whose factories an agent went through, from the one that built it to the outermost.
_registrations_of: WeakKeyDictionary[object, tuple[Registration, ...]] = WeakKeyDictionary()


def agent(
    key: str,
    *,
    title: str = "",
    policies: Mapping[str, ToolPolicy] | None = None,
    description: str = "",
    run_async: bool | None = None,
    embedder: Callable[[], Any] | None = None,
    semantic_cache: SemanticCache | None = None,
    breakpoints: Iterable[Breakpoint] = (),
    stream: bool = False,
) -> Callable[[Factory], Factory]:
    """Register the decorated factory as the agent `key`.

    The factory takes no arguments and returns a Haystack `Agent`. It is called once per worker process, when
    the first session needs it. `policies` are those of its tools, by the tool's name. Workers run it by
    its `run_async` if that is given, or if it has parts that are async only.

    A factory may return what another registered factory returned. The policies and breakpoints of that registration
    then hold too; for a tool that both name, the policy given here replaces the other one as a whole. All else is as
    given here.

    :param embedder: Makes the Haystack text embedder by which the agent's long-term memory and its sessions are
        compared by meaning; without one they are compared by words. Called in workers only.
    :param semantic_cache: On the desk, questions that mean the same as an earlier one of the same customer are answered
        by its reply, without asking the model. None: never. In a script the model is always asked.
    :param breakpoints: Where each of its sessions stops, on the desk and in scripts, until it is resumed.
    :param stream: Request the model's replies as a stream, so that an open page of a session shows them while they are
        written. An agent with a streaming callback of its own needs no such request.
    :raises TypeError: where it decorates a function without a key, or something else than a function, or is given what
        is of another type.
    :raises ValueError: for an invalid key, or one that another function has, for a semantic cache without an embedder,
        and for a breakpoint with `once`.
    """

    if callable(key):
        raise TypeError("The agent has no key: write @agent('a-key') above the function that builds it.")

    def register(factory: Factory) -> Factory:
        if not callable(factory):
            raise TypeError(
                f"@agent({key!r}) goes above the function that builds the agent, but was given {an(factory)}."
            )

        @functools.wraps(factory)
        def build(*args: Any, **kwargs: Any) -> Any:
            built = factory(*args, **kwargs)
            with suppress(TypeError):  # no weak reference, so no agent: `build` of the worker says what it is
                # A factory that keeps its agent returns it again after outer factories have added theirs.
                inner = takewhile(lambda other: other.key != key, _registrations_of.get(built, ()))
                _registrations_of[built] = (*inner, registration)
            return built

        registration = Registration(
            key=key,
            title=title or key,
            factory=build,
            policies=dict(checked_policies(policies)),
            description=description or (factory.__doc__ or "").strip(),
            run_async=run_async,
            embedder=embedder,
            semantic_cache=semantic_cache,
            breakpoints=checked_breakpoints(breakpoints),
            stream=stream,
        )
        registry.add(registration)
        return cast(Factory, build)

    return register


def registration_of(agent: object) -> Registration | None:
    """The registration whose factory built this agent: its policies hold wherever the agent runs.

    It includes the policies and breakpoints of the registrations whose factories it got the agent from.
    """
    try:
        registrations = _registrations_of.get(agent, ())
    except TypeError:  # not hashable, or no weak reference
        return None
    if len(registrations) < 2:
        return registrations[0] if registrations else None
    policies: dict[str, ToolPolicy] = {}
    breakpoints: list[Breakpoint] = []
    for registration in registrations:
        policies |= registration.policies
        breakpoints += [each for each in registration.breakpoints if each not in breakpoints]
    return replace(registrations[-1], policies=policies, breakpoints=tuple(breakpoints))


def is_part_of(module: str, package: str) -> bool:
    """Whether the module is the package itself, or stands in it."""
    return module == package or module.startswith(f"{package}.")


def _origin(registration: Registration) -> str:
    factory = registration.factory
    return f"{factory.__module__}.{factory.__qualname__}"
