"""Links: addresses with a query string, the links that open a dialog, and the buttons that reveal a hidden value.

Everything that comes out is escaped for HTML, and every parameter for a query string.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from django import template
from django.forms.utils import flatatt
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString

from sessions_app.access.action import Action
from sessions_app.access.masking import HIDDEN
from sessions_app.action_list import ACTIONS
from sessions_app.addresses import address
from sessions_app.models import Session

register = template.Library()


@register.simple_tag
def url_query(
    view: str,
    *args: object,
    more: Mapping[str, str | int | None] | None = None,
    **parameters: str | int | None,
) -> str:
    """Like ``{% url %}``, but keyword arguments, and ``more``, make the query string. What is None or "" is left out.

    ``{% url_query 'session' session.pk at=40 queue=queue %}`` is ``/sessions/.../?at=40``, if there is no queue.
    For the address of the page itself with other parameters, use Django's ``{% querystring %}``.
    """
    return address(view, *args, **(more or {}), **parameters)


@register.simple_tag
def action(key: str) -> Action:
    """The declaration of an action: ``{% action "approve" as approve %}``, then ``{{ approve.button }}``."""
    return ACTIONS[key]


@register.simple_tag
def dialog_url(session: Session | UUID, action: Action | str, **parameters: str | int | None) -> str:
    """The address of an action's dialog on a session, or on that with this key.

    The action is a declaration or a key, the parameters are as in `url_query`.
    """
    declared = ACTIONS[action] if isinstance(action, str) else action
    return address("dialog", session if isinstance(session, UUID) else session.pk, declared.key, **parameters)


@register.simple_block_tag
def dialog_link(
    content: SafeString,
    session: Session | UUID,
    action: Action | str,
    *,
    css: str = "",
    role: str = "",
    shortcut: str = "",
    more: Mapping[str, str] | None = None,
    **parameters: str | int | None,
) -> SafeString:
    """A link to the page of an action on a session, which htmx opens as a dialog over the present page.

    ``css`` are its classes, ``role`` its ARIA role, ``shortcut`` the key that follows it. ``more`` and all other
    keyword arguments are parameters of the address, as in `url_query`::

        {% dialog_link session "rewind" checkpoint=checkpoint.pk css="link" %}rewind{% enddialog_link %}
    """
    link = conditional_escape(dialog_url(session, action, **(more or {}), **parameters))
    return SafeString(
        f'<a{_attributes(css, role, shortcut)} href="{link}" hx-get="{link}" hx-target="#dialog-body"'
        f' hx-swap="innerHTML">{conditional_escape(content)}</a>'
    )


@lru_cache(maxsize=256)
def _attributes(css: str, role: str, shortcut: str) -> SafeString:
    """A page has a hundred links of a few kinds."""
    return flatatt({"class": css or None, "role": role or None, "data-key": shortcut or None})


@register.simple_block_tag
def off_button(
    content: SafeString,
    name: str,
    why_not: str,
    *,
    of: object = "",
    css: str = "button",
    shortcut: str = "",
) -> SafeString:
    """A button that does not work now. Pressed by pointer, finger or key, it says why; without JavaScript too.

    A button that is `disabled` would be skipped by Tab, and would show its title to a mouse only. ``name``, and ``of``
    where a page has several of one name, tell it from the others on the page. ``shortcut`` is the key that it has
    where it works: the key then leads to it, and shows why it does not::

        {% off_button "resume" why_not.resume %}Resume{% endoff_button %}
    """
    name = f"{name}-{of}" if of else name
    return format_html(
        '<button type="button" class="{css}" aria-disabled="true" title="{why_not}" aria-describedby="why-not-{name}"'
        ' popovertarget="why-not-{name}"{shortcut}>{content}</button>'
        '<span class="why-not" id="why-not-{name}" popover>{why_not}</span>',
        css=css,
        shortcut=flatatt({"data-key": shortcut or None}),
        name=name,
        why_not=why_not,
        content=content,
    )


@register.simple_tag(takes_context=True)
def reveal_button(context: template.Context, kind: str, key: object, shown: Any) -> SafeString | str:
    """A button that shows one value as it is stored, if a part of it is hidden and the person may see it.

    ``kind`` and ``key`` say which, see `sessions_app.desk.pages.session.revealed`. It belongs to the form `reveal` of
    the session's page, so it may stand in other forms.
    """
    why_not = context.get("why_not")
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, default=str)
    if HIDDEN not in text or key in (None, "") or why_not is None or why_not["reveal"]:
        return ""
    return format_html(
        '<button class="plain reveal" form="reveal" name="value" value="{}:{}">reveal</button>', kind, key
    )
