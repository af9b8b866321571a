"""Links: addresses with a query string, and the links that open a dialog.

Everything that comes out is escaped for HTML, and every parameter for a query string.
"""

from urllib.parse import quote, urlencode

from django import template
from django.forms.utils import flatatt
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from sessions_app.models import Session

register = template.Library()


@register.simple_tag
def url_query(view: str, *args: object, **parameters: str | int | None) -> str:
    """Like ``{% url %}``, but keyword arguments make the query string; those that are None or "" are left out.

    ``{% url_query 'session' session.pk at=40 queue=queue %}`` is ``/sessions/.../?at=40``, if there is no queue.
    For the address of the page itself with other parameters, use Django's ``{% querystring %}``.
    """
    address = reverse(view, args=args)
    present = {name: value for name, value in parameters.items() if value not in (None, "")}
    query = urlencode(present, safe="/", quote_via=quote)
    return f"{address}?{query}" if query else address


@register.simple_block_tag
def dialog_link(
    content: SafeString,
    session: Session,
    action: str,
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
    address = url_query("dialog", session.pk, action, **parameters)
    attributes = {"class": css or None, "role": role or None, "data-key": shortcut or None}
    return format_html(
        '<a{} href="{}" hx-get="{}" hx-target="#sheet-body">{}</a>',
        flatatt(attributes),
        address,
        address,
        content,
    )
