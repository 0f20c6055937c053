"""The machine's Chromium, for tests of pages; they are skipped where there is none."""

import contextlib
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "no-sandbox disable-gpu disable-quic no-first-run disable-sync"
QUIET = "disable-background-networking disable-component-update"


@contextlib.contextmanager
def chromium():
    """A headless browser."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to show the page in")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in f"{FLAGS} {QUIET}".split()]
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser, **options):
    """A page of its own, which may say nothing on its console and raise nothing."""
    context = browser.new_context(**options)
    page, said = context.new_page(), []
    page.set_default_timeout(20_000)
    page.on("console", lambda message: "Failed to load resource" in message.text or said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    yield page
    context.close()
    assert said == []
