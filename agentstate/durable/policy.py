"""How the calls of a tool are run, and which earlier effects of a tool make a call of it need approval.

Pure Python, so that an agent's module can import it anywhere.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any

from agentstate import durations
from agentstate.articles import an
from agentstate.durable.canonical import digest_of

Arguments = Mapping[str, Any]
# How an argument is shown: an amount in a currency (ISO 4217), a date, or as it is.
_FORMAT = re.compile(r"money:[A-Z]{3}|date|text")


@dataclass(frozen=True, slots=True)
class EffectScope:
    """Because of which earlier effects of a tool a call of it needs approval, where the history does not show them.

    All arguments are those that run, as plain JSON.

    :param whole_tool: Every effect of the tool counts until a person has seen it on an approved request. Otherwise only
        those with the same arguments count.
    :param identity: The names of the arguments that identify an effect; empty for none.
    """

    whole_tool: bool = False
    identity: tuple[str, ...] = ()

    def covers(self, effect: Arguments, call: Arguments) -> bool:
        """Whether the effect is shown to the person who decides about the call."""
        if self.identity:
            return self._is_same_identity(effect, call)
        return self.whole_tool or effect == call

    def repeats(self, effect: Arguments, call: Arguments) -> bool:
        """Whether the call needs approval because of a covered effect that a person has seen on an earlier request."""
        return bool(self.identity) or effect == call

    def _is_same_identity(self, effect: Arguments, call: Arguments) -> bool:
        """An argument that one of them leaves out does not tell them apart."""
        return all(effect[name] == call[name] for name in self.identity if name in effect and name in call)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How one tool's calls are run, retried and approved.

    :param idempotent: Running the same call twice has the same effect as running it once. A call found started but
        not ended is then run again automatically, with the same idempotency key; otherwise a person decides.
    :param approval: Each call waits for a person's approval.
    :param approval_ttl: Seconds after which an open approval request expires and the call is rejected. None: never.
    :param cache_ttl: Seconds for which a result is reused for the same arguments. None: not cached. Not for tools that
        change something: a call that is answered from the cache does not run.
    :param timeout: Seconds that one call may take. A call over its limit is in doubt, since it may or may not have
        taken effect. Of an idempotent tool that declares no effect, identity or approval it is an error for the model,
        which may ask again: that is another call, with another key.
    :param redacted: Of a result (or the text of a failure) only what the agent's `after_tool` hooks left of it in the
        conversation is stored. Until they have run the call counts as started: a run that ends before leaves it in
        doubt, or runs it again if the tool is idempotent. Not for tools that write to the State by `outputs_to_state`
        or have several outputs.
    :param effect: What a call changes outside the session, in a few words for the person who approves ("moves money").
    :param identity: The names of the arguments that identify an effect, such as ``("claim_number",)``. A call whose
        values for them differ from those of an earlier effect needs no approval because of it. Use required arguments:
        one that a call leaves out does not tell it apart. Naming them says that the tool has an effect.
    :param summary: What one call does, for people: ``"Refund {amount} on claim {claim_number}"``. Its names are the
        tool's arguments. Without one, the tool's name is shown.
    :param formats: How arguments are shown in the summary: ``{"amount": "money:EUR", "due": "date"}``. The tool's
        schema, which the model reads, does not change.
    :raises TypeError: for a value of another type than that of its field.
    :raises ValueError: for a time that is not positive or longer than ten years, a cache for redacted results or
        beside an `effect` or `identity`, an identity that is not a tuple of names, a summary with anything but names in
        its braces, or an unknown format.

    A call of a tool that has an `effect`, an `identity` or an `approval` needs a person's approval while the tool has
    taken effect where the session's history does not show it: see `effect_scope`.
    """

    idempotent: bool = False
    approval: bool = False
    approval_ttl: float | None = None
    cache_ttl: float | None = None
    timeout: float | None = None
    redacted: bool = False
    effect: str = ""
    identity: tuple[str, ...] | None = None
    summary: str = ""
    formats: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for (kind, what), names in _FIELDS.items():
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                    raise TypeError(f"ToolPolicy: {name} must be {what}, not {value!r}.")
        for name in ("approval_ttl", "cache_ttl", "timeout"):
            value = getattr(self, name)
            if value is not None and not durations.is_duration(value):
                raise ValueError(
                    f"ToolPolicy: {name} must be {durations.WITHIN}, not {value!r}. Leave it out for none."
                )

        if self.redacted and self.cache_ttl is not None:
            raise ValueError(
                "ToolPolicy: redacted and cache_ttl exclude each other, since the cache would store the whole result."
            )
        if self.cache_ttl is not None and (self.effect or self.identity):
            raise ValueError(
                "ToolPolicy: cache_ttl excludes effect and identity, since a call that is answered from the cache has "
                "no effect, but is reported as if it had one. Leave out cache_ttl; if the tool changes nothing, "
                "leave out effect and identity instead."
            )
        if self.identity is not None and not _is_tuple_of_names(self.identity):
            raise ValueError(
                "ToolPolicy: identity must be a tuple of argument names, such as ('claim_number',), "
                f"not {self.identity!r}. Leave it out for none."
            )
        _names_in(self.summary)
        for name, format in (self.formats or {}).items():
            if not _FORMAT.fullmatch(format):
                raise ValueError(
                    f"ToolPolicy: the format of {name!r} must be 'money:EUR' (any currency), 'date' or 'text', "
                    f"not {format!r}."
                )

    @property
    def shown_arguments(self) -> frozenset[str]:
        """The arguments that the summary and the formats name."""
        return self.summary_arguments | frozenset(self.formats or ())

    @property
    def summary_arguments(self) -> frozenset[str]:
        return frozenset(_names_in(self.summary))

    @property
    def effect_scope(self) -> EffectScope | None:
        """Because of which earlier effects a call of the tool needs approval; None for a tool without any.

        For an idempotent tool without an effect that is never so; for a tool of which nothing is declared, only because
        of a call with the same arguments.
        """
        if self.effect or self.approval or self.identity:
            return EffectScope(whole_tool=True, identity=self.identity or ())
        return None if self.idempotent else EffectScope()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        identity = list(self.identity) if self.identity else None
        return {**asdict(self), "identity": identity, "formats": dict(self.formats or {})}


# A text such as "no" would count as true.
_FIELDS: dict[tuple[Any, str], tuple[str, ...]] = {
    (bool, "True or False"): ("idempotent", "approval", "redacted"),
    (int | float | None, "a number of seconds"): ("approval_ttl", "cache_ttl", "timeout"),
    (str, "a text"): ("effect", "summary"),
    (Mapping | None, "a dict of formats by the argument's name"): ("formats",),
}


def _names_in(summary: str) -> list[str]:
    """The names in the braces of a summary.

    :raises ValueError: if there is anything else in them.
    """
    try:
        parts = [part[1:] for part in Formatter().parse(summary) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"ToolPolicy: the summary {summary!r} cannot be read: {error}.") from None
    for name, spec, conversion in parts:
        if not (name or "").isidentifier() or spec or conversion:
            raise ValueError(
                f"ToolPolicy: the summary {summary!r} may have only names of arguments in its braces, "
                "such as {amount}. Give the format of an argument in `formats`."
            )
    return [str(name) for name, _, _ in parts]


def _is_tuple_of_names(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(name, str) and name for name in value)


Policies = Mapping[str, ToolPolicy]


def checked_policies(policies: Any) -> Policies:
    """The policies, by the names of the tools; {} for None.

    :raises TypeError: for anything else, with what to give.
    """
    if policies is None:
        return {}
    if not isinstance(policies, Mapping):
        raise TypeError(
            "The policies must be a dict by tool name, such as {'pay_back': ToolPolicy(approval=True)}, not "
            f"{an(policies)}."
        )
    for name, policy in policies.items():
        if not isinstance(name, str):
            raise TypeError(f"The keys of the policies must be tool names, which are texts, not {name!r}.")
        if not isinstance(policy, ToolPolicy):
            raise TypeError(f"The policy of the tool {name!r} must be a ToolPolicy(...), not {policy!r}.")
    return policies


DEFAULT = ToolPolicy()


def fingerprint(tool: str, arguments: Mapping[str, Any], digests: Mapping[str, str] | None = None) -> str:
    """The SHA-256, in hex, that binds a person's decision to exactly these arguments (plain JSON) of this tool.

    :param digests: Those of what the tool is given from the State besides, see `shown_state`.
    """
    return digest_of([tool, arguments, *([digests] if digests else [])])
