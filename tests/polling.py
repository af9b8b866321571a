"""What an open page asks for."""

import re


def poll_of(page: str) -> str:
    """The address by which an open list or inbox asks for news."""
    poll = re.search(r'hx-get="([^"]+seen=[^"]+)"', page)
    assert poll is not None
    return poll[1].replace("&amp;", "&")
