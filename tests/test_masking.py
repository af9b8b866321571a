"""Hidden values are hidden in whatever is shown, rows are never changed for it, and revealing is in the audit trail."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, NotFound
from sessions_app.access.masked_copy import MaskedCopyError
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.models import Approval, Event, Message, Session, StaffPermission, StateValue, ToolCall
from tests import builders

MASK = Mask.of(["iban", "Card-Number", "password"], [r"\b\d{4} \d{4} \d{4}\b", r"[\w.]+@[\w.]+\w"])


def test_a_hidden_key_hides_its_whole_value_however_deep():
    value = {
        "claim": "CLM-1042",
        "iban": "DE89",
        "payee": {"name": "Ada", "card_number": {"first": "4111", "rest": [1, 2]}},
        "tries": [{"IBAN": 17}, {"iban": None}, {"other": {"Password": ["a", "b"]}}],
    }
    assert MASK.json(value) == {
        "claim": "CLM-1042",
        "iban": HIDDEN,
        "payee": {"name": "Ada", "card_number": HIDDEN},
        "tries": [{"IBAN": HIDDEN}, {"iban": HIDDEN}, {"other": {"Password": HIDDEN}}],
    }
    assert value["iban"] == "DE89"


def test_a_pattern_hides_its_matches_in_every_text_also_in_names():
    value = ["to ada@example.org, card 4111 1111 1111", {"x": {"ada@example.org": "bob@example.org"}}]
    assert MASK.json(value) == [f"to {HIDDEN}, card {HIDDEN}", {"x": {HIDDEN: HIDDEN}}]


def test_a_number_that_matches_is_hidden_and_no_other_value_changes_its_type():
    mask = Mask.of([], [r"^\d{6}$"])
    assert mask.json([123456, 12, 1.5, True, None, "123456", []]) == [HIDDEN, 12, 1.5, True, None, HIDDEN, []]


def test_tagged_values_are_hidden_by_the_name_they_lie_under():
    value = {"iban": {"$type": "decimal", "value": "12"}, "limit": {"$type": "decimal", "value": "12"}}
    assert MASK.json(value) == {"iban": HIDDEN, "limit": value["limit"]}


def test_mappings_that_are_stored_in_another_form_are_hidden_too():
    ordered = {"$type": "ordered", "keys": ["iban", "a"], "value": {"a": 1, "iban": "DE89"}}
    pairs = {"$type": "dict", "value": [["iban", "DE89"], [1, {"iban": "DE89"}], ["a", "ada@example.org"]]}
    assert MASK.json(ordered)["value"] == {"a": 1, "iban": HIDDEN}
    assert MASK.json(pairs)["value"] == [["iban", HIDDEN], [1, {"iban": HIDDEN}], ["a", HIDDEN]]


@pytest.mark.parametrize(
    "text, shown",
    [
        ('{"iban": "DE89 3704", "a": 1}', '{"iban": "••••", "a": 1}'),
        ('{"iban":12,"a":1}', '{"iban":••••,"a":1}'),
        ('{"iban":null}', '{"iban":••••}'),
        (
            'Result: {"card_number": {"first": "41\\"11", "rest": [1]}, "a": 1}.',
            'Result: {"card_number": ••••, "a": 1}.',
        ),
        ('{"card number": {"first": "4111", "re', '{"card number": ••••'),
        ('{"iban": "DE89 37', '{"iban": "••••'),
        ("{'iban': 'DE\\'89', 'a': 1}", "{'iban': '••••', 'a': 1}"),
        (r'"{\"iban\": \"DE89\", \"a\": 1}"', r'"{\"iban\": ••••, \"a\": 1}"'),
        ("iban=DE89&a=1", "iban=••••&a=1"),
        ("IBAN: DE89 3704 0044\nName: Ada", "IBAN: ••••\nName: Ada"),
        ("The card number: 4111 1111, for Ada", "The card number: ••••, for Ada"),
        ("iban: 4111 1111", "iban: ••••"),
        ("password=a,b,c d", "password=••••"),
        ("cardnumber:", "cardnumber:"),
        ("my iban is secret", "my iban is secret"),
        ("xiban: 1, iban2: 2, x-iban: 3", "xiban: 1, iban2: ••••, x-iban: ••••"),
        ("", ""),
    ],
)
def test_what_follows_a_hidden_name_in_a_text_is_hidden(text, shown):
    assert MASK.text(text) == shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["iban", "a", "b c", "plain"]), inner),
    max_leaves=12,
)


@pytest.mark.slow
@example(["\x1f@00"], None, True)
@example({"iban": None, "a": "0\n0"}, None, True)
@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_no_shape_of_json_lets_a_hidden_value_through(value, indent, as_text):
    secret = {"outer": [{"iban": ["s3cret", value, "s3cret"]}, value], "after": "seen"}
    text = json.dumps(secret, indent=indent)
    shown = MASK.text(text) if as_text else json.dumps(MASK.json(secret))
    assert "s3cret" not in shown
    # Where strings have lines each counts as lines of a text, and below one that is only a hidden name all is hidden.
    assert "seen" in shown or (as_text and "\\n" in text)


@pytest.mark.slow
@given(JSON)
def test_without_anything_to_hide_everything_is_shown(value):
    assert Mask.none().json(value) is value
    assert not Mask.none().hides(value)


def test_it_says_whether_there_is_something_to_reveal():
    assert MASK.hides({"a": [{"iban": "x"}]})
    assert MASK.hides("iban: x")
    assert not MASK.hides({"a": ["b"]})


def test_values_left_hidden_in_a_form_are_unchanged():
    original = {"iban": "DE89", "amount": 12, "to": ["ada@example.org", "Ada"], "note": "x"}
    typed = {"iban": HIDDEN, "amount": 20, "to": [HIDDEN, "Bob"], "new": 1}
    assert MASK.restore(typed, original) == {
        "iban": "DE89",
        "amount": 20,
        "to": ["ada@example.org", "Bob"],
        "new": 1,
    }
    assert MASK.restore("DE12", original["iban"]) == "DE12"
    assert MASK.restore({"iban": "DE12"}, original) == {"iban": "DE12"}


def test_an_item_may_be_taken_from_a_list_with_hidden_ones():
    original = ["ada@example.org", "Ada", 0]
    assert MASK.restore([HIDDEN, 0], original) == ["ada@example.org", 0]
    assert MASK.restore(["new", *MASK.json(original)], original) == ["new", *original]


@pytest.mark.parametrize("second", ["ada@example.org", "bob@example.org"])
def test_whether_two_hidden_items_are_equal_cannot_be_found_out_by_changing_their_list(second):
    original = ["ada@example.org", {"iban": "DE89"}, second, "Ada"]
    assert MASK.restore([HIDDEN, {"iban": HIDDEN}, HIDDEN], original) == original[:3]
    assert MASK.restore(["new", HIDDEN, HIDDEN], [*original[:1], second]) == [
        "new",
        "ada@example.org",
        second,
    ]
    assert MASK.restore(["Ada", {"iban": HIDDEN}], original) == ["Ada", {"iban": "DE89"}]
    for typed in ([HIDDEN], [HIDDEN, "Ada"], [HIDDEN] * 3, [*MASK.json(original), HIDDEN]):
        with pytest.raises(Invalid, match="cannot be changed in part"):
            MASK.restore(typed, original)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["a@b.org", "c@d.org"]), max_size=4),
    st.lists(st.sampled_from([HIDDEN, "x", "y"])),
)
def test_whether_an_edited_list_is_accepted_depends_on_nothing_hidden(hidden, typed):
    originals = [[*hidden, "x"], [*(["a@b.org"] * len(hidden)), "x"]]
    accepted = []
    for original in originals:
        try:
            accepted.append(MASK.json(MASK.restore(typed, original)))
        except Invalid as error:
            accepted.append(str(error))
    assert accepted[0] == accepted[1]


@pytest.mark.parametrize(
    "typed, original",
    [
        (f"to {HIDDEN} and Bob", "to ada@example.org"),
        ({"iban": f"{HIDDEN}1"}, {"iban": "DE89"}),
        ({"b": HIDDEN}, {"iban": "DE89"}),
        ({HIDDEN: 2}, {"ada@example.org": 1}),
        ([HIDDEN], ["ada@example.org", "bob@example.org"]),
        ({"a": {"deep": [HIDDEN]}}, {"a": 1}),
    ],
)
def test_a_hidden_value_is_never_stored_as_its_mask(typed, original):
    with pytest.raises(Invalid, match="cannot be changed in part"):
        MASK.restore(typed, original)


@pytest.mark.parametrize(
    "typed, original",
    [
        ({"name": "note", "value": HIDDEN}, {"name": "iban", "value": "DE89"}),
        ([{"name": "note", "value": [HIDDEN]}], [{"name": "iban", "value": ["DE89"]}]),
        ([{"title": "iban", "value": HIDDEN}], [{"name": "iban", "value": "DE89"}]),
        ([["note", HIDDEN]], [["iban", "DE89"]]),
        ([["iban", HIDDEN, 1]], [["iban", "DE89"]]),
        ([["note", "x"], [HIDDEN, "y"]], [["iban", "x"], ["DE89", "y"]]),
        ([["a", "b", "c"], ["x", HIDDEN, "z"]], [["a", "iban", "c"], ["x", "DE89", "z"]]),
        ([[HIDDEN, "y"]], [["iban", "x"], ["DE89", "y"]]),
        ({"$type": "dict", "value": [["note", HIDDEN]]}, {"$type": "dict", "value": [["iban", "DE89"]]}),
        ({"x": [["note", HIDDEN]], "ada@example.org": 1}, {"x": [["iban", {"a": 1}]], "ada@example.org": 1}),
    ],
)
def test_no_change_beside_a_hidden_value_makes_it_visible(typed, original):
    shown = MASK.json(original)
    with pytest.raises(Invalid, match="hidden"):
        MASK.restore(typed, original)
    assert MASK.restore(shown, original) == original


@pytest.mark.slow
@given(JSON, st.sampled_from(["iban", "note"]))
def test_an_edit_shows_nothing_that_was_hidden(value, name):
    original = {
        "x": [{"name": "iban", "value": "S3CRET"}, ["iban", value]],
        "y": [["iban", "S3CRET"], ["a", "b"]],
    }
    typed = json.loads(json.dumps(MASK.json(original)).replace('"iban"', f'"{name}"'))
    try:
        restored = MASK.restore(typed, original)
    except Invalid:
        return
    assert "S3CRET" not in json.dumps(MASK.json(restored))


@pytest.mark.slow
@given(JSON)
def test_an_untouched_form_changes_nothing(value):
    secret = {"iban": value, "list": [value, {"iban": value}], "to": "ada@example.org"}
    assert MASK.restore(MASK.json(secret), secret) == secret


@pytest.mark.django_db
def test_rows_are_hidden_in_memory_only_and_without_a_query(django_assert_num_queries):
    call = builders.History()
    call.checkpoint("start")
    call.reply("Mail ada@example.org", [("pay", {"iban": "DE89", "amount": 1})])
    call.finish(call.calls[0], {"iban": "DE89"}, error="iban: DE89")
    StateValue.objects.create(branch=call.branch, position=99, key="Password", value={"a": 1})
    (tool,), (value,) = ToolCall.objects.defer("state"), StateValue.objects.all()
    message = Message.objects.get(role="assistant")
    with django_assert_num_queries(0):
        shown, shown_value, shown_message = MASK.row(tool), MASK.row(value), MASK.row(message)
        assert MASK.rows(MASK.rows([tool])) == [shown]
    assert (shown.arguments, shown.result, shown.error) == (
        {"iban": HIDDEN, "amount": 1},
        {"iban": HIDDEN},
        f"iban: {HIDDEN}",
    )
    assert shown_value.value == HIDDEN
    assert shown_message.text == f"Mail {HIDDEN}"
    # The rows that were read are as they were.
    assert (tool.arguments["iban"], value.value) == ("DE89", {"a": 1})
    assert message.text == "Mail ada@example.org"
    assert tool.get_deferred_fields() == {"state"}
    assert Mask.none().row(tool) is tool


@pytest.mark.django_db
def test_a_list_masks_nothing_that_it_does_not_show(client, settings, monkeypatch):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    session = builders.done(title="Shown iban: DE89", customer="Ada")
    Session.objects.update(final_answer="iban: " * 20_000, inputs={"state": {"a": "iban: " * 20_000}})
    masked: list[object] = []

    def record(mask: Mask, value: object) -> str:
        masked.append(value)
        return "masked"

    monkeypatch.setattr(Mask, "json", record)
    row = Mask.configured().row(Session.objects.get(pk=session.pk))
    assert masked == []
    assert (row.title, row.title) == ("masked", "masked")
    assert masked == ["Shown iban: DE89"]
    client.force_login(builders.user("viewer"))
    assert client.get("/inbox/").status_code == 200
    assert not any("iban: iban: " in str(value) for value in masked)


@pytest.mark.django_db
def test_loaded_related_rows_are_hidden_too_and_still_refer_to_each_other(django_assert_num_queries):
    session = builders.waiting_for_approval(title="Of ada@example.org")
    Approval.objects.update(message="Ask ada@example.org", repeats=ToolCall.objects.get(tool="lookup_policy"))
    ToolCall.objects.filter(tool="lookup_policy").update(error="No ada@example.org")
    call = ToolCall.objects.select_related("approval__repeats", "branch__session").get(
        approval__session=session
    )
    with django_assert_num_queries(0):
        shown = MASK.row(call)
        approval = shown.approval
        assert approval.call is shown
        assert approval.repeats is not None
        assert (approval.message, approval.repeats.error) == (f"Ask {HIDDEN}", f"No {HIDDEN}")
        assert shown.branch.session.title == f"Of {HIDDEN}"
        assert shown.branch.parent is None
    assert call.approval.message == "Ask ada@example.org"
    assert call.branch.session.title == "Of ada@example.org"


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["save", "delete", "save_base", "refresh_from_db", "asave", "adelete"])
def test_a_masked_copy_refuses_to_be_written_or_read_again(method):
    session = builders.done(customer="ada@example.org")
    shown = MASK.row(session)
    with pytest.raises(MaskedCopyError, match=f"{method}.. of a masked copy of Session {session.pk}"):
        getattr(shown, method)()
    assert Session.objects.get().customer == "ada@example.org"
    session.save()


@pytest.mark.django_db
def test_a_masked_copy_loads_nothing_that_would_have_to_be_hidden(django_assert_num_queries):
    builders.waiting_for_approval()
    call = ToolCall.objects.filter(approval__isnull=False).defer("arguments").get()
    shown = MASK.row(call)
    with django_assert_num_queries(0):
        with pytest.raises(MaskedCopyError, match="select the field in the query"):
            _ = shown.arguments
        with pytest.raises(MaskedCopyError, match="approval of this masked ToolCall was not loaded before"):
            _ = shown.approval
        with pytest.raises(MaskedCopyError, match="branch of this masked ToolCall"):
            _ = shown.branch
    # A user is never masked, and an empty relation needs no query.
    session = MASK.row(Session.objects.get())
    assert (session.assignee, session.forked_from) == (None, None)
    assert call.approval.call == call
    assert call.arguments


@pytest.mark.django_db
def test_a_session_is_hidden_by_the_names_of_its_fields_too():
    session = builders.done(customer="Ada", title="From ada@example.org")
    shown = Mask.of(["customer"], [r"\S+@\S+"]).row(session)
    assert (shown.customer, shown.title) == (HIDDEN, f"From {HIDDEN}")
    assert shown.why == ""
    assert (session.customer, session.title) == ("Ada", "From ada@example.org")


@pytest.mark.django_db
def test_values_are_hidden_from_every_role_and_only_supervisors_may_reveal_them(settings):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    settings.AGENTSTATE_MASK_PATTERNS = ["s3cr[e3]t"]
    assert Mask.configured().json({"iban": 1, "b": "s3cret"}) == {"iban": HIDDEN, "b": HIDDEN}
    for role, may_reveal in (("viewer", False), ("operator", False), ("supervisor", True)):
        assert builders.actor(role).may(StaffPermission.REVEAL) is may_reveal


@pytest.mark.django_db
def test_revealing_is_in_the_audit_trail_and_makes_no_page_out_of_date():
    actor = builders.actor("supervisor")
    before = builders.running()
    actions.reveal(actor=actor, session_id=before.pk, what="call 17")
    after = Session.objects.get(pk=before.pk)
    event = Event.objects.get(kind="revealed")
    assert (event.actor, event.actor_name) == (actor.user, actor.name)
    assert event.data == {"what": "call 17"}
    assert event.position == after.position == before.position + 1
    assert (after.version, after.updated_at) == (before.version, before.updated_at)
    assert after.change == before.change + 1


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_those_who_may_can_reveal(role):
    session = builders.done()
    with pytest.raises(Forbidden):
        actions.reveal(actor=builders.actor(role), session_id=session.pk, what="call 17")
    assert not Event.objects.filter(kind="revealed").exists()


@pytest.mark.django_db
def test_a_reveal_says_what():
    session = builders.done()
    with pytest.raises(Invalid, match="What to reveal is missing"):
        actions.reveal(actor=builders.SYSTEM, session_id=session.pk, what=" ")
    with pytest.raises(NotFound):
        actions.reveal(actor=builders.SYSTEM, session_id="nowhere", what="call 17")
