"""An orchestrator of one's own on the value model: checkpoints after each iteration, resumed by the session's id."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentstate.domain import AgentPhase, AgentState, ToolCall, load_checkpoint, save_checkpoint
from tests.dying import Died

STEP_LIMIT = 20
AT_REST = (AgentPhase.DONE, AgentPhase.ERROR)


def look_up(state: AgentState) -> AgentState:
    """One iteration: plans, looks up two things one after the other, and answers."""
    calls = len(state.memory.tool_calls)
    if state.phase is AgentPhase.EXECUTING:
        call = ToolCall(tool_name="look_up", arguments={"n": calls}, result=f"fact {calls}")
        return state.record_observation(f"I look up {calls}.", call).to_reflecting()
    if state.phase is AgentPhase.REFLECTING and calls == 2:
        return state.to_done(" and ".join(str(call.result) for call in state.memory.tool_calls))
    if state.phase is AgentPhase.REFLECTING:
        return state.to_planning()
    return state.to_executing()


def orchestrate(
    text: str,
    session_id: str,
    folder: Path,
    iterate: Callable[[AgentState], AgentState] = look_up,
    dies_after: int | None = None,
) -> AgentState:
    try:
        state = load_checkpoint(session_id, folder)
    except FileNotFoundError:
        # A fresh state takes the id that was given, or a later start would never find it.
        state = AgentState.from_user_input(text, session_id)
    done = 0
    while state.phase not in AT_REST:
        if state.iteration >= STEP_LIMIT:
            state = state.to_error("step limit")
        else:
            state = iterate(state)
        save_checkpoint(state, folder)
        done += 1
        if done == dies_after:
            raise Died
    return state


def facts(state: AgentState) -> list[object]:
    return [call.result for call in state.memory.tool_calls]


def test_it_answers(tmp_path: Path) -> None:
    state = orchestrate("hi", "anna", tmp_path)
    assert (state.session_id, state.phase, state.final_answer) == ("anna", "done", "fact 0 and fact 1")


@pytest.mark.parametrize("dies_after", range(1, 7))
def test_killed_after_any_iteration_it_continues_by_its_id_and_repeats_nothing(
    tmp_path: Path, dies_after: int
) -> None:
    with pytest.raises(Died):
        orchestrate("hi", "anna", tmp_path, dies_after=dies_after)
    before = load_checkpoint("anna", tmp_path)
    after = orchestrate("hi", "anna", tmp_path)
    assert after.final_answer == "fact 0 and fact 1"
    assert facts(after)[: len(facts(before))] == facts(before)
    assert after.memory.tool_calls[: len(before.memory.tool_calls)] == before.memory.tool_calls
    assert [message.content for message in after.history if message.role == "user"] == ["hi"]


def test_it_stops_at_the_step_limit_and_keeps_the_error(tmp_path: Path) -> None:
    def forever(state: AgentState) -> AgentState:
        return state.to_planning() if state.phase is AgentPhase.REFLECTING else look_up(state)

    assert orchestrate("hi", "anna", tmp_path, forever).error_message == "step limit"
    assert load_checkpoint("anna", tmp_path).phase == "error"


def test_a_session_that_is_done_takes_a_follow_up(tmp_path: Path) -> None:
    done = orchestrate("hi", "anna", tmp_path)
    save_checkpoint(done.to_planning("And now?"), tmp_path)
    assert load_checkpoint("anna", tmp_path).memory.current_goal == "And now?"
