"""The card of an approval names what the tool did before: where the history does not show it, and where it does."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import approvals, earlier_effects
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.desk.pages.earlier_effects import Earlier, Request
from sessions_app.desk.pages.session import checkpoints
from sessions_app.desk.pages.session_agents import load_agents
from sessions_app.finding import inbox_rows
from sessions_app.models import Approval, CallStatus, Checkpoint, RegisteredAgent, Session, ToolCall
from tests import builders
from tests.builders import History
from tests.pages import text_at

pytestmark = pytest.mark.django_db

REFUND = ("issue_refund", {"claim": "CLM-1", "amount": 80})


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("operator"))
    return client


def paid(history: History, amount: float, *, sent: float | None = None, result: Any = "paid") -> ToolCall:
    """A step in which a refund was paid; with `sent`, a person had changed the amount to that."""
    history.reply(calls=[("issue_refund", {"claim": "CLM-1", "amount": amount})])
    fields: dict[str, Any] = {"sent": {"claim": "CLM-1", "amount": sent}} if sent is not None else {}
    call = history.finish(history.calls[-1], result, **fields)
    history.checkpoint("step")
    return call


def rewound(history: History, *, steps: int | None = None) -> None:
    """To its beginning, or by so many steps."""
    starts = list(Checkpoint.objects.filter(branch__session=history.session).order_by("position"))
    start = starts[0 if steps is None else -1 - steps]
    history.rest("paused")
    actions.rewind(actor=builders.SYSTEM, session_id=history.session.pk, checkpoint_id=start.pk, reason="x")
    history.session.refresh_from_db()


def held(history: History, earlier: Iterable[ToolCall], **fields: Any) -> Approval:
    """The agent asks for a refund of 80, and the request shows the calls."""
    history.reply(calls=[REFUND])
    approval = history.ask(history.calls[-1], earlier=[call.pk for call in earlier] or None, **fields)
    history.rest("waiting", waiting_for="approval")
    return approval


def text_of(desk: Client, address: str) -> str:
    page = text_at(desk, address)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("&quot;", '"')


def card_of(approval: Approval) -> Earlier:
    [card] = approvals.read_cards(builders.page_context(mask=Mask.configured()), [approval.pk]).values()
    assert card.approval.pk == approval.pk
    return card.earlier


def refund_of_120(history: History) -> ToolCall:
    call = paid(history, 100, sent=120)
    rewound(history)
    return call


@pytest.mark.slow
@pytest.mark.parametrize("address", ["/sessions/{0}/", "/inbox/", "/sessions/{0}/approve/?call={1}"])
def test_a_card_names_what_ran_with_its_result_and_branch_and_that_it_was_not_undone(
    desk: Client, address: str
) -> None:
    history = builders.asked()
    call = refund_of_120(history)
    approval = held(history, [call])
    address = address.format(history.session.pk, approval.call_id)
    text = text_of(desk, address)
    assert "issue_refund already took effect in discarded steps. It was not undone." in text
    assert re.search(
        r"Issue refund Claim CLM-1, Amount 120 (?:just now|\d+ (?:s|min) ago) · result: paid Open call", text
    )
    details = "Details Claim CLM-1 Amount 120 Changed from the request: amount 100 -&gt; 120"
    assert f"{details} Tool issue_refund Branch 1" in text
    assert f"/sessions/{history.session.pk}/calls/{call.pk}/" in desk.get(address).content.decode()
    assert "This call already ran" not in text


@pytest.mark.slow
def test_an_effect_of_another_session_names_it(desk: Client) -> None:
    source = builders.asked(title="Windscreen of POL-7")
    fork = builders.asked(title="Second try")
    call = paid(source, 120)
    approval = held(fork, [call])
    [effect] = card_of(approval).discarded.effects
    assert effect.session == source.session
    text = text_of(desk, f"/sessions/{fork.session.pk}/")
    assert re.search(r"(?:ago|now) , in Windscreen of POL-7 · result: paid", text)
    assert desk.get(f"/sessions/{source.session.pk}/calls/{call.pk}/").status_code == 200


@pytest.mark.slow
def test_earlier_effects_of_the_visible_history_are_listed_apart(desk: Client) -> None:
    history = builders.asked()
    paid(history, 5)
    failed = paid(history, 6)
    ToolCall.objects.filter(pk=failed.pk).update(status=CallStatus.FAILED)
    paid(history, 7)
    history.lookup()
    approval = held(history, [])
    earlier = card_of(approval)
    assert earlier.discarded.effects == []
    assert [effect.call.ran_with["amount"] for effect in earlier.shown.effects] == [7, 5]
    text = text_of(desk, f"/sessions/{history.session.pk}/")
    assert "Earlier calls of issue_refund in this history: 2" in text
    assert "does not show" not in text


@pytest.mark.slow
def test_the_list_is_limited_and_says_how_many_more_there_are(desk: Client) -> None:
    history = builders.asked()
    calls = [paid(history, number) for number in range(23)]
    rewound(history)
    for number in range(22):
        paid(history, number)
    approval = held(history, reversed(calls))
    earlier = card_of(approval)
    assert [effect.call.ran_with["amount"] for effect in earlier.discarded.effects] == list(range(22, 2, -1))
    assert (earlier.discarded.more, earlier.discarded.total) == (3, 23)
    assert [effect.call.ran_with["amount"] for effect in earlier.shown.effects] == list(range(21, 1, -1))
    assert earlier.shown.more == 2
    assert "3 older." in text_of(desk, "/inbox/")


@pytest.mark.slow
def test_the_call_that_is_repeated_is_said_by_itself(desk: Client) -> None:
    history = builders.asked()
    same, other = paid(history, 80), paid(history, 120)
    rewound(history)
    approval = held(history, [other, same], repeats=same)
    assert [effect.call.pk for effect in card_of(approval).discarded.effects] == [other.pk]
    text = text_of(desk, "/inbox/")
    assert "This call already ran" in text
    assert "Claim CLM-1, Amount 120" in text


@pytest.mark.slow
@pytest.mark.parametrize("address", ["/sessions/{0}/", "/inbox/"])
def test_of_a_call_in_doubt_no_page_says_that_it_took_effect(desk: Client, address: str) -> None:
    history = builders.asked()
    doubtful, other = paid(history, 80), paid(history, 120)
    ToolCall.objects.filter(pk=doubtful.pk).update(status="doubt", result=None, ended_at=None)
    rewound(history)
    approval = held(history, [other, doubtful], repeats=doubtful)
    address = address.format(history.session.pk)
    of_both = "Amount 80” (and 1 more call) already took effect, or may have."
    assert of_both in text_of(desk, address)

    ToolCall.objects.filter(pk=other.pk).update(status="started", result=None, ended_at=None)
    text = text_of(desk, address)
    assert "already took effect" not in text
    assert "took effect and" not in text
    assert "issue_refund may already have taken effect in discarded steps. It was not undone." in text
    assert "This call was started before" in text
    assert "did not report back, so it may or may not have taken effect." in text
    assert "Amount 80” (and 1 more call) may already have taken effect." in text
    if address != "/inbox/":
        assert "2 calls may have taken effect and were not undone" in text
    assert approve(desk, approval, effects_seen="on") == 302
    audit = text_of(desk, f"/sessions/{approval.session_id}/audit/")
    assert "Confirmed to have seen that the tool already took effect, or may have." in audit


@pytest.mark.slow
@pytest.mark.parametrize(
    "result", ["x" * 9_000, {"rows": ["y" * 100] * 100}, {"refund": "RF-1"}, "", None, 0]
)
def test_any_result_is_shown_in_short(desk: Client, result: Any) -> None:
    history = builders.asked()
    call = paid(history, 120, result=result)
    rewound(history)
    [effect] = card_of(held(history, [call])).discarded.effects
    assert len(effect.result) <= earlier_effects.RESULT_LENGTH + 1
    expected = {"RF-1": "refund: RF-1"}
    if isinstance(result, dict) and "refund" in result:
        assert effect.result == expected["RF-1"]
    assert desk.get("/inbox/").status_code == 200


@pytest.mark.slow
def test_a_call_that_did_not_report_back_says_so(desk: Client) -> None:
    history = builders.asked()
    history.reply(calls=[REFUND])
    call = history.doubt(history.calls[-1])
    rewound(history)
    approval = held(history, [call])
    [effect] = card_of(approval).discarded.effects
    assert (effect.reported_back, effect.result) == (False, "")
    assert "did not report back" in text_of(desk, "/inbox/")


def test_an_effect_that_is_gone_is_left_out(desk: Client) -> None:
    history = builders.asked()
    call = refund_of_120(history)
    approval = held(history, [call])
    Approval.objects.filter(pk=approval.pk).update(earlier=[call.pk, 10**9])
    earlier = card_of(approval)
    assert len(earlier.discarded.effects) == 1


@pytest.mark.slow
def test_what_is_hidden_is_hidden_in_earlier_effects(desk: Client, settings: LazySettings) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = ["SECRET"]
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    source = builders.asked(title="About SECRET")
    call = paid(source, 471104711, sent=471204711, result={"to": "SECRET", "amount": 471304711})
    long = paid(source, 1, result="SECRET" + "x" * 9_000)
    fork = builders.asked()
    paid(fork, 471404711, result="SECRET")
    held(fork, [call, long])
    for address in (f"/sessions/{fork.session.pk}/", "/inbox/"):
        page = desk.get(address).content.decode()
        assert "already took effect" in page
        assert not re.search("SECRET|471[1-4]04711", page)


@pytest.mark.parametrize("hidden", [[], ["amount"]], ids=["shown", "hidden"])
def test_a_request_that_is_made_again_keeps_what_a_person_had_changed(
    desk: Client, settings: LazySettings, hidden: list[str]
) -> None:
    """Its fields hold the arguments of the first decision; sent as they stand, those run."""
    settings.AGENTSTATE_MASK_KEYS = hidden
    history = builders.asked()
    call = refund_of_120(history)
    approval = held(history, [call], edited={"claim": "CLM-1", "amount": 90})
    [card] = approvals.read_cards(builders.page_context(mask=Mask.configured()), [approval.pk]).values()
    if not hidden:
        assert [(field.requested, field.value) for field in card.fields] == [("CLM-1", "CLM-1"), ("80", "90")]
    typed = {field.input_name: field.value for field in card.fields}
    assert hidden or typed == {"arg-claim": "CLM-1", "arg-amount": "90"}
    answer = desk.post(
        f"/sessions/{history.session.pk}/approve/",
        {
            "version": history.session.version,
            "call_id": approval.call_id,
            "fingerprint": shown_fingerprint(approval),
            **typed,
            "effects_seen": "on",
        },
    )
    assert answer.status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.edited) == ("approved", {"claim": "CLM-1", "amount": 90})


@pytest.mark.slow
def test_cards_cost_the_same_queries_for_many_effects(django_assert_num_queries: Any) -> None:
    requests = []
    for _ in range(3):
        history = builders.asked()
        calls = [paid(history, number) for number in range(4)]
        rewound(history)
        paid(history, 9)
        requests.append(held(history, calls))
    page = list(inbox_rows.open_approvals(timezone.now()).select_related("call", "session__branch"))
    load_agents([approval.session for approval in page])
    for number in (1, 3):
        with django_assert_num_queries(2):
            requests_shown = [
                Request(approval, approval.call, approval.session) for approval in page[:number]
            ]
            found = earlier_effects.of_requests(requests_shown, Mask.none())
        assert [len(each.discarded.effects) for each in found.values()] == [4] * number
        assert [len(each.shown.effects) for each in found.values()] == [1] * number


@pytest.mark.slow
def test_a_card_shows_the_same_effects_whether_they_are_few_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to read them agree where a branch shows a part of another one, and on other tools and sessions."""
    many = builders.asked()
    for number in range(earlier_effects.SHOWN + 5):
        paid(many, number)
    held(many, [])
    branching = builders.asked()
    for number in range(3):
        paid(branching, number)
    rewound(branching, steps=1)
    paid(branching, 30)
    branching.lookup("POL-1")
    held(branching, [])
    held(builders.asked(), [])
    page = list(
        inbox_rows.open_approvals(timezone.now()).select_related("call", "session__branch").order_by("pk")
    )
    load_agents([approval.session for approval in page])
    requests = [Request(approval, approval.call, approval.session) for approval in page]
    of_few = earlier_effects.of_requests(requests, Mask.none())
    assert [
        ([effect.call.ran_with["amount"] for effect in earlier.shown.effects], earlier.shown.more)
        for earlier in of_few.values()
    ] == [(list(range(24, 4, -1)), 5), ([30, 1, 0], 0), ([], 0)]
    monkeypatch.setattr(earlier_effects, "FEW", 0)
    assert earlier_effects.of_requests(requests, Mask.none()) == of_few


@pytest.mark.slow
def test_requests_that_show_effects_are_not_decided_in_a_batch(desk: Client) -> None:
    history = builders.asked()
    call = refund_of_120(history)
    approval = held(history, [call])
    # There is a form of several from two on that it can decide.
    for _ in range(2):
        held(builders.asked(), [])
    ticks = f'value="{approval.pk}:'
    assert ticks not in desk.get("/inbox/?tool=issue_refund").content.decode()
    Approval.objects.update(earlier=None)
    assert ticks in desk.get("/inbox/?tool=issue_refund").content.decode()


def approve(desk: Client, approval: Approval, **fields: Any) -> int:
    """The status of the answer to the form of the card."""
    typed = {f"arg-{name}": str(value) for name, value in REFUND[1].items()}
    sent = {
        "version": Session.objects.get(pk=approval.session_id).version,
        "call_id": approval.call_id,
        "fingerprint": shown_fingerprint(approval),
    }
    status: int = desk.post(
        f"/sessions/{approval.session_id}/approve/", {**sent, **typed, **fields}
    ).status_code
    approval.refresh_from_db()
    return status


def on_a_discarded_branch() -> Approval:
    history = builders.asked()
    call = refund_of_120(history)
    return held(history, [call])


def the_same_call() -> Approval:
    history = builders.asked()
    call = paid(history, 80)
    rewound(history)
    return held(history, [call], repeats=call)


def in_the_same_history() -> Approval:
    history = builders.asked()
    paid(history, 80)
    return held(history, [])


def for_the_same_claim() -> Approval:
    approval = for_another_amount()
    identify_by("claim")
    return approval


def for_another_amount() -> Approval:
    history = builders.asked()
    paid(history, 5)
    return held(history, [])


def identify_by(*names: str) -> None:
    agent = RegisteredAgent.objects.get()
    for tool in agent.tools:
        if tool["name"] == "issue_refund":
            tool["policy"]["identity"] = list(names)
    agent.save()


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [on_a_discarded_branch, the_same_call, in_the_same_history, for_the_same_claim]
)
def test_what_took_effect_before_is_approved_only_by_who_says_that_they_have_seen_it(
    desk: Client, build: Callable[[], Approval]
) -> None:
    approval = build()
    for address in ("/inbox/", f"/sessions/{approval.session_id}/"):
        assert desk.get(address).content.decode().count('name="effects_seen" value="on" required') == 1
    dialog = f"/sessions/{approval.session_id}/approve/?call={approval.call_id}"
    assert desk.get(dialog).content.decode().count('name="effects_seen"') == 1
    assert re.search(
        "I have seen that “Issue refund Claim CLM-1, Amount [0-9]+” already took effect",
        text_of(desk, dialog),
    )
    assert approve(desk, approval) == 400
    assert approval.decision == ""
    assert approve(desk, approval, effects_seen="on") == 302
    assert approval.decision == "approved"
    assert "Confirmed to have seen that the tool already took effect, or may have." in text_of(
        desk, f"/sessions/{approval.session_id}/audit/"
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", [(), ("amount",)])
def test_another_effect_in_the_same_history_asks_for_nothing_more(
    desk: Client, names: tuple[str, ...]
) -> None:
    approval = for_another_amount()
    identify_by(*names)
    assert "effects_seen" not in desk.get("/inbox/").content.decode()
    assert approve(desk, approval) == 302


@pytest.mark.slow
@pytest.mark.parametrize("build", [on_a_discarded_branch, the_same_call, in_the_same_history])
def test_what_took_effect_before_is_not_approved_in_a_batch(
    desk: Client, build: Callable[[], Approval]
) -> None:
    approval = build()
    assert f'value="{approval.pk}:' not in desk.get("/inbox/?tool=issue_refund").content.decode()
    sent = {
        "call": f"{approval.pk}:{shown_fingerprint(approval)}",
        "decision": "approve",
        "tool": "issue_refund",
    }
    sent |= {f"arg-{approval.pk}-{name}": str(value) for name, value in REFUND[1].items()}
    answer = desk.post("/approvals/batch/", sent)
    assert answer.status_code == 409
    assert "issue_refund already took effect, or may have." in answer.content.decode()
    approval.refresh_from_db()
    assert approval.decision == ""


@pytest.mark.slow
def test_the_recorded_result_is_used_without_that(desk: Client) -> None:
    approval = the_same_call()
    page = desk.get("/inbox/").content.decode()
    assert re.search(r"formnovalidate\s+formaction", page)
    answer = desk.post(
        f"/sessions/{approval.session_id}/reuse/",
        {"version": Session.objects.get(pk=approval.session_id).version, "call_id": approval.call_id},
    )
    assert answer.status_code == 302


@pytest.mark.slow
def test_a_hidden_claim_does_not_tell_whether_it_is_the_same(desk: Client, settings: LazySettings) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    approval = for_another_amount()
    assert "effects_seen" in desk.get("/inbox/").content.decode()
    actions.approve(actor=builders.SYSTEM, session_id=approval.session_id, call_id=approval.call_id)
    approval.refresh_from_db()
    assert approval.decision == "approved"


@pytest.mark.slow
def test_the_last_effects_before_which_to_rewind_are_suggested_in_a_history_that_is_shorter_than_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rewind does not take positions back: they are counted from the last call that is shown."""
    monkeypatch.setattr(checkpoints, "_EFFECTS_WITHIN", 12)
    history = builders.asked()
    paid(history, 5)
    for number in range(20):
        history.lookup(f"POL-{number}")

    def places() -> list[str]:
        history.session.refresh_from_db()
        suggested = checkpoints.suggestions(builders.context_of(history.session))
        return [suggestion.what for suggestion in suggested if "before" in suggestion.what]

    history.rest("paused")
    assert places() == []
    start = Checkpoint.objects.filter(branch__session=history.session).order_by("position")[2]
    actions.rewind(actor=builders.SYSTEM, session_id=history.session.pk, checkpoint_id=start.pk, reason="x")
    [place] = places()
    assert "issue_refund" in place


def test_a_request_that_a_colleague_has_rewound_away_is_not_approved_by_a_page_that_still_shows_it(
    desk: Client, settings: LazySettings
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["pin"]
    history = builders.asked()
    paid(history, 5)
    approval = held(history, [])
    shown = history.session.version
    rewound(history)
    assert approve(desk, approval, version=shown) == 409
    assert approve(desk, approval) == 409
    assert approval.decision == ""
