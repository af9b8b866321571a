"""One synthetic session: the rows that the runs of a story leave behind, at the positions of a real run.

A story is written to its end, or stops where a session of that kind rests: at the start of a step, at a call that waits
for a person, or at a reply that failed.
"""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from agentstate.demo.stories import TOOLS, Call, Story, Turn
from agentstate.domain.phases import AgentPhase
from agentstate.names import CallState, CheckpointKind
from sessions_app.history.failures import cause_key
from sessions_app.management.synth.history import SUPERVISOR, HistoryRows
from sessions_app.management.synth.rows import Rows
from sessions_app.models import Branch, EventKind, Session, SessionTag, Status, WaitingFor
from sessions_app.models.session import resting_fields

PEOPLE = ("alex", SUPERVISOR, "robin", "sascha")
# After so many turns the model sees the system prompt and the last `TURNS_SEEN` turns only.
TURNS_BEFORE_TRUNCATION = 40
TURNS_SEEN = 8
MODEL_FAILURE = "ModelServerError: HTTP 400: the conversation is longer than this model can read."


class Ending(StrEnum):
    """Where a session rests."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    QUEUED = "queued"
    RUNNING = "running"
    APPROVAL = "approval"
    DOUBT = "doubt"


class SessionRows:
    """Writes one session.

    :param branch, calls, definition: As `HistoryRows` takes them.
    """

    def __init__(
        self,
        rows: Rows,
        story: Story,
        begins: datetime,
        *,
        chance: random.Random,
        branch: int,
        calls: Iterator[int],
        definition: str,
    ) -> None:
        self._rows, self._story, self._begins, self._chance = rows, story, begins, chance
        self._branch, self._definition = branch, definition
        self.id = _uuid7(begins, chance)
        self._history = HistoryRows(
            rows, begins, chance=chance, session=self.id, branch=branch, calls=calls, definition=definition
        )
        self._turn_positions: list[int] = []
        self._answer = ""
        self._waits: tuple[WaitingFor, str] | None = None

    def write(self, ending: Ending) -> None:
        self._history.event(EventKind.STARTED, PEOPLE[0])
        *before, last = self._story.turns
        for turn in before:
            self._turn(turn)
        match ending:
            case Ending.DONE:
                self._turn(last)
            case Ending.APPROVAL | Ending.DOUBT:
                self._waiting_turn(last, ending)
            case Ending.FAILED:
                self._failed_turn(last)
            case _:
                self._begin_turn(last)
                for calls in last.steps[: self._chance.randint(1, max(1, len(last.steps) - 1))]:
                    self._one_step(calls)
        self._session(ending)

    # Turns and steps

    def _turn(self, turn: Turn) -> None:
        self._begin_turn(turn)
        for calls in turn.steps:
            self._one_step(calls)
        self._history.reply(turn.answer, [])
        self._history.end_step()
        self._history.meter.to(AgentPhase.DONE)
        self._answer = turn.answer
        self._history.checkpoint(
            CheckpointKind.END, outcome={"final_answer": turn.answer, "exit_reason": "text"}
        )
        self._history.event(EventKind.FINISHED, "synth")

    def _begin_turn(self, turn: Turn) -> None:
        self._history.meter.to(AgentPhase.PLANNING)
        if self._turn_positions:
            self._history.event(EventKind.MESSAGE, self._chance.choice(PEOPLE))
        else:
            self._history.message("system", [{"text": None}], self._story.system_prompt)
        self._turn_positions.append(self._history.message("user", [{"text": None}], turn.asks))
        names = TOOLS[self._story.agent]
        self._history.counters = {
            "step_count": 0,
            "token_usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            "context_tokens": 0,
            "tool_call_counts": dict.fromkeys(names, 0),
        }
        context = None
        if len(self._turn_positions) % TURNS_BEFORE_TRUNCATION == 0:
            context = [[2, 2], [self._turn_positions[-TURNS_SEEN], self._history.position]]
        self._history.checkpoint(CheckpointKind.START, context=context, tools=list(names))

    def _one_step(self, calls: list[Call]) -> None:
        """The model asks for the calls, they run, and the next step begins."""
        if calls[0].effect and calls[0].tool == "issue_refund":
            (key,) = self._history.ask(calls)
            self._history.approval(key, calls[0], decided=True)
            self._history.event(
                EventKind.APPROVED,
                SUPERVISOR,
                data={"tool": calls[0].tool},
            )
        else:
            self._history.ask(calls)
        self._history.meter.to(AgentPhase.REFLECTING)
        for call in calls:
            self._history.result(call)
        self._history.end_step()
        self._history.counters["step_count"] += 1
        self._history.checkpoint(CheckpointKind.STEP)

    def _waiting_turn(self, turn: Turn, ending: Ending) -> None:
        self._begin_turn(turn)
        *before, (call,) = turn.steps
        for calls in before:
            self._one_step(calls)
        if ending is Ending.APPROVAL:
            (key,) = self._history.ask([call], CallState.PLANNED)
            why = f"{call.tool} needs approval."
            self._history.approval(key, call, decided=False)
            self._history.event(EventKind.ASKED, "synth", reason=why)
            self._waits = WaitingFor.APPROVAL, why
        else:
            self._history.ask([call], CallState.DOUBT)
            why = f"{call.tool} was started and did not report back. It may or may not have taken effect."
            self._history.event(EventKind.IN_DOUBT, "synth", reason=why)
            self._waits = WaitingFor.DOUBT, why

    def _failed_turn(self, turn: Turn) -> None:
        self._begin_turn(turn)
        self._history.failed_reply(MODEL_FAILURE)
        self._history.meter.to(AgentPhase.ERROR)
        self._history.event(EventKind.FAILED, "synth", reason=MODEL_FAILURE)

    def _session(self, ending: Ending) -> None:
        resting = self._resting(ending)
        progress = self._history.meter.progress()
        story = self._story
        self._rows.add(
            Branch,
            {"id": self._branch, "session_id": self.id, "number": 1, "created_at": self._begins},
        )
        for name in story.tags:
            self._rows.add(SessionTag, {"session_id": self.id, "name": name})
        self._rows.add(
            Session,
            {
                "id": self.id,
                "agent": story.agent,
                "title": story.title,
                "customer": story.customer,
                "phase": progress.phase,
                "previous_phase": progress.previous,
                "phase_since": progress.since,
                "error": MODEL_FAILURE if ending is Ending.FAILED else "",
                "final_answer": self._answer if ending is Ending.DONE else "",
                "exit_reason": "text" if ending is Ending.DONE else "",
                "epoch": len(self._turn_positions),
                "position": self._history.position,
                "change": self._history.position,
                "version": len(self._turn_positions) + 1,
                "branch_id": self._branch,
                "inputs": {"state": story.state, "generation_kwargs": {}},
                "definition": self._definition,
                "totals": progress.totals,
                "created_at": self._begins,
                "updated_at": self._history.now,
                **resting,
                "failure": cause_key(story.agent, "", MODEL_FAILURE) if ending is Ending.FAILED else None,
            },
        )

    def _resting(self, ending: Ending) -> dict[str, Any]:
        person = self._chance.choice(PEOPLE)
        match ending:
            case Ending.APPROVAL | Ending.DOUBT if self._waits is not None:
                waiting_for, why = self._waits
                return resting_fields(Status.WAITING, now=self._history.now, why=why, waiting_for=waiting_for)
            case Ending.PAUSED:
                why = "A colleague has to look at it first"
                self._history.event(EventKind.PAUSED, person, reason=why)
                return resting_fields(Status.PAUSED, now=self._history.now, why=why)
            case Ending.CANCELLED:
                why = "The customer has withdrawn the request"
                self._history.event(EventKind.CANCELLED, person, reason=why)
                return resting_fields(Status.CANCELLED, now=self._history.now, why=why)
            case Ending.QUEUED:
                return resting_fields(Status.QUEUED, now=self._history.now)
            case Ending.RUNNING:
                lease = {"lease_expires_at": self._history.now + timedelta(seconds=30), "worker": "synth"}
                return {"status": Status.RUNNING, "attempt": 1, **lease}
            case _:
                return resting_fields(Status.IDLE, now=self._history.now)


def _uuid7(at: datetime, chance: random.Random) -> UUID:
    """As `sessions_app.models.session.uuid7`, of a time and a random generator that are given."""
    milliseconds = int(at.timestamp() * 1000)
    random_bits = (0x7 << 76) | (chance.getrandbits(12) << 64) | (0b10 << 62) | chance.getrandbits(62)
    return UUID(int=(milliseconds << 80) | random_bits)
