"""Forking on the desk with another message than the user's."""

import re

import pytest

from sessions_app import actions
from sessions_app.history import restore
from sessions_app.models import Checkpoint, Message, Session
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_the_fork_page_offers_to_say_the_last_message_differently(operator):
    session = builders.done()
    address = f"/sessions/{session.pk}/fork/"
    text = operator.get(address).content.decode()
    query = re.search(
        rf'href="{address}(\?checkpoint=\d+&amp;replace=\d+)"[^>]*>\s*<b>The last message, reworded', text
    )
    assert query
    dialog = operator.get(address + query[1].replace("&amp;", "&")).content.decode()
    # The old words stand in the field, to be changed.
    assert "Is my windscreen covered by POL-7?</textarea>" in dialog
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', dialog))
    answer = operator.post(
        address, fields | {"message": "Is my roof covered?", "reason": "She meant the roof"}
    )
    assert answer.status_code == 302, answer.content.decode()
    fork = Session.objects.select_related("branch").exclude(pk=session.pk).get()
    base = restore.read(builders.branch_of(fork)).checkpoint
    assert base is not None
    assert [message.body["content"][0]["text"] for message in base.context[1:]] == ["Is my roof covered?"]
    assert fork.status == "queued"
    assert operator.get(answer["Location"]).status_code == 200


@pytest.mark.parametrize("asked", ["My account is DE89\nin Bonn\n", "My account is DE89\r\nin Bonn"])
def test_a_message_of_several_lines_with_a_hidden_part_can_be_left_as_it_is(operator, settings, asked):
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    history = builders.History()
    message = history.user(asked)
    start = history.checkpoint("start")
    session = history.rest("paused")
    fields = {"version": session.version, "checkpoint": start.pk, "replace": message.position}
    sent = {"message": "My account is ••••\r\nin Bonn", "reason": "Once more"}
    answer = operator.post(f"/sessions/{session.pk}/fork/", fields | sent)
    assert answer.status_code == 302
    said = Message.objects.get(branch__session=Session.objects.exclude(pk=session.pk).get(), role="user")
    assert said.text == asked


def test_nothing_is_replaced_by_nothing(operator):
    session = builders.done()
    start = Checkpoint.objects.get(branch=session.branch, kind="start")
    asked = Message.objects.get(branch=session.branch, role="user")
    fields = {"version": session.version, "checkpoint": start.pk, "replace": asked.position, "message": " "}
    answer = operator.post(f"/sessions/{session.pk}/fork/", fields | {"reason": "She meant the roof"})
    assert answer.status_code == 400
    assert Session.objects.count() == 1


@pytest.mark.parametrize("role, offered", [("supervisor", True), ("operator", False)])
def test_a_rewind_offers_other_words_to_whom_may_correct_what_the_model_reads(client, role, offered):
    client.force_login(builders.user(role))
    session = builders.done()
    text = client.get(f"/sessions/{session.pk}/rewind/").content.decode()
    assert ("The last message, reworded" in text) is offered
    dialog = f"/sessions/{session.pk}/message-text/"
    assert (f'href="{dialog}"' in text) is offered
    form = client.get(dialog).content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in form


def test_the_last_message_is_the_last_that_the_model_reads(operator):
    """A correction of the first message stands behind the second one, which is still the last that was said."""
    history = builders.History()
    first = history.user("Is my windscreen covered?")
    history.checkpoint("start")
    history.reply("By which policy?")
    history.end("By which policy?")
    history.user("By POL-7.")
    history.checkpoint("start")
    session = history.rest("paused")
    supervisor = builders.actor("supervisor")
    actions.replace_message(
        actor=supervisor, session_id=session.pk, position=first.position, text="Is my roof?", reason="A slip"
    )
    form = operator.get(f"/sessions/{session.pk}/message-text/").content.decode()
    assert "By POL-7.</textarea>" in form
