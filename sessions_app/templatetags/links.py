"""Links: addresses with a query string, and the links that open a dialog.

Everything that comes out is escaped for HTML, and every parameter for a query string.
"""

from django import template
from django.forms.utils import flatatt
from django.utils.html import format_html
from django.utils.safestring import SafeString

from sessions_app.action_list import ACTIONS, Action
from sessions_app.addresses import address
from sessions_app.models import Session

register = template.Library()


@register.simple_tag
def url_query(view: str, *args: object, **parameters: str | int | None) -> str:
    """Like ``{% url %}``, but keyword arguments make the query string; those that are None or "" are left out.

    ``{% url_query 'session' session.pk at=40 queue=queue %}`` is ``/sessions/.../?at=40``, if there is no queue.
    For the address of the page itself with other parameters, use Django's ``{% querystring %}``.
    """
    return address(view, *args, **parameters)


@register.simple_tag
def action(key: str) -> Action:
    """The declaration of an action: ``{% action "approve" as approve %}``, then ``{{ approve.button }}``."""
    return ACTIONS[key]


@register.simple_tag
def dialog_url(session: Session, action: Action | str, **parameters: str | int | None) -> str:
    """The address of an action's dialog. The action is a declaration or a key, the parameters are as in `url_query`."""
    declared = ACTIONS[action] if isinstance(action, str) else action
    return address("dialog", session.pk, declared.key, **parameters)


@register.simple_block_tag
def dialog_link(
    content: SafeString,
    session: Session,
    action: Action | str,
    *,
    css: str = "",
    role: str = "",
    shortcut: str = "",
    **parameters: str | int | None,
) -> SafeString:
    """A link to the page of an action on a session, which htmx opens as a dialog over the present page.

    ``css`` are its classes, ``role`` its ARIA role, ``shortcut`` the key that follows it. All other keyword arguments
    are parameters of the address, as in `url_query`::

        {% dialog_link session "rewind" checkpoint=checkpoint.pk css="link" %}rewind{% enddialog_link %}
    """
    link = dialog_url(session, action, **parameters)
    attributes = {"class": css or None, "role": role or None, "data-key": shortcut or None}
    return format_html(
        '<a{} href="{}" hx-get="{}" hx-target="#sheet-body">{}</a>',
        flatatt(attributes),
        link,
        link,
        content,
    )
