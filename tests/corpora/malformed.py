"""Malformed input: what a parameter of an address, a form field or a request as a whole may hold.

Sources, by the letter at each value:

A. Seen on this desk: each of these was answered with 500 by an earlier version.
B. Big List of Naughty Strings, https://github.com/minimaxir/big-list-of-naughty-strings (MIT).
C. JSONTestSuite, https://github.com/nst/JSONTestSuite (MIT), described in "Parsing JSON is a Minefield",
   https://seriot.ch/projects/parsing_json.html.
D. CVE-2020-10735, the conversion of long numbers in Python; and the limits of SQLite's and PostgreSQL's integers.
E. The Unicode Standard, chapter 23 (special areas and format characters); PostgreSQL's manual, section 8.3: a text
   holds no NUL character.
F. RFC 3339 and Python's `datetime`: times that cannot be converted to UTC.
G. RFC 3986, section 3.2.2, and CVE-2024-11168, hosts in brackets that are not IP addresses.
"""

from typing import Any

LONG_ID = "9" * 5000  # A, D
DEEP_JSON = "[" * 100_000 + "]" * 100_000  # A, C: n_structure_100000_opening_arrays
LONG_NUMBER = "7" * 4000  # A, D
UUID_TEXT = "01890a5d-ac96-774b-bcce-b302099a8057"

# What is tried in every parameter and every field, and where, is said in `tests.test_malformed_requests`.
TEXTS = {
    "NUL": "a\x00b",  # A, E
    "a long id": LONG_ID,
    "an id above 64 bits": str(2**63),  # D
    "the largest id": str(2**63 - 1),  # D
    "the end of time": f"9999-12-31T23:59:59-12:00_{UUID_TEXT}",  # A, F
    "a long number": LONG_NUMBER,
    "empty": "",
    "minus one": "-1",  # B
    "an exponent": "1e999",  # B, C: n_number_huge_exp
    "NaN": "NaN",  # B, C: n_number_NaN
    "hexadecimal": "0x10",  # B
    "an underscore": "1_000",  # D
    "other digits": "\u0661\u0662\u0663",  # B, E: Arabic-Indic digits
    "a superscript": "\u00b2",  # E: isdigit() but not a decimal
    "the beginning of time": f"0001-01-01T00:00:00+14:00_{UUID_TEXT}",  # A, F
    "a time without an offset": f"2026-01-01T00:00:00_{UUID_TEXT}",  # F
    "a time without an id": "2026-01-01T00:00:00+00:00_",  # F
    "deep JSON": DEEP_JSON,
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,  # C
    "cut JSON": '{"a": [1,',  # C: n_structure_unclosed_array
    "a lone surrogate in JSON": '{"a": "\\ud800"}',  # C: i_string_1st_valid_surrogate_2nd_invalid
    "NUL in JSON": '{"a": "\\u0000"}',  # C: y_string_null_escape
    "a type tag": '{"$type": "dict"}',  # A
    "a type tag with rubbish": '{"$type": "datetime", "value": [[]]}',  # A
    "a byte order mark": "\ufeff1",  # B, C: i_structure_UTF-8_BOM_empty_object
    "right to left": "\u202etest\u202c",  # B, E
    "noncharacters": "\uffff\U0010ffff",  # E
    "an emoji of several": "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # B
    "combining marks": "Z\u0351\u036b" * 50,  # B
    "format directives": "%s%n%d{0}{a.b}{{ x }}{% x %}",  # B
    "quotes": "'\"`;--",  # B
    "wildcards": "%_\\*?[",  # B
    "a search query": '"a" OR NEAR(b NOT * - ^ :',  # SQLite's FTS5 syntax
    "a host in brackets": "http://[::1",  # A, G
    "a path": "../../etc/passwd",  # B
    "a long text": "w" * 150_000,
    "dashes": "---",
    "a UUID": UUID_TEXT,
}

# What stands in a path, percent-encoded, where an address has a parameter.
IN_PATHS = [
    "%00",
    "a%00b",
    LONG_ID,
    str(2**63),
    "%FF%FE",
    "%ED%A0%80",
    UUID_TEXT,
    "%2F",
    "a%2Fb",
    "_5Fx",
    "..",
    "%0A",
]

# Whole requests: headers and a body. The encodings other than UTF-8 are from the list of Python's codecs.
FORM = "application/x-www-form-urlencoded"
HEADERS: dict[str, dict[str, str]] = {
    "an unclosed host": {"HX-Current-URL": "http://[::1", "HX-Request": "true"},  # A, G
    "a host that is not one": {"HX-Current-URL": "http://[x]/", "HX-Request": "true"},  # G
    "a negative length": {"Content-Length": "-1"},
}
BODIES: dict[str, tuple[str, bytes]] = {
    "UTF-16": (FORM, "reason=rain&version=1".encode("utf-16")),  # A
    "UTF-16, declared": (f"{FORM}; charset=utf-16", "reason=rain".encode("utf-16")),  # A
    "a codec that is not a text encoding": (f"{FORM}; charset=base64", b"reason=rain"),
    "multipart in UTF-16": ("multipart/form-data; boundary=x; charset=utf-16", b"--x--"),
    "multipart in a codec that is not a text encoding": (
        "multipart/form-data; boundary=x; charset=hex",
        b'--x\r\nContent-Disposition: form-data; name="reason"\r\n\r\nrain\r\n--x--\r\n',
    ),
    "multipart without a boundary": ("multipart/form-data", b"--x--"),
    "multipart, cut": ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; na"),
    "bytes that are not UTF-8": (FORM, b"reason=\xff\xfe%FF&version=%ED%A0%80"),
    "many fields": (FORM, b"&".join(b"a%d=1" % n for n in range(2000))),
    "a field with NUL": (FORM, b"reason%00=rain&%00=1"),
    "JSON": ("application/json", b'{"reason": "rain"'),
}


def nested(depth: int) -> Any:
    """A list in a list, ``depth`` levels."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
