"""The explorer's page in a real browser: typed into, pointed at, and used from the keyboard."""

import csv
import json
import re
import threading
from io import StringIO

import pytest

from lre_lightning.explore.explorer import Change, Read
from lre_lightning.explore.server import application, listen
from tests.helpers.browser import chromium, page_of

ASKS = "The capital of Canada is"
HOSTILE = """<script>alert(1)</script> "quoted' & שלום 👍🏽 <img src=x onerror=alert(2)> Peru"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser, explorer):
    uvicorn = pytest.importorskip("uvicorn")
    listener = listen(0)
    server = uvicorn.Server(uvicorn.Config(application([explorer], "secret"), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/secret/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def page(browser, address):
    with page_of(browser) as page:
        page.goto(address)
        page.wait_for_selector(".grid")
        assert page.locator(".grid td.silent").count() > page.locator(".grid td").count() / 2  # but at subjects
        with page.expect_response("**/read"):
            page.uncheck("[name=quiet]")
        page.wait_for_selector(".busy", state="detached")
        yield page


def rows_of(page, view=0):
    """The texts of the cells of a grid, from the first layer up."""
    rows = page.locator(".view").nth(view).locator(".grid tbody tr").all()
    return [row.locator("td").all_text_contents() for row in reversed(rows)]


def look(page, text):
    page.fill("textarea", text)
    with page.expect_response("**/read"):
        page.press("textarea", "Enter")
    page.wait_for_selector(".busy", state="detached")


def likely(explorer, text, lens="country capital city", **more):
    grid = explorer.read(Read(text=text, lens=lens, **more))["grid"]
    return grid, [[grid["words"][cell[0]] for cell in row] for row in grid["top"]]


def test_a_typed_text_is_read_and_a_cell_shows_its_most_likely_tokens(page, explorer):
    look(page, ASKS)
    grid, cells = likely(explorer, ASKS)
    assert rows_of(page) == cells
    assert page.locator(".grid th.own").all_text_contents() == ["2", "a"]
    assert "asks about country capital city" in page.locator(".ask + .status").text_content()
    page.locator(".grid tbody tr").nth(2).locator("td").nth(6).hover()
    tip = page.locator(".tip")
    assert "layer 3, token 7: a" in tip.inner_text()
    names = [grid["words"][word] for word in grid["top"][4][6]]
    assert tip.get_by_role("button").all_text_contents()[:8] == names
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    with page.expect_response("**/read"):
        page.check("[name=quiet]")
    page.wait_for_selector(".busy", state="detached")
    silent = explorer.read(Read(text=ASKS, lens="country capital city", quiet=True))["grid"]["silent"]
    shown = [["·" if no else word for no, word in zip(*row, strict=True)] for row in zip(silent, cells, strict=True)]
    assert rows_of(page) == shown != cells
    assert "quiet=1" in page.url


def test_arrow_keys_go_from_cell_to_cell_and_enter_pins(page, explorer):
    look(page, ASKS)
    grid, _ = likely(explorer, ASKS)
    assert page.get_by_role("grid").get_attribute("aria-label").startswith("country capital city, estimated at layer 2")
    page.locator(".grid td[tabindex='0']").focus()
    assert page.locator(".grid td[tabindex='0']").count() == 1
    for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "ArrowDown", "ArrowRight", "End", "Home", "End", "ArrowLeft"):
        page.keyboard.press(key)
    focused = page.locator(".grid td:focus")
    assert page.locator(".grid td[tabindex='0']").count() == 1  # still
    tip = page.locator(".tip")
    assert "layer 3, token 7: a" in tip.inner_text()
    assert page.evaluate(
        "document.activeElement.getAttribute('aria-describedby') === document.querySelector('.tip').id"
    )
    with page.expect_response("**/read"):
        page.keyboard.press("Enter")
    page.wait_for_selector(".busy", state="detached")
    word = grid["words"][grid["top"][4][6][0]]
    ids = grid["ids"][grid["words"].index(word)]
    pinned = likely(explorer, ASKS, token=ids)[0]["pinned"]
    assert rows_of(page) == [[*map(str, row)] for row in pinned["ranks"]]
    assert focused.text_content() == "1"  # the focus stays
    assert f"rank 1, {float(format(100 * pinned['values'][4][6], '.3g')):g} %" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    with page.expect_response("**/read"):
        page.get_by_role("button", name="unpin").click()
    page.wait_for_selector(".busy", state="detached")
    assert rows_of(page)[4][6] == word


def test_an_edit_shows_what_the_lm_says_before_and_after(page, explorer):
    look(page, text := "The capital of Kenya is not that of Peru")
    assert page.locator("[name=subject]").input_value() == "Peru"
    kenya = likely(explorer, text)[0]["marked"][0]
    page.locator(".grid tbody tr").nth(4).locator("td").nth(kenya).click()  # layer 1
    page.fill("[name=target]", "Italy")
    page.locator(".grid tbody tr").nth(4).locator("td").nth(kenya).click()
    with page.expect_response("**/edit"):
        page.get_by_role("button", name="edit at layer 1").click()
    page.wait_for_selector(".answers ol")
    expected = explorer.edit(
        Change(text=text, relation="country capital city", subject="Kenya", target="Italy", layer=1)
    )
    shown = page.locator(".answers li bdi").all_text_contents()
    assert shown == [answer for when in ("before", "after") for answer, _ in expected[when]["answers"]]
    assert page.locator(".answers q").all_text_contents() == [expected["before"]["text"], expected["after"]["text"]]
    assert page.locator(".edit .status").text_content() == "Kenya \u2192 Italy, layer 1, rank 16"
    page.fill("[name=rank]", "1000")
    with page.expect_response("**/edit"):
        page.get_by_role("button", name="Edit", exact=True).click()
    page.wait_for_selector(".edit .error")
    assert "rank 1000 is out of range" in page.locator(".edit .error").text_content()


def test_a_link_is_the_view_and_two_views_stand_side_by_side(page, address, explorer):
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector(".view:nth-child(2) .grid")
    page.locator("select[name=lens]").nth(1).select_option("logit lens")
    page.wait_for_selector(".view:nth-child(2) h3:text('logit lens')")
    page.locator("textarea").nth(0).fill(HOSTILE)
    page.locator("[name=pin]").nth(0).fill("Lima")
    page.locator("textarea").nth(0).press("Enter")
    page.wait_for_selector("button:text('unpin ␣Lima')")
    link, views = page.url, [rows_of(page), rows_of(page, 1)]
    assert "Peru" in link.split("#")[1]
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".view:nth-child(2) .grid")
    assert [rows_of(page), rows_of(page, 1)] == views
    lens = page.locator("select[name=lens]").nth(0).input_value()
    assert views[0] == [[*map(str, row)] for row in likely(explorer, HOSTILE, lens, pin="Lima")[0]["pinned"]["ranks"]]
    page.get_by_role("button", name="Compare").click()
    assert page.locator(".view").count() == 1
    assert "text2" not in page.url


def test_a_hostile_text_is_nothing_but_text(page):
    look(page, HOSTILE)
    tokens = page.locator(".grid tfoot th").all_text_contents()[1:]
    assert "".join(tokens).replace("␣", " ").strip() == HOSTILE or "<0x" in "".join(tokens) or "unk" in "".join(tokens)
    assert page.locator("img, .grid script, main script").count() == 0
    assert page.locator("textarea").input_value() == HOSTILE
    page.locator(".grid td").first.click()
    look(page, "x" * 2001)
    assert "at most 2000 characters" in page.locator(".error").text_content()
    assert page.locator(".grid").count() == 0  # it was of another text
    assert not page.locator("form.edit").is_visible()
    look(page, ASKS)
    assert page.locator(".grid").count() == 1


def test_picture_and_data_are_saved(page, explorer, tmp_path):
    look(page, ASKS)
    grid, cells = likely(explorer, ASKS)
    found = {}
    for name in ("SVG", "CSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        assert download.value.suggested_filename == f"country_capital_city_estimated_at_layer_2.{name.lower()}"
        found[name] = open(download.value.path(), encoding="utf-8").read()  # noqa: SIM115
    assert json.loads(found["JSON"])["values"] == grid["values"]
    rows = [*csv.DictReader(StringIO(found["CSV"]))]
    assert len(rows) == 7 * len(grid["tokens"]) * 8
    assert [row["answer"] for row in rows if row["place"] == "1"] == [word for row in cells for word in row]
    sizes = re.findall(r'<svg[^>]*? y="(\d+)"[^>]*? height="(\d+)"', found["SVG"])
    assert max(int(y) + int(high) for y, high in sizes) == int(re.search(r'height="(\d+)"', found["SVG"])[1])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", found["SVG"])
    assert texts[:2] == [ASKS, grid["title"]]
    assert {"␣capital", "emb", *cells[3]} <= set(texts)
    assert len(texts) == 2 + 8 * (1 + len(grid["tokens"]))


def test_a_narrow_dark_screen_shows_all_of_it(browser, address):
    with page_of(browser, viewport={"width": 360, "height": 640}, color_scheme="dark", has_touch=True) as page:
        page.goto(address)
        page.wait_for_selector(".grid")
        look(page, f"{ASKS} not that of Peru, Chile or Japan")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        colours = page.evaluate(
            "[...document.querySelectorAll('body, .lens')].map((x) => getComputedStyle(x).backgroundColor)"
        )
        assert colours == ["rgb(20, 23, 28)"] * 2
        page.locator(".grid tbody tr").nth(2).locator("td").last.tap()
        tip = page.locator(".tip").bounding_box()
        assert tip["x"] >= 0
        assert tip["x"] + tip["width"] <= 360


def test_a_server_that_is_gone_is_said_in_a_line(page):
    page.route("**/read", lambda route: route.abort())
    page.fill("textarea", ASKS)
    page.press("textarea", "Enter")
    page.wait_for_selector(".error")
    assert "is lre explore still running?" in page.locator(".error").text_content()
