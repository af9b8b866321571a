"""A text that its author wrapped is not wrapped a second time; where a line ends on purpose, it still does."""

import pytest

from sessions_app.wording import unwrapped

WIDE = "You work at the claims desk of a small insurance company. Look things up before you answer,"


@pytest.mark.parametrize(
    "text, shown",
    [
        (f"{WIDE}\nseveral at once.", f"{WIDE} several at once."),
        (f"{WIDE}\n\nBe brief.", f"{WIDE}\n\nBe brief."),
        (f"{WIDE}\n- first\n- second", f"{WIDE}\n- first\n- second"),
        (f"{WIDE}\n  indented", f"{WIDE}\n  indented"),
        (f"Rules:\n{WIDE}", f"Rules:\n{WIDE}"),
        (
            f"Call the customer by name.\nNever call twice.\n{WIDE}",
            f"Call the customer by name.\nNever call twice.\n{WIDE}",
        ),
        ("Roses are red\nViolets are blue", "Roses are red\nViolets are blue"),
        ("x" * 500 + "\ny", "x" * 500 + "\ny"),
        ("", ""),
    ],
)
def test_only_the_line_ends_of_wrapped_paragraphs_are_left_out(text: str, shown: str) -> None:
    assert unwrapped(text) == shown
