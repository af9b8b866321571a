"""Takes over a stored database of an earlier version, as an upgrade does, and checks that nothing is lost.

It migrates, reads everything, opens the page of every session with one of its tabs, or with all, and each other page,
carries every session on to its end, and prints what went wrong.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from sessions_app.models import Approval, BulkAction, Message, SavedView, Session, ToolCall
from sessions_app.runtime.agents import publish_agents
from tests.upgrade import acting, reading
from tests.upgrade.agents import OURS
from tests.upgrade.differences import differences

Json = Any
APP = "sessions_app"
TABS = ("session", "conversation", "state", "checkpoints", "audit", "json")
# Of each check so many problems are printed.
MOST_TOLD = 30


def main(expected: Path, *, all_tabs: bool) -> int:
    told = json.loads(expected.read_text())
    settings.AGENTSTATE_AGENTS = [*settings.AGENTSTATE_AGENTS, "tests.upgrade.agents"]
    with tempfile.TemporaryDirectory() as folder:
        # The demo's tools write down here what they did.
        os.environ.update(AGENTSTATE_DEMO_DIR=folder, AGENTSTATE_DEMO_DELAY="0")
        checks: dict[str, Callable[[], list[str]]] = {
            "migrating": migrated,
            "reading": lambda: differences(told["seen"], _plain(reading.read_all())),
            "constraints": constraints,
            "agents": lambda: agents(told),
            "pages": lambda: pages(all_tabs=all_tabs),
            "going on": lambda: going_on(told["ends"]),
            "constraints after going on": constraints,
        }
        return _report(checks)


def migrated() -> list[str]:
    call_command("migrate", verbosity=0, interactive=False)
    return []


def constraints() -> list[str]:
    """Returns what the database and the models would refuse of the rows that are there."""
    problems = []
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            problems = [str(row) for row in cursor.execute("PRAGMA foreign_key_check").fetchall()]
            problems += [
                row[0] for row in cursor.execute("PRAGMA integrity_check").fetchall() if row[0] != "ok"
            ]
    for model in (Session, Approval):
        for row in model._default_manager.all():
            try:
                row.validate_constraints()
            except ValidationError as error:
                problems.append(f"{row}: {error.messages}")
    return problems


def agents(told: Json) -> list[str]:
    """Agents that nobody has changed are what they were, or every session in the middle of a turn would wait.

    With other versions of the libraries that describe an agent and its tools, that is not in this project's hands.
    """
    problems = publish_agents()
    if told["made by"]["with"] == reading.made_with():
        problems += differences(told["definitions"], reading.definitions(OURS))
    return problems


def pages(*, all_tabs: bool) -> list[str]:
    # Django's test environment is not set up: it would copy the context of each template, which takes long.
    client = Client(raise_request_exception=False, headers={"host": "localhost"})
    client.force_login(User.objects.get(username="admin"))
    problems = []
    for address in _addresses(all_tabs=all_tabs):
        response = client.get(address, follow=True)
        if response.status_code != 200:
            problems.append(f"{address} answers {response.status_code}")
            if error := getattr(response, "exc_info", None):
                problems += traceback.format_exception(*error)[-2:]
    return problems


def _addresses(*, all_tabs: bool) -> Iterator[str]:
    sessions = list(Session.objects.select_related("branch"))
    first, *others = TABS
    for number, session in enumerate(sessions):
        for tab in TABS if all_tabs else (first, others[number % len(others)]):
            yield reverse(tab, args=[session.pk])
        for branch in reading.discarded_numbers(session):
            yield reverse("discarded", args=[session.pk, branch])
    for session in {session.status: session for session in sessions}.values():
        yield reverse("live", args=[session.pk])
        yield reverse("find", args=[session.pk]) + "?q=look"
    # One call of each sort is enough: its page differs only by these.
    sorts = {
        (call.tool, call.status, call.lossy, call.cached, bool(call.decided_by)): call
        for call in ToolCall.objects.select_related("branch")
    }
    for call in sorts.values():
        yield reverse("call", args=[call.branch.session_id, call.pk])
    yield reverse("inbox")
    for queue in ("running", "waiting", "paused", "done", "all"):
        yield reverse("desk") + f"?queue={queue}"
    for view in SavedView.objects.all():
        yield reverse("desk") + f"?{view.query}"
    for agent in Session.objects.order_by().values_list("agent", flat=True).distinct():
        yield reverse("agent", args=[agent])
    for bulk_action in BulkAction.objects.all():
        yield reverse("bulk_action", args=[bulk_action.pk])
    for name in ("agents", "workers", "views", "bulk_actions"):
        yield reverse(name)
    for model in apps.get_app_config(APP).get_models():
        if site.is_registered(model):
            yield reverse(f"admin:{APP}_{model._meta.model_name}_changelist")


def going_on(expected: Json) -> list[str]:
    """Every session comes to the end to which the version that wrote it would have brought it.

    What the demo's agents answer in the end may change with them, but not whether they come to an end.
    """
    written_before = set(Message.objects.values_list("pk", flat=True))
    found = acting.act_on_all()
    demo = set(Session.objects.exclude(agent__in=OURS).values_list("title", flat=True))
    for each in (expected, found):
        for title in demo & each.keys():
            each[title] = [told[:3] for told in each[title]]
    problems = differences(expected, found)
    if gone := written_before - set(Message.objects.values_list("pk", flat=True)):
        problems.append(f"{len(gone)} messages are gone")
    return problems


def _plain(value: Json) -> Json:
    return json.loads(json.dumps(value))


def _report(checks: dict[str, Callable[[], list[str]]]) -> int:
    """Do the checks in their order, until one raises an error, and print the problems."""
    failed = False
    for name, check in checks.items():
        try:
            problems, goes_on = check(), True
        except Exception:
            problems, goes_on = traceback.format_exc().splitlines()[-MOST_TOLD:], False
        if problems:
            failed = True
            more = [f"and {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
            sys.stdout.write("\n  ".join([f"{name}:", *problems[:MOST_TOLD], *more]) + "\n")
        if not goes_on:
            break
    return int(failed)
