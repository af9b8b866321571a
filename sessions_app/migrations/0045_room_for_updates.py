"""Room in the pages of PostgreSQL's table of sessions for the updates of those that run.

A step updates its session's row twice, in its page and without an entry in any index, as long as the page has room.
PostgreSQL takes dead versions of rows out of a page that it reads only where less than a tenth of it is free, or less
than the fill factor asks for. A row of a length that fits into no such rest moved to a new page with up to each fourth
update, wrote an entry into each of two dozen indexes, and left the old page empty until the next VACUUM.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def _leave_room(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _alter(schema_editor, "SET (fillfactor = 70)")


def _reset(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _alter(schema_editor, "RESET (fillfactor)")


def _alter(schema_editor: BaseDatabaseSchemaEditor, change: str) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER TABLE sessions_app_session {change}")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0044_causes_of_agents")]

    operations = [migrations.RunPython(_leave_room, _reset)]
