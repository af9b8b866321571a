"""Rows that are read, made objects without `Model.__init__`.

A page reads hundreds of rows, and Django takes 3 to 13 microseconds for each object: it goes through all fields, sets
each value by `setattr`, and sends the signals of a new object. Here what was read becomes the attributes of the object
as it is, which takes one. No model of this application has receivers of `pre_init` or `post_init`, or fields that
change a value when it is set; `tests/test_loading.py` compares what both make.
"""

from collections.abc import Collection
from typing import Any, Self

from django.db import models
from django.db.models.base import ModelState


class LoadedModel(models.Model):
    """A model whose objects are made by `from_db` from the columns that were read; the others are deferred."""

    class Meta:
        abstract = True

    @classmethod
    def from_db(  # type: ignore[override]  # the stubs have an argument of a later Django
        cls, db: str | None, field_names: Collection[str], values: Collection[Any]
    ) -> Self:
        """The object of a row, as Django's own `from_db` makes it, but for the order of the values: it is that of the
        names, whatever this is.
        """
        state = ModelState()
        state.adding, state.db = False, db
        loaded = cls.__new__(cls)
        loaded.__dict__.update(zip(field_names, values, strict=True), _state=state)
        return loaded
