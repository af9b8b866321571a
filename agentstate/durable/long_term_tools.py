"""The tools of the long-term memory: what an agent stores with `remember` it finds with `recall` in later sessions.

    Agent(..., tools=[look_up, *long_term_tools()])

The names, descriptions and parameters of the tools are part of the definition of every agent that has them: changing
one makes its open sessions wait for a person.
"""

from typing import Annotated
from uuid import uuid4

from haystack.tools import Tool, tool

from agentstate.durable import long_term
from agentstate.durable.idempotency import current_key
from agentstate.durable.long_term import LONGEST_ENTRY, NotRemembered
from agentstate.durable.state.encoding import clean_text

RECALLED = 5
_NO_MEMORY = "There is no long-term memory here."


def long_term_tools() -> list[Tool]:
    """`remember` and `recall`. Both may run again: `remember` stores what one call learned once."""
    return [remember, recall]


@tool
def remember(
    text: Annotated[str, "what to know about this customer in later sessions, in one sentence"],
) -> str:
    """Keep a fact about this customer for later sessions."""
    memory = long_term.current()
    text = clean_text(text).strip()
    if memory is None:
        return _NO_MEMORY
    if not text:
        return "There is nothing to remember: the text is empty."
    if len(text) > LONGEST_ENTRY:
        return (
            f"Not remembered: the text has {len(text)} characters, and at most {LONGEST_ENTRY} are allowed."
        )
    try:
        memory.remember(text, call=current_key.get() or str(uuid4()))
    except NotRemembered as why:
        return str(why)
    return "Remembered."


@tool
def recall(query: Annotated[str, "what you want to know about this customer, in a few words"]) -> str:
    """Find what was remembered about this customer in earlier sessions."""
    memory = long_term.current()
    if memory is None:
        return _NO_MEMORY
    try:
        entries = memory.recall(clean_text(query), limit=RECALLED)
    except NotRemembered as why:
        return str(why)
    lines = [f"{entry.learned_at:%Y-%m-%d}: {entry.text}" for entry in entries]
    return "\n".join(lines) or "Nothing is remembered about this."
