"""Many sessions in each state that a list, a queue or a count is about, written by SQL. PostgreSQL only.

They are copies of one session that waits for an approval, with what lists read of it: its row, branch and tag, the call
that waits for a person and the request. Each state changes some columns.
"""

from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import GeneratedField, Model

from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Phase,
    Session,
    SessionTag,
    Status,
    ToolCall,
    WaitingFor,
)

# So many copies of each state; those that have a cause have one of a few.
COPIES = 2_000
CAUSES = 5
# One in so many is assigned to the user: what is assigned to a person does not grow with the data.
ASSIGNED = 1_000
# Those of one state changed in some days, of the next one in the days before: they are found neither among those that
# changed last nor next to each other. All others changed in the last 90 days.
BEFORE, DAYS = 90, 10
# In the SQL of a column, ``made`` is the copy: its state and that one's place, its number among the copies of its
# state, and when it changed.
_CAUSE = f"md5(made.state || made.number %% {CAUSES})::uuid"
_LATER = "now() + interval '1 day'"
_MOVES = {"waiting_for": "''", "why": "''"}
_QUEUED = {**_MOVES, "status": f"'{Status.QUEUED}'"}
_RUNNING = {**_MOVES, "status": f"'{Status.RUNNING}'", "worker": "'gone'"}
_FAILED = {**_MOVES, "status": f"'{Status.IDLE}'", "phase": f"'{Phase.ERROR}'", "failure": _CAUSE}
STATES: dict[str, dict[str, str]] = {
    "approval": {},
    "doubt": {"waiting_for": f"'{WaitingFor.DOUBT}'"},
    "changed": {"waiting_for": f"'{WaitingFor.CHANGED}'", "failure": _CAUSE},
    "paused": {**_MOVES, "status": f"'{Status.PAUSED}'", "phase": f"'{Phase.REFLECTING}'"},
    "failed": _FAILED,
    "cancelled": {**_MOVES, "status": f"'{Status.CANCELLED}'", "phase": f"'{Phase.PLANNING}'"},
    "overdue": {**_QUEUED, "phase": f"'{Phase.IDLE}'", "next_run_at": "made.changed_at"},
    "running": {**_RUNNING, "phase": f"'{Phase.PLANNING}'", "lease_expires_at": _LATER},
    "lost": {**_RUNNING, "phase": f"'{Phase.REFLECTING}'", "lease_expires_at": "made.changed_at"},
}
TABLES = [model._meta.db_table for model in (Session, Branch, SessionTag, ToolCall, Approval)]
_KEY = "md5(made.state || made.number)::uuid"


@transaction.atomic
def write(user: User) -> None:
    """`COPIES` sessions of each state, which changed in turns, some of them assigned to the user."""
    source = Approval.objects.select_related("session", "call").filter(decision="").earliest("asked_at")
    names = Session.objects.exclude(customer="").order_by("pk").values_list("customer", flat=True)[:40]
    branch, call = (
        f"{model.objects.latest('pk').pk + 1} + made.place * {COPIES} + made.number"
        for model in (Branch, ToolCall)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE made ON COMMIT DROP AS SELECT state, place, number, customer.name AS customer, "
            f"now() - interval '{BEFORE} days' - (place + number / {COPIES}.0) * interval '{DAYS} days' AS changed_at "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS states(state, place) "
            "CROSS JOIN generate_series(1, %s) AS number "
            "JOIN unnest(%s::text[]) WITH ORDINALITY AS customer(name, nth) ON nth = 1 + number %% 40",
            [[*STATES], COPIES, [*names]],
        )
        cursor.execute(
            f"INSERT INTO {SessionTag._meta.db_table} (session_id, name) "
            f"SELECT {_KEY}, 'vip' FROM made WHERE number % 20 = 0"
        )
    of_all = {
        "id": _KEY,
        "branch_id": branch,
        "agent": "(ARRAY['claims', 'letters', 'research'])[1 + made.number %% 3]",
        "customer": "made.customer",
        "assignee_id": f"CASE WHEN made.number %% {ASSIGNED} = 0 THEN {user.pk} END",
        "previous_phase": "''",
        **dict.fromkeys(("phase_since", "created_at", "updated_at"), "made.changed_at"),
    }
    _copy(Branch, source.session.branch_id, {state: {"id": branch, "session_id": _KEY} for state in STATES})
    _copy(Session, source.session_id, {state: {**of_all, **columns} for state, columns in STATES.items()})
    of_call = {"id": call, "branch_id": branch, "asked_at": "made.changed_at"}
    in_doubt = {"status": f"'{CallStatus.DOUBT}'", "started_at": "made.changed_at"}
    _copy(ToolCall, source.call_id, {"approval": of_call, "doubt": {**of_call, **in_doubt}})
    new = f"nextval(pg_get_serial_sequence('{Approval._meta.db_table}', 'id'))"
    of_request = {"id": new, "session_id": _KEY, "call_id": call, "asked_at": "made.changed_at"}
    _copy(Approval, source.pk, {"approval": of_request})


def _copy(model: type[Model], key: Any, columns: dict[str, dict[str, str]]) -> None:
    """Insert copies of a row for each of the states, with these columns, in the order in which they changed."""
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, GeneratedField)]
    names = [str(field.column) for field in fields]
    selected = []
    for name in names:
        of_state = [
            f"WHEN made.state = '{state}' THEN {changed[name]}"
            for state, changed in columns.items()
            if name in changed
        ]
        selected.append(f"CASE {' '.join(of_state)} ELSE source.{name} END" if of_state else f"source.{name}")
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(selected)} FROM {table} AS source, made "
            "WHERE source.id = %s AND made.state = ANY(%s) ORDER BY made.changed_at",
            [key, [*columns]],
        )
