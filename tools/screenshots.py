"""Draws docs/images/ again: the demo's desk in a real Chromium, light and dark, on a wide and on a narrow screen.

    python -m tools.screenshots [NAME...]     all of them, or only these

A throwaway desk is started with `manage.py up` on a database of its own; only ids and times differ between two runs.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, StorageState, expect, sync_playwright

from tools.processes import MANAGE, PROJECT, environment, running
from tools.services import chromium

IMAGES = PROJECT / "docs" / "images"
PASSWORD = "only for these pictures"
ADDRESS = r"AgentState is at (http://[\d.:]+)/"
SCHEMES = ("light", "dark")
WIDTHS = {1280: 800, 390: 844}
SHORTEST, TALLEST = 420, 2100


def inbox(page: Page) -> None:
    page.goto("/inbox/")
    expect(page.get_by_role("link", name="Refund after a rear-end collision")).to_be_visible()


def sessions(page: Page) -> None:
    page.goto("/?queue=all")


def session(page: Page) -> None:
    page.goto(_session(page, "Refund after a rear-end collision"))


def rewound(page: Page) -> None:
    page.goto(_session(page, "Burst pipe in the kitchen"))
    page.locator(".rewound").first.get_by_role("link", name="show").click()
    discarded = page.locator(".timeline.discarded")
    expect(discarded).to_be_visible()
    # On a narrow screen it lies below what a picture shows: then the picture begins a little above it.
    if discarded.evaluate("discarded => discarded.getBoundingClientRect().top + scrollY") > TALLEST - 400:
        page.evaluate("document.body.dataset.from = document.querySelector('.rewound').offsetTop - 400")


def in_doubt(page: Page) -> None:
    page.goto(_session(page, "Letter to a farmhouse"))


def rewind(page: Page) -> None:
    page.goto(_session(page, "Refund after a rear-end collision"))
    page.locator("header.session").get_by_role("button", name="Rewind…").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def compare(page: Page) -> None:
    ends = []
    for title in ("Policy, deductible and claim", "What if she means the windscreen"):
        page.goto(_session(page, title) + "checkpoints/")
        ends.append(page.locator("input[name=b]:checked").get_attribute("value"))
    page.goto(f"/compare/?a={ends[0]}&b={ends[1]}")


def agents(page: Page) -> None:
    page.goto("/agents/claims/")


def workers(page: Page) -> None:
    page.goto("/start/?agent=research")
    page.get_by_label("Message").fill("Research the storm damage of the year")
    page.get_by_label("Title").fill("Storm damage of the year")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#session-head .pill")).to_have_text("Running")
    page.goto("/workers/")


def state(page: Page) -> None:
    page.goto(_session(page, "Refund after a rear-end collision") + "state/")


def repair(page: Page) -> None:
    page.goto(_session(page, "Refund after a rear-end collision") + "memory/")
    page.get_by_label("Goal").fill("Refund $450.00 on CLM-1042")
    page.get_by_label("Reason").fill("She has been paid $50.00 already")


PICTURES: dict[str, Callable[[Page], None]] = {
    picture.__name__.replace("_", "-"): picture
    for picture in (
        inbox,
        sessions,
        session,
        rewind,
        rewound,
        in_doubt,
        compare,
        agents,
        workers,
        state,
        repair,
    )
}


def main(names: list[str]) -> None:
    """:raises SystemExit: for an unknown picture."""
    if unknown := set(names) - PICTURES.keys():
        sys.exit(f"There is no picture {', '.join(sorted(unknown))}. There are: {', '.join(PICTURES)}.")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with _desk() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), chromium_sandbox=os.geteuid() != 0)
        signed_in = _log_in(browser, address)
        for scheme in SCHEMES:
            for width, height in WIDTHS.items():
                context = browser.new_context(
                    base_url=address,
                    storage_state=signed_in,
                    color_scheme=scheme,  # type: ignore[arg-type]
                    reduced_motion="reduce",
                    viewport={"width": width, "height": height},
                )
                for name in names or PICTURES:
                    page = context.new_page()
                    PICTURES[name](page)
                    _draw(page, IMAGES / f"{name}-{scheme}-{width}.png", width)
                    page.close()
                context.close()
        browser.close()


@contextmanager
def _desk() -> Iterator[str]:
    """The address of a desk with the demo's sessions, in which every run has come to its rest."""
    with tempfile.TemporaryDirectory(prefix="agentstate-pictures-") as folder:
        env = environment(
            DATABASE_URL=f"sqlite:///{Path(folder) / 'db.sqlite3'}",
            STATIC_ROOT=str(Path(folder) / "static"),
            SECRET_KEY="for these pictures",
            AGENTSTATE_DEMO_DIR=str(Path(folder) / "demo"),
            AGENTSTATE_DEMO_PASSWORD=PASSWORD,
            TZ="UTC",
        )
        with running((*MANAGE, "up", "--port", "0"), env) as up:
            yield up.wait_for_output(ADDRESS, seconds=120)[1]


def _log_in(browser: Browser, address: str) -> StorageState:
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/login/")
    page.get_by_label("Name").fill("supervisor")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Inbox")
    state = context.storage_state()
    context.close()
    return state


def _session(page: Page, title: str) -> str:
    """The address of the session of that title."""
    page.goto("/?queue=all")
    link = page.get_by_role("link", name=re.compile(f"^{re.escape(title)}$"))
    return str(link.get_attribute("href")).partition("?")[0]


def _draw(page: Page, file: Path, width: int) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_load_state("networkidle")
    end = page.evaluate("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)")
    begin = int(page.evaluate("Number(document.body.dataset.from || 0)"))
    # A dialog covers the screen, and no more of the page below it is to be seen.
    tallest = WIDTHS[width] if page.get_by_role("dialog").is_visible() else TALLEST
    clip = {"x": 0, "y": begin, "width": width, "height": max(SHORTEST, min(end - begin, tallest))}
    page.screenshot(path=file, full_page=True, clip=clip, animations="disabled", caret="hide")  # type: ignore[arg-type]
    sys.stdout.write(f"{file.relative_to(PROJECT)} {file.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
