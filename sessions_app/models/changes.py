"""Rows that are locked, changed and written again: only what has changed is written."""

from functools import cache

from django.db import models

from sessions_app.models.later import insert_later, update_later
from sessions_app.models.loading import LoadedModel


class WritesChanges(LoadedModel):
    """A model whose rows an action locks: see `sessions_app.actions.base`."""

    class Meta:
        abstract = True

    def keep_stored(self) -> None:
        """Note what the row holds, for `save_changes`: called when it has been read and locked."""
        self._stored = {name: self.__dict__[name] for name in _compared(type(self))}

    def has_changed(self, name: str) -> bool:
        """Whether the column, which holds no JSON, has another value than at `keep_stored`; True for a new row."""
        return self._state.adding or bool(self._stored[name] != self.__dict__[name])

    def save_changes(self) -> None:
        """Write what has changed since `keep_stored`, and JSON, which may have changed in place. Inserts a new row.

        Written as `sessions_app.models.later` does it.
        """
        if self._state.adding:
            insert_later(self)
        else:
            changed = [name for name, value in self._stored.items() if self.__dict__[name] != value]
            update_later(self, (*changed, *_json(type(self))))
        self.keep_stored()


@cache
def _json(model: type[models.Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields if isinstance(field, models.JSONField)]


@cache
def _compared(model: type[models.Model]) -> list[str]:
    """The columns that an UPDATE may set, without those of `_json`."""
    return [
        field.attname
        for field in model._meta.concrete_fields
        if not (field.primary_key or field.generated or isinstance(field, models.JSONField))
    ]
