"""Rows that are read become the same objects as Django makes of them."""

from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.db.models.signals import post_init, pre_init

from sessions_app.models import Branch, Session, ToolCall
from sessions_app.models.loading import LoadedModel
from tests import builders

LOADED = [
    model for model in apps.get_app_config("sessions_app").get_models() if issubclass(model, LoadedModel)
]


def test_the_models_of_which_a_page_reads_most_are_among_them() -> None:
    assert {Session, Branch, ToolCall} < set(LOADED)


def as_djangos(model: type[models.Model], names: list[str], values: list[Any]) -> models.Model:
    made: models.Model = models.Model.from_db.__func__(model, "default", names, values)  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("model", LOADED, ids=lambda model: model.__name__)
def test_an_object_has_what_django_would_give_it(model: type[LoadedModel]) -> None:
    every = [each.attname for each in model._meta.concrete_fields]
    for names in (every, every[:3], [every[0], *every[-2:]]):
        values = [f"value of {name}" for name in names]
        made, expected = model.from_db("default", names, values), as_djangos(model, names, values)
        state, expected_state = made.__dict__.pop("_state"), expected.__dict__.pop("_state")
        assert made.__dict__ == expected.__dict__
        assert (state.adding, state.db, state.fields_cache) == (False, "default", {})
        assert (expected_state.adding, expected_state.db, expected_state.fields_cache) == (
            False,
            "default",
            {},
        )
        assert made.get_deferred_fields() == set(every) - set(names)


@pytest.mark.parametrize("model", LOADED, ids=lambda model: model.__name__)
def test_each_value_is_that_of_its_name_in_any_order(model: type[LoadedModel]) -> None:
    names = sorted((each.attname for each in model._meta.concrete_fields), reverse=True)[:4]
    made = model.from_db("default", names, [f"value of {name}" for name in names])
    assert {name: made.__dict__[name] for name in names} == {name: f"value of {name}" for name in names}


@pytest.mark.parametrize("model", LOADED, ids=lambda model: model.__name__)
def test_nothing_waits_for_a_new_object(model: type[LoadedModel]) -> None:
    assert not pre_init.has_listeners(model)
    assert not post_init.has_listeners(model)


@pytest.mark.django_db
def test_what_was_not_read_is_read_when_it_is_asked_for(django_assert_num_queries: Any) -> None:
    expected = builders.done()
    session = Session.objects.only("agent").get()
    assert session.get_deferred_fields() >= {"title", "branch_id"}
    with django_assert_num_queries(3):
        assert session.title == expected.title
        assert session.branch == expected.branch
    session.title = "Another"
    session.save(update_fields=["title"])
    assert Session.objects.get().title == "Another"
    assert session._state.db == connection.alias
