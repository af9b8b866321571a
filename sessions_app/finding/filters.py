"""The filters of the list of sessions, as a form on the query string: every list is a link that can be shared."""

import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.choices import CallableChoiceIterator

from sessions_app.finding import newest
from sessions_app.finding.counting import are_about, sessions_about
from sessions_app.finding.facets import Facets
from sessions_app.finding.hidden import contains, has_index, may_find_tag, may_know_hidden
from sessions_app.finding.keys import are
from sessions_app.finding.pairs import has_trigrams
from sessions_app.finding.parts import opaque
from sessions_app.finding.search_sessions import FirstSessions, Found, search
from sessions_app.models import BulkItem, Phase, RegisteredAgent, SessionTag, Status
from sessions_app.models.compiled import compiled
from sessions_app.models.tag import has_tag

# What stands for an assignee without being the name of an account.
NO_NAMES = ("me", "nobody")
# What says in a list's address which page of it is shown, and what was shown before: no part of the filter.
PAGING = ("after", "seen")


@dataclass(frozen=True, slots=True)
class _Age:
    """``is_long``: a large part of all sessions may have changed in that time."""

    length: timedelta
    label: str
    is_long: bool = False


AGES = {
    "1h": _Age(timedelta(hours=1), "in the last hour"),
    "1d": _Age(timedelta(days=1), "in the last day"),
    "7d": _Age(timedelta(days=7), "in the last week", is_long=True),
    "30d": _Age(timedelta(days=30), "in the last month", is_long=True),
}
# A page of the list has no more.
MOST_PICKED = 50
# So many people can be chosen; any other is found by their name in the address.
MOST_PEOPLE = 200
# So many sessions are listed of customers whose name has a character for which there is no index: the newest ones.
MOST_OF_CHARACTER = 1_000

# Of the list that a condition makes, and these facets that ask for the same, its `FirstSessions`.
FirstOfList = Callable[[Q, Facets | None], tuple[Sequence[tuple[uuid.UUID, int]], bool]]


class Picked(forms.Field):
    """The ids of sessions that a person has ticked."""

    def clean(self, value: Any) -> list[uuid.UUID]:
        values = [text for text in value or [] if text]
        if value and not values:
            raise forms.ValidationError("Select at least one session.")
        if len(values) > MOST_PICKED:
            raise forms.ValidationError(f"At most {MOST_PICKED} sessions can be selected.")
        try:
            return [uuid.UUID(text) for text in values]
        except ValueError:
            raise forms.ValidationError("These are not ids of sessions.") from None


class SessionFilter(forms.Form):
    """An invalid field shows its error and is left out; the others still filter."""

    q = forms.CharField(label="Search", required=False, max_length=200)
    agent = forms.CharField(required=False, widget=forms.Select)
    status = forms.ChoiceField(required=False, choices=[("", "any status"), *Status.choices])
    phase = forms.ChoiceField(required=False, choices=[("", "any phase"), *Phase.choices])
    assignee = forms.CharField(required=False, widget=forms.Select)
    tag = forms.CharField(required=False, max_length=50)
    customer = forms.CharField(required=False, max_length=200)
    failure = forms.UUIDField(required=False, widget=forms.HiddenInput)
    since = forms.ChoiceField(
        label="Changed",
        required=False,
        choices=[("", "at any time"), *((key, age.label) for key, age in AGES.items())],
    )
    bulk = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1, widget=forms.HiddenInput)
    pick = Picked(required=False, widget=forms.MultipleHiddenInput)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        # What the search of the last `where` found; nothing before, and without a search.
        self.found = Found(Q())
        # The last `where` as an index finds its sessions; None where it does not.
        self.facets: Facets | None = None
        # Since when the sessions of the last `where` have changed, if it asks for that.
        self.changed_since: datetime | None = None
        # Whether the condition on the customer names sessions by their keys.
        self._names_keys = False
        # Read once, when the form is drawn: to filter takes neither.
        self.fields["agent"].widget.choices = CallableChoiceIterator(cache(_agents))
        self.fields["assignee"].widget.choices = CallableChoiceIterator(cache(_assignees))

    def where(
        self, *, by_phase: bool = True, first: FirstOfList | None = None, enough: int | None = None
    ) -> Q:
        """The condition that the valid fields make. A person finds by what they may see, see `hidden`.

        At most five queries, a search seven more, and those of `first`.

        :param by_phase: Whether the phase is a part of the condition; of the facets it is.
        :param first: Of the list for which a search is asked, which looks through these sessions. See `found` for
            whether it looked at all that match.
        :param enough: That of a search.
        """
        self.is_valid()
        whole = may_know_hidden(self.user)
        values = {name: value for name, value in self.cleaned_data.items() if value}
        where = self._of_no_facet(values, whole)
        facets = Facets(rest=where)
        self.changed_since = None
        if "since" in values:
            age = AGES[values["since"]]
            self.changed_since = since = timezone.now() - age.length
            where &= Q(updated_at__gte=since)
            facets = replace(facets, since=since, are_many_since=age.is_long)
        for name in ("agent", "status"):
            if name in values:
                where &= Q(**{name: values[name]})
                facets = replace(facets, **{name: values[name]})
        if "phase" in values:
            facets = replace(facets, phase=values["phase"])
            if by_phase:
                where &= self._in_phase(values)
        if "assignee" in values:
            assignee = self._assignee(values["assignee"])
            where &= Q(assignee=assignee)
            facets = replace(facets, assignee="nobody" if assignee is None else str(assignee))
        tag = values.get("tag", "").lower()
        may_find = not tag or may_find_tag(tag, whole=whole)
        facets = replace(facets, tag=tag)
        if "q" in values:
            of_list = None
            if first:
                condition = where if by_phase or "phase" not in values else where & self._in_phase(values)
                # What is found does not depend on whether sessions have a tag that the person may not know.
                condition &= (has_tag(tag) if may_find else Q(pk__in=[])) if tag else Q()
                of_list = partial(first, condition, facets if may_find and _is_indexed(facets) else None)
            where &= self._found_by(values["q"], whole, of_list, enough)
            facets = replace(facets, rest=facets.rest & self.found.where)
        if not may_find:
            self.facets = None
            return Q(pk__in=[])
        if tag:
            # Of the few that a search has found each is asked for its tags: all that have the tag would be read.
            is_asked = self.found.few and connection.vendor == "postgresql"
            where &= Q(opaque(Facets(tag=tag).asked)) if is_asked else has_tag(tag)
        self.facets = facets if _is_indexed(facets) else None
        return where

    def _in_phase(self, values: dict[str, Any]) -> Q:
        return in_phase(values["phase"], values.get("status", ""))

    def _found_by(self, text: str, whole: bool, first: FirstSessions | None, enough: int | None) -> Q:
        """The condition of what a search finds; sets `found`."""
        found, of_others = search(text, whole=whole, first=first, enough=enough), self.found
        has_all = found.has_all_listed and not of_others.cut
        self.found = replace(found, cut=found.cut or of_others.cut, has_all_listed=has_all)
        return found.where

    def _assignee(self, name: str) -> int | None:
        """The key of the account; 0 if there is none of that name, None for nobody."""
        match name:
            case "me":
                return self.user.pk
            case "nobody":
                return None
            case _:
                return User.objects.filter(username=name).values_list("pk", flat=True).first() or 0

    def _of_no_facet(self, values: dict[str, Any], whole: bool) -> Q:
        """The condition of the fields that the index of facets does not have, the search aside; sets `found` to what is
        found of a customer.
        """
        where = Q()
        if "failure" in values:
            where &= Q(failure=values["failure"])
        self.found = Found(Q())
        self._names_keys = False
        if "customer" in values:
            where &= self._of_customer(values["customer"], whole)
        if "bulk" in values:
            # Those that the bulk action has changed, and none that it refused.
            done = BulkItem.objects.filter(bulk_action=values["bulk"], outcome=BulkItem.Outcome.DONE)
            where &= Q(pk__in=done.values("session"))
        if "pick" in values:
            where &= Q(pk__in=values["pick"])
        return where

    def _of_customer(self, name: str, whole: bool) -> Q:
        contained = contains([name], "customer", whole=whole)
        if has_index(name) or connection.vendor == "sqlite":
            return contained
        # All sessions would be read for a character that hardly any name contains.
        keys, are_all = newest.near_sessions(contained, MOST_OF_CHARACTER + 1)
        self.found = Found(Q(), cut=not are_all or len(keys) > MOST_OF_CHARACTER)
        self._names_keys = True
        return are(keys[:MOST_OF_CHARACTER])

    @property
    def is_list_of_keys(self) -> bool:
        """Whether the last `where` is nothing but a list of up to a thousand keys."""
        return self._names_keys and self.fields_on == 1

    @property
    def is_on(self) -> bool:
        """Whether the list is searched or filtered."""
        return self.narrows or bool(self.cleaned_data.get("q"))

    @property
    def is_of_agent_or_tag(self) -> bool:
        """Whether an index has the sessions that may match: then it takes little to see whether these are few."""
        self.is_valid()
        return any(self.cleaned_data.get(name) for name in ("agent", "tag"))

    @property
    def is_selective(self) -> bool:
        """Whether a small part of the sessions can be expected to match, so that it is best to begin with these."""
        self.is_valid()
        is_of_one = self.cleaned_data.get("assignee") not in ("", "nobody", None)
        return is_of_one or any(self.cleaned_data.get(name) for name in ("customer", "since"))

    @property
    def is_of_own(self) -> bool:
        """Whether all sessions that match are assigned to the person."""
        self.is_valid()
        return self.cleaned_data.get("assignee") == "me"

    @property
    def is_of_age_only(self) -> bool:
        """Whether sessions are filtered by nothing but when they changed: PostgreSQL knows well how many these are."""
        return self.names_on == ["since"]

    @property
    def finds_customers(self) -> bool:
        """Whether sessions are found by a part of a customer's name that an index of such parts finds."""
        self.is_valid()
        name = self.cleaned_data.get("customer") or ""
        return has_trigrams(name) and may_know_hidden(self.user)

    @property
    def only_status(self) -> str:
        """The status that all sessions which match have; "" if they may have any."""
        self.is_valid()
        return str(self.cleaned_data.get("status") or "")

    @property
    def only_phase(self) -> str:
        """The phase that all sessions which match are in; "" if they may be in any."""
        self.is_valid()
        return str(self.cleaned_data.get("phase") or "")

    def finds_about(self) -> int:
        """How many sessions match at most, as far as an index of agents or tags tells. At most two queries."""
        self.is_valid()
        agent, tag = (self.cleaned_data.get(name) for name in ("agent", "tag"))
        numbers = [sessions_about(Q(agent=agent))] if agent else []
        numbers += [are_about(SessionTag.objects.filter(name=tag.lower()))] if tag else []
        return min(numbers, default=sys.maxsize)

    @property
    def text(self) -> str:
        """What is searched for; "" if nothing is."""
        self.is_valid()
        return str(self.cleaned_data.get("q") or "")

    @property
    def names_on(self) -> list[str]:
        """The fields that filter or search."""
        self.is_valid()
        return [name for name, value in self.cleaned_data.items() if value]

    @property
    def fields_on(self) -> int:
        """How many fields filter or search."""
        return len(self.names_on)

    @property
    def narrowing(self) -> list[str]:
        """The fields that filter, without the search."""
        return [name for name in self.names_on if name != "q"]

    @property
    def narrows(self) -> bool:
        """Whether any field but the search filters."""
        return bool(self.narrowing)


# The fields for which the form above a list shows none.
HIDDEN_FILTERS = tuple(name for name, field in SessionFilter.base_fields.items() if field.widget.is_hidden)


def _is_indexed(facets: Facets) -> bool:
    """Whether an index of facets finds something of what is asked for."""
    return facets.is_any and connection.vendor == "postgresql"


def in_phase(phase: str, status: str) -> Q:
    """The condition that a session is in the phase, so that few that are, or none, are found by an index.

    :param status: Of all sessions that may match; "" for any.
    """
    where = Q(phase=phase)
    if status == Status.RUNNING or (status in ("", Status.IDLE) and phase in (Phase.DONE, Phase.ERROR)):
        return where
    if status:
        return where & Q(phase_at_rest=phase)
    return where & (Q(phase_at_rest=phase) | Q(status=Status.RUNNING))


def _agents() -> list[tuple[str, str]]:
    return [("", "any agent"), *_titles_of_agents()]


@compiled
def _titles_of_agents() -> QuerySet[RegisteredAgent, tuple[str, str]]:
    return RegisteredAgent.objects.values_list("key", "title")


def _assignees() -> list[tuple[str, str]]:
    return [
        ("", "anyone"),
        ("me", "me"),
        ("nobody", "nobody"),
        *((name, name) for name in _names_of_people()),
    ]


@compiled
def _names_of_people() -> QuerySet[User, str]:
    people = User.objects.filter(is_active=True).order_by("username")
    return people.values_list("username", flat=True)[:MOST_PEOPLE]
