"""An orchestrator of your own: an explicit state machine that saves its state after every iteration.

    python -m examples.state_machine trip "Which city is warmer, Lisbon or Oslo?"
    python -m examples.state_machine trip --iterations 2      # leaves early, as if it had died
    python -m examples.state_machine trip                     # goes on by the session's id

No agent framework and no journal: `agentstate.domain` has the state as an immutable value, the allowed changes of
phase, and a lossless file per session. Swap `think` for a call of your model: it is given the conversation.
"""

import argparse

from agentstate.domain import (
    AgentPhase,
    AgentState,
    ToolCall,
    history_to_messages,
    load_checkpoint,
    save_checkpoint,
    truncate_history,
)

FOLDER = "state_machine"
STEP_LIMIT = 20
DEGREES = {"Lisbon": 21, "Oslo": 9, "Cairo": 30}


def measure(city: str) -> int:
    """The tool."""
    print(f"    measuring in {city}")
    return DEGREES[city]


def think(state: AgentState, messages: list[dict[str, object]]) -> str:
    """The model: the next city to measure, or "" when it has seen enough. `messages` is what a real one would get."""
    return next(iter(state.memory.pending_steps), "")


def plan(state: AgentState) -> AgentState:
    if not state.memory.plan_steps:
        cities = [city for city in DEGREES if city in state.memory.current_goal]
        if not cities:
            return state.to_error("I know no city in this question.")
        state = state.remember(state.memory.plan(cities))
    return state.to_executing()


def execute(state: AgentState) -> AgentState:
    city = think(state, truncate_history(history_to_messages(state)))
    call = ToolCall(tool_name="measure", arguments={"city": city}, result=measure(city))
    state = state.record_observation(f"I measure in {city}.", call)
    return state.remember(state.memory.complete_step(city)).to_reflecting()


def reflect(state: AgentState) -> AgentState:
    if state.memory.pending_steps:
        return state.to_planning()
    degrees = {call.arguments["city"]: call.result for call in state.memory.tool_calls}
    warmest = max(degrees, key=lambda city: degrees[city])
    return state.to_done(f"{warmest} is the warmest, at {degrees[warmest]} degrees.")


ITERATE = {AgentPhase.PLANNING: plan, AgentPhase.EXECUTING: execute, AgentPhase.REFLECTING: reflect}


def orchestrate(session_id: str, question: str, iterations: int = STEP_LIMIT) -> AgentState:
    """Go on with the session, or begin it, for so many iterations at most."""
    try:
        state = load_checkpoint(session_id, FOLDER)
        print(f"Session {session_id} goes on in phase {state.phase}.")
    except FileNotFoundError:
        state = AgentState.from_user_input(question, session_id)
    while state.phase in ITERATE and iterations > 0:
        before = state
        state = (
            ITERATE[state.phase](state) if state.iteration < STEP_LIMIT else state.to_error("too many steps")
        )
        save_checkpoint(state, FOLDER)
        print(f"  {before.phase} -> {state.phase}")
        iterations -= 1
    return state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("session_id")
    parser.add_argument("question", nargs="?", default="Which city is warmer, Lisbon or Oslo?")
    parser.add_argument("--iterations", type=int, default=STEP_LIMIT)
    options = parser.parse_args()
    state = orchestrate(options.session_id, options.question, options.iterations)
    print(state.final_answer or state.error_message or f"Left in phase {state.phase}.")


if __name__ == "__main__":
    main()
