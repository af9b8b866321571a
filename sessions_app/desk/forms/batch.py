"""Deciding several approvals of one tool at once: each by its own action, so a refused one does not stop the others.

Each is approved with the arguments in its own fields, which may have been edited one by one before.
"""

from dataclasses import dataclass
from typing import Any

from django import forms

from sessions_app import actions, locks
from sessions_app.access.errors import ActionError
from sessions_app.access.typed import REASON_CHARACTERS, REJECTION_CHARACTERS, whole_number
from sessions_app.action_list import APPROVE, REJECT
from sessions_app.desk.forms.edited import edited_arguments, edited_texts
from sessions_app.desk.pages import arguments as argument_fields
from sessions_app.desk.pages.approvals import prefix_of, stored_fingerprint
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.session_agents import load_agents
from sessions_app.desk.pages.summary import published_tool, summary_of
from sessions_app.models import Approval, Session, ToolCall

MOST = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call of a session, masked. ``problem`` is "" where it was decided as requested.

    summary: what the call does, with the arguments that were decided: ``Refund €120.00 on claim CLM-1042``.
    unsent: the arguments that the person edited in vain, each text with the label of its field.
    """

    session: Session
    position: int
    summary: str
    problem: str
    unsent: tuple[tuple[str, str], ...] = ()

    @property
    def done(self) -> bool:
        return not self.problem


class BatchForm(forms.Form):
    """Each ``call`` is an approval's id and the fingerprint of the arguments that the person saw: ``17:a1b2``."""

    decision = forms.ChoiceField(
        choices=[(action.key, action.button) for action in (APPROVE, REJECT)],
        error_messages={"required": f"Nothing was decided. Choose {APPROVE.button} or {REJECT.button}."},
    )
    text = forms.CharField(required=False, max_length=REJECTION_CHARACTERS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pairs = [str(value).partition(":") for value in self.data.getlist("call")]  # type: ignore[attr-defined]
        keys = [(whole_number(pk), fingerprint) for pk, _, fingerprint in pairs]
        self.ticked = {key: fingerprint for key, fingerprint in keys if key is not None}
        self.approvals: list[Approval] = []

    @property
    def typed(self) -> dict[str, str]:
        """What stands in the fields of the arguments, by the names of the inputs."""
        return {name: str(value) for name, value in self.data.items() if name.startswith(PREFIX)}

    @property
    def done(self) -> str:
        return "Approved" if self.cleaned_data["decision"] == APPROVE.key else "Rejected"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        rows = Approval.objects.filter(pk__in=self.ticked).select_related("call", "session").order_by("pk")
        self.approvals = list(rows[: MOST + 1])
        if not self.approvals:
            self.add_error(None, "Select at least one call.")
        elif len(self.approvals) > MOST:
            self.add_error(None, f"At most {MOST} calls can be decided at once.")
        elif len({approval.call.tool for approval in self.approvals}) > 1:
            self.add_error(None, "These are calls of several tools. Decide the calls of one tool at a time.")
        if data.get("decision") == REJECT.key and not data.get("text"):
            self.add_error("text", "Tell the agents why: they read this instead of a result.")
        note = data.get("text", "")
        if data.get("decision") == APPROVE.key and len(note) > REASON_CHARACTERS:
            self.add_error(
                "text",
                f"A note has at most {REASON_CHARACTERS} characters (it has {len(note)}). Only a message to the agents "
                f"may have up to {REJECTION_CHARACTERS}.",
            )
        return data

    def run(self, context: PageContext) -> list[Outcome]:
        sessions = context.mask.rows(approval.session for approval in self.approvals)
        with locks.sharing_one_wait():
            problems = [self._decide(context, approval) for approval in self.approvals]
        load_agents(sessions)
        rows = ToolCall.objects.filter(approval__in=self.approvals).select_related("approval")
        calls = {call.pk: call for call in context.mask.rows(rows.defer("result", "state"))}
        return [
            Outcome(
                session,
                approval.call.position,
                summary_of(session.registered_agent, calls[approval.call_id], context.mask).line,
                context.mask.text(problem),
                self._unsent(calls[approval.call_id], session, context) if problem else (),
            )
            for session, approval, problem in zip(sessions, self.approvals, problems, strict=True)
        ]

    def _unsent(self, call: ToolCall, session: Session, context: PageContext) -> tuple[tuple[str, str], ...]:
        """Of a masked call, with its approval."""
        schema = published_tool(session.registered_agent, call.tool, context.mask).get("parameters") or {}
        fields = argument_fields.fields(call.approval.arguments, schema, prefix=prefix_of(call.approval))
        return tuple(edited_texts(fields, self.typed))

    def _decide(self, context: PageContext, approval: Approval) -> str:
        call: dict[str, Any] = {
            "actor": context.actor,
            "session_id": approval.session_id,
            "call_id": approval.call_id,
        }
        text = self.cleaned_data["text"]
        try:
            fingerprint = stored_fingerprint(approval, self.ticked[approval.pk])
            if not fingerprint:
                return "Its arguments have changed since you were shown them. Check them again, then decide."
            if self.cleaned_data["decision"] == APPROVE.key:
                edited, how = edited_arguments(
                    approval,
                    self.typed,
                    agent=approval.session.registered_agent,
                    mask=context.mask,
                    prefix=prefix_of(approval),
                )
                actions.approve(**call, fingerprint=fingerprint, edited=edited, **how, reason=text)
            else:
                actions.reject(**call, message=text)
        except ActionError as error:
            return str(error)
        return ""
