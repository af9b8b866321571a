"""What tests take from the text of a page."""

import re

from django.test import Client

_TOKENS = re.compile(r'((?:csrfmiddlewaretoken|form_id)" value="|[?&;]key=)[^"&]*')
_RANDOM = re.compile(
    r"[0-9a-f-]{36,}"  # UUIDs and fingerprints
    r"|\d{4}-\d\d-\d\dT[0-9:.]+"  # moments
)


def text_at(client: Client, address: str) -> str:
    """The page at the address, which must be there: what is absent from a page that is not proves nothing."""
    answer = client.get(address)
    assert answer.status_code == 200, address
    return answer.content.decode()


def poll_of(page: str) -> str:
    """The address by which an open list or inbox asks for news."""
    poll = re.search(r'hx-get="([^"]+seen=[^"]+)"', page)
    assert poll is not None
    return poll[1].replace("&amp;", "&")


def without_tokens(page: str) -> str:
    """The page without what differs between two answers to one request: form tokens and ids, and keys of polls."""
    return _TOKENS.sub("", page)


def without_random(page: str) -> str:
    """The page without its ids, fingerprints, moments and form tokens, any of which may hold a short number."""
    return _RANDOM.sub("", without_tokens(page))
