"""What tests do in a real browser: begin as somebody who is logged in, and look for what is not accessible."""

from collections.abc import Sequence

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import BrowserContext, Page

from tests import builders


def log_in(context: BrowserContext, name: str = "anna", role: str = "operator") -> Page:
    """A page, which shows nothing yet, of somebody who is logged in, and who is made if there is no such user.

    Stories that begin at the form of the login use `log_in_by_the_form`.
    """
    client = Client()
    client.force_login(User.objects.filter(username=name).first() or builders.user(role, name))
    session = client.cookies[settings.SESSION_COOKIE_NAME]
    for server in ("localhost", "127.0.0.1"):
        context.add_cookies([{"name": session.key, "value": session.value, "domain": server, "path": "/"}])
    return context.new_page()


def log_in_by_the_form(context: BrowserContext, name: str) -> Page:
    """The first page of this user of `builders.user`."""
    page = context.new_page()
    page.goto("/login/")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Log in").click()
    return page


def problems(page: Page, rules: Sequence[str] = (), within: str = "html") -> str:
    """What axe-core finds on the page as it is now, by all its rules or by these; "" if that is nothing.

    :param within: Selects the part of the page in which it looks.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    # All that is right would take longer to report than to check.
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate(
        "([within, options]) => axe.run(within, options).then(({ violations }) => ({ violations }))",
        [within, options],
    )
    results = AxeResults(found)
    return results.generate_report() if results.violations_count else ""
