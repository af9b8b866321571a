"""The tools of the demo agents, as plain functions; `agents.py` makes Haystack tools of them.

Names, types and docstrings are shown to the model, and are part of the definition of the agents: changing one makes
open sessions of the demo wait for a person. A function that raises makes a message for the model.
"""

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

from agentstate.demo import ledger, records

if TYPE_CHECKING:
    from haystack import Document

# A letter takes milliseconds; one that is not confirmed within the limit may or may not have been posted.
LETTER_SECONDS = 1.0
PRINTER_HANGS_SECONDS = 20.0

PolicyNumber = Annotated[str, "The policy's number, such as POL-8801"]
ClaimNumber = Annotated[str, "The claim's number, such as CLM-1042"]


def delay(times: float = 1) -> None:
    """Wait as long as a slow service or model would: `AGENTSTATE_DEMO_DELAY` seconds, 0.6 unless set."""
    time.sleep(times * float(os.environ.get("AGENTSTATE_DEMO_DELAY") or 0.6))


def look_up_policy(policy_number: PolicyNumber) -> dict[str, Any]:
    """Look up a policy: holder, product, status, cover, deductible, and the claims made on it."""
    policy = records.policy(policy_number)
    return {**policy, "claims": [claim["number"] for claim in records.claims_on(policy["number"])]}


def look_up_claim(claim_number: ClaimNumber) -> dict[str, Any]:
    """Look up a claim: what happened, on which policy, its status, and what was paid and withheld."""
    return records.claim(claim_number)


def check_deductible(
    policy_number: PolicyNumber,
    claim_number: Annotated[str, "The claim it is about; leave it out for the policy in general"] = "",
) -> dict[str, Any]:
    """Check whether a deductible applies, and whether some that was withheld is due to be refunded."""
    policy = records.policy(policy_number)
    number, amount = policy["number"], policy["deductible"]
    answer = {"policy_number": number, "deductible": amount, "applies": amount > 0}
    if not claim_number:
        return answer
    claim = records.claim(claim_number)
    if claim["policy_number"] != number:
        raise ValueError(
            f"Claim {claim['number']} is not on policy {number} but on {claim['policy_number']}."
        )
    waived = claim["deductible_waived_because"]
    return answer | {
        "claim_number": claim["number"],
        "applies": amount > 0 and not waived,
        "waived_because": waived,
        "withheld": claim["deductible_withheld"],
        "refund_due": claim["deductible_withheld"] if waived else 0.0,
    }


def search_knowledge(
    query: Annotated[str, "A few words on what you want to know"],
) -> "dict[str, list[Document]]":
    """Search the company's knowledge base: the rules on cover, deductibles, refunds, claims and letters."""
    from haystack import Document

    return {
        "documents": [
            Document(id=article["id"], content=article["text"], meta={"title": article["title"]}, score=score)
            for article, score in records.articles(query)
        ]
    }


def documents_as_text(documents: "list[Document]") -> str:
    """The text that the model reads of the documents that a search found."""
    if not documents:
        return "Nothing in the knowledge base matches."
    return "\n\n".join(
        f"[{document.id}] {document.meta['title']}\n{document.content}" for document in documents
    )


def issue_refund(
    claim_number: ClaimNumber,
    amount: Annotated[float, "Dollars, with at most two decimals"],
    reason: Annotated[str, "Why the money is due, in one sentence"],
) -> dict[str, Any]:
    """Pay money back to the customer of a claim. It cannot be undone."""
    claim = records.claim(claim_number)
    if not 0 < amount <= claim["damage"]:
        limit = f"more than 0 and at most {claim['damage']:.2f} dollars"
        raise ValueError(f"A refund on {claim['number']} is {limit}, not {amount:.2f}.")
    paid = {"claim_number": claim["number"], "amount": f"{amount:.2f}"}
    number = ledger.append("refunds", **paid, reason=reason)
    return {"refund": f"RF-{number:04}", **paid, "status": "paid out"}


def send_letter(
    policy_number: PolicyNumber,
    subject: Annotated[str, "The letter's subject line"],
    text: Annotated[str, "The letter itself, without address and greeting"],
) -> dict[str, Any]:
    """Have a letter to a policy's holder printed and posted."""
    policy = records.policy(policy_number)
    again = ledger.written_before("letters")
    letter = {"policy_number": policy["number"], "to": policy["holder"], "address": policy["address"]}
    number = ledger.append("letters", **letter, subject=subject, text=text)
    # The service accepts a letter without a ZIP code and does not answer. It answers a repeated request, and prints the
    # letter a second time.
    if not _has_zip_code(policy["address"]) and not again:
        time.sleep(PRINTER_HANGS_SECONDS)
    return {"letter": f"LT-{number:04}", "to": policy["holder"], "status": "handed to the printing service"}


def list_sources() -> list[dict[str, str]]:
    """List the sources that can be researched: id and title of each."""
    return [{"id": source["id"], "title": source["title"]} for source in records.sources()]


def slow_research(source: Annotated[str, "The id of one source, such as S01"]) -> dict[str, Any]:
    """Read one source from end to end and say what it found. Slow."""
    for row in records.sources():
        if row["id"] == source.strip().upper():
            delay(times=5)
            return row
    raise LookupError(f"There is no source {source.strip()}. list_sources tells which there are.")


def _has_zip_code(address: str) -> bool:
    return address.rsplit(maxsplit=1)[-1].isdigit()
