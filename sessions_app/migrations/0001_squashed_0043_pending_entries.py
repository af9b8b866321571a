"""All tables at once, for a new database: 0001 to 0043 take it ten times as long.

A database that has some of these migrations already goes on with them, one by one. Each one behind 0043 takes a new
database 20 to 200 ms more: once they are many, a new migration like this one replaces them too.
"""

from importlib import import_module
from itertools import chain
from typing import Any

import django.db.models.deletion
import django.utils.timezone
from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import sessions_app.models.session
import sessions_app.models.totals
from sessions_app.migrations._all_tables import CreateTables

# Those that add to the tables what no model has. What others run changes rows, and there are none.
_WITH_CODE = (
    "0002_search",
    "0017_title_trigrams",
    "0026_large_lists",
    "0031_open_customers",
    "0033_marks_of_pairs",
    "0034_session_states",
    "0036_shown_names",
    "0040_session_facets",
    "0041_spaces_of_titles",
    "0042_words_by_age",
    "0043_pending_entries",
)


def _operations() -> list[Any]:
    of_each = [import_module(f"sessions_app.migrations.{name}").Migration.operations for name in _WITH_CODE]
    return [each for each in chain(*of_each) if isinstance(each, migrations.RunPython)]


def _run(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """What these migrations run, in their order. As one operation: Django draws up all models before each."""
    for operation in _operations():
        operation.code(apps, schema_editor)


def _undo(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for operation in reversed(_operations()):
        operation.reverse_code(apps, schema_editor)


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("sessions_app", "0001_initial"),
        ("sessions_app", "0002_search"),
        ("sessions_app", "0003_tool_results"),
        ("sessions_app", "0004_side_replies"),
        ("sessions_app", "0005_bulk_actions"),
        ("sessions_app", "0006_demo_users"),
        ("sessions_app", "0007_earlier_effects"),
        ("sessions_app", "0008_share_view"),
        ("sessions_app", "0009_list_indexes"),
        ("sessions_app", "0010_reword_labels"),
        ("sessions_app", "0011_agent_definitions"),
        ("sessions_app", "0012_breakpoints"),
        ("sessions_app", "0013_event_index"),
        ("sessions_app", "0014_message_bodies"),
        ("sessions_app", "0015_long_term_memory"),
        ("sessions_app", "0016_failure_causes"),
        ("sessions_app", "0017_title_trigrams"),
        ("sessions_app", "0018_similar_sessions"),
        ("sessions_app", "0019_semantic_cache"),
        ("sessions_app", "0020_agent_status_index"),
        ("sessions_app", "0021_filter_by_people"),
        ("sessions_app", "0022_search_without_instructions"),
        ("sessions_app", "0023_changed_agents"),
        ("sessions_app", "0024_failed_sessions"),
        ("sessions_app", "0025_words_of_customers"),
        ("sessions_app", "0026_large_lists"),
        ("sessions_app", "0027_totals_without_names"),
        ("sessions_app", "0028_values_of_calls"),
        ("sessions_app", "0029_event_session_index"),
        ("sessions_app", "0030_tag_indexes"),
        ("sessions_app", "0031_open_customers"),
        ("sessions_app", "0032_phase_at_rest"),
        ("sessions_app", "0033_marks_of_pairs"),
        ("sessions_app", "0034_session_states"),
        ("sessions_app", "0035_branches_by_status"),
        ("sessions_app", "0036_shown_names"),
        ("sessions_app", "0037_causes_of_what_is_shown"),
        ("sessions_app", "0038_phase_of_ended"),
        ("sessions_app", "0039_handled_requests"),
        ("sessions_app", "0040_session_facets"),
        ("sessions_app", "0041_spaces_of_titles"),
        ("sessions_app", "0042_words_by_age"),
        ("sessions_app", "0043_pending_entries"),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        CreateTables(
            [
                migrations.CreateModel(
                    name="DemoUser",
                    fields=[
                        (
                            "user",
                            models.OneToOneField(
                                on_delete=django.db.models.deletion.CASCADE,
                                primary_key=True,
                                related_name="+",
                                serialize=False,
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                        (
                            "password_digest",
                            models.CharField(
                                help_text="SHA-256 of the user's stored password as it was set last; another one was set by a person.",
                                max_length=64,
                            ),
                        ),
                    ],
                    options={
                        "default_permissions": (),
                    },
                ),
                migrations.CreateModel(
                    name="ModelCall",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        (
                            "name",
                            models.CharField(
                                default="agent",
                                help_text="Which generator: the agent's own, or another.",
                                max_length=100,
                            ),
                        ),
                        (
                            "seq",
                            models.PositiveIntegerField(
                                default=0,
                                help_text="Index of this call of the generator within its step, from 0.",
                            ),
                        ),
                        ("replies", models.PositiveIntegerField(default=0)),
                        ("side_replies", models.JSONField(blank=True, null=True)),
                        ("model", models.CharField(blank=True, default="", max_length=200)),
                        ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                        ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                        (
                            "source",
                            models.UUIDField(
                                blank=True,
                                help_text="From the semantic cache: the session whose reply it is, if it is there.",
                                null=True,
                            ),
                        ),
                        (
                            "similarity",
                            models.FloatField(
                                blank=True,
                                help_text="From the semantic cache: how similar the two questions are.",
                                null=True,
                            ),
                        ),
                        ("error", models.TextField(blank=True, default="")),
                        ("started_at", models.DateTimeField()),
                        ("ended_at", models.DateTimeField()),
                    ],
                    options={
                        "ordering": ["position"],
                        "abstract": False,
                        "constraints": [
                            models.CheckConstraint(
                                condition=models.Q(("ended_at__gte", models.F("started_at"))),
                                name="modelcall_ends_after_start",
                            )
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="RegisteredAgent",
                    fields=[
                        ("key", models.CharField(max_length=100, primary_key=True, serialize=False)),
                        ("title", models.CharField(max_length=200)),
                        ("description", models.TextField(blank=True, default="")),
                        (
                            "model",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="The model's name, as its generator tells it.",
                                max_length=200,
                            ),
                        ),
                        (
                            "definition",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="Fingerprint of what the factory builds.",
                                max_length=64,
                            ),
                        ),
                        ("tools", models.JSONField(blank=True, default=list)),
                        (
                            "tools_pending",
                            models.BooleanField(
                                default=False,
                                help_text="A toolset lists its tools only once a worker has warmed it up.",
                            ),
                        ),
                        ("inputs", models.JSONField(blank=True, default=dict)),
                        ("options", models.JSONField(blank=True, null=True)),
                        (
                            "module",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="The module that registers it.",
                                max_length=300,
                            ),
                        ),
                        (
                            "problem",
                            models.TextField(
                                blank=True, default="", help_text="Why it cannot be built, if so."
                            ),
                        ),
                        ("published_at", models.DateTimeField(default=django.utils.timezone.now)),
                    ],
                    options={
                        "ordering": ["title"],
                    },
                ),
                migrations.CreateModel(
                    name="Session",
                    fields=[
                        (
                            "id",
                            models.UUIDField(
                                default=sessions_app.models.session.uuid7,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("agent", models.CharField(max_length=100)),
                        ("title", models.CharField(blank=True, max_length=200)),
                        ("customer", models.CharField(blank=True, db_index=True, max_length=200)),
                        (
                            "phase",
                            models.CharField(
                                choices=[
                                    ("idle", "idle"),
                                    ("planning", "planning"),
                                    ("executing", "executing"),
                                    ("reflecting", "reflecting"),
                                    ("done", "done"),
                                    ("error", "error"),
                                ],
                                default="idle",
                                max_length=12,
                            ),
                        ),
                        (
                            "previous_phase",
                            models.CharField(
                                blank=True,
                                choices=[
                                    ("idle", "idle"),
                                    ("planning", "planning"),
                                    ("executing", "executing"),
                                    ("reflecting", "reflecting"),
                                    ("done", "done"),
                                    ("error", "error"),
                                ],
                                default="",
                                max_length=12,
                            ),
                        ),
                        ("phase_since", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "status",
                            models.CharField(
                                choices=[
                                    ("idle", "idle"),
                                    ("queued", "queued"),
                                    ("running", "running"),
                                    ("waiting", "waiting"),
                                    ("paused", "paused"),
                                    ("cancelled", "cancelled"),
                                ],
                                default="idle",
                                max_length=12,
                            ),
                        ),
                        (
                            "waiting_for",
                            models.CharField(
                                blank=True,
                                choices=[
                                    ("approval", "approval"),
                                    ("doubt", "a decision on a call in doubt"),
                                    ("retries", "review: all retries failed"),
                                    ("changed", "review: the agent is missing or has changed"),
                                ],
                                default="",
                                max_length=12,
                            ),
                        ),
                        (
                            "why",
                            models.TextField(
                                blank=True,
                                default="",
                                help_text="Why the session waits, is paused or was cancelled.",
                            ),
                        ),
                        ("error", models.TextField(blank=True, default="")),
                        (
                            "failure",
                            models.UUIDField(
                                blank=True,
                                editable=False,
                                help_text="Names the cause why it failed or was parked: the same for all sessions with that cause.",
                                null=True,
                            ),
                        ),
                        ("final_answer", models.TextField(blank=True, default="")),
                        ("exit_reason", models.CharField(blank=True, default="", max_length=200)),
                        (
                            "epoch",
                            models.PositiveBigIntegerField(
                                default=0,
                                help_text="Raised by every claim; a write with an old one is refused.",
                            ),
                        ),
                        ("worker", models.CharField(blank=True, default="", max_length=200)),
                        ("lease_expires_at", models.DateTimeField(blank=True, null=True)),
                        ("next_run_at", models.DateTimeField(blank=True, null=True)),
                        (
                            "attempt",
                            models.PositiveIntegerField(
                                default=0, help_text="Claims since the last progress."
                            ),
                        ),
                        (
                            "stop_request",
                            models.CharField(
                                blank=True,
                                choices=[("pause", "pause"), ("cancel", "cancel")],
                                default="",
                                max_length=8,
                            ),
                        ),
                        (
                            "position",
                            models.PositiveBigIntegerField(
                                default=0, help_text="The last position given out; never goes back."
                            ),
                        ),
                        (
                            "change",
                            models.PositiveBigIntegerField(
                                default=0, help_text="Raised by every commit; what live pages poll."
                            ),
                        ),
                        (
                            "version",
                            models.PositiveBigIntegerField(
                                default=0, help_text="Raised when a drawn page's buttons may be wrong."
                            ),
                        ),
                        (
                            "line",
                            models.UUIDField(
                                blank=True,
                                editable=False,
                                help_text="The oldest of the sessions that forks connect, directly or through others; empty without a fork.",
                                null=True,
                            ),
                        ),
                        (
                            "inputs",
                            models.JSONField(
                                blank=True,
                                default=dict,
                                help_text="State values, prompt variables and generation kwargs.",
                            ),
                        ),
                        (
                            "breakpoints",
                            models.JSONField(
                                blank=True,
                                help_text="Where people want it to stop, as `Breakpoint.to_dict`, and who set it.",
                                null=True,
                            ),
                        ),
                        (
                            "breakpoint_hit",
                            models.JSONField(
                                blank=True,
                                help_text="Where a breakpoint stopped this turn last, and the ids of its calls; `passed` once it was resumed.",
                                null=True,
                            ),
                        ),
                        (
                            "definition",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="Fingerprint of the agent that runs it.",
                                max_length=64,
                            ),
                        ),
                        (
                            "totals",
                            models.JSONField(
                                blank=True,
                                default=dict,
                                help_text="Edges, seconds and tokens of the visible history.",
                            ),
                        ),
                        (
                            "created_at",
                            models.DateTimeField(db_index=True, default=django.utils.timezone.now),
                        ),
                        ("updated_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "assignee",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="assigned_sessions",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["-created_at"],
                        "permissions": [
                            ("start_session", "Can start a session"),
                            ("message_session", "Can send a message to the agent"),
                            ("pause_session", "Can pause a session"),
                            ("resume_session", "Can resume a session"),
                            ("cancel_session", "Can cancel a session"),
                            ("rewind_session", "Can rewind a session and undo it"),
                            ("fork_session", "Can fork a session"),
                            ("approve_call", "Can approve or reject a tool call"),
                            ("decide_call", "Can decide a tool call in doubt"),
                            ("assign_session", "Can assign a session"),
                            ("share_view", "Can share a saved view"),
                            ("repair_session", "Can repair a session's state"),
                            ("edit_memory", "Can edit and erase the long-term memory"),
                            ("reveal_values", "Can see masked values"),
                        ],
                        "indexes": [
                            models.Index(fields=["-updated_at", "-id"], name="session_recent"),
                            models.Index(fields=["status", "next_run_at"], name="session_due"),
                            models.Index(fields=["status", "lease_expires_at"], name="session_lost"),
                            models.Index(
                                condition=models.Q(("failure__isnull", False)),
                                fields=["failure", "updated_at", "id"],
                                name="session_failure",
                            ),
                            models.Index(fields=["agent", "status"], name="session_agent_status"),
                            models.Index(
                                condition=models.Q(("line__isnull", False)),
                                fields=["line"],
                                name="session_line",
                            ),
                            models.Index(
                                condition=models.Q(("waiting_for", "changed")),
                                fields=["failure", "updated_at", "id"],
                                name="session_changed",
                            ),
                            models.Index(
                                condition=models.Q(("has_failed", True)),
                                fields=["-updated_at", "-id"],
                                name="session_failed",
                            ),
                        ],
                        "constraints": [
                            models.CheckConstraint(
                                condition=models.Q(
                                    (
                                        "phase__in",
                                        ["idle", "planning", "executing", "reflecting", "done", "error"],
                                    )
                                ),
                                name="session_phase_known",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    ("previous_phase", ""),
                                    models.Q(("phase__in", ["planning"]), ("previous_phase", "idle")),
                                    models.Q(
                                        ("phase__in", ["done", "error", "executing"]),
                                        ("previous_phase", "planning"),
                                    ),
                                    models.Q(
                                        ("phase__in", ["error", "reflecting"]),
                                        ("previous_phase", "executing"),
                                    ),
                                    models.Q(
                                        ("phase__in", ["done", "error", "planning"]),
                                        ("previous_phase", "reflecting"),
                                    ),
                                    models.Q(("phase__in", ["planning"]), ("previous_phase", "done")),
                                    models.Q(("phase__in", ["planning"]), ("previous_phase", "error")),
                                    _connector="OR",
                                ),
                                name="session_phase_change_allowed",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    (
                                        "status__in",
                                        ["idle", "queued", "running", "waiting", "paused", "cancelled"],
                                    )
                                ),
                                name="session_status_known",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("lease_expires_at__isnull", False), ("status", "running")),
                                    models.Q(
                                        models.Q(("status", "running"), _negated=True),
                                        ("lease_expires_at__isnull", True),
                                    ),
                                    _connector="OR",
                                ),
                                name="session_lease_while_running",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("next_run_at__isnull", False), ("status", "queued")),
                                    models.Q(
                                        models.Q(("status", "queued"), _negated=True),
                                        ("next_run_at__isnull", True),
                                    ),
                                    _connector="OR",
                                ),
                                name="session_due_while_queued",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(
                                        ("status", "waiting"), models.Q(("waiting_for", ""), _negated=True)
                                    ),
                                    models.Q(
                                        models.Q(("status", "waiting"), _negated=True), ("waiting_for", "")
                                    ),
                                    _connector="OR",
                                ),
                                name="session_waits_for_something",
                            ),
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="ToolResult",
                    fields=[
                        ("key", models.CharField(max_length=300, primary_key=True, serialize=False)),
                        ("value", models.JSONField()),
                        ("expires_at", models.DateTimeField(db_index=True)),
                    ],
                ),
                migrations.CreateModel(
                    name="Worker",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("name", models.CharField(max_length=200, unique=True)),
                        ("started_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("beat_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                        ("stopped_at", models.DateTimeField(blank=True, null=True)),
                    ],
                    options={
                        "ordering": ["name"],
                    },
                ),
                migrations.CreateModel(
                    name="AgentDefinition",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("agent", models.CharField(max_length=100)),
                        ("definition", models.CharField(max_length=64)),
                        ("parts", models.JSONField(default=dict)),
                        ("published_at", models.DateTimeField(default=django.utils.timezone.now)),
                    ],
                    options={
                        "constraints": [
                            models.UniqueConstraint(fields=("agent", "definition"), name="definition_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="Branch",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("number", models.PositiveIntegerField(help_text="1 for the first of its session.")),
                        (
                            "left_at",
                            models.PositiveBigIntegerField(
                                default=0, help_text="The position at which it left its parent."
                            ),
                        ),
                        ("lineage", models.JSONField(blank=True, default=list)),
                        (
                            "left_state",
                            models.JSONField(
                                blank=True,
                                help_text="The session's run fields when it was moved away from this branch.",
                                null=True,
                            ),
                        ),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("reason", models.TextField(blank=True, default="")),
                        (
                            "created_by",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                        (
                            "parent",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.RESTRICT,
                                related_name="children",
                                to="sessions_app.branch",
                            ),
                        ),
                        (
                            "undo_to",
                            models.ForeignKey(
                                blank=True,
                                help_text="The branch that the session was on before it was rewound to this one.",
                                null=True,
                                on_delete=django.db.models.deletion.RESTRICT,
                                related_name="+",
                                to="sessions_app.branch",
                            ),
                        ),
                    ],
                    options={
                        "verbose_name_plural": "branches",
                        "ordering": ["number"],
                    },
                ),
                migrations.CreateModel(
                    name="BulkAction",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        (
                            "kind",
                            models.CharField(
                                help_text="The key of the action in `sessions_app.action_list`.",
                                max_length=30,
                            ),
                        ),
                        (
                            "query",
                            models.TextField(
                                blank=True, help_text="The query string that chose the sessions."
                            ),
                        ),
                        ("reason", models.TextField()),
                        ("actor_name", models.CharField(max_length=150)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("stopped_at", models.DateTimeField(blank=True, null=True)),
                        ("stopped_by", models.CharField(blank=True, default="", max_length=150)),
                        (
                            "actor",
                            models.ForeignKey(
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                        (
                            "assignee",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["-created_at"],
                    },
                ),
                migrations.CreateModel(
                    name="Checkpoint",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        (
                            "kind",
                            models.CharField(
                                choices=[
                                    ("start", "start of a turn"),
                                    ("step", "start of a step"),
                                    ("prepared", "inside a step"),
                                    ("end", "end of a turn"),
                                ],
                                max_length=10,
                            ),
                        ),
                        (
                            "step",
                            models.PositiveIntegerField(help_text="Steps finished on this branch before it."),
                        ),
                        (
                            "phase",
                            models.CharField(
                                choices=[
                                    ("idle", "idle"),
                                    ("planning", "planning"),
                                    ("executing", "executing"),
                                    ("reflecting", "reflecting"),
                                    ("done", "done"),
                                    ("error", "error"),
                                ],
                                max_length=12,
                            ),
                        ),
                        ("context", models.JSONField(blank=True, null=True)),
                        (
                            "context_at",
                            models.PositiveBigIntegerField(
                                default=0,
                                help_text="Position of the checkpoint whose context holds, 0 for none.",
                            ),
                        ),
                        ("keys", models.JSONField(blank=True, default=dict)),
                        (
                            "counters",
                            models.JSONField(
                                blank=True,
                                default=dict,
                                help_text="step_count, token_usage, context_tokens, tool_call_counts.",
                            ),
                        ),
                        (
                            "tools",
                            models.JSONField(
                                blank=True, help_text="The tools at hand, where they changed.", null=True
                            ),
                        ),
                        (
                            "outcome",
                            models.JSONField(
                                blank=True,
                                help_text="At the end of a turn: final answer and exit reason.",
                                null=True,
                            ),
                        ),
                        ("totals", sessions_app.models.totals.TotalsField(blank=True, default=dict)),
                        ("definition", models.CharField(blank=True, default="", max_length=64)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "branch",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="%(class)ss",
                                to="sessions_app.branch",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["position"],
                        "abstract": False,
                        "indexes": [
                            models.Index(
                                condition=models.Q(("kind__in", ("start", "end"))),
                                fields=["branch", "position"],
                                name="checkpoint_turn",
                            ),
                            models.Index(
                                condition=models.Q(("tools", None), _negated=True),
                                fields=["branch", "position"],
                                name="checkpoint_tools",
                            ),
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("branch", "position"), name="checkpoint_position_once"
                            )
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="LossyResult",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("agent", models.CharField(max_length=100)),
                        ("tool", models.CharField(max_length=200)),
                        ("kind", models.CharField(help_text="The type's name.", max_length=200)),
                        ("seen_at", models.DateTimeField(default=django.utils.timezone.now)),
                    ],
                    options={
                        "constraints": [
                            models.UniqueConstraint(fields=("agent", "tool", "kind"), name="lossy_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="Message",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        (
                            "role",
                            models.CharField(
                                choices=[
                                    ("user", "user"),
                                    ("assistant", "assistant"),
                                    ("tool", "tool"),
                                    ("system", "system"),
                                ],
                                max_length=10,
                            ),
                        ),
                        ("text", models.TextField(blank=True, default="")),
                        ("body", models.JSONField(default=dict)),
                        (
                            "author",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="The person who typed it in, if one of the staff did.",
                                max_length=150,
                            ),
                        ),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "branch",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="%(class)ss",
                                to="sessions_app.branch",
                            ),
                        ),
                        (
                            "from_customer",
                            models.BooleanField(
                                db_default=False,
                                default=False,
                                help_text="The customer's words, which the author typed in.",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["position"],
                        "abstract": False,
                        "indexes": [
                            models.Index(
                                condition=models.Q(
                                    ("role__in", ("user", "assistant")), models.Q(("text", ""), _negated=True)
                                ),
                                fields=["branch", "position"],
                                name="message_of_conversation",
                            ),
                            models.Index(
                                condition=models.Q(("role", "user")),
                                fields=["branch", "position"],
                                name="message_of_user",
                            ),
                            models.Index(
                                condition=models.Q(("role", "user"), models.Q(("author", ""), _negated=True)),
                                fields=["branch", "position"],
                                name="message_of_staff",
                            ),
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("branch", "position"), name="message_position_once"
                            )
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="ReusableReply",
                    fields=[
                        (
                            "call",
                            models.OneToOneField(
                                on_delete=django.db.models.deletion.CASCADE,
                                primary_key=True,
                                related_name="+",
                                serialize=False,
                                to="sessions_app.modelcall",
                            ),
                        ),
                        ("agent", models.CharField(max_length=100)),
                        ("customer", models.CharField(max_length=200)),
                        ("key", models.CharField(max_length=64)),
                        ("vector", models.BinaryField()),
                        ("embedder", models.CharField(max_length=100)),
                        ("expires_at", models.DateTimeField(db_index=True)),
                    ],
                    options={
                        "verbose_name_plural": "reusable replies",
                        "indexes": [
                            models.Index(fields=["agent", "customer", "key", "-call"], name="reply_scope")
                        ],
                    },
                ),
                migrations.AddField(
                    model_name="modelcall",
                    name="branch",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="%(class)ss",
                        to="sessions_app.branch",
                    ),
                ),
                migrations.CreateModel(
                    name="SavedView",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("name", models.CharField(max_length=60)),
                        ("query", models.TextField(help_text="The query string of the list's address.")),
                        ("shared", models.BooleanField(default=False)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "owner",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="saved_views",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["name"],
                        "constraints": [
                            models.UniqueConstraint(fields=("owner", "name"), name="saved_view_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="SessionDigest",
                    fields=[
                        (
                            "session",
                            models.OneToOneField(
                                on_delete=django.db.models.deletion.CASCADE,
                                primary_key=True,
                                related_name="digest",
                                serialize=False,
                                to="sessions_app.session",
                            ),
                        ),
                        ("masking", models.BigIntegerField()),
                        ("vector", models.BinaryField(blank=True, null=True)),
                        ("embedder", models.CharField(blank=True, default="", max_length=100)),
                    ],
                ),
                migrations.CreateModel(
                    name="ShownName",
                    fields=[
                        (
                            "session",
                            models.OneToOneField(
                                on_delete=django.db.models.deletion.CASCADE,
                                primary_key=True,
                                related_name="shown_name",
                                serialize=False,
                                to="sessions_app.session",
                            ),
                        ),
                        ("title", models.TextField()),
                        ("customer", models.TextField()),
                    ],
                ),
                migrations.AddField(
                    model_name="session",
                    name="branch",
                    field=models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="+",
                        to="sessions_app.branch",
                    ),
                ),
                migrations.AddField(
                    model_name="session",
                    name="forked_from",
                    field=models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="forks",
                        to="sessions_app.checkpoint",
                    ),
                ),
                # Behind the foreign keys, where the tables of earlier versions have it.
                migrations.AddField(
                    model_name="session",
                    name="has_failed",
                    field=models.GeneratedField(
                        db_persist=True,
                        expression=models.ExpressionWrapper(
                            models.Q(("phase", "error"), ("status", "idle")), models.BooleanField()
                        ),
                        output_field=models.BooleanField(),
                    ),
                ),
                migrations.AddField(
                    model_name="session",
                    name="phase_at_rest",
                    field=models.GeneratedField(
                        db_persist=True,
                        expression=models.Case(
                            models.When(
                                models.Q(
                                    models.Q(("status", "running"), _negated=True),
                                    models.Q(
                                        ("phase__in", ["done", "error"]),
                                        ("status", "idle"),
                                        _negated=True,
                                    ),
                                ),
                                then=models.F("phase"),
                            )
                        ),
                        output_field=models.CharField(max_length=12),
                    ),
                ),
                migrations.CreateModel(
                    name="InboxMessage",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("text", models.TextField(blank=True)),
                        (
                            "body",
                            models.JSONField(
                                blank=True,
                                help_text="The whole of ``ChatMessage.to_dict()``, where it is more than a text of the user's.",
                                null=True,
                            ),
                        ),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "author",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="inbox",
                                to="sessions_app.session",
                            ),
                        ),
                        (
                            "from_customer",
                            models.BooleanField(
                                db_default=False,
                                default=False,
                                help_text="The customer's words, which the author typed in.",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["id"],
                    },
                ),
                migrations.CreateModel(
                    name="HandledRequest",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        (
                            "digest",
                            models.CharField(
                                help_text="Of all that was asked: it tells a repetition from misuse.",
                                max_length=64,
                            ),
                        ),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="+",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                ),
                migrations.CreateModel(
                    name="Event",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        ("kind", models.CharField(max_length=30)),
                        (
                            "actor_name",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="Kept when the account is deleted; also names a worker or a command.",
                                max_length=150,
                            ),
                        ),
                        ("reason", models.TextField(blank=True, default="")),
                        ("data", models.JSONField(blank=True, default=dict)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "actor",
                            models.ForeignKey(
                                blank=True,
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to=settings.AUTH_USER_MODEL,
                            ),
                        ),
                        (
                            "branch",
                            models.ForeignKey(
                                db_index=False,
                                null=True,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="events",
                                to="sessions_app.branch",
                            ),
                        ),
                        (
                            "session",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="events",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["position"],
                        "indexes": [
                            models.Index(fields=["branch", "position"], name="event_branch"),
                            models.Index(
                                condition=models.Q(
                                    models.Q(("kind", "message"), _negated=True),
                                    models.Q(("kind", "finished"), _negated=True),
                                ),
                                fields=["branch", "position"],
                                name="event_beside_turns",
                            ),
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("session", "position"), name="event_position_once"
                            )
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="BulkItem",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        (
                            "outcome",
                            models.CharField(
                                blank=True,
                                choices=[
                                    ("", "to do"),
                                    ("done", "done"),
                                    ("refused", "refused"),
                                    ("stopped", "stopped before its turn"),
                                ],
                                default="",
                                max_length=10,
                            ),
                        ),
                        ("why", models.TextField(blank=True, default="")),
                        ("done_at", models.DateTimeField(blank=True, null=True)),
                        (
                            "bulk_action",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="items",
                                to="sessions_app.bulkaction",
                            ),
                        ),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="+",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["id"],
                        "indexes": [models.Index(fields=["bulk_action", "outcome"], name="bulk_item_todo")],
                        "constraints": [
                            models.UniqueConstraint(fields=("bulk_action", "session"), name="bulk_item_once"),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("done_at__isnull", True), ("outcome", "")),
                                    models.Q(
                                        models.Q(("outcome", ""), _negated=True), ("done_at__isnull", False)
                                    ),
                                    _connector="OR",
                                ),
                                name="bulk_item_done_has_time",
                            ),
                        ],
                    },
                ),
                migrations.AddField(
                    model_name="branch",
                    name="session",
                    field=models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="branches",
                        to="sessions_app.session",
                    ),
                ),
                migrations.CreateModel(
                    name="Allowance",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("tool", models.CharField(max_length=200)),
                        ("granted_by", models.CharField(max_length=150)),
                        ("granted_at", models.DateTimeField(default=django.utils.timezone.now)),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="allowances",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "constraints": [
                            models.UniqueConstraint(fields=("session", "tool"), name="allowance_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="SessionTag",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("name", models.CharField(max_length=50)),
                        (
                            "session",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="tags",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "indexes": [models.Index(fields=["name", "session"], name="tag_sessions")],
                        "constraints": [models.UniqueConstraint(fields=("session", "name"), name="tag_once")],
                    },
                ),
                migrations.CreateModel(
                    name="SessionWord",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("word", models.CharField(max_length=100)),
                        (
                            "session",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="words",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "indexes": [models.Index(fields=["word", "-session"], name="session_word")],
                        "constraints": [
                            models.UniqueConstraint(fields=("session", "word"), name="session_word_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="SimilarSession",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("rank", models.PositiveSmallIntegerField()),
                        ("by_meaning", models.BooleanField(default=False)),
                        (
                            "other",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="+",
                                to="sessions_app.session",
                            ),
                        ),
                        (
                            "session",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="similar",
                                to="sessions_app.session",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["rank"],
                        "constraints": [
                            models.UniqueConstraint(fields=("session", "rank"), name="similar_rank_once")
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="StateValue",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        ("key", models.CharField(max_length=200)),
                        ("extends", models.BooleanField(default=False)),
                        ("value", models.JSONField(null=True)),
                        (
                            "branch",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="%(class)ss",
                                to="sessions_app.branch",
                            ),
                        ),
                        (
                            "call_at",
                            models.BigIntegerField(
                                help_text="The position of the tool call whose result holds the value.",
                                null=True,
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["position"],
                        "abstract": False,
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("branch", "key", "position"), name="statevalue_once"
                            )
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="ToolCall",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("position", models.PositiveBigIntegerField()),
                        ("call_id", models.CharField(max_length=200)),
                        ("tool", models.CharField(max_length=200)),
                        ("arguments", models.JSONField(default=dict)),
                        ("sent", models.JSONField(blank=True, null=True)),
                        (
                            "status",
                            models.CharField(
                                choices=[
                                    ("planned", "asked for"),
                                    ("started", "running"),
                                    ("doubt", "in doubt"),
                                    ("done", "done"),
                                    ("failed", "failed"),
                                    ("rejected", "rejected"),
                                    ("skipped", "skipped"),
                                ],
                                default="planned",
                                max_length=10,
                            ),
                        ),
                        ("result", models.JSONField(blank=True, null=True)),
                        ("error", models.TextField(blank=True, default="")),
                        ("state", models.JSONField(blank=True, null=True)),
                        (
                            "lossy",
                            models.BooleanField(
                                default=False,
                                help_text="The result could only be stored as text, or was changed to fit.",
                            ),
                        ),
                        (
                            "cached",
                            models.BooleanField(
                                default=False, help_text="Answered from the tool cache; the tool did not run."
                            ),
                        ),
                        (
                            "attempt",
                            models.PositiveIntegerField(default=0, help_text="How often it was started."),
                        ),
                        (
                            "worker",
                            models.CharField(
                                blank=True,
                                db_default="",
                                default="",
                                help_text="The worker that started it last.",
                                max_length=200,
                            ),
                        ),
                        ("idempotency_key", models.CharField(max_length=100)),
                        (
                            "decided_by",
                            models.CharField(
                                blank=True,
                                default="",
                                help_text="The person who answered for it.",
                                max_length=150,
                            ),
                        ),
                        ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("started_at", models.DateTimeField(blank=True, null=True)),
                        ("ended_at", models.DateTimeField(blank=True, null=True)),
                        (
                            "branch",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="%(class)ss",
                                to="sessions_app.branch",
                            ),
                        ),
                        (
                            "copy_of",
                            models.ForeignKey(
                                blank=True,
                                db_index=False,
                                help_text="The original, where a repair copied the call: both are the same call.",
                                null=True,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="copies",
                                to="sessions_app.toolcall",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["position"],
                        "abstract": False,
                        "indexes": [
                            models.Index(
                                condition=models.Q(("status__in", ("planned", "started", "doubt"))),
                                fields=["branch", "position"],
                                name="toolcall_open",
                            ),
                            models.Index(
                                condition=models.Q(("status__in", ("failed", "rejected"))),
                                fields=["branch", "position"],
                                name="toolcall_failed",
                            ),
                            models.Index(
                                condition=models.Q(("copy_of__isnull", False)),
                                fields=["copy_of"],
                                name="toolcall_copies",
                            ),
                            models.Index(
                                condition=models.Q(("status", "doubt")),
                                fields=["started_at", "id", "branch"],
                                name="toolcall_doubt",
                            ),
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("branch", "position"), name="toolcall_position_once"
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    (
                                        "status__in",
                                        [
                                            "planned",
                                            "started",
                                            "doubt",
                                            "done",
                                            "failed",
                                            "rejected",
                                            "skipped",
                                        ],
                                    )
                                ),
                                name="toolcall_status_known",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(
                                        ("ended_at__isnull", False),
                                        ("status__in", ("done", "failed", "rejected", "skipped")),
                                    ),
                                    models.Q(
                                        models.Q(
                                            ("status__in", ("done", "failed", "rejected", "skipped")),
                                            _negated=True,
                                        ),
                                        ("ended_at__isnull", True),
                                    ),
                                    _connector="OR",
                                ),
                                name="toolcall_ended_has_time",
                            ),
                        ],
                    },
                ),
                migrations.CreateModel(
                    name="MemoryEntry",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("agent", models.CharField(max_length=100)),
                        ("customer", models.CharField(max_length=200)),
                        ("text", models.TextField()),
                        ("key", models.CharField(max_length=64, unique=True)),
                        ("vector", models.BinaryField(blank=True, null=True)),
                        ("embedder", models.CharField(blank=True, default="", max_length=100)),
                        ("learned_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("edited_at", models.DateTimeField(blank=True, null=True)),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="memory_entries",
                                to="sessions_app.session",
                            ),
                        ),
                        (
                            "call",
                            models.ForeignKey(
                                blank=True,
                                help_text="The call that remembered it.",
                                null=True,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="memory_entries",
                                to="sessions_app.toolcall",
                            ),
                        ),
                    ],
                    options={
                        "verbose_name_plural": "memory entries",
                        "indexes": [models.Index(fields=["agent", "customer", "-id"], name="memory_scope")],
                    },
                ),
                migrations.CreateModel(
                    name="Approval",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("arguments", models.JSONField(default=dict)),
                        (
                            "earlier",
                            models.JSONField(
                                blank=True,
                                help_text="The keys of the earlier effects of the tool that the request shows, newest first: calls that the history does not show. Empty for none.",
                                null=True,
                            ),
                        ),
                        ("fingerprint", models.CharField(max_length=64)),
                        ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("expires_at", models.DateTimeField(blank=True, null=True)),
                        (
                            "decision",
                            models.CharField(
                                blank=True,
                                choices=[
                                    ("approved", "approved"),
                                    ("rejected", "rejected"),
                                    ("expired", "expired"),
                                    ("reused", "answered with the result on record"),
                                ],
                                default="",
                                max_length=10,
                            ),
                        ),
                        (
                            "edited",
                            models.JSONField(
                                blank=True,
                                help_text="The arguments to run with, where the person changed them.",
                                null=True,
                            ),
                        ),
                        (
                            "message",
                            models.TextField(
                                blank=True, default="", help_text="What the model is told on rejection."
                            ),
                        ),
                        ("decided_at", models.DateTimeField(blank=True, null=True)),
                        ("decided_by", models.CharField(blank=True, default="", max_length=150)),
                        (
                            "session",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="approvals",
                                to="sessions_app.session",
                            ),
                        ),
                        (
                            "call",
                            models.OneToOneField(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="approval",
                                to="sessions_app.toolcall",
                            ),
                        ),
                        (
                            "repeats",
                            models.ForeignKey(
                                blank=True,
                                help_text="The newest of `earlier` with the same arguments: it has had its effect already.",
                                null=True,
                                on_delete=django.db.models.deletion.SET_NULL,
                                related_name="+",
                                to="sessions_app.toolcall",
                            ),
                        ),
                    ],
                    options={
                        "ordering": ["asked_at"],
                        "indexes": [
                            models.Index(
                                condition=models.Q(("decision", ""), ("expires_at__isnull", False)),
                                fields=["expires_at"],
                                name="approval_expiring",
                            ),
                            models.Index(
                                condition=models.Q(("decision", "")),
                                fields=["asked_at", "id", "session", "call", "expires_at"],
                                name="approval_open",
                            ),
                        ],
                        "constraints": [
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("decided_at__isnull", True), ("decision", "")),
                                    models.Q(
                                        models.Q(("decision", ""), _negated=True),
                                        ("decided_at__isnull", False),
                                    ),
                                    _connector="OR",
                                ),
                                name="approval_decided_has_time",
                            )
                        ],
                    },
                ),
                migrations.AddField(
                    model_name="reusablereply",
                    name="session",
                    field=models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reusable_replies",
                        to="sessions_app.session",
                    ),
                ),
                migrations.AddIndex(
                    model_name="modelcall",
                    index=models.Index(
                        condition=models.Q(("error", ""), _negated=True),
                        fields=["branch", "position"],
                        name="modelcall_failed",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="modelcall",
                    constraint=models.UniqueConstraint(
                        fields=("branch", "position"), name="modelcall_position_once"
                    ),
                ),
                migrations.AddIndex(
                    model_name="session",
                    index=models.Index(
                        fields=["status", "-updated_at", "-id", "branch"], name="session_status_recent"
                    ),
                ),
                migrations.AddIndex(
                    model_name="session",
                    index=models.Index(
                        condition=models.Q(("phase_at_rest__isnull", False)),
                        fields=["phase_at_rest", "status", "id", "branch", "failure"],
                        name="session_phase_at_rest",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="branch",
                    constraint=models.UniqueConstraint(
                        fields=("session", "number"), name="branch_number_once"
                    ),
                ),
            ]
        ),
        migrations.RunPython(_run, _undo),
    ]
