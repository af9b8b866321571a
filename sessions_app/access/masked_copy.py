"""Copies of rows for pages on which values are hidden. The row itself is never changed.

A copy has the values and the related rows that were loaded, each of them masked, and nothing else: it cannot be saved,
deleted or read again from the database, and it does not load a deferred field or a related row that would have to be
masked too. Whatever a page needs must be selected by its query. A field is masked when it is first read, so that a list
does not mask what it does not show.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from django.db.models import Model

Row = TypeVar("Row", bound=Model)
# How a value of a field is shown: `(row, name of the field, value)`.
FieldMask = Callable[[Model, str, Any], Any]
_REFUSED = (
    *("save", "asave", "save_base", "delete", "adelete"),
    *("refresh_from_db", "arefresh_from_db"),  # also what loads a deferred field
)
# The attribute of a copy that names the masked fields that it can show.
_LOADED = "_masked_fields_loaded"


class MaskedCopyError(RuntimeError):
    """A masked copy was used for something that needs the row itself, such as saving it."""


def masked_copy(
    row: Row, fields: Mapping[type[Model], tuple[str, ...]], mask_field: FieldMask, memo: dict[int, Model]
) -> Row:
    """A copy of the row with the ``fields`` of its model masked, and with its loaded related rows masked likewise.

    No query. Related rows of models that are not in ``fields`` are kept as they are.

    :param memo: The copies made so far by the `id` of their rows, so that rows that refer to each other still do.
    """
    if (known_copy := memo.get(id(row))) is not None:
        return known_copy  # type: ignore[return-value]
    copy = row.__class__.__new__(row.__class__)
    memo[id(row)] = copy
    values: dict[str, Any] = dict(row.__getstate__())
    columns = {field.attname for field in row._meta.concrete_fields}
    # Those of a row that is itself a copy may not have been read.
    loaded = columns.intersection(fields[type(row)]) & (values.keys() | values.get(_LOADED, set()))
    for name in fields[type(row)]:
        if name in loaded:
            values.pop(name, None)
        elif name in values:
            # An annotation: Django would not ask for it.
            values[name] = mask_field(row, name, values[name])
    values |= {method: _refusal(row, method) for method in _REFUSED}
    # What Django calls to read a field that has no value yet.
    values["refresh_from_db"] = _reader(row, copy, loaded, mask_field)
    values[_LOADED] = loaded
    values |= getattr(row, "facts_of_a_masked_copy", {})
    vars(copy).update(values)
    related = _LoadedRelations(row, _masked_relations(type(row), frozenset(fields)))
    for name, other in values["_state"].fields_cache.items():
        masked = isinstance(other, Model) and type(other) in fields
        related[name] = masked_copy(other, fields, mask_field, memo) if masked else other
    copy._state.fields_cache = related
    return copy


class _LoadedRelations(dict[str, Any]):
    """A copy's related rows. One that was not loaded before is refused if its model has fields to mask."""

    def __init__(self, row: Model, masked: Mapping[str, str]) -> None:
        super().__init__({name: None for name, column in masked.items() if vars(row).get(column, 0) is None})
        self._masked, self._model = masked, type(row).__name__

    def __missing__(self, name: str) -> NoReturn:
        if name in self._masked:
            raise MaskedCopyError(
                f"{name} of this masked {self._model} was not loaded before: select it in the query."
            )
        raise KeyError(name)


@lru_cache
def _masked_relations(model: type[Model], masked: frozenset[type[Model]]) -> dict[str, str]:
    """The names of the model's relations to single rows that are masked, with their columns ("" for another's)."""
    relations: list[Any] = list(model._meta.get_fields())
    return {
        relation.cache_name: getattr(relation, "attname", "")
        for relation in relations
        if (relation.many_to_one or relation.one_to_one) and relation.related_model in masked
    }


def _reader(row: Model, copy: Model, loaded: set[str], mask_field: FieldMask) -> Callable[..., None]:
    """Sets fields of the copy that were loaded in the row, masked. Refuses all others."""
    refuse = _refusal(row, "refresh_from_db")

    def read(using: str | None = None, fields: Iterable[str] | None = None, **kwargs: Any) -> None:
        names = list(fields or ())
        if not names or not loaded.issuperset(names):
            refuse()
        for name in names:
            vars(copy)[name] = mask_field(row, name, getattr(row, name))

    return read


def _refusal(row: Model, method: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise MaskedCopyError(
            f"{method}() of a masked copy of {type(row).__name__} {row.pk}: "
            "it is for showing only. Use the row itself, or select the field in the query."
        )

    return refuse
