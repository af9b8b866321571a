"""The state machine: what may follow what, and that nothing else ever does."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentstate.domain import TRANSITIONS, AgentPhase, AgentState, IllegalTransition, ToolCall, allowed, check

EDGES = {
    ("idle", "planning"),
    ("planning", "executing"),
    ("planning", "done"),
    ("planning", "error"),
    ("executing", "reflecting"),
    ("executing", "error"),
    ("reflecting", "planning"),
    ("reflecting", "done"),
    ("reflecting", "error"),
    ("done", "planning"),
    ("error", "planning"),
}
MOVES: dict[AgentPhase, Callable[[AgentState], AgentState]] = {
    AgentPhase.PLANNING: lambda state: state.to_planning(),
    AgentPhase.EXECUTING: lambda state: state.to_executing(),
    AgentPhase.REFLECTING: lambda state: state.to_reflecting(),
    AgentPhase.DONE: lambda state: state.to_done("answer"),
    AgentPhase.ERROR: lambda state: state.to_error("reason"),
}


def test_the_table_is_the_state_machine_and_nothing_else() -> None:
    assert set(TRANSITIONS) == set(AgentPhase)
    assert {(source.value, target.value) for source in TRANSITIONS for target in allowed(source)} == EDGES


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[AgentPhase.IDLE] = frozenset(AgentPhase)  # type: ignore[index]


@pytest.mark.parametrize("source,target", list(product(AgentPhase, AgentPhase)))
def test_check_passes_what_the_table_allows_and_refuses_the_rest(
    source: AgentPhase, target: AgentPhase
) -> None:
    if (source.value, target.value) in EDGES:
        check(source, target)
    else:
        with pytest.raises(IllegalTransition):
            check(source, target)


@pytest.mark.parametrize("source,target", list(product(AgentPhase, MOVES)))
def test_each_transition_of_a_state_is_checked(source: AgentPhase, target: AgentPhase) -> None:
    state = AgentState(phase=source)
    if (source.value, target.value) in EDGES:
        assert MOVES[target](state).phase is target
    else:
        with pytest.raises(IllegalTransition):
            MOVES[target](state)
        assert state.phase is source


def test_the_refusal_names_both_phases_and_what_is_allowed() -> None:
    with pytest.raises(IllegalTransition) as caught:
        check(AgentPhase.EXECUTING, AgentPhase.DONE)
    error = caught.value
    assert (error.source, error.target) == (AgentPhase.EXECUTING, AgentPhase.DONE)
    assert error.allowed == {AgentPhase.REFLECTING, AgentPhase.ERROR}
    assert str(error) == "An agent cannot go from executing to done; executing allows reflecting or error."
    assert isinstance(error, ValueError)


def test_the_refusal_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(IllegalTransition(AgentPhase.DONE, AgentPhase.ERROR)))
    assert str(error) == str(IllegalTransition(AgentPhase.DONE, AgentPhase.ERROR))


def test_a_phase_may_be_named_by_its_text() -> None:
    check("idle", "planning")  # type: ignore[arg-type]
    with pytest.raises(IllegalTransition, match="from idle to done"):
        check("idle", "done")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'asleep' is not a valid AgentPhase"):
        check("asleep", "done")  # type: ignore[arg-type]


@pytest.mark.slow
def test_python_without_asserts_refuses_just_the_same() -> None:
    program = """
assert False, "asserts are on: this run proves nothing"
from agentstate.domain import AgentState, IllegalTransition, ToolCall
refused = 0
done = AgentState.from_user_input("hello").to_done("hi")
for attempt in (
    lambda: done.to_done("again"),
    lambda: done.to_error("late"),
    lambda: done.to_executing(),
    lambda: AgentState().to_reflecting(),
    lambda: AgentState().to_error("early"),
):
    try:
        attempt()
    except IllegalTransition:
        refused += 1
for attempt in (
    lambda: AgentState(session_id="../secret"),
    lambda: AgentState(iteration=-1),
    lambda: ToolCall("1", "look", duration_ms=-1),
):
    try:
        attempt()
    except ValueError:
        refused += 1
print(refused)
"""
    run = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("8\n", "")


@pytest.mark.slow
def test_importing_the_domain_imports_no_framework() -> None:
    program = """
import sys
import agentstate.domain
print(sorted({"django", "haystack", "celery", "kombu", "redis"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")


class Walk(RuleBasedStateMachine):
    """Any acts in any order: a state goes where the table leads, and no earlier state ever changes."""

    @initialize(text=st.text())
    def begin(self, text: str) -> None:
        self.state = AgentState.from_user_input(text)
        self.seen: list[tuple[AgentState, str]] = []

    @rule(phase=st.sampled_from(sorted(MOVES)))
    def move(self, phase: AgentPhase) -> None:
        before = self.state
        if (before.phase.value, phase.value) in EDGES:
            self._became(MOVES[phase](before))
            assert self.state.phase is phase
        else:
            with pytest.raises(IllegalTransition) as refused:
                MOVES[phase](before)
            assert refused.value.allowed == allowed(before.phase)

    @precondition(lambda self: self.state.phase in (AgentPhase.DONE, AgentPhase.ERROR))
    @rule(text=st.text())
    def follow_up(self, text: str) -> None:
        self._became(self.state.to_planning(text))
        assert self.state.history[-1].content == text
        assert self.state.final_answer is None
        assert self.state.error_message is None

    @rule(thought=st.text(), result=st.text(), error=st.none() | st.text())
    def observe(self, thought: str, result: str, error: str | None) -> None:
        phase = self.state.phase
        call = ToolCall(f"call-{self.state.iteration}", "look", {"at": [1, {"deep": True}]}, result, error)
        self._became(self.state.record_observation(thought, call))
        assert self.state.phase is phase

    @invariant()
    def what_ended_it_fits_the_phase(self) -> None:
        assert (self.state.final_answer is not None) == (self.state.phase is AgentPhase.DONE)
        assert (self.state.error_message is not None) == (self.state.phase is AgentPhase.ERROR)

    def teardown(self) -> None:
        for state, text in getattr(self, "seen", ()):
            assert repr(state) == text

    def _became(self, state: AgentState) -> None:
        assert state.iteration == self.state.iteration + 1
        assert state.updated_at >= self.state.updated_at
        assert state.created_at == self.state.created_at
        assert state.history[: len(self.state.history)] == self.state.history
        self.seen.append((self.state, repr(self.state)))
        self.state = state


TestWalk = pytest.mark.slow(Walk.TestCase)
