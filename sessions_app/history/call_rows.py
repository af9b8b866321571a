"""Tool calls without big results, so that reading a page of a history never depends on how much its tools returned."""

from django.db.models import Case, F, JSONField, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Length, Substr

from sessions_app.models import ToolCall

# Characters of the result as JSON text.
SMALL = 20_000
BEGINNING = 600


def without_big_results(calls: QuerySet[ToolCall]) -> QuerySet[ToolCall]:
    """The tool calls, with their approvals.

    Each is annotated with the ``size`` of its result, with the result itself as ``small`` if it has at most `SMALL`
    characters, and with its ``beginning`` if it has more. `sessions_app.access.masking` knows these annotations.
    """
    as_text = Cast("result", TextField())
    return (
        calls.select_related("approval")
        .defer("result", "state")
        .annotate(
            size=Length(as_text),
            small=Case(
                When(size__lte=SMALL, then=F("result")),
                default=Value(None, JSONField()),
                output_field=JSONField(),
            ),
            beginning=Case(
                When(size__gt=SMALL, then=Substr(as_text, 1, BEGINNING)),
                default=Value(""),
                output_field=TextField(),
            ),
        )
    )
