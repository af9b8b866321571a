"""What a key name and a pattern hide, and what they do not: each statement of docs/operations.md as a case."""

import json
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_app.access.errors import Invalid
from sessions_app.access.masking import HIDDEN, Mask

MASK = Mask.of(["iban", "Card-Number", "password"], [r"\b\d{4} \d{4} \d{4}\b"])


@pytest.mark.parametrize(
    "name",
    [
        *("iban", "IBAN", "Iban", "I-Ban", "i_ban", "ibans", "IBANs", "iban2", "2iban"),
        *("customer_iban", "customerIban", "customerIBAN", "CustomerIban", "iban-number", "IBANNumber"),
        *("iban.value", "payee.iban", "payee/iban", "iban[0]", "X-Iban", "$iban", "the iban used"),
        *("cardNumber", "card_number", "CARD NUMBER", "cardnumber", "card-numbers", "old_card_number_2"),
    ],
)
def test_a_key_hides_each_name_of_which_it_is_a_word(name):
    assert MASK.hides_key(name)
    assert MASK.json({name: "s3cret"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["ibanez", "cuiban", "customeriban", "ibanized", "card", "number", "cardinal number", "miniban", ""],
)
def test_a_key_hides_no_name_that_only_contains_its_letters(name):
    assert not MASK.hides_key(name)
    assert MASK.json({name: "seen"}) == {name: "seen"}


def test_letters_with_accents_and_scripts_without_capitals_are_names_too():
    mask = Mask.of(["Prénom", "密码", "straße"], [])
    for name in ("prénom", "PRE\u0301NOM", "client_prénom", "密码", "用户密码", "Straße"):
        assert mask.hides_key(name), name
    assert mask.text("Le prénom: Ada") == f"Le prénom: {HIDDEN}"
    assert mask.text("密码\uff1as3cret") == f"密码\uff1a{HIDDEN}"


@pytest.mark.parametrize(
    "value, shown",
    [
        ([{"name": "iban", "value": "DE"}], [{"name": "iban", "value": HIDDEN}]),
        (
            {"key": "customerIban", "old": 1, "new": [2]},
            {"key": "customerIban", "old": HIDDEN, "new": HIDDEN},
        ),
        ({"field": "IBAN", "data": {"a": "DE"}}, {"field": "IBAN", "data": HIDDEN}),
        ({"label": "Your IBAN", "answer": "DE"}, {"label": "Your IBAN", "answer": HIDDEN}),
        ({"field_name": "iban", "value": "DE"}, {"field_name": "iban", "value": HIDDEN}),
        ({"fieldName": "iban", "value": "DE"}, {"fieldName": "iban", "value": HIDDEN}),
        ({"name": "Ada", "value": "seen"}, {"name": "Ada", "value": "seen"}),
        ({"surname": "iban", "value": "seen"}, {"surname": "iban", "value": "seen"}),
        ({"name": "iban " * 20, "value": "seen"}, {"name": "iban " * 20, "value": "seen"}),
        ([["iban", "DE"], ["a", "b"]], [["iban", HIDDEN], [HIDDEN, "b"]]),
        ([["a", "b"], ["iban", "DE"]], [["a", "b"], ["iban", HIDDEN]]),
        ([["name", "iban"], ["Ada", "DE"], ["Bob"]], [["name", "iban"], ["Ada", HIDDEN], ["Bob"]]),
        ({"columns": ["iban"], "rows": [["seen"]]}, {"columns": ["iban"], "rows": [["seen"]]}),
        (["iban", "seen"], ["iban", "seen"]),
        ([["iban", "DE"], ["a", "b", "c"], 5], [["iban", HIDDEN], [HIDDEN, "b", "c"], 5]),
        ([5, ["iban", "DE"], "x"], [5, ["iban", HIDDEN], "x"]),
    ],
)
def test_records_pairs_and_tables_in_json(value, shown):
    assert MASK.json(value) == shown


@pytest.mark.parametrize(
    "text, shown",
    [
        # JSON and representations of Python
        ('{"customer_iban": "DE89"}', '{"customer_iban": "••••"}'),
        ("{'customerIban': 'DE89', 'a': 1}", "{'customerIban': '••••', 'a': 1}"),
        ("{'iban': Decimal('12'), 'a': 1}", "{'iban': ••••, 'a': 1}"),
        ("{'iban': b'DE89', 'a': 1}", "{'iban': ••••, 'a': 1}"),
        ("Account(iban='DE89', owner='Ada')", "Account(iban='••••', owner='Ada')"),
        ("iban=Account('x', number='DE89')", "iban=••••"),
        (
            "Failed to invoke Tool `pay` with parameters {'iban': 'DE89', 'amount': 5}. Error: too late",
            "Failed to invoke Tool `pay` with parameters {'iban': '••••', 'amount': 5}. Error: too late",
        ),
        ('{"text": "Hello\\nIban: DE89"}', '{"text": "Hello\\nIban: ••••"}'),
        ('"my iban: DE89", "a": 1', '"my iban: ••••", "a": 1'),
        ('"{\\"a\\": {\\"iban\\": [1, 2]}}"', '"{\\"a\\": {\\"iban\\": ••••}}"'),
        # records
        ('{"name": "iban", "value": "DE89"}', '{"name": "iban"••••}'),
        ('{"value": "DE89", "name": "iban"}', '{•••• "name": "iban"}'),
        ('{"value": "a{b", "key": "iban"} seen', '{•••• "key": "iban"} seen'),
        (
            "[{'label': 'IBAN', 'v': 'DE'}, {'label': 'a', 'v': 'b'}]",
            "[{'label': 'IBAN'••••}, {'label': 'a', 'v': 'b'}]",
        ),
        ("- name: iban\n  value: DE89\n- name: a\n  value: b", "- name: iban\n  ••••\n- name: a\n  value: b"),
        ("field=iban value=DE89\nseen", "field=iban ••••\nseen"),
        # YAML
        ("iban:\n  country: DE\n  number: 89\nname: x", "iban:\n  ••••\nname: x"),
        ("iban: |\n  DE\n\n  89\nname: x", "iban: ••••\nname: x"),
        ("a:\n  iban: >-\n    DE89\n  b: x", "a:\n  iban: ••••\n  b: x"),
        ("iban:\n- DE89\n- DE88\nname: x", "iban:\n••••\nname: x"),
        ("- iban: DE89\n  bank: x\n- iban: DE88", "- iban: ••••\n  bank: x\n- iban: ••••"),
        ("'iban': {a: DE89,\n  b: 88}\nc: x", "'iban': ••••\nc: x"),
        # XML and HTML
        ("<a><iban>DE<b/>89</iban><c>5</c></a>", "<a><iban>••••</iban><c>5</c></a>"),
        (
            "<p:customerIban x='1'>DE\n89</p:customerIban> seen",
            "<p:customerIban x='1'>••••</p:customerIban> seen",
        ),
        ("<iban><iban>DE</iban>89</iban><c>5</c>", "<iban>••••</iban><c>5</c>"),
        ('<customer iban="DE89" x="1">y</customer>', '<customer iban="••••" x="1">y</customer>'),
        ('<field name="iban" value="DE">DE</field> z', '<field name="iban" ••••>••••</field> z'),
        ("<key>iban</key><string>DE89</string><a>b</a>", "<key>iban</key><string>••••</string><a>b</a>"),
        ("{'x': '<iban', 'iban': 'D>E'}", "{'x': '<iban', 'iban': '••••"),
        ("<dt>IBAN</dt>\n<dd>DE89</dd> seen", "<dt>IBAN</dt>\n<dd>••••</dd> seen"),
        # tables
        ('name,iban\nAda,DE89\n"B, C","D, E"\n\nend', 'name,iban\nAda,••••\n"B, C","••••"\n\nend'),
        ("name;IBAN;city\nAda;DE89;Ulm\nBob;DE;8;Ulm", "name;IBAN;city\nAda;••••;Ulm\nBob;••••;••••;••••"),
        ("name\tcustomer_iban\nAda\tDE89", "name\tcustomer_iban\nAda\t••••"),
        (
            "| name | iban |\n|---|---|\n| Ada | DE89 |\nseen",
            "| name | iban |\n|---|---|\n| Ada | •••• |\nseen",
        ),
        ("| field | value |\n|---|---|\n| IBAN | DE |", "| field | value |\n|---|---|\n| IBAN | •••• |"),
        ("The full IBAN of customer,Name\nDE89,Ada", "The full IBAN of customer,Name\n••••,Ada"),
        (
            '{"csv": "name,iban\\nAda,\\"DE, 89\\"\\nBob,DE88"}',
            '{"csv": "name,iban\\nAda,\\"••••"\\nBob,••••"}',
        ),
        (
            "{'csv': 'id,name,iban\\n1,\"O,Brien\",DE89', 'a': 1}",
            "{'csv': 'id,name,iban\\n1,\"O,Brien\",••••', 'a': 1}",
        ),
        ("iban,iban\na,b,iban\nc,d", "iban,••••\n••••,••••,••••\n••••,••••"),
        ("iban,DE89", "iban,••••"),
        ("payee.iban\n  Input should be text [input_value='DE89']\n\nseen", "payee.iban\n  ••••\n\nseen"),
        ("<tr><th>IBAN</th><td>DE89</td></tr>", "<tr><th>IBAN</th><td>••••</td></tr>"),
        ("<b>IBAN:</b> <i>DE89</i> seen", "<b>IBAN:</b> <i>••••</i> seen"),
        ("IBAN\nDE89\nDE88\n\nseen", "IBAN\n••••\n\nseen"),
        # lines, addresses and commands
        ("IBAN of the customer (new): DE89", "IBAN of the customer (new): ••••"),
        ("**IBAN**: DE89 3704\nseen", "**IBAN**: ••••\nseen"),
        ("holder password: O'Brien 12", "holder password: ••••"),
        ("password: Main St 1, 12345 Ulm", "password: ••••"),
        ("iban=1 customerIban=2 x=3", "iban=•••• customerIban=•••• x=3"),
        ("?iban=DE89&a=1", "?iban=••••&a=1"),
        ("--iban DE89 --x", "--iban •••• --x"),
        ("%7B%22iban%22%3A%22DE89%22%7D", "%7B%22iban%22%3A••••"),
        ("&quot;iban&quot;: &quot;DE89&quot;", "&quot;iban&quot;: ••••"),
        ("IBAN:\nDE89\nseen", "IBAN:\n••••\nseen"),
        ("iban -> DE89", "iban -> ••••"),
        ("IBAN\u00a0: DE89", "IBAN\u00a0: ••••"),
        ("IBAN\u202f: DE89", "IBAN\u202f: ••••"),
        ("IBAN-Nr.: DE89", "IBAN-Nr.: ••••"),
        ("IBAN no.: DE89", "IBAN no.: ••••"),
        ("IBAN/BIC: DE89", "IBAN/BIC: ••••"),
        ("IBAN#: DE89", "IBAN#: ••••"),
    ],
)
def test_a_name_in_a_text_hides_the_value_that_belongs_to_it(text, shown):
    assert MASK.text(text) == shown


@pytest.mark.parametrize(
    "text, shown",
    [
        ('[["a","b"],["iban","S3CRET"]]', '[["a","b"],["iban","••••"]]'),
        ('[["iban","S3CRET"],["pad","y"]]', '[["iban","••••"],["••••","y"]]'),
        ('[["name", "iban"], ["Ada", "S3CRET"], ["Bob"]]', '[["name", "iban"], ["Ada", "••••"], ["Bob"]]'),
        (' {"ib\\u0061n": "S3CRET", "a":1.50}\n', ' {"ib\\u0061n": "••••", "a":1.50}\n'),
        ('{"a": "[[\\"iban\\", \\"S3CRET\\"]]", "b": "x"}', '{"a": "[[\\"iban\\", \\"••••\\"]]", "b": "x"}'),
        ('"[[\\"iban\\", \\"S3CRET\\"]]"', '"[[\\"iban\\", \\"••••\\"]]"'),
        ('{"x": [["iban", "S3CRET"]], "x": [["iban", 5]]}', '{"x": [["iban", "••••"]], "x": [["iban", ••••]]}'),
        ('[{"v": {"a": [1]}, "n\\u0061me": "iban"}, {}, []]', '[{"v": "••••", "n\\u0061me": "iban"}, {}, []]'),
        ('[["pin", 1], true, null, -1e5]', '[["pin", 1], true, null, -1e5]'),
    ],
)  # fmt: skip
def test_a_text_that_is_json_as_a_whole_is_read_as_json_and_keeps_its_form(text, shown):
    assert MASK.text(text) == shown


@pytest.mark.parametrize("keys", [[], ["iban"]])
def test_a_pattern_finds_what_json_writes_with_escapes(keys):
    mask = Mask.of(keys, [r"DE\d\d"])
    written = '{"note": "\\u0044E89", "other": ["\\u0044\\u0045\\u00389"]}'
    assert json.loads(written) == {"note": "DE89", "other": ["DE89"]}
    assert mask.text(written) == f'{{"note": "{HIDDEN}", "other": ["{HIDDEN}"]}}'


def test_a_text_of_json_that_is_nested_too_deeply_is_hidden_whole():
    assert MASK.text("[" * 100_000 + '"S3CRET"' + "]" * 100_000) == HIDDEN
    shown = MASK.text("[" * 101 + '"S3CRET"' + "]" * 101)
    assert "S3CRET" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "the iban is missing",
        "My iban is DE89 3704",
        "Send us your iban, please. We call back at 12:30.",
        "Please send your iban, name and address.\nThanks, Ada",
        "Ask for the iban at 12:30",
        "An ibanez: 12",
        "iban:",
        "customeriban: 12",
        "\uff29\uff22\uff21\uff2e: DE89",
        '[{"ib\\u0061n": "DE89"}] and more',
        "Ask for the iban. Then: call",
        "<table><tr><th>Name</th><th>IBAN</th></tr><tr><td>Ada</td><td>DE89</td></tr></table>",
        "aWJhbjogREU4OQ==",
        "IBAN - DE89",
        "name   iban\nAda    DE89",
    ],
)
def test_prose_and_what_only_looks_like_a_name_stay_readable(text):
    assert MASK.text(text) == text


@pytest.mark.parametrize(
    "pattern, text, shown",
    [
        (r"\b\d{4} \d{4}\b", "card 4111 1111, 41111 1111", f"card {HIDDEN}, 41111 1111"),
        (r"\w+@\w+", "an É@ü b", f"an {HIDDEN} b"),
        (r"[\w.]+@[^\W\d]+", "from é.ü@web1", f"from {HIDDEN}1"),
        (r"(?i)geheim\S*", "GEHEIM42 x", f"{HIDDEN} x"),
        (r"\d+\Z", "1 2", f"1 {HIDDEN}"),
        (r"(?s)BEGIN.*?END", "a BEGIN\nx END b", f"a {HIDDEN} b"),
        ("[[]x", "a [x b", f"a {HIDDEN} b"),
        (r"\d\s\d", "\ud800 1\u00a02", f"\ud800 {HIDDEN}"),
    ],
)
def test_a_pattern_hides_all_of_its_matches(pattern, text, shown):
    assert Mask.of([], [pattern]).text(text) == shown


def test_a_pattern_hides_its_matches_in_numbers_and_names_of_keys_and_sees_one_value_at_a_time():
    mask = Mask.of([], [r"\d{6}"])
    assert mask.json({"k123456": 123456, "a": ["123", "456"]}) == {f"k{HIDDEN}": HIDDEN, "a": ["123", "456"]}


def test_after_50_matches_only_those_of_4096_bytes_are_found():
    mask = Mask.of([], ["<[^>]+>"])
    first = mask.text("<a> seen " + "<" + "x" * 9000 + "> seen")
    assert first == f"{HIDDEN} seen {HIDDEN} seen"
    after = "<" + "x" * 4000 + "> seen <" + "y" * 9000 + "> seen"
    assert mask.text("<a> " * 50 + after) == f"{HIDDEN} " * 50 + f"{HIDDEN} seen <{'y' * 9000}> seen"


@pytest.mark.slow
def test_what_matches_too_often_for_linear_time_is_hidden_from_there():
    mask = Mask.of([], ["a"])
    assert mask.text("a b " * 2_000) == f"{HIDDEN} b " * 2_000
    shown = mask.text("a b " * 100_000)
    assert shown.endswith(f"{HIDDEN} b {HIDDEN} ")
    assert len(shown) < 350_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, seen, times",
    [
        (json.dumps([{"name": "Ada", "iban": "DE", "x": {"iban_2": {"y": [1, 2]}}, "b": "seen"}] * 3000), "seen", 3000),
        ("name,iban,city\n" + "Ada,DE89,seen\n" * 5000, "seen", 5000),
        ("2026 INFO iban=DE89 user=seen\n" * 5000, "seen", 5000),
        ("- iban: DE89\n  name: seen\n" * 5000, "seen", 5000),
        ("<p><iban>DE89</iban><b>seen</b></p>" * 5000, "seen", 5000),
    ],
)  # fmt: skip
def test_long_texts_stay_readable(text, seen, times):
    shown = MASK.text(text)
    assert shown.count(seen) == times
    assert "DE" not in shown


def test_a_name_and_a_pattern_that_overlap_hide_both():
    assert MASK.text("x 4111 1111 1111 iban: 4111 1111 1111 2222") == f"x {HIDDEN} iban: {HIDDEN}"
    assert Mask.of(["iban"], ["DE89, iban"]).text("a DE89, iban: b") == f"a {HIDDEN}: {HIDDEN}"


def nested(levels: int) -> object:
    value: object = "s3cret"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [100, 101, 900, 50_000])
def test_what_is_nested_more_than_100_levels_deep_is_hidden(levels):
    shown = json.dumps(MASK.json(nested(levels)), ensure_ascii=False)
    assert ("s3cret" in shown, HIDDEN in shown) == ((True, False) if levels == 100 else (False, True))


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "dict"},
        {"$type": "dict", "value": 5},
        {"$type": "dict", "value": ["iban", [], [1], [[], "a", "b"]]},
        {"$type": ["dict"], "value": None},
        {"$type": "ordered", "keys": 5},
        {"$type": {}},
    ],
)
def test_malformed_type_tags_are_plain_data(value):
    assert MASK.json(value) == value
    assert MASK.restore(value, {"iban": "DE"}) == value


def test_what_cannot_be_masked_is_hidden_whole_and_logged_without_its_value(caplog):
    assert MASK.json({("s3cret",): "s3cret"}) == HIDDEN
    assert MASK.json([10**5000]) == HIDDEN
    assert "masking it failed with" in caplog.text
    assert "s3cret" not in caplog.text


NAMES = st.sampled_from(
    ["iban", "IBAN", "customer_iban", "customerIban", "iban-number", "card_number", "iban2"]
)
ANY_TEXT = st.text("abc xyzXYZ.,;:='\"\\{}[]()<>&|#-\n\t", max_size=30)
SECRET = st.text("abcXYZ019 .,;:='\"{}[]()<>&|#-", max_size=12).map(
    lambda text: f"S3CRET{text.rstrip()}S3CRET"
)
OPENINGS = [
    "iban",
    ":",
    "=",
    "'",
    '"',
    '\\"',
    "[",
    "{",
    "(",
    "<",
    ">",
    ",",
    ";",
    "&",
    "\n",
    " ",
    "\t",
    "|",
    "-",
    "\\",
]


# Texts of a customer, who may try to make a hidden value visible.
PLAIN = st.lists(
    ANY_TEXT
    | st.sampled_from(
        [*OPENINGS, "iban: '", "<iban", "</iban>", 'name": "iban"', "name,iban\n", "}", "]", "</a>"]
    ),
    max_size=6,
).map("".join)


def xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def csv_cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


FORMATS = {
    "json": lambda name, secret, plain: json.dumps({"x": plain, name: secret, "y": plain}),
    "indented json": lambda name, secret, plain: json.dumps({name: [secret], "y": plain}, indent=2),
    "json in json": lambda name, secret, plain: json.dumps(json.dumps({name: {"a": secret}, "y": plain})),
    "twice in json": lambda name, secret, plain: json.dumps([plain, json.dumps(json.dumps({name: secret}))]),
    "record": lambda name, secret, plain: json.dumps([{"name": name, "value": secret, "y": plain}]),
    "record backwards": lambda name, secret, plain: json.dumps([plain, {"value": secret, "key": name}]),
    "repr": lambda name, secret, plain: repr({"x": plain, name: secret, "y": plain}),
    "nested repr": lambda name, secret, plain: repr({"x": [plain], name: [{"a": (secret,)}]}),
    "record repr": lambda name, secret, plain: repr({"label": name, "x": plain, "value": secret}),
    "yaml": lambda name, secret, plain: yaml.safe_dump({"x": plain, name: secret, "y": plain}),
    "nested yaml": lambda name, secret, plain: yaml.safe_dump({"a": {name: {"b": [secret, plain]}, "z": plain}}),
    "yaml record": lambda name, secret, plain: yaml.safe_dump([{"field": name, "value": secret}]),
    "block": lambda name, secret, plain: f"x: 1\n{name}: |\n  {secret}\n  {secret}\ny: 2",
    "element": lambda name, secret, plain: f"<a><{name}>{xml(secret)}</{name}><b>{xml(plain)}</b></a>",
    "attribute": lambda name, secret, plain: f'<a {name}="{xml(secret)}" b="{xml(plain)}"/>',
    "named element": lambda name, secret, plain: f'<p name="{name}" v="{xml(secret)}">{xml(secret)}</p>',
    "csv": lambda name, secret, plain: f"a,{name},b\n1,{csv_cell(secret)},{csv_cell(plain)}\n2,{csv_cell(secret)},3",
    "semicolons": lambda name, secret, plain: f"{name};b\n{csv_cell(secret)};{csv_cell(plain)}\n",
    "line": lambda name, secret, plain: f"{name}: {secret}\nseen",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=40)
@given(name=NAMES, secret=SECRET, plain=PLAIN)
def test_no_value_of_a_hidden_name_shows_in_any_format(form, name, secret, plain):
    text = FORMATS[form](name, secret, plain)
    shown = MASK.text(text)
    assert "S3CRET" not in shown
    again = MASK.text(shown)
    # What is masked twice shows no more than what is masked once.
    rest = shown
    for piece in again.split(HIDDEN):
        assert piece in rest
        rest = rest[rest.index(piece) + len(piece) :]


@pytest.mark.slow
@given(st.lists(st.sampled_from(OPENINGS) | PLAIN, max_size=40).map("".join))
def test_no_text_makes_it_fail(text):
    assert isinstance(MASK._hider.text(text), str)
    assert isinstance(MASK.json({"a": text, text: 1}), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("DE 1111 2222 3333 x"),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["iban", "name", "$type", "value", "b"]), inner)
    ),
    max_leaves=15,
)


@pytest.mark.slow
@given(JSON, JSON)
def test_a_form_gives_back_what_was_typed_or_is_refused(typed, original):
    assert json.dumps(MASK.restore(MASK.json(original), original)) == json.dumps(original)
    try:
        restored = MASK.restore(typed, original)
    except Invalid:
        return
    assert HIDDEN not in json.dumps(restored, ensure_ascii=False)


@pytest.mark.parametrize(
    "typed, original, restored",
    [
        ({"a": 1, "iban": HIDDEN}, {"a": True, "iban": "x"}, {"a": 1, "iban": "x"}),
        ({"k 1111 2222 3333": 2, "b": 1}, {"b": 1}, {"k 1111 2222 3333": 2, "b": 1}),
        ({f"k {HIDDEN}": 2, "b": 3}, {"k 1111 2222 3333": 2, "b": 1}, {"k 1111 2222 3333": 2, "b": 3}),
        ([{"name": "iban", "v": HIDDEN}, 5], [{"name": "iban", "v": "DE"}, 4], [{"name": "iban", "v": "DE"}, 5]),
        ([5, {"key": "iban", "v": HIDDEN}], [{"key": "iban", "v": "DE"}], [5, {"key": "iban", "v": "DE"}]),
    ],
)  # fmt: skip
def test_what_was_left_hidden_is_restored_and_what_was_typed_is_taken(typed, original, restored):
    assert json.dumps(MASK.restore(typed, original)) == json.dumps(restored)


@pytest.mark.parametrize("typed", [nested(50_000), {"a": nested(50_000)}])
def test_a_value_nested_too_deeply_is_refused(typed):
    with pytest.raises(Invalid, match="nested too deeply"):
        MASK.restore(typed, {"iban": "DE"})


HOSTILE = [
    *("iban: '", "iban: [", 'iban: "', 'iban: \\"', 'iban: "a\\"', "iban: 'x' ", 'iban: a "b ', "iban: (", "iban: {"),
    *("iban:", "iban=", "iban ", "iban: ,", "iban: a(\n", "iban: [\n", "iban: a\n\n", "iban:\n ", "iban: |\n "),
    *("iban,", "iban,iban\n", "iban,a\n\n", "|iban", "iban\t", "name,iban\n", "<iban>", "<iban", "<iban></iban>"),
    *('<field name="iban">', '{"name": "iban"', '{"name": "iban"}', "- name: iban\n", "name: iban\n"),
    *("<key>iban</key>", '"', '\\"', "'", "{", "}", "[", "i", "ib", "i-", "\\"),
    *('"a":1,', '"iban":1,', '[["iban",', '"\\\\', '{"1 a":1,'),
    *("iban iban iban: ", "&quot;iban&quot;:", "--iban x "),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("unit", HOSTILE)
def test_150_kb_are_masked_at_once(unit):
    text = unit * (150_000 // len(unit))
    started = time.process_time()
    MASK.text(text)
    # A generous bound for a busy machine: most take less than a tenth of a second.
    assert time.process_time() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, unit, last",
    [
        ("{", '"a":1,', '"a":1}'),
        ("[", '["iban",1],', "1]"),
        ("[", '"[[\\"iban\\",1]]",', "1]"),
        ("[", "[" * 50 + "]" * 50 + ",", "1]"),
        ("{", '"x":{"x":1,"x":[["iban",1]]},', '"x":1}'),
    ],
)
def test_150_kb_of_json_are_masked_at_once(first, unit, last):
    text = first + unit * (150_000 // len(unit)) + last
    started = time.process_time()
    assert MASK.text(text) != HIDDEN
    assert MASK.text(json.dumps(text))
    assert time.process_time() - started < 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["iban: ", 'iban: "', 'iban: \\"', "iban: [", "iban=", '{"name": "iban", ', "iban:\n", "a,iban\n"],
)
@pytest.mark.parametrize(
    "unit", ["\\", "'", '"', " ", "\n", ",", "a ", "- ", "#", "(", "&", "<", "|", "a,", "\\n", "=", "_", "é"]
)
def test_nothing_that_follows_a_name_makes_it_slow(first, unit):
    started = time.process_time()
    MASK.text(first + unit * (150_000 // len(unit)))
    assert time.process_time() - started < 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("closing", ["", "'\"]}</iban>\n"])
@pytest.mark.parametrize("unit", HOSTILE)
def test_half_a_megabyte_takes_seconds_at_most(unit, closing):
    text = unit * (250_000 // len(unit)) + closing * (250_000 // max(1, len(closing)))
    started = time.process_time()
    MASK.text(text)
    assert time.process_time() - started < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", "(?s)a.*b|a", r"(\w+\s?)+x", r"[\w.]+@[\w.]+\w", r"\d{3}", "(a|b)*a(a|b){12}"]
)
@pytest.mark.parametrize("unit", ["a", "a b ", "a@", "1", "ab@c.d "])
def test_no_pattern_is_slow(pattern, unit):
    mask = Mask.of([], [pattern])
    text = unit * (150_000 // len(unit))
    started = time.process_time()
    mask.text(text)
    assert time.process_time() - started < 4
