"""Conversations with the demo agents as they would go, made up from the company's records by a random generator.

Nothing is run: a story says what each turn asks, which tools its steps call with which results, and how it is answered.
The scripted model would make the same calls, so a session that stops in the middle of a story can be resumed.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentstate.demo import intents, prompts, records, tools
from agentstate.demo.scripts import dollars

POLICIES = tuple(f"POL-{number}" for number in range(8801, 8809))
TAGS = ("car", "home", "travel", "pet", "urgent", "refund", "letter", "question", "complaint", "vip")


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: dict[str, Any]
    result: Any
    effect: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What the customer asks, the calls of each step, and the answer that follows them."""

    asks: str
    steps: list[list[Call]]
    answer: str


@dataclass(frozen=True, slots=True)
class Story:
    agent: str
    title: str
    customer: str
    turns: list[Turn]
    tags: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def system_prompt(self) -> str:
        texts = {
            "claims": prompts.CLAIMS,
            "letters": prompts.LETTERS,
            "research": prompts.RESEARCH,
        }
        number = self.state.get("policy_number", POLICIES[0])
        return texts[self.agent].replace("{{ policy_number or 'POL-8801' }}", number)


class Author:
    """Makes up stories; the same ones for the same random generator."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._number = 0
        self._names = records.names()

    def any_story(self) -> Story:
        """A story of one to four turns with one of the agents; most are short and need no tool."""
        kinds = (self.greeting, self.claims, self.refund, self.letter, self.research)
        return self.chance.choices(kinds, (700, 240, 24, 24, 12))[0]()

    def greeting(self) -> Story:
        """The customer does not say yet what it is about, and the agent asks."""
        customer = self._customer()
        hello = self.chance.choice(("Hello", "Good morning", "Good afternoon", "Hi"))
        wish = self.chance.choice(("Can you help me?", "I have a question.", "I need some help."))
        turn = Turn(f"{hello}, this is {customer}. {wish}", [], intents.greeting(TOOLS["claims"]))
        return self._story("claims", turn.asks, [turn], customer=customer)

    def claims(self, turns: int = 0) -> Story:
        policy = self._policy()
        questions = (self._about_policy, self._about_claim, self._about_deductible)
        asked = [
            self.chance.choice(questions)(policy)
            for _ in range(turns or self.chance.choices((1, 2, 3, 4), (60, 25, 10, 5))[0])
        ]
        return self._story("claims", asked[0].asks, asked, "question", state={"policy_number": policy})

    def refund(self) -> Story:
        """It ends with a call that needs approval, and the answer after it."""
        claim = self._due()
        number, policy, due = claim["number"], claim["policy_number"], claim["deductible_withheld"]
        reason = f"Deductible waived: {claim['deductible_waived_because']}"
        paid = {"claim_number": number, "amount": f"{due:.2f}"}
        self._number += 1
        refund = Call(
            "issue_refund",
            {"claim_number": number, "amount": due, "reason": reason},
            {"refund": f"RF-{self._number:07}", **paid, "status": "paid out"},
            effect=True,
        )
        steps = [
            [_look_up_claim(number)],
            [_look_up_policy(policy), _check_deductible(policy, number)],
            [refund],
        ]
        turn = Turn(
            f"Please refund the deductible on claim {number}",
            steps,
            f"{dollars(due)} has been refunded on claim {number}. {reason}.",
        )
        return self._story(
            "claims",
            f"Refund on {number}: {claim['what']}",
            [turn],
            "refund",
            state={"policy_number": policy},
        )

    def letter(self) -> Story:
        """It ends with a call that may not report back, and the answer after it."""
        policy = self._policy()
        record = records.policy(policy)
        self._number += 1
        text = self.chance.choice(
            ("the roofer comes on Thursday", "the policy has been renewed", "we need a photograph")
        )
        sent = Call(
            "send_letter",
            {
                "policy_number": policy,
                "subject": f"Your policy {policy}",
                "text": f"{text[:1].upper()}{text[1:]}.",
            },
            {
                "letter": f"LT-{self._number:07}",
                "to": record["holder"],
                "status": "handed to the printing service",
            },
            effect=True,
        )
        turn = Turn(
            f"Send a letter to {policy} saying that {text}.",
            [[_look_up_policy(policy)], [sent]],
            f"Letter {sent.result['letter']} to {record['holder']} is with the printing service.",
        )
        return self._story("letters", f"Letter to {record['holder']}", [turn], "letter")

    def research(self) -> Story:
        sources = records.sources()
        first = self.chance.randrange(len(sources) - 4)
        named = sources[first : first + self.chance.randint(2, 4)]
        numbers = ", ".join(source["id"] for source in named)
        steps = [[Call("list_sources", {}, tools.list_sources())]]
        steps += [[Call("slow_research", {"source": source["id"]}, source)] for source in named]
        found = "\n".join(f"- {source['finding']} ({source['title']})" for source in named)
        turn = Turn(
            f"Research {numbers}",
            steps,
            f"I have read {len(named)} of {len(named)} sources. They say:\n{found}",
        )
        return self._story("research", f"Research: {named[0]['title']}", [turn], "research")

    def _story(
        self,
        agent: str,
        title: str,
        turns: list[Turn],
        *tags: str,
        customer: str = "",
        state: dict[str, Any] | None = None,
    ) -> Story:
        some = self.chance.sample(TAGS, self.chance.choices((0, 1, 2), (60, 30, 10))[0])
        tags = tuple(dict.fromkeys([*tags, *some]))
        return Story(agent, title[:200], customer or self._customer(), turns, tags, state or {})

    def _customer(self) -> str:
        return f"{self.chance.choice(self._names['first'])} {self.chance.choice(self._names['last'])}"

    def _policy(self) -> str:
        return self.chance.choice(POLICIES)

    def _due(self) -> dict[str, Any]:
        """A claim whose deductible was withheld and is waived."""
        return self.chance.choice(
            [
                claim
                for policy in POLICIES
                for claim in records.claims_on(policy)
                if claim["deductible_waived_because"] and claim["deductible_withheld"]
            ]
        )

    def _about_policy(self, policy: str) -> Turn:
        record = records.policy(policy)
        return Turn(
            f"What is the status of policy {policy}?",
            [[_look_up_policy(policy)]],
            f"Policy {policy} ({record['product']}) is {record['status']} and renews {record['renews']}.",
        )

    def _about_claim(self, policy: str) -> Turn:
        claims = records.claims_on(policy)
        if not claims:
            return self._about_policy(policy)
        claim = self.chance.choice(claims)
        return Turn(
            f"What happened to claim {claim['number']}?",
            [[_look_up_claim(claim["number"])]],
            f"Claim {claim['number']}: {claim['what']}. It is {claim['status']}, {dollars(claim['paid'])} was paid.",
        )

    def _about_deductible(self, policy: str) -> Turn:
        amount = dollars(records.policy(policy)["deductible"])
        return Turn(
            f"Which deductible applies to {policy}?",
            [[_check_deductible(policy)]],
            f"A deductible of {amount} applies to each loss on policy {policy}.",
        )


TOOLS = {
    "claims": (
        *(
            "look_up_policy",
            "look_up_claim",
            "check_deductible",
            "search_knowledge",
            "issue_refund",
            "send_letter",
        ),
        *("make_plan", "complete_step", "take_note"),
    ),
    "letters": ("look_up_policy", "send_letter"),
    "research": ("list_sources", "slow_research", "make_plan", "complete_step", "take_note"),
}
"""The tools of each agent, as a checkpoint names them."""


def as_text(result: Any) -> str:
    """What the model reads of a tool's result."""
    return json.dumps(result, ensure_ascii=False)


def _look_up_policy(number: str) -> Call:
    return _reading(tools.look_up_policy, policy_number=number)


def _look_up_claim(number: str) -> Call:
    return _reading(tools.look_up_claim, claim_number=number)


def _check_deductible(policy: str, claim: str = "") -> Call:
    return _reading(
        tools.check_deductible, policy_number=policy, **({"claim_number": claim} if claim else {})
    )


def _reading(tool: Callable[..., Any], **arguments: Any) -> Call:
    return Call(tool.__name__, arguments, tool(**arguments))
