"""What a web process does before its first request.

It imports the views, which the first request would wait for otherwise, and leaves all that was imported out of garbage
collections: it lasts as long as the process. Otherwise some hundred requests bring about a collection that looks
through all of it, a tenth of a second in which no request is answered.
"""

import gc

from django.urls import get_resolver


def preload() -> None:
    """Once in a process, after Django has been set up. A server that forks does it before."""
    _ = get_resolver().url_patterns
    gc.freeze()
