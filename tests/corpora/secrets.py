"""Values that must not be shown, as they occur in texts and in JSON; none of them belongs to anybody.

Sources, by the letter at each value:

A. ISO 13616-1 and the IBAN registry of SWIFT, https://www.swift.com/standards/data-standards/iban: example IBANs.
B. Stripe's documentation, https://docs.stripe.com/testing: card numbers for tests.
C. The Social Security Administration, https://www.ssa.gov/history/ssn/misused.html: the number of a sample card.
D. Amazon Web Services' documentation, Security credentials: the access key and the secret key of all its examples.
E. RFC 7519, JSON Web Token, section 3.1: the example token.
F. Ofcom, numbers for drama use, https://www.ofcom.org.uk: telephone numbers that are given to nobody.
G. RFC 2606 and RFC 6761: example.com, for an address of nobody.
H. Made up for this corpus: words that no pattern matches, so that only the name of their key hides them.
"""

from typing import Any

# Texts, each with the pattern that hides it.
BY_PATTERN = {
    "an IBAN": ("DE89370400440532013000", r"\b[A-Z]{2}\d{2}[A-Z0-9]{11,30}\b"),  # A
    "an IBAN in groups": (
        "GB82 WEST 1234 5698 7654 32",
        r"\b[A-Z]{2}\d{2}(?: [A-Z0-9]{4}){3,7}(?: [A-Z0-9]{1,4})?\b",
    ),  # A
    "a card number": ("4242424242424242", r"\b\d{16}\b"),  # B
    "a card number in groups": ("5555 5555 5555 4444", r"\b\d{4}(?: \d{4}){3}\b"),  # B
    "a social security number": ("078-05-1120", r"\b\d{3}-\d{2}-\d{4}\b"),  # C
    "an access key": ("AKIAIOSFODNN7EXAMPLE", r"\bAKIA[A-Z0-9]{16}\b"),  # D
    "a token": (
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA",
        r"\beyJ[\w-]+\.eyJ[\w-]+",
    ),  # E
    "a telephone number": ("+44 20 7946 0958", r"\+44 20 7946 0\d{3}"),  # F
    "an address": ("greta.lindqvist@example.com", r"[\w.]+@example\.com"),  # G
}
# Values, each under the name of a key that hides it.
BY_KEY: dict[str, Any] = {
    "password": "zephyr-quokka-lantern",  # H
    "pin": 48151623,  # H
    "secret_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",  # D
    "maiden_name": "Wolkenstein",  # H
}
# The same in texts.
IN_TEXTS = {
    "password": "password: {}",
    "pin": '{{"pin": {}}}',
    "secret_key": "secret_key={}",
    "maiden_name": '{{"customer": {{"maiden_name": "{}"}}}}',
}

PATTERNS = [pattern for _, pattern in BY_PATTERN.values()]
KEYS = [*BY_KEY]
VALUES = [*(value for value, _ in BY_PATTERN.values()), *map(str, BY_KEY.values())]

# A text of several lines, as long as it may be, and a short one for short fields.
TEXT = "\n".join(
    [
        *(f"She wrote {value} to us." for value, _ in BY_PATTERN.values()),
        *(text.format(BY_KEY[name]) for name, text in IN_TEXTS.items()),
    ]
)
SHORT = "About DE89370400440532013000"
# What is added to an object in JSON: under names of keys, in texts, in lists, and in the name of a key.
OBJECT: dict[str, Any] = {
    **BY_KEY,
    "planted": TEXT,
    "planted list": [value for value, _ in BY_PATTERN.values()],
    "planted number": 4242424242424242,
    "planted object": {"deeper": [dict(BY_KEY)]},
    "account DE89370400440532013000": "in the name of its key",
}
