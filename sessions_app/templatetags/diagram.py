"""The nodes of a phase diagram and the numbers on its edges, as SVG.

In Python, since an open page is sent all of them with each step: as templates they took a tenth of such an answer.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString

from sessions_app.addresses import address

register = template.Library()


@register.simple_tag
def diagram_nodes(nodes: Iterable[Any], session: UUID | str, queue: str) -> SafeString:
    """``{% diagram_nodes picture.nodes session.pk queue %}``

    :param nodes: Of `desk.pages.session.diagram`.
    :param session: The key of the session whose steps they lead to; "" for none.
    :param queue: Of which the session's page was opened; "" for none.
    """
    return SafeString("".join([_node(node, session, queue) for node in nodes]))


@register.simple_tag
def diagram_badges(edges: Iterable[Any], session: UUID | str, queue: str) -> SafeString:
    """``{% diagram_badges picture.taken session.pk queue %}``, as `diagram_nodes`.

    :param edges: Of `desk.pages.session.diagram`: those that were taken.
    """
    return SafeString("".join([_badge(edge, session, queue) for edge in edges]))


def _node(node: Any, session: UUID | str, queue: str) -> str:
    middle, note = node.middle, escape(node.note)
    small = f'<text class="small" x="{middle}" y="{node.note_y}">{note}</text>' if note else ""
    shape = (
        f'<g class="node {node.state}">'
        f'<rect x="{node.x}" y="{node.y}" width="{node.width}" height="{node.height}" rx="8"/>'
        f'<text class="name" x="{middle}" y="{node.name_y}">{escape(node.phase)}</text>{small}</g>'
    )
    if not session or node.state == "never":
        return shape
    to = address("session", session, phase=node.phase, queue=queue)
    return _link(to, f"{node.phase}: {node.note or 'visited'}. Show its steps", shape)


def _badge(edge: Any, session: UUID | str, queue: str) -> str:
    shape = (
        '<g class="badge">'
        f'<rect x="{edge.badge_x:.1f}" y="{edge.badge_y}" width="{edge.badge_width}" height="16" rx="8"/>'
        f'<text x="{edge.badge[0]}" y="{edge.text_y}">{edge.count}</text></g>'
    )
    if not session:
        return shape
    to = address("session", session, edge=edge.name, queue=queue)
    return _link(to, f"{edge.description}. Show those steps", shape)


def _link(to: str, label: str, shape: str) -> str:
    return f'<a href="{escape(to)}#timeline" aria-label="{escape(label)}">{shape}</a>'
