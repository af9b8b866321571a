"""What a call does, in one line for people: from its tool's policy, or else from the tool's name.

The arguments are masked before they enter the line. An argument that a call leaves out is shown as the default of the
tool's schema, as its workers publish it now. No queries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from sessions_app import wording
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.arguments import (
    LONGEST_IN_SENTENCE,
    defaults_of,
    label,
    schema_of,
    with_hidden_defaults,
)
from sessions_app.desk.pages.excerpts import Style
from sessions_app.desk.pages.formats import by_formats, formatted
from sessions_app.models import RegisteredAgent, ToolCall, policies_of
from sessions_app.wording import Show, shorten

_LONGEST_FACTS = 160


@dataclass(frozen=True, slots=True)
class ShownArgument:
    """An argument by its title, with its value by the policy's format; ``is_default``: the call leaves it out."""

    label: str
    value: Any
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the line: ``text``, and the name of the ``argument`` that it shows, "" for the words in between."""

    text: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """A call in one line, masked. ``facts`` are its arguments in short where its tool's policy has no line for it.

    changes: how the arguments that run differ from those that the agent asked for: see `changes_of`.
    """

    call: ToolCall
    line: str
    facts: str
    arguments: list[ShownArgument]
    changes: str = ""

    @property
    def in_words(self) -> str:
        """The line with the facts: ``Issue refund Claim CLM-1, Amount 120``."""
        return f"{self.line} {self.facts}".strip()


def published_tool(agent: RegisteredAgent | None, name: str, mask: Mask) -> dict[str, Any]:
    """What the agent's workers published of a tool, with the defaults in its schema masked; {} if nothing."""
    tool = next((tool for tool in (agent.tools if agent else []) if tool.get("name") == name), None)
    return {**tool, "parameters": with_hidden_defaults(tool.get("parameters") or {}, mask)} if tool else {}


def summary(agent: RegisteredAgent | None, tool: str, arguments: Mapping[str, Any], mask: Mask) -> str:
    """``Refund €450.00 on claim CLM-1042``, or ``Issue refund`` for a tool whose policy has no summary.

    :param arguments: Those that are shown, masked.
    """
    return _line(published_tool(agent, tool, mask), tool, arguments)


def summary_of(agent: RegisteredAgent | None, call: ToolCall, mask: Mask) -> CallSummary:
    """The call, which is masked, with the arguments that it ran or would run with."""
    tool = published_tool(agent, call.tool, mask)
    arguments = shown_arguments(tool, call.ran_with)
    has_line = bool((tool.get("policy") or {}).get("summary"))
    facts = ", ".join(f"{argument.label} {argument.value}" for argument in arguments)
    return CallSummary(
        call=call,
        line=_line(tool, call.tool, call.ran_with),
        facts="" if has_line else shorten(facts, _LONGEST_FACTS),
        arguments=arguments,
        changes=changes_of(agent, call),
    )


def formats_of(agent: RegisteredAgent | None, tool: str) -> Show:
    """How the arguments of the tool are shown, by the policy that the agent's workers published."""
    return by_formats(policies_of(agent).get(tool, {}).get("formats") or {})


def changes_of(agent: RegisteredAgent | None, call: ToolCall) -> str:
    """``amount €100.00 -> €120.00``: from what the agent asked for to what runs; "" where it is the same.

    :param call: Masked.
    """
    return wording.changes(
        call.changed_arguments, call.arguments, call.ran_with, show=formats_of(agent, call.tool)
    )


def style_of_result(agent: RegisteredAgent | None, tool: str, mask: Mask, *, asked_by: str = "") -> Style:
    """How a result of the tool is written: a key as the tool's argument of that name, or else as that of another tool.

    :param asked_by: The tool of the call for which the result is shown.
    """
    formats: dict[str, str] = {}
    titles: dict[str, str] = {}
    for name in dict.fromkeys((asked_by or tool, tool)):
        published = published_tool(agent, name, mask)
        formats |= (published.get("policy") or {}).get("formats") or {}
        parameters: Mapping[str, Any] = published.get("parameters") or {}
        titles |= {
            key: str(title)
            for key in parameters.get("properties") or {}
            if (title := schema_of(key, parameters).get("title"))
        }
    return Style(formats, titles)


def shown_arguments(tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[ShownArgument]:
    """The arguments by their titles and formats, and behind them those that the call leaves to the tool's defaults."""
    schema: Mapping[str, Any] = tool.get("parameters") or {}
    formats: Mapping[str, str] = (tool.get("policy") or {}).get("formats") or {}
    defaults = {name: value for name, value in defaults_of(schema).items() if name not in arguments}
    return [
        ShownArgument(
            label(name, schema),
            formatted(value, formats[name]) if name in formats else value,
            name in defaults,
        )
        for name, value in {**arguments, **defaults}.items()
    ]


def _line(tool: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> str:
    return "".join(part.text for part in parts(tool, name, arguments))


def parts(
    tool: Mapping[str, Any], name: str, arguments: Mapping[str, Any], typed: Mapping[str, str] | None = None
) -> list[Part]:
    """The line in its parts, by what is published of the tool.

    :param typed: Arguments that a person has changed, as they are shown.
    """
    policy = tool.get("policy") or {}
    template = str(policy.get("summary") or "")
    if not template:
        return [Part(name.replace("_", " ").strip().capitalize() or name)]
    formats = policy.get("formats") or {}
    values = {**defaults_of(tool.get("parameters") or {}), **arguments}
    shown = []
    for literal, argument, _, _ in Formatter().parse(template):
        if literal:
            shown.append(Part(literal))
        if argument is not None:
            changed = (typed or {}).get(argument)
            text = _shown(values.get(argument), formats.get(argument, "text"))
            shown.append(
                Part(text if changed is None else shorten(changed or "–", LONGEST_IN_SENTENCE), argument)
            )
    return shown


def _shown(value: Any, format: str) -> str:
    """The argument as text; a dash for one that the call leaves out and that has no default."""
    return "–" if value is None else shorten(formatted(value, format), LONGEST_IN_SENTENCE)
