"""An index by which PostgreSQL finds the sessions that have several properties together (`sessions_app.finding.facets`).

Tags stand in another table. For the index each row of the sessions has them too: triggers see to it whenever a tag is
inserted, changed or deleted, and lock the row of its session. They find the tables where this migration did, also while
a dump is restored. No column of the index is changed by the commits of a run, but for those with which it begins and
ends.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_KEYS = (
    "(ARRAY['agent ' || agent, 'status ' || status, 'phase ' || CASE WHEN status = 'running' THEN NULL "
    "WHEN has_failed THEN 'error' ELSE COALESCE(phase_at_rest, 'done') END, "
    "'assignee ' || COALESCE(assignee_id::text, 'nobody')])"
)
_NAMES = "ARRAY(SELECT name::text FROM sessions_app_sessiontag WHERE session_id = {} ORDER BY name)"
# Tags may be written before their session and behind it, in one transaction.
_FORWARDS = (
    "ALTER TABLE sessions_app_session ADD COLUMN tag_names text[] NOT NULL DEFAULT '{}'",
    "UPDATE sessions_app_session SET tag_names = " + _NAMES.format("sessions_app_session.id") + " WHERE EXISTS "
    "(SELECT 1 FROM sessions_app_sessiontag WHERE session_id = sessions_app_session.id)",
    f"""
    CREATE FUNCTION sessions_app_tags_of_new_session() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
    BEGIN
        NEW.tag_names := {_NAMES.format("NEW.id")};
        RETURN NEW;
    END $$
    """,
    f"""
    CREATE FUNCTION sessions_app_tags_of_session() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
    BEGIN
        -- The next statement sees what was committed while this one waited.
        PERFORM 1 FROM sessions_app_session WHERE id IN (OLD.session_id, NEW.session_id)
        ORDER BY id FOR NO KEY UPDATE;
        UPDATE sessions_app_session SET tag_names = {_NAMES.format("sessions_app_session.id")}
        WHERE id IN (OLD.session_id, NEW.session_id)
        AND tag_names IS DISTINCT FROM {_NAMES.format("sessions_app_session.id")};
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER session_tag_names BEFORE INSERT ON sessions_app_session "
    "FOR EACH ROW EXECUTE FUNCTION sessions_app_tags_of_new_session()",
    "CREATE TRIGGER tag_of_session AFTER INSERT OR UPDATE OR DELETE ON sessions_app_sessiontag "
    "FOR EACH ROW EXECUTE FUNCTION sessions_app_tags_of_session()",
    # Without a list of what is to be added: each search would read all of it.
    f"CREATE INDEX session_facets ON sessions_app_session USING gin (tag_names, {_KEYS}) WITH (fastupdate = off)",
)
_BACKWARDS = (
    "DROP INDEX session_facets",
    "DROP TRIGGER tag_of_session ON sessions_app_sessiontag",
    "DROP TRIGGER session_tag_names ON sessions_app_session",
    "DROP FUNCTION sessions_app_tags_of_session(), sessions_app_tags_of_new_session()",
    "ALTER TABLE sessions_app_session DROP COLUMN tag_names",
)


def _execute(statements: tuple[str, ...], schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in statements:
            schema_editor.execute(statement, params=None)


def _forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _execute(_FORWARDS, schema_editor)


def _backwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _execute(_BACKWARDS, schema_editor)


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0039_handled_requests")]

    operations = [migrations.RunPython(_forwards, _backwards)]
