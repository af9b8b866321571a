import json
from typing import Any

from django.db import migrations

from sessions_app.models.totals import TotalsField, unpack

ROWS_AT_ONCE = 2_000


def with_names(apps: Any, schema_editor: Any) -> None:
    """Write packed totals as JSON with their names again, before the column takes JSON only."""
    with schema_editor.connection.cursor() as cursor:
        last = 0
        while True:
            cursor.execute(
                "SELECT id, totals FROM sessions_app_checkpoint WHERE id > %s AND totals NOT LIKE %s"
                " ORDER BY id LIMIT %s",
                [last, "{%", ROWS_AT_ONCE],
            )
            rows = cursor.fetchall()
            if not rows:
                return
            last = rows[-1][0]
            cursor.executemany(
                "UPDATE sessions_app_checkpoint SET totals = %s WHERE id = %s",
                [(json.dumps(unpack(text)), pk) for pk, text in rows],
            )


class Migration(migrations.Migration):
    """PostgreSQL writes the table anew. Totals that are stored already stay as they are: JSON with its names."""

    dependencies = [("sessions_app", "0026_large_lists")]

    operations = [
        migrations.AlterField(
            model_name="checkpoint", name="totals", field=TotalsField(blank=True, default=dict)
        ),
        migrations.RunPython(migrations.RunPython.noop, with_names),
    ]
