"""No page, part, file or page of the admin shows a value that is hidden, whoever looks, until it is revealed.

The addresses are those of the URL table and the fields those of the models, so that a new page and a new field are
tried by themselves; see `tests.planting`. Which parameters a page reads is observed while it answers, and each is given
the values of `parameters`; a parameter that is not known there fails the test.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape, unescape
from itertools import islice, product
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.test import Client

from sessions_app import actions
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.action_list import ACTIONS
from sessions_app.finding import search_index
from sessions_app.finding.inbox_rows import KINDS
from sessions_app.history.export import session_json
from sessions_app.models import BulkAction, MemoryEntry, Message, ModelCall, SavedView, Session, ToolCall
from tests import builders, planting
from tests.corpora import malformed, secrets
from tests.pages import text_at, without_tokens
from tests.test_malformed_requests import DIALOG, PARAMETER, ROUTES, recorded, send

pytestmark = pytest.mark.django_db

PAGES = [route for route in ROUTES if not route.startswith("admin/")]
OF_SESSIONS = [route for route in PAGES if "session_id" in route]
OF_ALL = [route for route in PAGES if "session_id" not in route]
ADMIN = [route for route in ROUTES if route.startswith("admin/")]
FEW = ("rich", "in_doubt")


@pytest.fixture
def olga() -> User:
    return builders.user("operator", "olga")


@pytest.fixture
def sessions(settings, olga) -> dict[str, Session]:
    settings.AGENTSTATE_MASK_KEYS = secrets.KEYS
    settings.AGENTSTATE_MASK_PATTERNS = secrets.PATTERNS
    return planting.desk(olga)


def staff_viewer() -> User:
    """A viewer who may enter the admin, and look at every table of it."""
    user = builders.user("viewer", "stan")
    user.is_staff = True
    user.save()
    user.user_permissions.add(*Permission.objects.filter(codename__startswith="view_"))
    return User.objects.get(pk=user.pk)


def shown(response: Any) -> str:
    """The whole answer, in each way in which its reader may take it."""
    body = b"".join(response) if response.streaming else response.content
    text = f"{response.headers}\n{body.decode()}"
    plain = text.encode().decode("unicode_escape", "replace") if "\\u" in text else ""
    return "\n".join([text, unescape(text), unquote_plus(text), plain])


def check(response: Any, where: Any, secret: Sequence[str] = secrets.VALUES) -> bool:
    """That the answer shows none of the secrets. Returns whether it shows that something is hidden."""
    text = shown(response)
    for value in secret:
        place = text.find(value)
        assert place < 0, f"{where}: {text[max(0, place - 300) : place + 60]}"
    return HIDDEN in text


def values_of(session: Session) -> dict[str, list[Any]]:
    """What the parameters of a session's addresses may be."""
    return {
        "session_id": [session.pk],
        "call_id": list(ToolCall.objects.filter(branch__session=session).values_list("pk", flat=True)) or [1],
        "model_call_id": list(ModelCall.objects.filter(branch__session=session).values_list("pk", flat=True))
        or [1],
        "branch_number": list(session.branches.values_list("number", flat=True)),
    }


def addresses(route: str, chosen: list[Session]) -> Iterator[str]:
    """The addresses of a route, with the keys of rows that exist."""
    others: dict[str, list[Any]] = {
        "key": ["claims", "broken"],
        "view_id": list(SavedView.objects.values_list("pk", flat=True)),
        "bulk_id": list(BulkAction.objects.values_list("pk", flat=True)),
    }
    if match := re.match(r"admin/(\w+)/(\w+)/<", route):
        rows = apps.get_model(match[1], match[2])._default_manager.order_by("pk")
        keys = list(rows.values_list("pk", flat=True))
        others["object_id"] = others["id"] = list(dict.fromkeys([*keys[:2], *keys[-2:]]))
    names = [parameter[1] for parameter in PARAMETER.finditer(route)]
    for session in chosen if "session_id" in names else [None]:
        values = others | (values_of(session) if session is not None else {})
        for each in product(*(values.get(name, [1]) for name in names)):
            path = route
            for key in each:
                path = PARAMETER.sub(str(key), path, count=1)
            yield f"/{path}"


def parameters(session: Session) -> dict[str, list[Any]]:
    """The values that are tried for each parameter of a query string."""
    calls = values_of(session)["call_id"]
    checkpoints = planting.checkpoints_of(session)
    messages = Message.objects.filter(branch__session=session).exclude(role="system")
    positions = list(messages.values_list("position", flat=True))
    return {
        "call": calls,
        "checkpoint": [*checkpoints[:1], *checkpoints[-2:]],
        "position": positions,
        "replace": positions,
        "before": [session.position, 4],
        "at": [session.position, 4],
        **{name: ["0"] for name in ("after", "from", "shown", "seen", "branch", "drawn", "until")},
        "reply": ["1.2.1"],
        "lost": ["1"],
        "key": ["password", "note", "account DE89370400440532013000", "nothing"],
        "raw": ["1"],
        "gaps": ["hide"],
        "show": ["errors", "tools", "people"],
        "tool": ["issue_refund"],
        "number": [1],
        "choose": ["1"],
        "reword": ["last"],
        "entry": [*MemoryEntry.objects.values_list("pk", flat=True)[:2]],
        "bulk": [*BulkAction.objects.values_list("pk", flat=True)[:2]],
        "phase": ["executing"],
        "edge": ["planning-executing"],
        "kind": [*(action.key for action in ACTIONS.values() if action.bulk), *KINDS],
        "failure": [str(session.failure)],
        "queue": ["all", "attention"],
        "q": ["windscreen", "planted", "account"],
        "agent": ["claims"],
        "message": ["Hello"],
        "order": ["oldest", "newest"],
        "pick": ["", session.pk],
        "status": ["waiting"],
        "assignee": ["nobody"],
        "tag": ["glass"],
        "customer": ["Ada"],
        "since": ["30d"],
        "next": ["/"],
        "back": ["inbox"],
        "decision": ["again"],
    }


def queries(address: str, names: Iterable[str], session: Session, most: int) -> Iterator[dict[str, Any]]:
    """Query strings for an address: ``most`` values for each parameter that its view reads."""
    known = parameters(session)
    if address == "/compare/":
        ends = known["checkpoint"][:most]
        yield from ({"a": a, "b": b} for a in ends for b in known["checkpoint"])
        return
    for name in names:
        assert name in known, f"{address} reads {name}: say in `parameters` what it may be."
    if most == 1 and DIALOG.search(address):
        # A dialog takes what it needs.
        yield {name: known[name][-1] for name in names if known[name]}
    else:
        yield from ({name: value} for name in names for value in known[name][-most:])


def admin_queries(route: str) -> Iterator[dict[str, Any]]:
    """The query strings for an address of Django's admin: those without which it shows nothing, or something else."""
    if route == "admin/autocomplete/":
        for model in apps.get_app_config("sessions_app").get_models():
            for field in model._meta.get_fields():
                if field.many_to_one and field.concrete:
                    names = {"model_name": model._meta.model_name, "field_name": field.name}
                    yield {"app_label": "sessions_app", **names, "term": ""}
    elif route.count("/") == 3:
        yield {"_popup": "1"}


def named_in(address: str, chosen: list[Session]) -> list[Session]:
    """The session that the address names; all of them where it names none, since a parameter may name any."""
    return [session for session in chosen if str(session.pk) in address] or chosen


def look_at_all(
    client: Client,
    routes: list[str],
    chosen: list[Session],
    *,
    most: int = 1,
    parts: bool = False,
    secret: Sequence[str] = secrets.VALUES,
) -> int:
    """Fetch each address with each query. Returns how many answers show that something is hidden."""
    hidden = 0
    for route in routes:
        for address in addresses(route, chosen):
            with recorded() as names:
                hidden += check(send(client, "GET", address), address, secret)
            asked: list[dict[str, Any]] = []
            if route.startswith("admin/"):
                asked += admin_queries(route)
            else:
                for session in named_in(address, chosen):
                    asked += [each for each in queries(address, names, session, most) if each not in asked]
            requests: list[tuple[dict[str, Any], dict[str, str]]] = [(query, {}) for query in asked]
            if parts:
                requests += [(query, {"HX-Request": "true"}) for query in ({}, *asked)]
            for query, headers in requests:
                answer = send(client, "GET", address, data=query, headers=headers)
                # What was typed into the address is in the answer.
                if "DE89" not in str(query):
                    hidden += check(answer, (address, query, headers), secret)
    return hidden


def send_all(
    client: Client, routes: list[str], chosen: list[Session], secret: Sequence[str] = secrets.VALUES
) -> int:
    """Send each form empty, and with no more than a reason: what is refused is shown again.

    Returns how many of those show that something is hidden.
    """
    again = 0
    for route in routes:
        for address in addresses(route, chosen):
            versions = sorted({session.version for session in named_in(address, chosen)})
            for fields in ({}, *({"reason": "Rain", "version": version} for version in versions)):
                answer = send(client, "POST", address, data=fields, follow=True)
                again += check(answer, (address, fields), secret) and answer.status_code == 400
    return again


def same(client: Client, address: str, name: str, guesses: tuple[str, str], session: Session) -> None:
    """That the answers to a right and a wrong guess differ in nothing but what was typed."""
    texts = []
    for guess in guesses:
        answer = send(client, "GET", address, data={name: guess}, follow=True)
        text = without_tokens(f"{answer.status_code}{answer.content.decode()}")
        quoted = {quote(guess), quote_plus(guess)}
        # An address that is a parameter of another is quoted twice.
        forms = {guess, escape(guess), *quoted, *map(quote, quoted)}
        echoes = sorted(forms, key=len, reverse=True)
        texts.append(re.sub("|".join(map(re.escape, echoes)), "GUESS", text, flags=re.IGNORECASE))
    assert texts[0] == texts[1], (address, name, guesses)


def guess(client: Client, chosen: list[Session], guesses: list[tuple[str, str]], routes: list[str]) -> int:
    """Try the guesses in each parameter that takes a text. Returns how many parameters were tried."""
    tried = 0
    numbers = {
        "call",
        "checkpoint",
        "position",
        "replace",
        "before",
        "at",
        "after",
        "from",
        "shown",
        "a",
        "b",
    }
    for route in routes:
        for address in islice(addresses(route, chosen), 1):
            with recorded() as names:
                send(client, "GET", address)
            for name in names.keys() - numbers:
                for pair in guesses:
                    same(client, address, name, pair, chosen[0])
                tried += 1
    return tried


@pytest.mark.slow
def test_the_secrets_are_there_to_be_found_where_nothing_is_masked(client, sessions, olga, settings):
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    client.force_login(olga)
    here = f"/sessions/{sessions['rich'].pk}/"
    everything = "".join(
        shown(client.get(address))
        for address in (
            "/?queue=all",
            here,
            *(f"{here}{tab}/" for tab in ("conversation", "state", "json", "audit")),
        )
    )
    assert [value for value in secrets.VALUES if value not in everything] == []


@pytest.mark.slow
def test_every_field_that_may_hold_a_text_is_planted(sessions):
    for model, field in planting.fields():
        rows = model._default_manager.values_list(field.name, flat=True)
        assert any(secrets.SHORT.split()[1] in str(value) for value in rows), (model, field.name)


def test_the_list_of_fields_without_texts_names_only_fields_that_exist():
    for name in planting.UNPLANTED:
        model, _, field = name.partition(".")
        assert apps.get_model("sessions_app", model)._meta.get_field(field), name


@pytest.mark.slow
def test_no_page_shows_a_secret(client, sessions):
    client.force_login(builders.user("supervisor"))
    assert look_at_all(client, PAGES, [sessions["rich"]]) > 100


@pytest.mark.slow
def test_no_page_of_the_admin_shows_a_secret(client, sessions):
    client.force_login(staff_viewer())
    look_at_all(client, ADMIN, [sessions["rich"]])
    page = client.get("/admin/sessions_app/session/", {"q": str(sessions["rich"].pk)[:8]})
    assert check(page, "the search of the admin")


@pytest.mark.slow
def test_no_refused_form_shows_a_secret(client, sessions):
    client.force_login(builders.user("operator"))
    assert send_all(client, PAGES, [sessions["rich"]]) > 30


@pytest.mark.slow
def test_a_right_guess_is_answered_like_a_wrong_one(client, sessions, stopped_clock):
    client.force_login(builders.user("viewer"))
    routes = [
        "",
        *(f"sessions/<uuid:session_id>/{name}/" for name in ("find", "state-value")),
        "bulk/",
        "views/",
    ]
    assert guess(client, [sessions["rich"]], [("DE8937", "DE8938")], routes) > 20


@pytest.mark.slow
def test_a_right_guess_tells_nothing_in_the_admin(client, sessions, stopped_clock):
    client.force_login(staff_viewer())
    for table in ("session", "toolcall", "message", "event"):
        address = f"/admin/sessions_app/{table}/"
        assert re.search(rf'href="{address}[\w-]+/change/', client.get(address).content.decode())
        for name in ("title__startswith", "customer__contains", "text", "reason", "q", "o"):
            same(client, address, name, ("DE8937", "DE8938"), sessions["rich"])


@pytest.mark.slow
@pytest.mark.parametrize("key", ["password", "note", "working_memory"])
def test_whatever_is_typed_into_the_repair_of_a_hidden_value_it_is_not_shown(client, sessions, key):
    client.force_login(builders.user("supervisor"))
    session = sessions["rich"]
    address = f"/sessions/{session.pk}/state-value/"
    check(client.get(address, {"key": key}), key)
    beside = [
        HIDDEN,
        f'"{HIDDEN}"',
        f"{HIDDEN} and more",
        f'{{"goal": "{HIDDEN}"}}',
        f'["{HIDDEN}"]',
        "null",
        "{}",
    ]
    for typed in [*beside, *malformed.TEXTS.values()]:
        fields = {"version": session.version, "reason": "It was wrong", "key": key, "value": typed}
        answer = send(client, "POST", address, data=fields)
        assert answer.status_code in (302, 400), typed[:80]
        check(answer, (key, typed[:80]))


@pytest.mark.slow
def test_a_state_key_with_a_hidden_name_is_changed_by_nobody_who_guesses_it(client, sessions):
    client.force_login(builders.user("supervisor"))
    session = sessions["rich"]
    for key in ("account DE89370400440532013000", "account DE89370400440532013001"):
        fields = {"version": session.version, "reason": "It was wrong", "key": key, "value": '"y"'}
        answer = send(client, "POST", f"/sessions/{session.pk}/state-value/", data=fields)
        assert answer.status_code == 400
        assert "Part of the name of this key is hidden" in answer.content.decode()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
def test_no_page_shows_a_secret_whatever_it_is_asked_for(client, sessions):
    client.force_login(builders.user("supervisor"))
    assert look_at_all(client, PAGES, [sessions["rich"]], most=10) > 500


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
@pytest.mark.parametrize("role", ["viewer", "operator", "supervisor"])
@pytest.mark.parametrize("state", FEW)
def test_no_page_of_a_session_and_no_part_of_one_shows_a_secret_to_any_role(client, sessions, role, state):
    client.force_login(builders.user(role))
    assert look_at_all(client, OF_SESSIONS, [sessions[state]], parts=True) > 200
    assert send_all(client, OF_SESSIONS, [sessions[state]]) > (0 if role == "viewer" else 30)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
@pytest.mark.parametrize("role", ["viewer", "operator", "supervisor"])
def test_no_other_page_and_no_part_of_one_shows_a_secret_to_any_role(client, sessions, role):
    client.force_login(builders.user(role))
    few = [sessions[state] for state in FEW]
    assert look_at_all(client, OF_ALL, few, parts=True) > 80
    assert send_all(client, OF_ALL, few) >= (0 if role == "viewer" else 9)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
@pytest.mark.parametrize("state", [state for state in (*builders.STATES, "broken") if state not in FEW])
def test_no_page_of_any_other_state_shows_a_secret(client, sessions, state):
    client.force_login(builders.user("supervisor"))
    assert look_at_all(client, OF_SESSIONS, [sessions[state]]) > 50


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
def test_no_right_guess_tells_on_any_page(client, sessions, stopped_clock):
    client.force_login(builders.user("viewer"))
    assert (
        guess(
            client, [sessions["rich"]], [("DE8937", "DE8938"), (secrets.SHORT, wrong(secrets.SHORT))], PAGES
        )
        > 50
    )


@pytest.mark.slow
@pytest.mark.long
def test_no_right_guess_of_any_secret_tells(client, sessions, stopped_clock):
    client.force_login(builders.user("viewer"))
    guesses = [
        (value[:length], wrong(value[:length])) for value in secrets.VALUES for length in (6, len(value))
    ]
    assert guess(client, [sessions["rich"]], guesses, ["", "sessions/<uuid:session_id>/find/"]) >= 2


# A tool's message holds a result or an error, so each of these is tried by itself. The body of a message repeats what a
# call holds, under the names of the call's columns.
ALONE = ("text", "result", "error", "arguments")
TOGETHER = tuple({name for _, name in planting.columns()}.difference(ALONE, ("breakpoints", "body")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_a_column_whose_name_is_a_hidden_key_is_hidden_where_the_message_of_its_call_is_shown(
    client, settings, name
):
    session = planting.rich()
    planting.mark_columns([name])
    client.force_login(builders.user("supervisor"))
    here, known = f"/sessions/{session.pk}/", parameters(session)
    checkpoints, places = known["checkpoint"], known["position"]
    asked = [
        f"{here}json/?raw",
        f"/compare/?a={checkpoints[0]}&b={checkpoints[-1]}",
        f"{here}find/?q={planting.MARK}",
        *(f"{here}model-calls/{key}/" for key in values_of(session)["model_call_id"][-2:]),
        *(f"{here}message-text/?position={place}" for place in places),
        f"{here}fork/?checkpoint={checkpoints[0]}&replace={places[0]}",
    ]
    shown_before = [planting.MARK in shown(client.get(address)) for address in asked[:2]]
    assert any(shown_before)
    settings.AGENTSTATE_MASK_KEYS = [name]
    for address in asked:
        text = (
            shown(client.get(address))
            .replace(f"q={planting.MARK}", "")
            .replace(f'value="{planting.MARK}"', "")
        )
        assert planting.MARK not in text, address


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
@pytest.mark.parametrize("names", [*((name,) for name in ALONE), TOGETHER], ids=[*ALONE, "others"])
def test_no_page_shows_a_column_whose_name_is_a_hidden_key(client, settings, names):
    session, doubt = planting.rich(), builders.in_doubt()
    planting.mark_columns(names)
    while search_index.update():
        pass
    client.force_login(builders.user("supervisor"))
    there = [f"/sessions/{session.pk}/{tab}" for tab in ("", "json/?raw", "audit/", "state/")]
    assert any(planting.MARK in shown(client.get(address)) for address in ["/", *there])
    settings.AGENTSTATE_MASK_KEYS = names
    search_index.update()
    assert look_at_all(client, PAGES, [session], secret=[planting.MARK]) > 20
    look_at_all(client, OF_SESSIONS, [doubt], secret=[planting.MARK])
    send_all(client, PAGES, [session], secret=[planting.MARK])


@pytest.mark.parametrize("pattern", [r"Kunde-\d+", r"(KD|Kunde)-[0-9]{4}", r"\bKUNDE.4711"])
def test_a_tag_is_hidden_by_a_pattern_in_any_case(client, settings, pattern):
    settings.AGENTSTATE_MASK_PATTERNS = [pattern]
    builders.agent()
    actions.start(actor=builders.SYSTEM, agent="claims", message="x", tags=["Kunde-4711", "glass"])
    client.force_login(builders.user("viewer"))
    text = client.get("/?queue=all").content.decode()
    assert "kunde-4711" not in text.lower()
    assert "glass" in text


def test_the_order_of_tags_does_not_show_where_a_hidden_one_stands_in_the_alphabet(client, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"kd\d+"]
    session = builders.done(tags=["kd4711", "wind", "glass"])
    client.force_login(builders.user("viewer"))
    shown = ["glass", "wind", HIDDEN]
    assert (
        re.findall(r'class="tag" href="[^"]*">([^<]*)<', client.get("/?queue=all").content.decode()) == shown
    )
    assert session_json(session, mask=Mask.configured(), keys=["tags"])["tags"] == shown


def wrong(right: str) -> str:
    """Another value of the same form."""
    return right[:-1] + ("7" if right[-1] != "7" else "3")


def test_a_title_that_is_cut_off_within_a_hidden_value_shows_no_part_of_it(settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"\b\d{16}\b"]
    builders.agent()
    message = "x" * 68 + " 4242424242424242 is my card."
    session = actions.start(actor=builders.SYSTEM, agent="claims", message=message)
    assert session.title == "x" * 68 + " ••••" + " is my"
    assert actions.start(actor=builders.SYSTEM, agent="claims", message="My card").title == "My card"


@pytest.mark.slow
@pytest.mark.parametrize("length", [700, 30_000])
@pytest.mark.parametrize("kind", ["record", "pairs", "table", "text"])
def test_a_long_result_shows_nothing_whose_name_stands_far_from_it(client, settings, kind, length):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    pad = "z" * length
    result = {
        "record": [{"value": "S3CRET", "pad": pad, "name": "iban"}],
        "pairs": [["iban", "S3CRET"], ["pad", pad]],
        "table": [["name", "iban"], ["Ada", "S3CRET"], ["pad", pad]],
        "text": f"- value: S3CRET\n  pad: {pad}\n  name: iban\n",
    }[kind]
    history = builders.refunding()
    before = history.finish(history.calls[-1], result)
    history.checkpoint("step")
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 80})])
    history.ask(history.calls[-1], earlier=[before.pk])
    session = history.rest("waiting", waiting_for="approval")
    client.force_login(builders.user("viewer"))
    for address in ("/inbox/", f"/sessions/{session.pk}/", f"/sessions/{session.pk}/json/?raw"):
        assert "S3CRET" not in text_at(client, address), address


@pytest.mark.parametrize(
    "message",
    [
        "Hello\nname;iban\nAnna;XY1234\n",
        "a | iban\n--|--\nx | XY1234",
        "- name: iban\n  value: XY1234\n",
        "name;iban\nAnna;XY1234\n" + "x" * 100,
    ],
)
def test_a_title_shows_nothing_that_the_lines_of_its_message_hide(settings, message):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    builders.agent()
    session = actions.start(actor=builders.SYSTEM, agent="claims", message=message)
    assert HIDDEN in Mask.configured().text(session.title)
    assert "XY1234" not in Mask.configured().text(session.title)


@pytest.mark.slow
def test_the_beginning_of_a_long_result_shows_no_part_of_a_hidden_value(client, settings):
    """The desk reads the first 600 characters of it, and ends within a value there."""
    settings.AGENTSTATE_MASK_PATTERNS = [r"\b[pq]{32}\b"]
    result = f"{'p' * 32} " * 18 + f"{'q' * 32} {'z' * 30_000}"
    history = builders.refunding()
    before = history.finish(history.calls[-1], result)
    history.checkpoint("step")
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 80})])
    history.ask(history.calls[-1], earlier=[before.pk])
    session = history.rest("waiting", waiting_for="approval")
    client.force_login(builders.user("viewer"))
    for address in ("/inbox/", f"/sessions/{session.pk}/"):
        text = client.get(address).content.decode()
        assert HIDDEN in text, address
        assert "qqqqq" not in text, address  # no part of an identifier, as digits may be
