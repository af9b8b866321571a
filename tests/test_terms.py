"""The words of the desk: docs/terms.md lists them, and no page, message or explanation uses a retired one."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TERMS = ROOT / "docs" / "terms.md"
# What people read on the desk: pages, and the sentences of the code behind them. Keys and class names have no spaces.
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
MODULES = [
    *(path for path in (ROOT / "sessions_app").rglob("*.py") if "migrations" not in path.parts),
    *(ROOT / "agentstate" / "demo").glob("*.py"),
    *(ROOT / "agentstate" / "durable").rglob("*.py"),
]
READ_ATTRIBUTES = {"title", "aria-label", "placeholder", "alt", "value", "data-label"}


@cache
def table(heading: str) -> dict[str, str]:
    """The rows of the table below a heading of docs/terms.md."""
    section = TERMS.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {name: meaning for name, meaning in rows if name not in ("term", "retired")}


class Words(HTMLParser):
    """Collects what a template shows or reads aloud."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if name in READ_ATTRIBUTES and value]


def words_of_template(text: str) -> str:
    text = re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}", " ", text, flags=re.DOTALL)
    parser = Words()
    parser.feed(text)
    return " ".join(" ".join(parser.texts).split())


def sentences_of_module(source: str) -> Iterator[str]:
    """Its string constants of more than one word, without docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(text, str) and " " in text.strip():
            yield text


def retired_in(text: str) -> list[str]:
    return [word for word in table("Retired words") if re.search(rf"(?i)\b{re.escape(word)}(?!\w)", text)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_uses_a_retired_word(path):
    assert retired_in(words_of_template(path.read_text())) == []


@pytest.mark.slow
def test_no_message_or_explanation_uses_a_retired_word():
    wrong = {
        f"{path.relative_to(ROOT)}: {sentence[:80]}": retired
        for path in MODULES
        for sentence in sentences_of_module(path.read_text())
        if (retired := retired_in(sentence))
    }
    assert wrong == {}


def test_a_retired_word_is_found_in_text_and_in_what_is_read_aloud_and_not_in_code():
    assert retired_in(words_of_template('<p title="Its tail">{% if tail %}x{% endif %}</p>')) == ["tail"]
    assert retired_in(words_of_template("<p>Nobody waits for you. {{ tail }} details</p>")) == [
        "Nobody waits"
    ]
    assert list(sentences_of_module('"""It has a tail."""\nKEY = "tail"\nTEXT = f"a tail of {KEY}"')) == [
        "a tail of "
    ]


def test_the_terms_are_listed_in_order_and_none_of_them_is_retired():
    terms = table("Terms")
    assert list(terms) == sorted(terms, key=str.lower)
    assert {"needs approval", "bulk action", "discarded branch", "in doubt", "End session"} <= set(terms)
    assert [term for term in terms if retired_in(term)] == []
