"""How texts that are no field of a masked row are shown: tags, and the query strings of lists."""

from django.http import QueryDict

from sessions_app.access.masking import HIDDEN, Mask


def tag(mask: Mask, name: str) -> str:
    """A tag: hidden whole where a part is hidden. It is stored in lower case, whatever case a pattern is written in."""
    return HIDDEN if mask.hides(name) or mask.hides(name.upper()) else name


def hides_in_query(mask: Mask, query: str) -> bool:
    """Whether a filter in a list's query string names something that is hidden."""
    return any(
        tag(mask, str(value)) == HIDDEN or mask.hides({name: value})
        for name, value in QueryDict(query).items()
    )
