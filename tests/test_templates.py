"""What holds for every template, and the tags that write links."""

import re
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.conf import settings
from django.template import Context, Template
from django.template.loader import get_template

from sessions_app.action_list import ACTIONS

MOST_CHARACTERS = 160
ROOT = Path(settings.BASE_DIR)
FOLDER = ROOT / "templates"
TEMPLATES = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.html")}
# Django looks these up by name.
BY_CONVENTION = {"403.html", "403_csrf.html", "404.html", "500.html", "registration/login.html"}
OF_THE_ADMIN = {"admin/change_list_results.html"}
SESSION = SimpleNamespace(pk=UUID(int=7))


def render(source: str, **context: object) -> str:
    return Template("{% load links %}" + source).render(Context(context))


def places(pattern: str) -> list[tuple[str, str]]:
    """Where the pattern stands in any template, with what it matches there."""
    return [(name, match) for name, text in TEMPLATES.items() for match in re.findall(pattern, text)]


def test_a_template_can_be_read_without_scrolling_sideways() -> None:
    assert places(rf"(?m)^.{{{MOST_CHARACTERS},}}.$") == []


def test_styles_and_scripts_are_files_of_their_own() -> None:
    assert places(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son[a-z]+=|javascript:") == []


def test_every_template_is_used() -> None:
    code = [path.read_text() for path in (ROOT / "sessions_app").rglob("*.py")]
    text = "\n".join([*TEMPLATES.values(), *code])
    used = set(re.findall(r"""["']([\w/]+\.html)(?:#\w+)?["']""", text))
    assert set(TEMPLATES) - used == BY_CONVENTION | OF_THE_ADMIN


def test_query_strings_are_written_by_tags() -> None:
    """By `{% querystring %}` and `{% url_query %}`, which encode what they are given."""
    assert places(r"[?;&]\w+=") == []
    assert places(r".*&amp;\{[{%].*") == []


def test_what_opens_a_dialog_does_not_inherit_how_a_live_part_is_replaced() -> None:
    """The body of the dialog stays in the page, whatever `hx-swap` an element around the link has."""
    openers = places(r'hx-target="#dialog-body"\s*(.*)')
    assert openers
    assert [opener for opener in openers if not opener[1].startswith('hx-swap="innerHTML"')] == []


def test_query_strings_are_written_by_one_function() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "sessions_app").rglob("*.py"))
    assert re.findall(r"[?&]\w+=\{", code) == []
    # Nor is one parameter by itself. What is written for people so shows values as JSON.
    assert re.findall(r"""f["'](?:\w+|\{[^}"']+\})=\{(?!json\.).*""", code) == []


def test_a_template_names_only_actions_that_are_declared() -> None:
    named = places(r"""\{% (?:action|(?:dialog_url|dialog_link) [\w.]+) ["']([\w-]+)["']""")
    assert named
    assert [place for place in named if place[1] not in ACTIONS] == []


@pytest.mark.parametrize("name", sorted(BY_CONVENTION - {"registration/login.html"}))
def test_an_error_page_needs_no_context_and_no_database(name: str) -> None:
    text = get_template(name).render()
    heading = re.search(r"<h1>(.+)</h1>", text)
    assert heading
    assert f"<title>{heading[1]} · AgentState</title>" in text


def test_an_address_has_the_parameters_that_have_a_value() -> None:
    address = render(
        "{% url_query 'session' pk at=at queue=queue tool=tool %}", pk=SESSION.pk, at=0, queue=""
    )
    assert address == f"/sessions/{SESSION.pk}/?at=0"
    assert render("{% url_query 'agents' queue=none %}", none=None) == "/agents/"


def test_parameters_are_encoded_for_the_query_string_and_for_html() -> None:
    assert render("{% url_query 'desk' queue='all' tag=tag %}", tag='a&b="c d"') == (
        "/?queue=all&amp;tag=a%26b%3D%22c%20d%22"
    )


def test_a_link_opens_a_dialog_and_is_a_page_without_scripts() -> None:
    link = render(
        '{% dialog_link session "fork" checkpoint=3 queue=queue css="link" %}<b>{{ label }}</b>{% enddialog_link %}',
        session=SESSION,
        queue="all",
        label="fork & go",
    )
    address = f"/sessions/{SESSION.pk}/fork/?checkpoint=3&amp;queue=all"
    assert link == (
        f'<a class="link" href="{address}" hx-get="{address}" hx-target="#dialog-body" hx-swap="innerHTML">'
        "<b>fork &amp; go</b></a>"
    )


def test_a_dialog_link_may_be_a_button_with_a_key() -> None:
    link = render(
        '{% dialog_link session "reject" call=7 css=css role="button" shortcut="r" %}Reject…{% enddialog_link %}',
        session=SESSION,
        css='button "first"',
    )
    assert link.startswith('<a class="button &quot;first&quot;" data-key="r" role="button" href="/sessions/')
    assert "reject/?call=7" in link
