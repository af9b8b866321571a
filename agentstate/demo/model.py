"""The model of the demo agents.

With `OPENAI_API_KEY` it is a real one (`OPENAI_BASE_URL` names any compatible server, `AGENTSTATE_DEMO_MODEL` the
model); without, a scripted one that needs no network.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from haystack.components.generators.chat.types import ChatGenerator


def uses_real_model() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY"))


def chat_generator() -> "ChatGenerator":
    if uses_real_model():
        from haystack.components.generators.chat import OpenAIChatGenerator

        return OpenAIChatGenerator(
            model=os.environ.get("AGENTSTATE_DEMO_MODEL") or "gpt-5-mini",
            api_base_url=os.environ.get("OPENAI_BASE_URL") or None,
            timeout=60,
            max_retries=0,  # the worker tries again, and the session shows it
        )
    from agentstate.demo import scripted

    return scripted.ScriptedChatGenerator()
