"""The session list's filters, as a form on the query string: every list is a link that can be shared."""

import uuid
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from sessions_app.finding.search import said
from sessions_app.models import Phase, RegisteredAgent, Status

AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


class SessionFilter(forms.Form):
    """What is wrong in a filter is said on the page, and the rest of the filter still holds."""

    q = forms.CharField(label="Search", required=False, max_length=200)
    agent = forms.CharField(required=False, widget=forms.Select)
    status = forms.ChoiceField(required=False, choices=[("", "any status"), *Status.choices])
    phase = forms.ChoiceField(required=False, choices=[("", "any phase"), *Phase.choices])
    assignee = forms.CharField(required=False, widget=forms.Select)
    tag = forms.CharField(required=False, max_length=50)
    customer = forms.CharField(required=False, max_length=200)
    since = forms.ChoiceField(
        label="Changed",
        required=False,
        choices=[
            ("", "at any time"),
            ("1h", "in the last hour"),
            ("1d", "in the last day"),
            ("7d", "in the last week"),
            ("30d", "in the last month"),
        ],
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        agents = RegisteredAgent.objects.values_list("key", "title")
        self.fields["agent"].widget.choices = [("", "any agent"), *agents]
        people = User.objects.filter(is_active=True).order_by("username").values_list("username", "username")
        self.fields["assignee"].widget.choices = [
            ("", "anybody"),
            ("me", "me"),
            ("nobody", "nobody"),
            *people[:200],
        ]

    def where(self) -> Q:
        """The condition that the filter's valid parts make."""
        self.is_valid()
        given = {name: value for name, value in self.cleaned_data.items() if value}
        where = Q()
        for name in ("agent", "status", "phase"):
            if name in given:
                where &= Q(**{name: given[name]})
        if "tag" in given:
            where &= Q(tags__name=given["tag"].lower())
        if "customer" in given:
            where &= Q(customer__icontains=given["customer"])
        if "since" in given:
            where &= Q(updated_at__gte=timezone.now() - AGES[given["since"]])
        match given.get("assignee"):
            case None:
                pass
            case "me":
                where &= Q(assignee=self.user)
            case "nobody":
                where &= Q(assignee=None)
            case name:
                where &= Q(assignee__username=name)
        if "q" in given:
            where &= _search(given["q"])
        return where

    @property
    def narrows(self) -> bool:
        """Whether anything but the search is filtered."""
        self.is_valid()
        return any(value for name, value in self.cleaned_data.items() if name != "q")


def _search(text: str) -> Q:
    """Sessions in which the text was said, whose title or customer holds it, or whose id begins with it."""
    found = said(text) | Q(title__icontains=text) | Q(customer__icontains=text) | Q(agent=text)
    hexes = text.replace("-", "").lower()
    if hexes and len(hexes) <= 32 and all(c in "0123456789abcdef" for c in hexes):
        found |= Q(pk__gte=uuid.UUID(hexes.ljust(32, "0")), pk__lte=uuid.UUID(hexes.ljust(32, "f")))
    return found
