"""What changes how a text reads and is not seen itself is shown by name, on every page; what is stored keeps it."""

import copy
import html
import json
import logging
import logging.config
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from sessions_app import invisible
from sessions_app.desk.visible import in_markup
from sessions_app.models import Approval, RegisteredAgent, Session, StateValue
from tests import builders, planting
from tests.corpora import secrets
from tests.test_markup import pages
from tests.test_secrets import ADMIN, PAGES

NUMBER = "12\u202e redro rof 00.5€ kcab yaP"
CUSTOMER = "Ann\u202enosliW"
TEXT = "Hello \u202eevil\u202c \u2066a\u2069 \u200f\u061c \ufeff\u00ad pay\u200bpal \x1b[31m \x9b \U000e0041 \u3164"
READ = ("title", "aria-label", "alt", "placeholder", "label", "data-label", "data-requested")


class Read(HTMLParser):
    """What a person reads of a page, or hears, but for what is in the fields of forms."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.parts += [value or "" for name, value in attrs if name in READ]

    def handle_data(self, data: str) -> None:
        if self.inside != "textarea":
            self.parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def read(page: str) -> str:
    parser = Read()
    parser.feed(page)
    parser.close()
    return "\n".join(parser.parts)


@pytest.mark.parametrize(
    "text, shown",
    [
        (NUMBER, "12⟨U+202E⟩ redro rof 00.5€ kcab yaP"),
        ("a\u2066b\u2069c\u200e\u200f\u061c", "a⟨U+2066⟩b⟨U+2069⟩c⟨U+200E⟩⟨U+200F⟩⟨U+061C⟩"),
        (
            "pay\u200bpal, pay\u200dpal, \ufeffso\u00adft",
            "pay⟨U+200B⟩pal, pay⟨U+200D⟩pal, ⟨U+FEFF⟩so⟨U+00AD⟩ft",
        ),
        ("\U000e0041\U000e007f", "⟨U+E0041⟩⟨U+E007F⟩"),
        ("\x00\x1b[2J\x7f\x9b", "⟨U+0000⟩⟨U+001B⟩[2J⟨U+007F⟩⟨U+009B⟩"),
        ("x\ufe0f \U0001f642\U000e0101\U000e0102", "x⟨U+FE0F⟩ \U0001f642⟨U+E0101⟩⟨U+E0102⟩"),
        (
            "\U0001f642\u200d \U0001f642\u200d\u200d\U0001f642",
            "\U0001f642⟨U+200D⟩ \U0001f642⟨U+200D⟩⟨U+200D⟩\U0001f642",
        ),
    ],
)
def test_an_invisible_character_is_shown_by_name(text: str, shown: str) -> None:
    assert invisible.may_be_in(text.encode())
    assert invisible.shown(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Line\r\n\tnext",
        "“Grüße” · 120,00\u00a0€ …",
        "\U0001f468\U0001f3fd\u200d\U0001f9b0 \U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525 1\ufe0f\u20e3",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\u05e9\u05dc\u05d5\u05dd 1042",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0d9a\u0dca\u200d\u0dc2 \u0e44\u0e17\u0e22\u200b\u0e44\u0e17\u0e22",
        "\u845b\U000e0100",
    ],
    ids=["lines", "German", "emoji", "a flag", "Hebrew", "Persian", "Sinhala and Thai", "a variant"],
)
def test_what_belongs_to_the_writing_stays_as_it_is(text: str) -> None:
    assert invisible.shown(text) == invisible.escaped_in_json(text) == text


def test_every_control_and_format_character_is_known_but_those_that_are_drawn() -> None:
    drawn = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
    for number in range(0x110000):
        char = chr(number)
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in "\t\n\r":
            is_hieroglyph = 0x13430 <= number <= 0x1343F
            assert is_hieroglyph or char in drawn or invisible.shown(f"a{char}b") != f"a{char}b", hex(number)


def test_a_page_without_one_is_left_alone() -> None:
    assert not invisible.may_be_in("<p>“Grüße” \U0001f642 120,00\u00a0€…</p>\r\n\t\u05e9".encode())


def test_only_what_is_read_is_changed_in_a_page() -> None:
    page = (
        "<!-- it's --><title>a\u202eb</title><meta content='{\"a\": 1}'>"
        '<a href="?q=\u202e" title="a\u202eb">a\u202eb</a>'
        '<input type="hidden" name="k\u202e" value="a\u202eb"><textarea name="t">\na\u202eb</textarea>'
        '<option value="a\u202eb">a\u202eb</option><b data-copy="a\u202eb" aria-label="a\u202eb">c</b>'
    )
    assert in_markup(page) == (
        '<!-- it\'s --><title>a⟨U+202E⟩b</title><meta content=\'{"a": 1}\'><a href="?q=\u202e" title="a⟨U+202E⟩b">'
        'a⟨U+202E⟩b</a><input type="hidden" name="k\u202e" value="a\u202eb"><textarea name="t">\na\u202eb</textarea>'
        '<small class="soft">Holds invisible characters: U+202E</small><option value="a\u202eb">a⟨U+202E⟩b</option>'
        '<b data-copy="a\u202eb" aria-label="a⟨U+202E⟩b">c</b>'
    )


@pytest.fixture
def waiting(db: None) -> Session:
    """A session that waits for the approval of a payment which reads as another one."""
    tool = builders.tool(
        "pay_back",
        properties={"number": {"type": "string"}, "amount": {"type": "number"}, "more": {}},
        approval=True,
        summary="Pay back {amount} for order {number}",
        formats={"amount": "money:EUR"},
    )
    builders.agent()
    RegisteredAgent.objects.update(tools=[tool])
    history = builders.asked(title=f"Order of {CUSTOMER}", customer=CUSTOMER)
    arguments = {"number": NUMBER, "amount": 9000, "more": {"a": NUMBER}}
    history.reply("", [("pay_back", arguments)])
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for="approval", why="pay_back needs approval.")


def fields_of(page: str, form: str) -> dict[str, str]:
    """What the form sends that holds this: the values of its fields, as a browser reads them."""
    [markup] = [found for found in re.findall(r"<form.*?</form>", page, re.DOTALL) if form in found]
    sent = re.findall(r'<input(?![^>]*checkbox)[^>]* name="([^"]+)"[^>]* value="([^"]*)"', markup)
    sent += re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n?([^<]*)</textarea>', markup)
    return {name: html.unescape(value) for name, value in sent}


def test_an_approval_reads_as_what_would_run(client: Client, waiting: Session) -> None:
    client.force_login(builders.user("operator"))
    answer = client.get("/inbox/?kind=approval")
    assert int(answer["Content-Length"]) == len(answer.content)
    page = read(answer.content.decode())
    assert "12⟨U+202E⟩ redro rof 00.5€ kcab yaP" in page
    assert "Ann⟨U+202E⟩nosliW" in page
    assert "\u202e" not in page


def test_a_form_that_is_sent_unchanged_changes_nothing(client: Client, waiting: Session) -> None:
    client.force_login(builders.user("operator"))
    page = client.get(f"/sessions/{waiting.pk}/").content.decode()
    approval = Approval.objects.get()
    sent = fields_of(page, f'id="approve-{approval.call_id}"')
    assert sent["arg-number"] == NUMBER
    assert sent["arg-more"] == json.dumps({"a": NUMBER}, ensure_ascii=False).replace("\u202e", "\\u202e")
    assert "Holds invisible characters: U+202E" in page
    answer = client.post(f"/sessions/{waiting.pk}/approve/", sent)
    assert answer.status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.edited) == ("approved", None)
    assert approval.call.ran_with == {"number": NUMBER, "amount": 9000, "more": {"a": NUMBER}}


@pytest.mark.django_db
@pytest.mark.parametrize("value", [NUMBER, {"a": [NUMBER, "\U000e0041"]}], ids=["text", "JSON"])
def test_an_edited_state_that_is_saved_unchanged_is_the_same(client: Client, value: Any) -> None:
    history = builders.looked_up()
    checkpoint = history.last_checkpoint
    StateValue.objects.create(branch=history.branch, key="wish", value=value, position=checkpoint.position)
    checkpoint.keys["wish"] = checkpoint.position
    checkpoint.save()
    session = history.rest("paused")
    client.force_login(builders.user("supervisor"))
    dialog = f"/sessions/{session.pk}/state-value/?key=wish"
    sent = fields_of(client.get(dialog).content.decode(), 'name="key"')
    answer = client.post(dialog, {**sent, "reason": "tried"})
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.content.decode()


def test_programs_get_the_exact_values(client: Client, waiting: Session) -> None:
    client.force_login(builders.user("operator"))
    call = Approval.objects.get().call
    answer = client.get(f"/sessions/{waiting.pk}/calls/{call.pk}/?raw")
    assert answer.json()["arguments"]["number"] == NUMBER
    found = client.get("/", {"q": CUSTOMER, "queue": "all"}).content.decode()
    assert f"Order of {CUSTOMER}".replace("\u202e", "⟨U+202E⟩") in found


def on_the_command_line(*arguments: object) -> str:
    out = StringIO()
    call_command("agent", *map(str, arguments), stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_no_terminal_is_sent_what_it_would_obey() -> None:
    history = builders.looked_up(title=f"A {TEXT}", customer=CUSTOMER)
    session = history.end(f"Over. \u3164\u034f\x1b\nerror: {TEXT}")
    told = on_the_command_line("show", session.pk)
    assert all(char.isprintable() or char == "\n" for char in told)
    assert "Over. ⟨U+3164⟩⟨U+034F⟩⟨U+001B⟩" in told
    assert invisible.shown(told) == told
    # What was said forges no line of its own.
    assert "\nerror:" not in told
    for verb in (["show"], ["tail", "--until-rest"]):
        told = on_the_command_line(verb[0], session.pk, "--json", *verb[1:])
        assert invisible.shown(told) == told
    assert json.loads(on_the_command_line("show", session.pk, "--json"))["title"] == f"A {TEXT}"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, db: None) -> dict[str, Session]:
    """A desk whose every field holds such characters."""
    for name, value in {"TEXT": TEXT, "SHORT": NUMBER, "OBJECT": {TEXT: TEXT, "list": [TEXT]}}.items():
        monkeypatch.setattr(secrets, name, value)
    monkeypatch.setattr(secrets, "BY_KEY", {"password": TEXT})
    return planting.desk(builders.user("operator", "olga"))


def texts(client: Client, routes: list[str], chosen: list[Session]) -> Iterator[tuple[str, str]]:
    for address, answer in pages(client, routes, chosen):
        yield address, read(answer.content.decode())


@pytest.mark.slow
def test_no_page_is_read_otherwise_than_it_is(client: Client, sessions: dict[str, Session]) -> None:
    client.force_login(builders.user("supervisor"))
    seen = 0
    for address, text in texts(client, [*PAGES, *ADMIN], [sessions["rich"]]):
        assert invisible.shown(text) == text, address
        seen += "⟨U+202E⟩" in text
    assert seen > 20


def test_what_is_logged_has_no_character_that_a_terminal_obeys_also_in_the_traceback(settings: Any) -> None:
    config = copy.deepcopy(settings.LOGGING["formatters"])
    formatter = logging.config.DictConfigurator({"version": 1}).configure_formatter(config["line"])
    try:
        raise ValueError(f"no tool {NUMBER}\x1b[31m\rhidden")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord(
        "haystack", logging.WARNING, "x.py", 1, "Tool %s", ("\x1b]0;title\x07\x9b",), info
    )
    line = formatter.format(record)
    assert "WARNING haystack: Tool ⟨U+001B⟩]0;title⟨U+0007⟩⟨U+009B⟩\nTraceback" in line
    assert "ValueError: no tool 12⟨U+202E⟩" in line
    assert "⟨U+001B⟩[31m⟨U+000D⟩hidden" in line
