"""What people, workers and agents leave on a desk besides the sessions that `manage.py agent synth` writes.

Assigned sessions, forks, rewound sessions, memories, workers, saved views, bulk actions, and sessions whose agent has
changed: without these the pages that show them would be measured while they are empty.

The program, `python -m benchmarks.desk_work`, adds them once to the database of DATABASE_URL.
"""

import argparse
import json
import os
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from benchmarks import session_pages
from benchmarks.people import supervisor
from benchmarks.steps import start_django

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from sessions_app.access.roles import Actor
    from sessions_app.models import Session

COLLEAGUES, WORKERS, VIEWS, BULK_ACTIONS, ITEMS = 20, 40, 20, 30, 500
FORKS, MEMORIES, CHANGED = 20, 200, 300
# One in so many sessions that wait or are paused is somebody's, and so many others are.
ASSIGNED_OF_STOPPED, ASSIGNED_OF_OTHERS = 4, 20_000
# The definition with which the sessions ran whose agent has changed since, and another part of its prompt.
EARLIER = "e" * 64
_AT_ONCE = 5_000


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    start_django(os.environ["DATABASE_URL"])
    from sessions_app.models import Worker

    is_done = Worker.objects.exists()
    if not is_done:
        add()
    print(json.dumps({"added": not is_done}))


def add() -> None:
    """The sessions whose pages are asked for have one customer, forks and memories, and have been rewound."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from sessions_app.models import Worker

    supervisor()
    people = [User.objects.get(username="benchmark"), *_colleagues()]
    # In a small database one session may stand for two.
    sessions = list({each.pk: each for each in session_pages.asked_for().values()}.values())
    _assign(people)
    for session in sessions:
        _give_to_the_customer_of(sessions[0], session)
        _rewind(session)
        _fork(session)
        _remember(session)
    _change_agents(sessions)
    _save_views(people)
    _act_in_bulk(people)
    # Last, since they tell that all of it is there.
    now = timezone.now()
    Worker.objects.bulk_create(Worker(name=f"worker-{number}@host", beat_at=now) for number in range(WORKERS))


def _colleagues() -> list["User"]:
    from django.contrib.auth.models import User

    from sessions_app.access.roles import give_role
    from sessions_app.models import Role

    people = [User.objects.create_user(f"colleague-{number}") for number in range(COLLEAGUES)]
    for person in people:
        give_role(person, Role.OPERATOR)
    return people


def _assign(people: Sequence["User"]) -> None:
    from sessions_app.models import STOPPED, Session, Status

    chance = random.Random(1)
    keys = Session.objects.order_by("pk").values_list("pk", flat=True)
    chosen = [pk for pk in keys.filter(status__in=STOPPED) if chance.randrange(ASSIGNED_OF_STOPPED) == 0]
    others = keys.filter(status__in=(Status.IDLE, Status.CANCELLED))
    chosen += chance.sample(list(others), min(ASSIGNED_OF_OTHERS, others.count() // 10))
    of_person: dict[int, list[UUID]] = {}
    for pk in chosen:
        of_person.setdefault(chance.choice(people).pk, []).append(pk)
    for person, theirs in of_person.items():
        for begins in range(0, len(theirs), _AT_ONCE):
            Session.objects.filter(pk__in=theirs[begins : begins + _AT_ONCE]).update(assignee=person)


def _give_to_the_customer_of(first: "Session", session: "Session") -> None:
    """Some pages show what is known of the customer. How much that is must not depend on the length of the session."""
    from sessions_app.models import Session

    Session.objects.filter(pk=session.pk).update(customer=first.customer)
    session.customer = first.customer


def _rewind(session: "Session") -> None:
    """To the end of the last step but one, so that it has a branch that was left, and is as long as it was. It has a
    breakpoint then, too.
    """
    from sessions_app import actions
    from sessions_app.models import Checkpoint

    ended = Checkpoint.objects.visible_on(session.current_branch).filter(kind__in=("start", "step"))
    checkpoint = [*ended.order_by("-position")[:2]][-1]
    actions.rewind(actor=_system(), session_id=session.pk, checkpoint_id=checkpoint.pk, reason="once more")
    actions.set_breakpoint(actor=_system(), session_id=session.pk, tool="look_up_policy")
    session.refresh_from_db()


def _fork(session: "Session") -> None:
    """At the newest checkpoints, and one at the first."""
    from sessions_app import actions
    from sessions_app.models import Checkpoint

    of_all = Checkpoint.objects.visible_on(session.current_branch)
    points = [*of_all.order_by("-position")[: FORKS - 1], of_all.earliest("position")]
    for point in points:
        actions.fork(actor=_system(), session_id=session.pk, checkpoint_id=point.pk, reason="a comparison")
    session.refresh_from_db()


def _remember(session: "Session") -> None:
    from sessions_app.models import MemoryEntry

    customer = session.customer
    MemoryEntry.objects.bulk_create(
        MemoryEntry(
            session=session,
            agent=session.agent,
            customer=customer,
            text=f"{customer} prefers to be called in the afternoon, said claim {number}.",
            key=f"{session.pk.hex}{number}",
        )
        for number in range(MEMORIES)
    )


def _change_agents(sessions: Sequence["Session"]) -> None:
    """Some paused sessions wait since their agent has changed, as have those whose pages are asked for."""
    from sessions_app.history.failures import cause_key
    from sessions_app.models import AgentDefinition, Session, Status, WaitingFor

    for definition in AgentDefinition.objects.filter(agent__in={each.agent for each in sessions}):
        prompt = f"An earlier prompt.\n{definition.parts.get('prompts', {})}"
        parts = {**definition.parts, "prompts": {"system": prompt}}
        AgentDefinition.objects.get_or_create(
            agent=definition.agent, definition=EARLIER, defaults={"parts": parts}
        )
    for session in sessions:
        Session.objects.filter(pk=session.pk).update(definition=EARLIER)
        session.refresh_from_db()
    why = "The agent has changed since the session last ran."
    paused = Session.objects.filter(status=Status.PAUSED, forked_from=None)
    rows = paused.exclude(pk__in=[each.pk for each in sessions]).order_by("pk")
    for agent in sorted(set(rows.values_list("agent", flat=True))):
        keys = list(rows.filter(agent=agent).values_list("pk", flat=True)[:CHANGED])
        Session.objects.filter(pk__in=keys[: len(keys) // 2]).update(
            status=Status.WAITING,
            waiting_for=WaitingFor.CHANGED,
            why=why,
            failure=cause_key(agent, "", why, changed=True),
        )


def _save_views(people: Sequence["User"]) -> None:
    """Half of them the user's own, the others shared by a colleague; each filters otherwise."""
    from sessions_app.models import SavedView

    asked = ("tag=vip", "tag=refund", "agent=claims", "assignee=me", "phase=executing")
    queues = ("waiting", "failed", "done", "all")
    queries = [f"queue={queue}&{each}" for queue in queues for each in asked]
    SavedView.objects.bulk_create(
        SavedView(owner=people[number % 2], name=f"View {number}", query=query, shared=number % 2 == 1)
        for number, query in enumerate(queries[:VIEWS])
    )


def _act_in_bulk(people: Sequence["User"]) -> None:
    from django.utils import timezone

    from sessions_app.models import BulkAction, BulkItem, Session

    keys = list(Session.objects.order_by("pk").values_list("pk", flat=True)[:ITEMS])
    for number in range(BULK_ACTIONS):
        person = people[number % len(people)]
        action = BulkAction.objects.create(
            kind="note", query="queue=done", reason="looked at", actor=person, actor_name=person.username
        )
        outcome = BulkItem.Outcome.DONE if number else BulkItem.Outcome.PENDING
        done_at = timezone.now() if number else None
        BulkItem.objects.bulk_create(
            BulkItem(bulk_action=action, session_id=pk, outcome=outcome, done_at=done_at) for pk in keys
        )


def _system() -> "Actor":
    from sessions_app.access.roles import Actor

    return Actor.system("benchmark")


if __name__ == "__main__":
    main()
