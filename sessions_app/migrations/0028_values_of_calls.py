from collections.abc import Iterator
from typing import Any

from django.db import migrations, models

ROWS_AT_ONCE = 1_000


def store_whole(apps: Any, schema_editor: Any) -> None:
    """Store with its row what a call's result holds of it, as earlier versions read it."""
    values = apps.get_model("sessions_app", "StateValue").objects.filter(call_at__isnull=False)
    for rows in _batches(values):
        calls = _calls(apps, [(row.branch_id, row.call_at) for row in rows])
        for row in rows:
            row.value = _part(calls[row.branch_id, row.call_at].result, row.value)
        values.model.objects.bulk_update(rows, ["value"])
    messages = apps.get_model("sessions_app", "Message").objects.filter(role="tool")
    for rows in _batches(messages):
        short = [row for row in rows if "content" not in row.body and "result_of" in row.body]
        calls = _calls(apps, [(row.branch_id, row.body["result_of"]) for row in short])
        for row in short:
            call = calls[row.branch_id, row.body["result_of"]]
            origin = {"tool_name": call.tool, "arguments": call.arguments, "id": call.call_id, "extra": None}
            answer = {"result": None, "origin": origin, "error": False}
            row.body = {"content": [{"tool_call_result": answer}], **row.body}
        messages.model.objects.bulk_update(short, ["body"])


def _batches(rows: Any) -> Iterator[list[Any]]:
    last = 0
    while batch := list(rows.filter(pk__gt=last).order_by("pk")[:ROWS_AT_ONCE]):
        last = batch[-1].pk
        yield batch


def _calls(apps: Any, places: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
    """The calls at these positions of the histories that the branches show.

    :raises LookupError: if there is no such call, which no run and no action can bring about.
    """
    shown = {
        pk: {**dict(lineage), pk: None}
        for pk, lineage in apps.get_model("sessions_app", "Branch")
        .objects.filter(pk__in={pk for pk, _ in places})
        .values_list("pk", "lineage")
    }
    calls = apps.get_model("sessions_app", "ToolCall").objects.filter(
        branch_id__in={pk for segments in shown.values() for pk in segments},
        position__in={position for _, position in places},
    )
    at = {(call.branch_id, call.position): call for call in calls}
    found = {
        (branch, position): at[pk, position]
        for branch, position in places
        for pk, last in shown[branch].items()
        if (pk, position) in at and (last is None or position <= last)
    }
    if missing := set(places) - found.keys():
        branch, position = min(missing)
        raise LookupError(f"Branch {branch} has no tool call at position {position}, which one of its rows names.")
    return found


def _part(result: Any, name: str | None) -> Any:
    if name is None:
        return result
    return result["value"][name] if "$type" in result else result[name]


class Migration(migrations.Migration):
    """Rows that are stored already stay as they are: what they hold twice is read as before.

    A process of an earlier version would misread the rows that are written from now on: stop all of them before.
    """

    dependencies = [("sessions_app", "0027_totals_without_names")]

    operations = [
        migrations.AddField(
            model_name="statevalue",
            name="call_at",
            field=models.BigIntegerField(
                help_text="The position of the tool call whose result holds the value.", null=True
            ),
        ),
        migrations.RunPython(migrations.RunPython.noop, store_whole),
    ]
