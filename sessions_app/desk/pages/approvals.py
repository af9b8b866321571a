"""The cards of open approval requests: what the call will do, why, and the fields to edit its arguments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac

from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import earlier_effects, excerpts
from sessions_app.desk.pages.arguments import PREFIX, Asked, Field, fields, unfit
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.earlier_effects import Earlier, EffectList, Request
from sessions_app.desk.pages.evidence import Evidence
from sessions_app.desk.pages.evidence import of_calls as evidence_of
from sessions_app.desk.pages.formats import Currency, currency
from sessions_app.desk.pages.from_state import FromState
from sessions_app.desk.pages.from_state import shown as shown_from_state
from sessions_app.desk.pages.session_agents import agent_title, load_agents
from sessions_app.desk.pages.summary import parts, published_tool, style_of_result, summary_of
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.history import from_state
from sessions_app.models import Approval, CallStatus, RegisteredAgent, Session, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.wording import count, took_effect

# Characters of the result of a call that ran already.
RESULT_SHOWN = 320


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """The same call on a discarded branch. ``result`` is None where it has none that could be used again.

    line: the beginning of the result, as its tool's policy writes it.
    """

    call: ToolCall
    result: ReadableValue | None
    line: str = ""

    @property
    def has_result(self) -> bool:
        return self.result is not None

    @property
    def is_certain(self) -> bool:
        """Whether it is known that the call took effect."""
        return self.call.status == CallStatus.DONE

    @property
    def what_happened(self) -> str:
        return "This call already ran" if self.is_certain else "This call was started before"


@dataclass(frozen=True, slots=True)
class Sum:
    """What an approved call pays: the argument that its policy formats as money.

    text: as people write it, masked; "" where what was typed is no amount.
    input_name, currency: for the page to keep the text right while the amount is edited.
    """

    text: str
    input_name: str
    currency: Currency


@dataclass(frozen=True, slots=True)
class Batch:
    """A form that decides several approvals: what was ``typed`` into the fields, named by the approval (`prefix_of`).

    least: with fewer approvals that it could decide, each has a form of its own.
    """

    typed: Mapping[str, str] = field(default_factory=dict)
    least: int = 2


@dataclass(frozen=True, slots=True)
class SentencePart:
    """``field`` is that of the argument which the text shows, for the page to keep it right; None for other words."""

    text: str
    field: Field | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """An open approval, with all that is needed to decide it.

    sentence: what the call does, with the arguments that would run: as they were asked for, or as a person edited them.
    fingerprint: for who may decide it only.
    agent_problem: why the session's agent cannot run, "" if it can: the call can then be rejected, but not approved.
    unfit: which arguments the tool does not take as they were asked for, as sentences; "" where it takes all.
    new_definition: the agent's definition, if it has changed since the session last ran.
    in_batch: it is decided by a form of several calls, not by one of its own.
    why_alone: why it is not, where others are; "" otherwise.
    repeats_summary: the call that it repeats, in words.
    from_state: what the tool would be given from the State besides.
    """

    approval: Approval
    call: ToolCall
    fingerprint: str
    session: Session
    agent_title: str
    sentence: list[SentencePart]
    effect: str
    fields: tuple[Field, ...]
    editable: bool
    agent_problem: str
    unfit: str
    new_definition: str
    sum: Sum | None = None
    repeats: RepeatedCall | None = None
    earlier: Earlier = field(default_factory=Earlier)
    evidence: Evidence = field(default_factory=Evidence)
    in_batch: bool = False
    why_alone: str = ""
    repeats_summary: str = ""
    from_state: tuple[FromState, ...] = ()

    @property
    def seen_label(self) -> str:
        """What a person confirms to have seen before the call is approved; "" where it follows no effect.

        See `sessions_app.history.effects.follows_an_effect`.
        """
        same, discarded = EffectList(self.earlier.same), self.earlier.discarded
        earlier = [*same.effects, *discarded.effects]
        if self.repeats is None and not self.approval.earlier and not earlier:
            return ""
        number = same.total + discarded.total + (self.repeats is not None)
        certain = same.certain + discarded.certain + (self.repeats is not None and self.repeats.is_certain)
        what = self.repeats_summary or next((effect.summary.in_words for effect in earlier), self.call.tool)
        more = f" (and {count(number - 1, 'more call')})" if number > 1 else ""
        known = took_effect(number, certain=certain, already=True)
        return f"I have seen that “{what}”{more} {known}. This call runs in addition."

    @property
    def asked(self) -> tuple[Asked, ...]:
        return tuple([field.asked for field in self.fields])

    @property
    def summary(self) -> str:
        """The sentence as one text."""
        return "".join(part.text for part in self.sentence)

    @property
    def edited(self) -> bool:
        """Whether a field holds another value than was requested."""
        return any(field.changed for field in self.fields)


def read_cards(context: PageContext, keys: Iterable[int], batch: Batch | None = None) -> dict[int, Card]:
    """The cards of the approvals with these keys, with what a person decides by. At most twelve queries."""
    found = tuple(set(keys))
    originals = _approvals(found) if found else []
    if not originals:
        return {}
    approvals = context.mask.rows(originals)
    load_agents([approval.session for approval in approvals], context.agents)
    requests = [Request(approval, approval.call, approval.session) for approval in approvals]
    agents = {request.call.pk: request.session.registered_agent for request in requests}
    evidence = evidence_of(
        [(row.session.current_branch, row.call) for row in originals], context.mask, agents
    )
    return {
        card.approval.pk: replace(card, evidence=evidence[card.call.pk])
        for card in cards(requests, context.mask, batch.typed if batch else None, batch=batch)
    }


@compiled
def _approvals(keys: tuple[int, ...]) -> QuerySet[Approval]:
    rows = Approval.objects.filter(pk__in=keys).order_by("pk")
    return rows.select_related("call", "session__branch", "repeats__branch")


def prefix_of(approval: Approval) -> str:
    """Begins the names of the fields where several calls are decided by one form."""
    return f"{PREFIX}{approval.pk}-"


def cards(
    requests: Sequence[Request],
    mask: Mask,
    typed: Mapping[str, str] | None = None,
    *,
    batch: Batch | None = None,
) -> list[Card]:
    """The requests with the fields to edit their arguments, which hold what was typed. At most three queries.

    Where the form ``batch`` decides several of them, their fields are named for it. Reads the registered agent of
    their sessions, and ``approval.repeats`` with its branch.
    """
    earlier = earlier_effects.of_requests(requests, mask)
    why_alone = {
        request.approval.pk: _why_alone(request, earlier[request.approval.pk]) for request in requests
    }
    in_batch = batch is not None and list(why_alone.values()).count("") >= batch.least
    return [
        _card(
            request,
            earlier[request.approval.pk],
            typed,
            mask,
            in_batch=in_batch,
            why_alone=why_alone[request.approval.pk] if in_batch else "",
        )
        for request in requests
    ]


def _card(
    request: Request,
    earlier: Earlier,
    typed: Mapping[str, str] | None,
    mask: Mask,
    *,
    in_batch: bool,
    why_alone: str,
) -> Card:
    approval, session = request.approval, request.session
    in_batch = in_batch and not why_alone
    prefix = prefix_of(approval) if in_batch else PREFIX
    agent = session.registered_agent
    tool = published_tool(agent, request.call.tool, mask)
    schema: dict[str, Any] = tool.get("parameters") or {}
    policy: dict[str, Any] = tool.get("policy") or {}
    formats: Mapping[str, str] = policy.get("formats") or {}
    arguments = approval.run_arguments
    rows = fields(approval.arguments, schema, typed, edited=approval.edited, prefix=prefix, formats=formats)
    return Card(
        approval=approval,
        call=request.call,
        fingerprint=shown_fingerprint(approval),
        session=session,
        agent_title=agent_title(session),
        sentence=_sentence(tool, request.call.tool, arguments, rows),
        effect=str(policy.get("effect") or ""),
        fields=rows,
        editable=bool(tool),
        agent_problem=agent_cannot_run(session),
        unfit=unfit(arguments, schema),
        new_definition=session.new_definition,
        sum=_sum(rows, formats),
        repeats=_repeated(approval.repeats, agent, mask) if approval.repeats is not None else None,
        earlier=earlier,
        in_batch=in_batch,
        why_alone=why_alone,
        repeats_summary=summary_of(agent, approval.repeats, mask).in_words
        if approval.repeats is not None
        else "",
        from_state=shown_from_state(tool, from_state.of_request(approval)),
    )


def _why_alone(request: Request, earlier: Earlier) -> str:
    """Why it cannot be decided together with others, "" if it can: there is more to see than its arguments."""
    if request.approval.repeats_id or request.approval.earlier or earlier.same:
        return "Decide it on its own: it may repeat an earlier effect."
    return "Decide it on its own: the agent has changed." if request.session.new_definition else ""


def _sentence(
    tool: Mapping[str, Any], name: str, arguments: Mapping[str, Any], rows: Sequence[Field]
) -> list[SentencePart]:
    by_name = {row.name: row for row in rows}
    typed = {row.name: row.shown for row in rows if row.changed}
    return [
        SentencePart(part.text, by_name.get(part.argument)) for part in parts(tool, name, arguments, typed)
    ]


def _sum(rows: Sequence[Field], formats: Mapping[str, str]) -> Sum | None:
    """None where the policy names no amount, or several."""
    amounts = [(row, money) for row in rows if (money := currency(formats.get(row.name, "")))]
    if len(amounts) != 1:
        return None
    [(row, money)] = amounts
    return Sum(row.shown if row.shown != row.value else "", row.input_name, money)


def shown_fingerprint(approval: Approval) -> str:
    """What a form sends back to say which arguments the person saw.

    The stored fingerprint needs no key, so that a short hidden argument could be found from it by trying.
    """
    return salted_hmac(f"approval {approval.pk}", approval.fingerprint, algorithm="sha256").hexdigest()


def stored_fingerprint(approval: Approval | None, shown: str) -> str:
    """The fingerprint for which ``shown`` was sent back; "", which no call has, if it is not that of the approval."""
    same = approval is not None and constant_time_compare(shown_fingerprint(approval), shown)
    return approval.fingerprint if approval is not None and same else ""


def _repeated(call: ToolCall, agent: RegisteredAgent | None, mask: Mask) -> RepeatedCall:
    if call.status != CallStatus.DONE:
        return RepeatedCall(call, None)
    style = style_of_result(agent, call.tool, mask)
    return RepeatedCall(call, readable(call.result), excerpts.of_value(call.result, RESULT_SHOWN, style).line)
