"""How hidden values are found: by names and patterns, in texts. `sessions_app.access.masking.Mask` is what others use.

- `names`: which names hide their values
- `patterns`: what matches a configured regular expression
- `values`: where a value ends that follows a name in a text
- `tables`, `records`: columns, elements of XML, and records such as ``{"name": "iban", "value": ...}`` in a text
- `documents`: texts that are JSON as a whole
- `text`: all of this for one text

The work grows linearly with the length of the text. In doubt more is hidden rather than less. docs/operations.md says
exactly what is caught.
"""

# Where a part of a text is hidden: its start and its end.
Span = tuple[int, int]


class Budget:
    """How much of one text may be read again, so that the work stays linear in its length.

    What is read for the first time costs nothing; each step and each character of what was read before do.
    """

    def __init__(self, text: str) -> None:
        self._units = 20_000 + 2 * len(text)
        self._reached = 0

    @property
    def is_spent(self) -> bool:
        """Whether all that follows has to be hidden without a look at it."""
        return self._units < 0

    def spend(self, start: int, end: int) -> None:
        """Say that the text was read in one step from ``start`` to ``end``."""
        if start < self._reached:
            self._units -= 10 + min(end, self._reached) - start
        if end > self._reached:
            self._reached = end
