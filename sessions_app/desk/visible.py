"""Makes invisible characters visible on every page: in one place for all pages, so that none is forgotten.

In the text of the page and in what is read aloud or shown beside the pointer they stand by name, ``⟨U+202E⟩``. What
forms send back, addresses, and what is copied stay as they are: a form that is saved unchanged changes nothing. Below
a field whose text holds some, a line names them.
"""

import re

from django.http import HttpRequest, HttpResponse

from sessions_app import invisible
from sessions_app.desk.middleware import Handler

# Values are escaped, so they hold no angle bracket and no quotation mark that would end an attribute.
_TOKEN = re.compile(
    r"""<!--.*?-->|(?P<area><textarea\b[^<>]*>)(?P<typed>[^<]*)</textarea>"""
    r"""|(?P<tag><(?:[^"'<>]++|"[^"<]*+"|'[^'<]*+')*+>)|(?P<text>[^<]+)""",
    re.DOTALL,
)
_READ = re.compile(
    r'(?<=\s)((?:title|aria-label|alt|placeholder|label|data-label|data-requested)=")([^"]*)(?=")'
)
_VALUE = re.compile(r'\svalue="([^"]*)"')
_NOT_READ = re.compile(r'\stype="(?:hidden|radio|checkbox|submit|password)"')


def show_invisible_characters(get_response: Handler) -> Handler:
    """The middleware. It comes behind the one that tells the length of the answer."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        is_page = not response.streaming and response.get("Content-Type", "").startswith("text/html")
        if is_page and invisible.may_be_in(response.content):
            response.content = in_markup(response.content.decode())
        return response

    return middleware


def in_markup(page: str) -> str:
    """The page with each invisible character that a person would read by its name."""
    return _TOKEN.sub(_shown, page)


def _shown(token: re.Match[str]) -> str:
    if not invisible.may_be_within(token[0]):
        return token[0]
    if token["text"]:
        return invisible.shown(token["text"])
    if token["tag"]:
        tag = _READ.sub(lambda read: read[1] + invisible.shown(read[2]), token["tag"])
        value = _VALUE.search(tag) if tag.startswith("<input") and not _NOT_READ.search(tag) else None
        return tag + _note(value[1]) if value else tag
    if token["area"]:
        area = _READ.sub(lambda read: read[1] + invisible.shown(read[2]), token["area"])
        return f"{area}{token['typed']}</textarea>{_note(token['typed'])}"
    return token[0]


def _note(value: str) -> str:
    names = invisible.names_in(value)
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f'<small class="soft">Holds invisible characters: {", ".join(names[:5])}{more}</small>'
