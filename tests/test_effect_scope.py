"""What a policy declares of a tool's effects: which earlier effects a call may not follow unseen."""

from typing import Annotated, Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.tools import SearchableToolset, Tool, tool

from agentstate import ToolPolicy
from agentstate.durable.agent import describe, make_durable
from agentstate.durable.policy import EffectScope
from agentstate.durable.registry import AgentBuildFailed, Registration

CALL = {"claim": "A", "amount": 80}


@tool
def pay(claim: Annotated[str, "claim"], amount: Annotated[float, "amount"]) -> str:
    """Pays."""
    return f"{claim} {amount}"


def payer(*tools: Tool) -> Agent:
    return Agent(chat_generator=MockChatGenerator("Done."), tools=list(tools or [pay]))


@pytest.mark.parametrize(
    "policy, scope",
    [
        (ToolPolicy(), EffectScope()),
        (ToolPolicy(timeout=3), EffectScope()),
        (ToolPolicy(idempotent=True), None),
        (ToolPolicy(effect="moves money"), EffectScope(whole_tool=True)),
        (ToolPolicy(approval=True), EffectScope(whole_tool=True)),
        (ToolPolicy(idempotent=True, effect="moves money"), EffectScope(whole_tool=True)),
        (ToolPolicy(approval=True, identity=("claim",)), EffectScope(whole_tool=True, identity=("claim",))),
        (ToolPolicy(identity=("claim",)), EffectScope(whole_tool=True, identity=("claim",))),
    ],
)
def test_a_policy_says_which_earlier_effects_count(policy: ToolPolicy, scope: EffectScope | None) -> None:
    assert policy.effect_scope == scope


SAME, OTHER_AMOUNT, OTHER_CLAIM = CALL, {"claim": "A", "amount": 120}, {"claim": "B", "amount": 80}


@pytest.mark.parametrize(
    "scope, effect, covers, repeats",
    [
        (EffectScope(), SAME, True, True),
        (EffectScope(), OTHER_AMOUNT, False, False),
        (EffectScope(whole_tool=True), SAME, True, True),
        (EffectScope(whole_tool=True), OTHER_AMOUNT, True, False),
        (EffectScope(whole_tool=True, identity=("claim",)), OTHER_AMOUNT, True, True),
        (EffectScope(whole_tool=True, identity=("claim",)), OTHER_CLAIM, False, True),
        (EffectScope(whole_tool=True, identity=("claim", "amount")), OTHER_AMOUNT, False, True),
        (EffectScope(whole_tool=True, identity=("claim", "to")), OTHER_AMOUNT, True, True),
    ],
)
def test_an_effect_is_covered_by_its_arguments(
    scope: EffectScope, effect: dict[str, Any], covers: bool, repeats: bool
) -> None:
    assert scope.covers(effect, CALL) == covers
    if covers:
        assert scope.repeats(effect, CALL) == repeats


@pytest.mark.parametrize("identity", [(), "claim", ["claim"], (1,), ("claim", ""), {"claim"}])
def test_an_identity_that_is_not_a_tuple_of_names_is_refused(identity: Any) -> None:
    with pytest.raises(
        ValueError, match=r"identity must be a tuple of argument names, such as \('claim_number',\)"
    ):
        ToolPolicy(identity=identity)


def test_an_identity_that_names_no_argument_of_the_tool_is_refused() -> None:
    policies = {"pay": ToolPolicy(identity=("claim", "claim_number"))}
    with pytest.raises(
        AgentBuildFailed, match=r"arguments that the tool lacks: claim_number\. It has: amount, claim\."
    ):
        make_durable(payer(), policies=policies)
    assert make_durable(payer(), policies={"pay": ToolPolicy(identity=("claim",))}).policies["pay"].identity


def test_an_identity_is_not_checked_where_the_schema_is_not_known_before_a_run() -> None:
    policies = {"pay": ToolPolicy(identity=("other",)), "free": ToolPolicy(identity=("any",))}
    agent = Agent(chat_generator=MockChatGenerator("Done."), tools=SearchableToolset(catalog=[pay]))
    make_durable(agent, policies=policies)
    free = Tool(name="free", description="x", parameters={"type": "object"}, function=lambda **given: "x")
    make_durable(payer(pay, free), policies={"free": policies["free"]})


def test_the_identity_is_published_with_the_policy() -> None:
    policies = {"pay": ToolPolicy(effect="moves money", identity=("claim",))}
    [published] = describe(Registration("payer", "Payer", payer, policies)).tools
    assert (published["policy"]["identity"], published["policy"]["effect"]) == (["claim"], "moves money")
    assert ToolPolicy().to_dict()["identity"] is None
