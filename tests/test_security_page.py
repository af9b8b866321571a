"""docs/security.md says what holds: its numbers and its table of roles are those of the code."""

import re

from django.conf import settings

from sessions_app.access.roles import ROLES, permissions_of
from sessions_app.desk import login
from sessions_app.models import StaffPermission
from tools.processes import PROJECT

TEXT = (PROJECT / "docs" / "security.md").read_text()


def test_the_table_of_roles_is_what_the_roles_have():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if "| Can " in line
    ]
    assert rows == [
        [permission.text, *("yes" if permission in permissions_of(role) else "" for role in ROLES)]
        for permission in StaffPermission
    ]


def test_the_limits_of_signing_in_are_those_that_are_set():
    pair, address, name = (settings.AXES_FAILURE_LIMIT * limit for limit in login.LIMITS)
    minutes = int(settings.AXES_COOLOFF_TIME.total_seconds() // 60)
    text = " ".join(TEXT.split())
    assert (
        f"Within {minutes} minutes at most {pair} wrong passwords are taken for one name from one address, "
        f"{address} from one address, and {name} for one name." in text
    )


def test_it_is_found_from_the_readme_and_from_operations_and_says_how_to_report():
    assert "(docs/security.md)" in (PROJECT / "README.md").read_text()
    assert "(security.md)" in (PROJECT / "docs" / "operations.md").read_text()
    assert "## Reporting a vulnerability" in TEXT


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        page, _, anchor = target.partition("#")
        text = (PROJECT / "docs" / page).read_text() if page else TEXT
        titles = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        assert not anchor or anchor in titles, target
