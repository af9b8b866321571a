"""Journal files that an earlier version wrote, in `tests/journals_v1`, still open and resume.

Their agents are those of `tests.sample_agents`; each file ends where its name says.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from haystack.components.agents import Agent

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.journals import FileJournal
from tests import sample_agents
from tests.sample_agents import effects

pytestmark = pytest.mark.usefixtures("no_effects")

FOLDER = Path(__file__).parent / "journals_v1"


@pytest.fixture
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileJournal]:
    """A copy of the file that the test names."""
    [name] = request.node.get_closest_marker("journal_file").args
    with FileJournal.open(shutil.copy(FOLDER / f"{name}.jsonl", tmp_path)) as journal:
        yield journal


def resumed(build: Callable[[], Agent], journal: FileJournal, **policies: ToolPolicy) -> list[str]:
    """Run the session to its end, also where it waits first; returns what the model and the tools did."""
    durable = make_durable(build(), policies=policies)
    durable.agent.tool_concurrency_limit = (
        1  # calls of one step one after the other, so that their order is known
    )
    outcome = run(durable, journal)
    if journal.store.last_end.get("waiting_for") == "changed":
        # These agents cannot be serialised as a whole, and earlier versions noticed less of what they are.
        journal.resume()
        outcome = run(durable, journal.next_epoch())
    assert outcome.status == "idle", outcome.why
    return list(effects)


@pytest.mark.journal_file("needs_approval")
def test_an_approval_request_can_be_answered(journal: FileJournal) -> None:
    assert (journal.store.status, journal.store.last_end["waiting_for"]) == ("waiting", "approval")
    journal.decide("r1", approve=True, arguments={"order": "A1", "amount": 5})
    journal.decide("r2", approve=False, message="Not that one.")
    did = resumed(sample_agents.refunds, journal, refund=ToolPolicy(approval=True))
    assert did == ["fast(look)", "refund(A1,5)", "model(1)"]


@pytest.mark.journal_file("in_doubt")
def test_a_call_in_doubt_can_be_decided(journal: FileJournal) -> None:
    assert (journal.store.status, journal.store.last_end["waiting_for"]) == ("waiting", "doubt")
    journal.decide("x1", result="it was paid")
    assert resumed(lambda: sample_agents.one_tool(lambda: "again"), journal) == ["model(1)"]


@pytest.mark.journal_file("side_call")
def test_the_reply_to_a_side_call_is_replayed(journal: FileJournal) -> None:
    did = resumed(sample_agents.summarising, journal)
    assert did[0].startswith("model(5,"), "the summary is not asked for again"
    assert did[1] == "fast(q5)"


@pytest.mark.journal_file("yielded")
def test_a_run_that_yielded_reads_the_unread_message(journal: FileJournal) -> None:
    assert journal.store.status == "queued"
    resumed(lambda: sample_agents.long_run(2), journal)
    checkpoint = journal.next_epoch().load().checkpoint
    assert checkpoint is not None
    users = [m.body["content"][0]["text"] for m in checkpoint.context if m.body["role"] == "user"]
    assert users == ["hi", "one more thing"]


@pytest.mark.journal_file("finished")
def test_a_finished_turn_is_followed_by_another(journal: FileJournal) -> None:
    assert journal.store.status == "idle"
    assert journal.store.outcome == {"final_answer": "All done.", "exit_reason": "text"}
    checkpoint = journal.load().checkpoint
    assert checkpoint is not None
    assert (checkpoint.kind, checkpoint.state["notes"]) == ("end", ["n1", "n2"])
    journal.say("and again")
    assert resumed(sample_agents.everything, journal)[0] == "model(0)"


@pytest.mark.journal_file("changed")
def test_a_session_whose_agent_has_changed_can_be_resumed(journal: FileJournal) -> None:
    assert journal.store.last_end["waiting_for"] == "changed"
    journal.resume()
    did = resumed(lambda: sample_agents.long_run(2, system_prompt="Be brief."), journal)
    assert did == ["model(1)", "fast(q1)", "model(2)"]
