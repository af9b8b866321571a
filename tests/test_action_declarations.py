"""Where each action is offered and what its parts say, written down by hand beside the declarations."""

import dataclasses
from typing import Any

import pytest

from sessions_app import checks
from sessions_app.action_list import ACTIONS, FORK
from tests.refusals import OFFERED

# key: title and button of the dialog, and what the person is told when it is done.
SAID: dict[str, tuple[str, str, str]] = {
    "resume": ("Resume", "Resume", "Resumed."),
    "pause": ("Pause", "Pause", "Paused."),
    "rewind": ("Rewind", "Rewind", "Rewound. What came after stays readable, and you can undo it."),
    "undo": ("Undo the rewind", "Undo the rewind", "Undone: the session is where it was."),
    "fork": ("Fork", "Fork", "This is the fork: it is independent of its source from here."),
    "cancel": ("End session", "End session", "Ended."),
    "withdraw": (
        "Require approval again",
        "Require approval",
        "Approval is required again from the next step.",
    ),
    "assign": ("Assign", "Assign", "Assigned."),
    "release": ("Release from its worker", "Release", "Released. Another worker may take it."),
}


def test_each_action_is_offered_in_its_places_and_in_no_others() -> None:
    assert {
        key: (action.label, bool(action.command), action.admin, action.bulk, str(action.event))
        for key, action in ACTIONS.items()
    } == OFFERED


@pytest.mark.parametrize("key", SAID)
def test_the_dialog_of_an_action_says_what_it_does_and_that_it_is_done(key: str) -> None:
    action = ACTIONS[key]
    assert (action.title, action.button, action.done) == SAID[key]


def test_only_undo_is_left_out_where_it_is_impossible() -> None:
    assert [key for key, action in ACTIONS.items() if action.only_if_possible] == ["undo"]


def test_the_check_finds_nothing_in_the_declarations() -> None:
    assert checks.actions_can_be_done(None) == []


@pytest.mark.parametrize("place", ["command", "admin", "bulk"])
def test_an_action_that_asks_for_more_than_a_reason_is_not_offered_where_only_a_reason_is_asked(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ACTIONS, FORK.key)
    offered: dict[str, Any] = {place: "Fork many"}
    dataclasses.replace(FORK, **offered)
    [error] = checks.actions_can_be_done(None)
    assert error.id == "agentstate.E004"
    assert error.msg == f"The action 'fork' declares {place!r}, but asks for more than a reason."
