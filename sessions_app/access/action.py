"""What an action of a person on a session declares: who may do it, when it is possible, and where it is offered.

The declarations themselves are in `sessions_app.action_list`: import `ACTIONS` from there, so that it has them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from sessions_app.access import explanations
from sessions_app.access.availability import Facts, Rule
from sessions_app.access.roles import Actor
from sessions_app.models import Approval, Checkpoint, EventKind, Session, StaffPermission, ToolCall

# By key, in the order in which buttons, bulk actions and the admin's actions stand. Declaring an action adds it.
ACTIONS: dict[str, "Action"] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Action:
    """One action of a person on a session.

    key: its name in addresses, forms, bulk actions and on the command line.
    permission: which an actor needs.
    rule: why it is impossible in the session's state.
    event: what it writes into the audit trail.
    title, button, done: the dialog's title, the button that does it, and what the person is told then.
    done_later: what the person is told instead where the session does not continue at once, with ``{when}``.
    done_asked: what the person is told instead where a worker runs the session and was asked to stop.
    label: of its button at the top of the session's page; "" for an action that is offered elsewhere.
    only_if_possible: that button is left out where the action is impossible, instead of being disabled.
    explain: what the dialog says about the consequences.
    command: the help of its verb on the command line, for an action that asks for nothing but a reason.
    admin: its label among the admin's actions, likewise; "" for none.
    bulk: it may be done to many sessions at once.
    participle: what is said of sessions to which a bulk action does it: ``paused``.
    bulk_fields: what a bulk action of it asks for besides the reason: fields of `BulkAction`.
    doing: what is refused to a person without the permission, if it is not what `StaffPermission.doing` says.
    """

    key: str
    permission: StaffPermission
    rule: Rule
    event: EventKind
    title: str
    button: str
    done: str
    done_later: str = ""
    done_asked: str = ""
    label: str = ""
    only_if_possible: bool = False
    explain: Callable[[Session], str] = explanations.nothing
    command: str = ""
    admin: str = ""
    bulk: bool = False
    participle: str = ""
    bulk_fields: tuple[str, ...] = ()
    doing: str = ""

    def __post_init__(self) -> None:
        if self.key in ACTIONS:
            raise ValueError(f"The action {self.key!r} is declared twice.")
        ACTIONS[self.key] = self

    def impossible(
        self,
        session: Session,
        *,
        checkpoint: Checkpoint | None = None,
        call: ToolCall | None = None,
        approval: Approval | None = None,
        now: datetime | None = None,
    ) -> str:
        """Why the session's state does not allow it now, as a sentence for the person who wants it; "" if it does.

        Give the checkpoint for a rewind or a fork, the call to decide, the approval with its call to answer. Reads
        ``session.branch``, so select it along.
        """
        facts = Facts(
            session=session, now=now or timezone.now(), checkpoint=checkpoint, call=call, approval=approval
        )
        return self.rule(facts)

    def told(self, session: Session) -> str:
        """What the person is told once it is done, by the session as it is then."""
        if self.done_asked and session.stop_request:
            return self.done_asked
        when = explanations.continues_when(session)
        return self.done_later.format(when=when) if self.done_later and when else self.done

    def lacking(self, actor: Actor) -> str:
        """Which role this person lacks for it, as a sentence; "" if they have the permission."""
        return actor.lacks(self.permission, self.doing)

    def why_not(self, session: Session, actor: Actor) -> str:
        """Why this person cannot do it now, "" if they can."""
        return self.lacking(actor) or self.impossible(session)
