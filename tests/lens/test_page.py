"""Attribute lenses as a page: what is in it, that any token is text, and what a browser shows."""

import json
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lre_lightning.errors import LREError
from lre_lightning.lens.page import lens_page
from lre_lightning.lens.tokens import visible
from tests.helpers.browser import chromium, page_of
from tests.helpers.page import Page
from tests.lens.test_plotting import AWKWARD, lens

GRIDS = [
    replace(lens("plays sport", AWKWARD, words=AWKWARD, layer=1), mentions=[("w", 4)]),
    lens("<b>logit</b> lens", AWKWARD, words=AWKWARD, seed=1),
    lens("plays sport", seed=2),
]


@pytest.fixture(scope="module")
def html():
    return lens_page(GRIDS, title="Lenses <of> a&b")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def grids_of(page):
    return [json.loads(found["text"]) for found in page.all("script", type="application/json")]


def test_the_page_holds_every_grid(page):
    for grid, data in zip(GRIDS, grids_of(page), strict=True):
        assert [[[data["words"][i] for i in cell] for cell in row] for row in data["top"]] == [
            [[visible(token) for token in cell] for cell in row] for row in grid.top
        ]
        np.testing.assert_allclose(data["values"], grid.probabilities, rtol=0.006)
        assert len(set(data["words"])) == len(data["words"])
        assert data["layers"] == [*map(str, grid.layers)]
        assert data["tokens"] == [*map(visible, grid.tokens)]
        layer = None if grid.layer is None else str(grid.layer)
        assert (data["marked"], data["layer"], data["pinned"]) == (grid.places, layer, None)


def test_nothing_in_a_token_or_title_is_markup(page):
    assert page.texts("title") + page.texts("h1") == ["Lenses <of> a&b"] * 2
    titles = ["plays sport, estimated at layer 1", "<b>logit</b> lens", "plays sport"]
    assert [data["title"] for data in grids_of(page)] == titles
    assert len(page.all("script")) == len(GRIDS) + 1
    assert page.all("b") == []
    assert page.all("h2")[0]["text"] == visible("".join(AWKWARD)).replace("␣", " ")


def test_the_page_needs_nothing_from_outside(html, page):
    plain = html.replace("http://www.w3.org/2000/svg", "")  # the name of a format, which nothing fetches
    assert not re.search(r"https?:|[^:\s]//\w|url\(|@import|import\(", plain)
    for element in page.elements:
        assert not {"src", "srcset", "data", "action"} & element.keys()
        assert element.get("href", "#").startswith("#")
    assert page.all("link") == page.all("img") == page.all("base") == []


def test_several_texts_are_sections_in_a_table_of_contents(page):
    assert [link["href"] for link in page.all("a")] == [f"#{heading['id']}" for heading in page.all("h2")]
    assert page.texts("a") == page.texts("h2")
    assert len(page.all("h2")) == 2
    assert Page(lens_page(GRIDS[:2])).all("nav") == []


def luminance(colour):
    """Relative luminance of an sRGB colour, as WCAG 2 defines it."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return np.dot(linear, [0.2126, 0.7152, 0.0722])


def test_text_stands_out_from_its_cell_in_the_light_and_in_the_dark(html):
    for part, colours in zip(html.rsplit("prefers-color-scheme: dark", 1), ("magma_r", "magma"), strict=True):
        rules = re.findall(r"\.p(\d+) { background: (#\w{6}); color: (#\w{6}); }", part)
        assert [int(step) for step, _, _ in rules] == list(range(101))
        for step, background, text in rules:
            rgb = matplotlib.colormaps[colours](int(step) / 100)[:3]
            np.testing.assert_allclose(to_rgb(background), rgb, atol=0.003)
            high, low = sorted([luminance(background), luminance(text)], reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_page_is_the_same_every_time_and_has_at_least_one_grid(html):
    assert lens_page(GRIDS, title="Lenses <of> a&b") == html
    with pytest.raises(LREError, match="at least one"):
        lens_page([])


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def percent(probability):
    return f"{float(format(100 * probability, '.3g')):g} %"


def test_a_browser_draws_the_grids_and_finds_a_token_in_them(html, browser, tmp_path):
    (tmp_path / "lenses.html").write_text(html, encoding="utf-8")
    with page_of(browser) as page:
        page.goto((tmp_path / "lenses.html").as_uri())
        assert page.locator("h3").all_text_contents() == [data["title"] for data in grids_of(Page(html))]
        grid, table, tip = GRIDS[0], page.get_by_role("grid").first, page.locator(".tip").first
        rows = [row.locator("td").all_text_contents() for row in reversed(table.locator("tbody tr").all())]
        assert rows == [[visible(cell[0]) for cell in row] for row in grid.top]
        assert table.locator("th.own").all_text_contents() == [str(grid.layer), visible(grid.tokens[4])]
        assert table.locator("td.row.column").count() == 1
        steps = table.locator("tbody tr").last.locator("td").evaluate_all("all => all.map((one) => one.className)")
        shares = [float(f"{cell[0]:.3g}") for cell in grid.probabilities[0]]
        assert [name.split()[0] for name in steps] == [f"p{int(100 * share + 0.5)}" for share in shares]

        table.locator("td[tabindex='0']").focus()
        page.keyboard.press("ArrowUp")  # stays within the grid
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        y, x = len(grid.layers) - 2, 1
        likely = [*zip(map(visible, grid.top[y][x]), map(percent, grid.probabilities[y][x]), strict=True)]
        lines = [line for line in tip.inner_text().split("\n") if line.strip()]
        assert lines[0] == f"layer {grid.layers[y]}, token {x + 1}: {visible(grid.tokens[x])}"
        assert "".join("".join(lines[1:]).split()) == "".join("".join(map("".join, likely)).split())
        assert page.locator("td[tabindex='0']").count() == len(GRIDS)  # one stop of the tab key per grid

        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # pins the most likely token
        word = visible(grid.top[y][x][0])
        places = [[[*map(visible, cell)] for cell in row] for row in grid.top]
        ranks = [[str(cell.index(word) + 1) if word in cell else "\u2013" for cell in row] for row in places]
        assert [row.locator("td").all_text_contents() for row in reversed(table.locator("tbody tr").all())] == ranks
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        page.get_by_role("button", name="unpin").click()
        assert table.locator("tbody td").first.text_content() == rows[-1][0]
        page.locator("td").last.hover()
        assert page.locator(".tip:visible").count() == 1
        page.mouse.move(0, 0)
        assert page.locator(".tip:visible").count() == 0


def test_a_widget_shows_lenses_and_says_which_cell_was_chosen(browser):
    widget = pytest.importorskip("lre_lightning.lens.widget", reason="anywidget is not installed")
    shown = widget.LensWidget(GRIDS[1:])
    data, _ = shown._repr_mimebundle_()
    assert data["text/html"] == "".join(grid._repr_html_() for grid in GRIDS[1:])
    assert "application/vnd.jupyter.widget-view+json" in data
    with page_of(browser) as page:
        state = json.dumps({"grids": shown.grids, "cell": shown.cell}).replace("<", "\\u003c")
        model = f"{{state: {state}, get(k) {{ return this.state[k] }}, set(k, v) {{ this.state[k] = v }},"
        model += " on(_, f) { this.changed = f }, save_changes() { this.saved = this.state.cell }}"
        start = f"window.model = {model}; render({{model, el: document.body}})"
        script = shown._esm.replace("export default { render }", start)
        page.set_content(f"<style>{shown._css}</style><script type='module'>{script}</script>")
        page.locator(".grid").nth(1).locator("tbody tr").first.locator("td").nth(2).click()
        assert page.evaluate("window.model.saved") == [1, len(GRIDS[2].layers) - 1, 2]
        shown.lenses = GRIDS[:1]
        page.evaluate("grids => { model.state.grids = grids; model.changed() }", shown.grids)
        assert page.locator("h3").all_text_contents() == ["plays sport, estimated at layer 1"]
    with pytest.raises(LREError, match="at least one"):
        widget.LensWidget([])
