"""Creates all tables of a new database at once.

Each operation of a migration has Django draw up the models anew around it, also those that refer to the one that it is
about. Of 34 operations on tables that refer to each other that is most of the time.
"""

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class CreateTables(Operation):
    """
    :param operations: They create models, and add to these what refers to a later one. All else is part of the tables
        from the start, so none of them may run code or SQL of its own.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, operations: Sequence[Any]) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.clear_delayed_apps_cache()
        state.__dict__.pop("apps", None)  # drawn up anew when it is needed, which is once
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        for name in self._models():
            model = to_state.apps.get_model(app_label, name)
            if self.allow_migrate_model(schema_editor.connection.alias, model):
                schema_editor.create_model(model)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        for name in reversed(self._models()):
            model = from_state.apps.get_model(app_label, name)
            if self.allow_migrate_model(schema_editor.connection.alias, model):
                schema_editor.delete_model(model)

    def describe(self) -> str:
        return "Create all tables"

    def _models(self) -> list[str]:
        return [operation.name for operation in self.operations if isinstance(operation, CreateModel)]
