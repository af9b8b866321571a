"""Where each action is offered, written down by hand beside the declarations, and what these must not promise."""

import dataclasses
from typing import Any
from uuid import UUID

import pytest
from django.urls import resolve

from sessions_app import checks
from sessions_app.action_list import ACTIONS, FORK
from tests.refusals import OFFERED


def test_each_action_is_offered_in_its_places_and_in_no_others() -> None:
    assert {
        key: (action.label, bool(action.command), action.admin, action.bulk, str(action.event))
        for key, action in ACTIONS.items()
    } == OFFERED


@pytest.mark.parametrize("key", ACTIONS)
def test_no_other_page_has_the_address_of_an_action_s_dialog(key: str) -> None:
    assert resolve(f"/sessions/{UUID(int=1)}/{key}/").url_name == "dialog"


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
