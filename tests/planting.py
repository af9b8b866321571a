"""Sessions in all states whose every text and JSON field holds the secrets of `tests.corpora.secrets`.

The fields are those of the models: a new one is planted by itself, unless `UNPLANTED` says why it holds no free text.
"""

from collections.abc import Collection, Iterator
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.db import models
from django.utils import timezone

from agentstate.names import TYPE_TAG
from sessions_app import actions
from sessions_app.access.masking import _MASKED_FIELDS
from sessions_app.finding import search_index
from sessions_app.models import (
    AgentDefinition,
    Allowance,
    BulkAction,
    BulkItem,
    Checkpoint,
    InboxMessage,
    Message,
    ModelCall,
    ReusableReply,
    SavedView,
    Session,
    StateValue,
    ToolCall,
    ToolResult,
    Worker,
)
from tests import builders
from tests.corpora import secrets

NAME_IN_CODE = "a name that the developers of the agent gave"
NAME_OF_STAFF = "the name of one of the staff, of a command or of a process"
MACHINERY = "a key or a fingerprint that the system made; no text"
NUMBERS = "positions, numbers and names that the engine counts"
UNPLANTED = {
    "registeredagent.key": NAME_IN_CODE,
    "registeredagent.title": NAME_IN_CODE,
    "registeredagent.description": NAME_IN_CODE,
    "registeredagent.model": NAME_IN_CODE,
    "registeredagent.tools": NAME_IN_CODE,
    "registeredagent.definition": MACHINERY,
    "registeredagent.inputs": NAME_IN_CODE,
    "registeredagent.module": NAME_IN_CODE,
    "agentdefinition.agent": NAME_IN_CODE,
    "agentdefinition.definition": MACHINERY,
    "lossyresult.agent": NAME_IN_CODE,
    "lossyresult.tool": NAME_IN_CODE,
    "lossyresult.kind": NAME_IN_CODE,
    "session.agent": NAME_IN_CODE,
    "session.worker": NAME_OF_STAFF,
    "session.definition": MACHINERY,
    "session.totals": NUMBERS,
    "session.breakpoints": "of a fixed form: some with secrets are planted below",
    "session.breakpoint_hit": NUMBERS,
    "shownname.title": "made of the masked title",
    "shownname.customer": "made of the masked customer",
    "branch.lineage": NUMBERS,
    "toolcall.call_id": "that of a call with a secret is planted below",
    "toolcall.tool": "one that a model has invented is planted below, with a secret",
    "toolcall.idempotency_key": MACHINERY,
    "toolcall.decided_by": NAME_OF_STAFF,
    "toolcall.worker": NAME_OF_STAFF,
    "approval.earlier": NUMBERS,
    "approval.fingerprint": "shown by no page: see tests/test_desk_dialogs.py",
    "approval.from_state_digests": MACHINERY,
    "approval.decided_by": NAME_OF_STAFF,
    "checkpoint.context": NUMBERS,
    "checkpoint.keys": "the names of state keys: one with a secret is planted below",
    "checkpoint.tools": NAME_IN_CODE,
    "checkpoint.totals": NUMBERS,
    "checkpoint.definition": MACHINERY,
    "statevalue.key": "one with a secret is planted below, and named by its checkpoint",
    "demouser.password_digest": MACHINERY,
    "allowance.tool": NAME_IN_CODE,
    "allowance.granted_by": NAME_OF_STAFF,
    "handledrequest.digest": MACHINERY,
    "savedview.query": "a query string: one with a secret is planted below",
    "bulkaction.kind": MACHINERY,
    "bulkaction.query": "a query string: one with a secret is planted below",
    "bulkaction.actor_name": NAME_OF_STAFF,
    "bulkaction.stopped_by": NAME_OF_STAFF,
    "event.kind": MACHINERY,
    "event.actor_name": NAME_OF_STAFF,
    "memoryentry.agent": NAME_IN_CODE,
    "memoryentry.key": MACHINERY,
    "erasedentry.key": MACHINERY,
    "memoryentry.embedder": NAME_IN_CODE,
    "reusablereply.agent": NAME_IN_CODE,
    "reusablereply.key": MACHINERY,
    "reusablereply.embedder": NAME_IN_CODE,
    "sessiondigest.embedder": NAME_IN_CODE,
    "sessionword.word": "a word of a masked text: see tests/test_similar_sessions.py",
    "message.author": NAME_OF_STAFF,
    "modelcall.name": NAME_IN_CODE,
    "modelcall.model": NAME_IN_CODE,
    "toolresult.key": MACHINERY,
    "worker.name": NAME_OF_STAFF,
}


def fields() -> Iterator[tuple[type[models.Model], "models.Field[Any, Any]"]]:
    """The fields of the app's models that may hold a free text."""
    for model in apps.get_app_config("sessions_app").get_models():
        for field in model._meta.concrete_fields:
            is_text = isinstance(field, models.CharField | models.TextField | models.JSONField)
            if is_text and not field.choices and f"{model._meta.model_name}.{field.name}" not in UNPLANTED:
                yield model, field


def plant_everywhere() -> None:
    """Put the secrets into each of the fields: beside what a row holds; where none holds anything, into all rows."""
    for model, field in fields():
        rows = list(model._default_manager.all())
        filled = [row for row in rows if getattr(row, field.name)] or rows
        for row in filled:
            setattr(row, field.name, planted(field, getattr(row, field.name)))
        model._default_manager.bulk_update(filled, [field.name])


def planted(field: "models.Field[Any, Any]", value: Any) -> Any:
    if isinstance(field, models.JSONField):
        return secrets.OBJECT if value is None else in_json(value)
    for text in (f"{value}\n{secrets.TEXT}", f"{value} {secrets.SHORT}"):
        if field.max_length is None or len(text) <= field.max_length:
            return text.strip()
    return secrets.SHORT


def in_json(value: Any) -> Any:
    """The value with the secrets in each of its objects, so that its readers still know it."""
    if isinstance(value, dict) and TYPE_TAG not in value:
        return {name: in_json(item) for name, item in value.items()} | secrets.OBJECT
    if isinstance(value, list):
        return [in_json(item) for item in value]
    return value


def desk(owner: User) -> dict[str, Session]:
    """A desk full of secrets, by the names of the sessions' states. The index knows them all."""
    sessions = {name: build(title=name, tags=["glass"]) for name, build in builders.STATES.items()}
    sessions["rich"] = rich()
    builders.agent("broken", title="Broken", problem="ImportError: no such module")
    sessions["broken"] = builders.waiting_for_approval(agent_key="broken", title="broken")
    changed = builders.agent("changed", title="Changed", definition="e" * 64)
    sessions["changed agent"] = builders.paused(agent_key="changed", title="changed agent")
    for number, definition in enumerate((builders.DEFINITION, changed.definition)):
        prompt = f"{secrets.TEXT}\nVersion {number}."
        parts = {
            "prompts": {"system": prompt},
            "settings": {"number": number, f"added {number}": secrets.SHORT},
        }
        AgentDefinition.objects.create(agent="changed", definition=definition, parts=parts)
    bulk = BulkAction.objects.create(
        kind="pause",
        reason="Rain",
        actor=owner,
        actor_name="olga",
        query="queue=all&customer=DE89370400440532013000",
    )
    for session in (sessions["rich"], sessions["done"]):
        BulkItem.objects.create(
            bulk_action=bulk, session=session, outcome="refused", why="No", done_at=session.created_at
        )
    SavedView.objects.create(owner=owner, name="Filter", query="customer=078-05-1120&tag=glass", shared=True)
    SavedView.objects.create(owner=owner, name="Name", query="queue=all", shared=True)
    Allowance.objects.create(session=sessions["rich"], tool="send_letter", granted_by="olga")
    builders.memory_entry(sessions["rich"], "She wants e-mails")
    reuse(sessions["done"], by=sessions["rich"])
    Worker.objects.create(name="tests")
    ToolResult.objects.create(key="tool:cache:x", value={"paid": True}, expires_at=timezone.now())
    plant_everywhere()
    while search_index.update():
        pass
    return sessions


def reuse(source: Session, *, by: Session) -> None:
    """A reply of the first session that the second one was answered by, from the semantic cache."""
    paid = ModelCall.objects.filter(branch__session=source).latest("position")
    ReusableReply.objects.create(
        call=paid, session=source, agent=source.agent, customer="Ada", vector=b"", expires_at=timezone.now()
    )
    hit = ModelCall.objects.filter(branch__session=by, error="").earliest("position")
    ModelCall.objects.filter(pk=hit.pk).update(source=source.pk, similarity=0.97)


def rich() -> Session:
    """A session that has been through all: a repair, a rewind, failures, notes; it waits for two approvals."""
    history = builders.asked(title="rich", tags=["glass"])
    key = "account DE89370400440532013000"
    start = history.last_checkpoint
    for name, value in (
        (key, "x"),
        ("password", secrets.BY_KEY["password"]),
        ("note", secrets.TEXT),
        (
            "working_memory",
            {"goal": secrets.TEXT, "plan": [secrets.SHORT], "completed": [], "notes": [secrets.TEXT]},
        ),
    ):
        StateValue.objects.create(branch=history.branch, position=start.position, key=name, value=value)
        start.keys[name] = start.position
    start.save()
    history.lookup()
    history.reply("I write to her.", [("send_letter", {"text": secrets.TEXT})])
    history.finish(history.calls[-1], error="No letter was sent")
    step = history.checkpoint("step", keys=start.keys)
    history.reply("I look.", calls=[(f"open {secrets.SHORT}", {"claim": "CLM-1042"})])
    invented = history.finish(history.calls[-1], error=f"Tool open {secrets.SHORT} not found.")
    ToolCall.objects.filter(pk=invented.pk).update(call_id=secrets.SHORT)
    step = history.checkpoint("step", keys=start.keys)
    history.model_fails()
    history.event("noted", reason="She called", text=secrets.TEXT)
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    before = history.finish(history.calls[-1], "paid")
    history.checkpoint("step", keys=start.keys)
    history.checkpoint(
        "end", keys=start.keys, outcome={"final_answer": secrets.TEXT, "exit_reason": secrets.SHORT}
    )
    history.save(why=secrets.TEXT, error=secrets.TEXT, final_answer=secrets.TEXT, exit_reason=secrets.SHORT)
    session = history.rest("paused")
    actions.rewind(actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=step.pk, reason="Wrong")
    result = Message.objects.filter(branch__session=session, role="tool").earliest("position")
    actions.replace_message(
        actor=builders.SYSTEM,
        session_id=session.pk,
        position=result.position,
        text="Suspended",
        reason="Lapsed",
    )
    history.session.refresh_from_db()
    InboxMessage.objects.create(session=session, text="Hurry")
    history.reply(
        "Both again.",
        calls=[
            ("issue_refund", {"claim": "CLM-1042", "amount": 120}),
            ("send_letter", {"text": "Dear Sir"}),
        ],
    )
    history.ask(history.calls[-2], repeats=before, earlier=[before.pk])
    # By the State's key, or by the argument: either may hide it.
    by_key = {name: {"value": value} for name, value in secrets.BY_KEY.items()}
    by_argument = {"facts": {"text": secrets.TEXT, key: "x", **secrets.BY_KEY}}
    history.ask(
        history.calls[-1],
        edited={"text": "Dear Madam,"},
        from_state={**by_key, **by_argument},
        from_state_digests={
            **{f"value of {name}": {"key": name, "digest": "a"} for name in by_key},
            **{name: {"key": "facts", "digest": "a"} for name in by_argument["facts"] if name != key},
        },
    )
    conditions = {"text": secrets.TEXT, **secrets.BY_KEY}
    breakpoints = [
        {
            "tool": "send_letter",
            "when": {"comparison": "=", "argument": {name: value}},
            "once": False,
            "by": "olga",
        }
        for name, value in conditions.items()
    ]
    history.save(breakpoints=[{"number": number, **row} for number, row in enumerate(breakpoints, 1)])
    return history.rest("waiting", waiting_for="approval", why="Waits")


def checkpoints_of(session: Session) -> list[int]:
    return list(
        Checkpoint.objects.filter(branch__session=session).order_by("position").values_list("pk", flat=True)
    )


MARK = "quokkalantern"


def columns() -> Iterator[tuple[type[models.Model], str]]:
    """The columns whose values are hidden where their own name is a hidden key."""
    for model, names in _MASKED_FIELDS.items():
        for field in model._meta.concrete_fields:
            # A state value is hidden by the name of its key, and calls are known by these.
            if field.name in names and model is not StateValue and field.name not in ("tool", "call_id"):
                yield model, field.name


def mark_columns(names: Collection[str]) -> None:
    """Put a word, `MARK`, into each of the columns of these names, and of no others."""
    for model, name in columns():
        if name not in names:
            continue
        rows = list(model._default_manager.all())
        for row in rows:
            setattr(row, name, _marked(getattr(row, name)))
        model._default_manager.bulk_update(rows, [name])
    messages = list(Message.objects.all())
    for message in messages:
        # What a message repeats of a call.
        if message.role == Message.Role.TOOL and not {"result", "error"}.isdisjoint(names):
            message.text = _marked(message.text)
        for part in message.body.get("content", ()) if "arguments" in names else ():
            if call := part.get("tool_call"):
                call["arguments"] = _marked(call["arguments"])
    Message.objects.bulk_update(messages, ["text", "body"])


def _marked(value: Any) -> Any:
    """In an object beside what it holds, so that its readers still know it."""
    if isinstance(value, dict):
        items = {
            name: _marked(item) if isinstance(item, dict | list) else item for name, item in value.items()
        }
        return value if TYPE_TAG in value else {**items, "planted": MARK}
    if isinstance(value, list):
        return [_marked(item) if isinstance(item, dict | list) else item for item in value]
    return f"{value} {MARK}" if isinstance(value, str) and value else value
