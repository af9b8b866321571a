"""The scripts of the scripted model, one for each kind of request.

A script yields the tool calls that it wants next, is sent their answers, and returns the answer for the customer.
It has no state: it is run from its start for each reply, and stops at the first call without an answer.
"""

import re
from collections.abc import Generator
from typing import Any

from agentstate.demo.request import Answer, Request, WantedCall

Script = Generator[list[WantedCall], list[Answer], str]

_WORDING = r"\b(?:saying|says?|tell(?:ing)? (?:her|him|them|me)|confirming)(?: that)?:? (.+)"


def policy(request: Request, number: str = "") -> Script:
    number = number or request.last("POL")
    if not number:
        return "Which policy do you mean?"
    (policy_answer,) = yield [WantedCall("look_up_policy", {"policy_number": number})]
    if not (record := policy_answer.record):
        return policy_answer.text
    return (
        f"Policy {record['number']} ({record['product']}, {record['holder']}) is {record['status']} and renews "
        f"{record['renews']}. The premium is {record['premium']}, the deductible "
        f"{dollars(record['deductible'])}. It covers {', '.join(record['covers'])}, and not "
        f"{', '.join(record['excludes'])}. Claims on it: {', '.join(record['claims']) or 'none'}."
    )


def claim(request: Request, number: str = "") -> Script:
    number = number or (yield from _which_claim(request))
    if not number.startswith("CLM"):
        return number
    (claim_answer,) = yield [WantedCall("look_up_claim", {"claim_number": number})]
    if not (record := claim_answer.record):
        return claim_answer.text
    on = f"on policy {record['policy_number']}, reported {record['reported']}"
    return f"Claim {record['number']} {on}: {_status(record)}"


def deductible(request: Request) -> Script:
    number = (request.claims or [request.last("CLM")])[0]
    policy_number = (request.policies or [request.last("POL")])[0]
    if number:
        (claim_answer,) = yield [WantedCall("look_up_claim", {"claim_number": number})]
        if not claim_answer.record:
            return claim_answer.text
        policy_number = claim_answer.record["policy_number"]
    if not policy_number:
        return "Which policy do you mean?"
    about = {"policy_number": policy_number} | ({"claim_number": number} if number else {})
    (checked,) = yield [WantedCall("check_deductible", about)]
    if not (record := checked.record):
        return checked.text
    amount = dollars(record["deductible"])
    if not record["deductible"]:
        return f"Policy {policy_number} has no deductible."
    if not number:
        return f"A deductible of {amount} applies to each loss on policy {policy_number}."
    if record["applies"]:
        return f"The deductible of {amount} applies to claim {number}."
    waived = (
        f"The deductible of {amount} does not apply to claim {number}, because {record['waived_because']}."
    )
    if not record["refund_due"]:
        return waived
    return f"{waived} {dollars(record['refund_due'])} was withheld and is due to be refunded."


def knowledge(request: Request) -> Script:
    (knowledge_answer,) = yield [WantedCall("search_knowledge", {"query": _query(request.latest)})]
    article = re.match(r"\[(?P<id>[\w-]+)\] (?P<title>.+)\n(?P<text>.+)", knowledge_answer.text)
    if knowledge_answer.error or article is None:
        return "Our knowledge base says nothing about that."
    return f'{article["text"]} (From our article {article["id"]}, "{article["title"]}".)'


def refund(request: Request) -> Script:
    numbers = request.claims or [(yield from _which_claim(request))]
    answers = ""
    for number in numbers:
        answers += "\n\n" + (
            (yield from _refund_one(request, number)) if number.startswith("CLM") else number
        )
    return answers.strip()


def _refund_one(request: Request, number: str) -> Script:
    if before := request.done_before("issue_refund", claim_number=number):
        amount = dollars(float(before["amount"]))
        return f"The deductible on {number} was refunded already: {before['refund']}, {amount}."
    first = [
        WantedCall("look_up_claim", {"claim_number": number}),
        *(WantedCall("look_up_policy", {"policy_number": named}) for named in request.policies),
        WantedCall("search_knowledge", {"query": "deductible refund waived"}),
    ]
    first_answer, *_ = yield first
    if not (record := first_answer.record):
        return f"{first_answer.text} So there is nothing that I could refund."
    about = {"policy_number": record["policy_number"]}
    on_claim = {**about, "claim_number": number}
    holder, checked = yield [WantedCall("look_up_policy", about), WantedCall("check_deductible", on_claim)]
    if not checked.record or not holder.record:
        return f"I cannot refund anything on {number} now. {checked.text if checked.error else holder.text}"
    due = checked.record["refund_due"]
    if not due:
        why = "nothing was withheld" if not checked.record["withheld"] else "the deductible applies to it"
        return f"There is nothing to refund on claim {number}: {why}."
    reason = f"Deductible waived: {checked.record['waived_because']}"
    exactly = {"claim_number": number, "amount": due, "reason": reason}
    pay, confirm = f"Refund {dollars(due)} on {number}", f"Confirm it to {holder.record['holder']} by letter"
    note = f"{number}: {dollars(due)} was withheld. {reason}."
    yield _remember(request, make_plan={"goal": pay, "steps": [pay, confirm]}, take_note={"text": note})
    (paid,) = yield [WantedCall("issue_refund", exactly, effect=True)]
    if paid.error:
        why = f"the refund of {dollars(due)} on claim {number} was not made. {sentence(paid.text)}"
        yield _remember(request, take_note={"text": sentence(why)})
        return f"I am sorry: {why}"
    amount, reference = dollars(due), paid.text
    if paid.record:
        amount, reference = dollars(float(paid.record["amount"])), paid.record["refund"]
    text = f"We have refunded {amount} on your claim {number}. {sentence(reason)}"
    confirmation = {**about, "subject": f"Refund on your claim {number}", "text": text}
    sent, *_ = yield [
        WantedCall("send_letter", confirmation, effect=True),
        *_remember(request, complete_step={"step": pay}),
    ]
    if not sent.error:
        yield _remember(request, complete_step={"step": confirm})
    outcome = _letter_outcome(holder.record["holder"], sent)
    return f"{amount} has been refunded on claim {number} ({reference}). {outcome}"


def letter(request: Request) -> Script:
    policies, about = list(request.policies), ""
    if request.claims and "look_up_claim" in request.tools:
        claim_answers = yield [
            WantedCall("look_up_claim", {"claim_number": number}) for number in request.claims
        ]
        for answer in claim_answers:
            if not answer.record:
                return answer.text
            policies.append(answer.record["policy_number"])
            about = f"Your claim {answer.record['number']}: {_status(answer.record)}"
    policies = list(dict.fromkeys(policies or [request.last("POL")]))
    if not all(policies):
        return "Which policy is the letter for?"
    holders = yield [WantedCall("look_up_policy", {"policy_number": number}) for number in policies]
    if missing := [answer.text for answer in holders if not answer.record]:
        return " ".join(missing)
    wording = re.search(_WORDING, request.latest, re.DOTALL)
    records = [answer.record for answer in holders if answer.record]
    sent = yield [
        WantedCall(
            "send_letter",
            {
                "policy_number": record["number"],
                "subject": about.partition(":")[0] or f"Your policy {record['number']}",
                "text": sentence(wording[1]) if wording else about or f"Your policy is {record['status']}.",
            },
            effect=True,
        )
        for record in records
    ]
    outcomes = zip(records, sent, strict=True)
    return " ".join(_letter_outcome(record["holder"], answer) for record, answer in outcomes)


def research(request: Request) -> Script:
    (listed,) = yield [WantedCall("list_sources")]
    if listed.error or not isinstance(listed.value, list):
        return f"I could not read the list of sources. {sentence(listed.text)}"
    named = set(re.findall(r"\bS\d\d\b", request.text))
    titles = {source["id"]: source["title"] for source in listed.value if not named or source["id"] in named}
    goal = request.text.partition("\n")[0]
    yield _remember(request, make_plan={"goal": goal, "steps": list(titles.values())})
    findings, failed, memory = [], [], list[WantedCall]()
    for number, title in titles.items():
        read, *_ = yield [WantedCall("slow_research", {"source": number}), *memory]
        if read.record:
            findings.append(f"- {read.record['finding']} ({title})")
            memory = _remember(request, complete_step={"step": title})
        else:
            failed.append(f"- {number} could not be read: {sentence(read.text)}")
            memory = _remember(request, take_note={"text": f"{title} could not be read."})
    yield memory
    return "\n".join([f"I have read {len(findings)} of {len(titles)} sources. They say:", *findings, *failed])


def _remember(request: Request, **calls: dict[str, Any]) -> list[WantedCall]:
    """Calls of the working memory's tools, where the agent has them."""
    return [WantedCall(tool, arguments) for tool, arguments in calls.items() if tool in request.tools]


def _which_claim(request: Request) -> Script:
    """The number of the claim that is meant where none is named, or a question to the user."""
    if last_claim := request.last("CLM"):
        return last_claim
    if not (number := request.last("POL")):
        return "Which claim do you mean?"
    (policy_answer,) = yield [WantedCall("look_up_policy", {"policy_number": number})]
    if not (record := policy_answer.record):
        return policy_answer.text
    if len(record["claims"]) == 1:
        return str(record["claims"][0])
    if not record["claims"]:
        return f"There is no claim on policy {number}."
    return f"There are several claims on policy {number}. Which do you mean: {' or '.join(record['claims'])}?"


def _status(record: dict[str, Any]) -> str:
    money = f"damage {dollars(record['damage'])}, paid {dollars(record['paid'])}"
    if record["deductible_withheld"]:
        money += f", deductible withheld {dollars(record['deductible_withheld'])}"
    return f"{record['what']}. It is {record['status']} ({money})."


def _letter_outcome(holder: str, answer: Answer) -> str:
    if answer.error:
        return f"A letter to {holder} was not sent: {sentence(answer.text)}"
    if answer.record:
        # A person who has entered the result need not know the number.
        number = answer.record.get("letter")
        return f"{f'Letter {number}' if number else 'A letter'} to {holder} is with the printing service."
    return f"About the letter to {holder}: {sentence(answer.text)}"


def _query(text: str) -> str:
    return " ".join(re.findall(r"[A-Za-z']+", text)).lower()[:200]


def dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def sentence(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
