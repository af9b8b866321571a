"""The demo's tools tell what is on file, refuse what makes no sense, and record what they did."""

from pathlib import Path

import pytest

from agentstate.demo import ledger, records, tools
from agentstate.durable.idempotency import use_idempotency_key


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0")


def test_every_claim_is_on_a_policy_that_covers_what_happened():
    for claim in records._file("claims"):
        assert claim["cause"] in records.policy(claim["policy_number"])["covers"]


def test_what_was_paid_and_withheld_never_exceeds_the_damage():
    for claim in records._file("claims"):
        assert claim["paid"] + claim["deductible_withheld"] <= claim["damage"]


def test_a_policy_lists_its_claims():
    assert tools.look_up_policy("POL-8801")["claims"] == ["CLM-1042", "CLM-1050"]


def test_numbers_are_found_however_they_are_written():
    assert tools.look_up_claim(" clm-1042 ")["number"] == "CLM-1042"


@pytest.mark.parametrize("look_up, kind", [(tools.look_up_policy, "policy"), (tools.look_up_claim, "claim")])
def test_an_unknown_number_is_said_to_be_unknown(look_up, kind):
    with pytest.raises(LookupError, match=f"There is no {kind} XYZ-1 on file"):
        look_up("XYZ-1")


def test_a_record_that_was_handed_out_may_be_changed_without_harm():
    tools.look_up_claim("CLM-1042")["paid"] = 0.0
    assert tools.look_up_claim("CLM-1042")["paid"] == 1840.0


def test_a_waived_deductible_is_due_to_be_refunded():
    checked = tools.check_deductible("POL-8801", "CLM-1042")
    assert checked["applies"] is False
    assert checked["waived_because"] == "the other driver was found at fault"
    assert checked["refund_due"] == 500.0


def test_a_deductible_that_applies_is_not_refunded():
    checked = tools.check_deductible("POL-8802", "CLM-1043")
    assert checked["applies"] is True
    assert checked["refund_due"] == 0.0


def test_a_deductible_can_be_checked_for_the_policy_alone():
    assert tools.check_deductible("POL-8801") == {
        "policy_number": "POL-8801",
        "deductible": 500.0,
        "applies": True,
    }


def test_a_claim_on_another_policy_is_refused():
    with pytest.raises(ValueError, match="CLM-1042 is not on policy POL-8802 but on POL-8801"):
        tools.check_deductible("POL-8802", "CLM-1042")


@pytest.mark.parametrize(
    "query, article",
    [
        ("deductible refund waived", "KB-101"),
        ("is hail covered", "KB-103"),
        ("flood", "KB-104"),
        ("how long does a claim take", "KB-107"),
        ("police report for a theft", "KB-105"),
    ],
)
def test_a_search_finds_the_article_that_answers(query, article):
    found = tools.search_knowledge(query)["documents"]
    assert found[0].id == article
    assert 1 >= (found[0].score or 0) >= (found[-1].score or 0) > 0


@pytest.mark.parametrize("query", ["zebra", "", "the of and"])
def test_a_search_without_a_hit_says_so(query):
    found = tools.search_knowledge(query)["documents"]
    assert found == []
    assert tools.documents_as_text(found) == "Nothing in the knowledge base matches."


def test_a_refund_is_on_the_ledger_with_the_key_of_its_call():
    with use_idempotency_key("the-key"):
        paid = tools.issue_refund("CLM-1042", 500.0, "Deductible waived")
    assert paid == {
        "refund": "RF-0001",
        "claim_number": "CLM-1042",
        "amount": "500.00",
        "status": "paid out",
    }
    (entry,) = ledger.entries("refunds")
    assert (entry["key"], entry["claim_number"], entry["amount"]) == ("the-key", "CLM-1042", "500.00")


@pytest.mark.parametrize("amount", [0, -5, 2340.01, float("nan")])
def test_a_refund_of_a_senseless_amount_is_refused_and_nothing_is_paid(amount):
    with pytest.raises(ValueError, match=r"more than 0 and at most 2340\.00"):
        tools.issue_refund("CLM-1042", amount, "A mistake")
    assert ledger.entries("refunds") == []


def test_a_letter_is_on_the_ledger():
    sent = tools.send_letter("POL-8801", "Hello", "A word.")
    assert sent == {
        "letter": "LT-0001",
        "to": "Maria Santos",
        "status": "handed to the printing service",
    }
    assert ledger.entries("letters")[0]["address"] == "14 Alder Street, Portland, OR 97205"


def test_only_the_one_address_without_a_zip_code_makes_the_printing_service_hang(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", waited.append)
    for policy in records._file("policies"):
        tools.send_letter(policy["number"], "Hello", "A word.")
        assert bool(waited) == (policy["number"] >= "POL-8807")
    assert waited == [tools.PRINTER_HANGS_SECONDS]
    assert tools.PRINTER_HANGS_SECONDS > tools.LETTER_SECONDS
    assert len(ledger.entries("letters")) == 8


def test_a_letter_that_is_sent_again_is_answered_and_printed_twice(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", waited.append)
    with use_idempotency_key("the-key"):
        tools.send_letter("POL-8807", "Hello", "A word.")
        again = tools.send_letter("POL-8807", "Hello", "A word.")
    assert len(waited) == 1
    assert again["letter"] == "LT-0002"
    assert [entry["key"] for entry in ledger.entries("letters")] == ["the-key", "the-key"]


def test_every_source_that_is_listed_can_be_read():
    listed = tools.list_sources()
    assert len(listed) >= 12
    for source in listed:
        assert tools.slow_research(source["id"])["finding"]
    with pytest.raises(LookupError, match="There is no source S99"):
        tools.slow_research("S99")


@pytest.mark.parametrize("told, seconds", [(None, 0.6), ("", 0.6), ("0", 0.0), ("2.5", 2.5)])
def test_the_delay_is_what_the_environment_says(monkeypatch, told, seconds):
    waited: list[float] = []
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", waited.append)
    monkeypatch.delenv("AGENTSTATE_DEMO_DELAY")
    if told is not None:
        monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", told)
    tools.delay()
    tools.slow_research("S01")
    assert waited == [seconds, 5 * seconds]
