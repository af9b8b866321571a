"""An agent that cannot be serialised as a whole: what of it counts as a change of its definition, and what does not."""

import functools
import json
from typing import Any

from haystack import Pipeline, component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator, OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.hooks import FunctionHook, hook
from haystack.tools import AgentTool, ComponentTool, PipelineTool, SearchableToolset, Tool, Toolset
from haystack.utils import Secret

from agentstate.demo import agents as demo
from agentstate.durable.agent import make_durable
from agentstate.durable.credentials import NOT_SHOWN
from agentstate.durable.definition import canonical_text, fingerprint
from agentstate.durable.described import described
from agentstate.durable.description import definition_parts
from tests import test_definition

PLAIN = {"type": "object", "properties": {"order": {"type": "string"}}}


class Shop:
    """What the tools of an application are often methods of."""

    def __init__(self, orders: list[str] | None = None) -> None:
        self.orders = orders or []

    def pay(self, order: str) -> dict[str, Any]:
        self.orders.append(order)
        return {"order": order}

    def look_up(self, order: str) -> dict[str, Any]:
        return {"order": order}


class OtherShop(Shop):
    pass


def first(before: Any, new: Any) -> Any:
    return before or new


def last(before: Any, new: Any) -> Any:
    return new


@hook
def greet(state: State) -> None: ...


@hook
def take_leave(state: State) -> None: ...


def pay_tool(function: Any = None, **options: Any) -> Tool:
    options = {"name": "pay", "description": "Pays.", "parameters": PLAIN} | options
    return Tool(function=function or Shop().pay, **options)


def inner(prompt: str = "You are the inner one.") -> Agent:
    return Agent(chat_generator=MockChatGenerator("Done."), system_prompt=prompt, tools=[pay_tool()])


def pipeline(prompt: str) -> Pipeline:
    made = Pipeline()
    made.add_component("inner", inner(prompt))
    return made


def shop(model: dict[str, Any] | None = None, tools: Any = None, **options: Any) -> Agent:
    """An agent of which `to_dict` fails, since its tool is a bound method."""
    generator = OpenAIChatGenerator(
        **{"api_key": Secret.from_token("sk-secret"), "model": "gpt-5-mini", **(model or {})}
    )
    return Agent(chat_generator=generator, tools=[pay_tool()] if tools is None else tools, **options)


CHANGES = {
    "the model": lambda: shop({"model": "gpt-5"}),
    "generation_kwargs": lambda: shop({"generation_kwargs": {"temperature": 1}}),
    "api_base_url": lambda: shop({"api_base_url": "http://elsewhere"}),
    "a generator that cannot be serialised": lambda: shop({"streaming_callback": lambda chunk: None}),
    "the name of a tool": lambda: shop(tools=[pay_tool(name="pay_out")]),
    "the description of a tool": lambda: shop(tools=[pay_tool(description="Pays at once.")]),
    "the parameters of a tool": lambda: shop(tools=[pay_tool(parameters={**PLAIN, "required": ["order"]})]),
    "outputs_to_state": lambda: shop(tools=[pay_tool(outputs_to_state={"paid": {"source": "order"}})]),
    "outputs_to_string": lambda: shop(tools=[pay_tool(outputs_to_string={"source": "order"})]),
    "inputs_from_state": lambda: shop(
        tools=[pay_tool(inputs_from_state={"order": "order"})], state_schema={"order": {"type": str}}
    ),
    "the function of a tool": lambda: shop(tools=[pay_tool(Shop().look_up)]),
    "the class of a method's object": lambda: shop(tools=[pay_tool(OtherShop().pay)]),
    "the function of a partial": lambda: shop(tools=[pay_tool(functools.partial(len, "1042"))]),
    "tools in a toolset": lambda: shop(tools=Toolset([pay_tool()])),
    "tools to be searched": lambda: shop(tools=SearchableToolset([pay_tool()])),
    "other tools to be searched": lambda: shop(tools=SearchableToolset([pay_tool(name="other")])),
    "the type of a state key": lambda: shop(state_schema={"paid": {"type": int}}),
    "another type of it": lambda: shop(state_schema={"paid": {"type": list[int]}}),
    "the handler of a state key": lambda: shop(state_schema={"paid": {"type": int, "handler": first}}),
    "another handler": lambda: shop(state_schema={"paid": {"type": int, "handler": last}}),
    "a handler that is a lambda": lambda: shop(
        state_schema={"paid": {"type": int, "handler": lambda before, new: new}}
    ),
    "a hook": lambda: shop(hooks={"before_llm": [greet]}),
    "another hook": lambda: shop(hooks={"before_llm": [take_leave]}),
    "another point of a hook": lambda: shop(hooks={"before_run": [greet]}),
    "the prompt": lambda: shop(system_prompt="You run a shop."),
    "a variable of the prompt that may be missing": lambda: shop(required_variables=None),
    "exit_conditions": lambda: shop(exit_conditions=["pay"]),
    "max_agent_steps": lambda: shop(max_agent_steps=3),
    "raise_on_tool_invocation_failure": lambda: shop(raise_on_tool_invocation_failure=True),
    "tool_concurrency_limit": lambda: shop(tool_concurrency_limit=1),
    "an agent in a tool": lambda: shop(tools=[AgentTool(agent=inner(), name="inner", description="d")]),
    "the prompt of an agent in a tool": lambda: shop(
        tools=[AgentTool(agent=inner("You pay."), name="inner", description="d")]
    ),
    "an agent in a pipeline": lambda: shop(
        tools=[PipelineTool(pipeline=pipeline("You pay."), name="inner", description="d", parameters=PLAIN)]
    ),
    "the prompt of an agent in a pipeline": lambda: shop(
        tools=[PipelineTool(pipeline=pipeline("Pay."), name="inner", description="d", parameters=PLAIN)]
    ),
    "an agent whose method is a tool": lambda: shop(tools=[pay_tool(inner().run)]),
    "the prompt of an agent whose method is a tool": lambda: shop(tools=[pay_tool(inner("You pay.").run)]),
}


def test_every_change_that_can_be_described_is_noticed_in_an_agent_that_cannot_be_serialised() -> None:
    fingerprints = {name: fingerprint(build()) for name, build in {"nothing": shop, **CHANGES}.items()}
    same = {name for name in fingerprints if list(fingerprints.values()).count(fingerprints[name]) > 1}
    assert same == set()


def test_a_change_of_the_fingerprint_is_a_change_of_a_part_that_the_desk_shows() -> None:
    before = definition_parts(make_durable(shop()).original)
    assert before == definition_parts(shop())
    changed = {name: definition_parts(make_durable(build()).original) for name, build in CHANGES.items()}
    # Tools are shown by their names, whichever toolset they are in.
    assert [name for name, parts in changed.items() if parts == before] == ["tools in a toolset"]


def test_what_a_function_holds_and_credentials_are_no_part_of_the_definition() -> None:
    held = shop({"api_key": Secret.from_token("sk-another")}, tools=[pay_tool(Shop(["1042"]).pay)])
    assert fingerprint(held) == fingerprint(shop())
    partials = [functools.partial(pow, 2, exp) for exp in (3, 4)]
    assert len({fingerprint(shop(tools=[pay_tool(partial)])) for partial in partials}) == 1
    parts = json.dumps(definition_parts(held))
    assert "sk-" not in parts
    assert definition_parts(shop())["model"]["api_key"] == NOT_SHOWN


def test_a_run_of_a_tool_that_changes_its_object_is_no_change_of_the_agent() -> None:
    agent = shop(tools=[pay_tool(Shop().pay)])
    before = fingerprint(agent)
    agent.tools[0].invoke(order="1042")  # type: ignore[union-attr]
    assert fingerprint(agent) == before


def test_a_generator_of_the_users_own_is_described_by_its_parameters_and_its_model() -> None:
    class Connected:
        def __init__(self, client: object, temperature: float, model: str) -> None:
            self.client, self.temperature = client, temperature
            self.model = f"small-{model}"

        def run(self, messages: Any, tools: Any = None) -> dict[str, Any]:
            return {"replies": []}

    def build(client: object, temperature: float = 0.5, model: str = "a") -> str:
        return fingerprint(Agent(chat_generator=Connected(client, temperature, model)))

    assert build(object()) == build(object())
    assert len({build(object()), build(object(), 1.0), build(object(), model="b"), build(Shop())}) == 4


def test_an_agent_inside_itself_has_a_definition() -> None:
    agent = shop()
    agent.tools = [ComponentTool(component=agent, name="itself", description="asks itself")]
    assert fingerprint(agent) == fingerprint(agent) != fingerprint(shop())


def test_a_part_that_can_be_serialised_is_described_as_it_is_serialised() -> None:
    builds = [demo.claims_desk, demo.research_desk, demo.letter_room, test_definition.remembering]
    for build in [*builds, test_definition.searching, test_definition.with_sets_in_its_tools]:
        agent = build()
        assert canonical_text(described(agent)) == canonical_text(agent.to_dict())


def test_hooks_are_described_by_their_functions() -> None:
    def of_chunk(chunk: StreamingChunk) -> None: ...

    def inside(state: State) -> None: ...

    agent = shop(hooks={"on_exit": [FunctionHook(inside)]}, streaming_callback=of_chunk)
    parameters = described(agent)["init_parameters"]
    function = parameters["hooks"]["on_exit"][0]["init_parameters"]["function"]
    assert function.endswith("test_hooks_are_described_by_their_functions.<locals>.inside")
    assert parameters["streaming_callback"].endswith(".<locals>.of_chunk")


def test_credentials_are_no_part_of_the_description_of_an_agent_that_cannot_be_serialised() -> None:
    @component
    class Client:
        def __init__(self, *, api_key: str, pwd: str, base_url: str) -> None:
            self.api_key, self.pwd, self.base_url = api_key, pwd, base_url

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            return {"replies": [ChatMessage.from_assistant("Hello.")]}

    def local(state: State) -> None:
        """A function inside a function cannot be serialised."""

    def agent_with(**given: str) -> Agent:
        return Agent(chat_generator=Client(**given), hooks={"before_llm": [FunctionHook(local)]})

    one = agent_with(api_key="k1", pwd="p1", base_url="https://ann:one@models.test/v1")
    other = agent_with(api_key="k2", pwd="p2", base_url="https://bob:two@models.test/v1")
    elsewhere = agent_with(api_key="k1", pwd="p1", base_url="https://models.test/v2")
    assert fingerprint(one) == fingerprint(other) != fingerprint(elsewhere)
    assert not [text for text in ("k1", "p1", "ann:one") if text in str(definition_parts(one))]


def test_the_user_of_an_address_is_shown_of_no_agent() -> None:
    agent = Agent(
        chat_generator=OpenAIChatGenerator(
            api_key=Secret.from_env_var("SHOP_KEY", strict=False),
            api_base_url="https://shop:pw-1042@models.test/v1",
        )
    )
    assert agent.to_dict()  # it can be serialised
    assert definition_parts(agent)["model"]["api_base_url"] == "https://models.test/v1"


def test_a_value_that_contains_itself_is_described_once() -> None:
    options: dict[str, Any] = {"extra_body": {"temperature": 1}}
    options["extra_body"]["again"] = options
    same = shop({"generation_kwargs": options, "streaming_callback": lambda chunk: None})
    assert definition_parts(same)["model"]["generation_kwargs"] == {
        "extra_body": {"temperature": 1, "again": {"type": "builtins.dict"}}
    }
    before = fingerprint(same)
    options["extra_body"]["temperature"] = 2
    assert fingerprint(same) != before
