"""Attribute lenses as a page: what is in it, that any token is text, and what a browser shows."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lre_lightning.errors import LREError
from lre_lightning.lens.page import lens_page
from lre_lightning.lens.tokens import visible
from tests.helpers.page import Page
from tests.lens.test_plotting import AWKWARD, lens

GRIDS = [
    replace(lens("plays sport", AWKWARD, words=AWKWARD, layer=1), token=4),
    lens("<b>logit</b> lens", AWKWARD, words=AWKWARD, seed=1),
    lens("plays sport", seed=2),
]


@pytest.fixture(scope="module")
def html():
    return lens_page(GRIDS, title="Lenses <of> a&b")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_the_page_holds_every_grid(page):
    cells, heads = page.all("td"), page.all("th")
    assert len(page.all("table")) == len(GRIDS)
    for grid in GRIDS:
        count = len(grid.layers) * len(grid.tokens)
        shown, cells = cells[:count], cells[count:]
        expected = [
            (
                visible(cell[0]),
                f"p{round(100 * best[0])}{' row' * (layer == grid.layer)}{' column' * (place == grid.token)}",
            )
            for layer, row, probabilities in reversed(list(zip(grid.layers, grid.top, grid.probabilities, strict=True)))
            for place, (cell, best) in enumerate(zip(row, probabilities, strict=True))
        ]
        assert [(cell["text"], cell["class"]) for cell in shown] == expected
        assert all(cell["dir"] == "auto" for cell in shown)
        labels = [str(layer) for layer in reversed(grid.layers)] + ["layer", *map(visible, grid.tokens)]
        assert [head["text"] for head in heads[: len(labels)]] == labels
        own = [] if grid.layer is None else [str(grid.layer), visible(grid.tokens[grid.token])]
        assert [head["text"] for head in heads[: len(labels)] if head.get("class") == "own"] == own
        heads = heads[len(labels) :]
    assert cells == heads == []


def test_the_page_holds_the_most_likely_tokens_of_every_cell(page):
    for grid, script in zip(GRIDS, page.all("script", type="application/json"), strict=True):
        data = json.loads(script["text"])
        assert [[[data["tokens"][i] for i in cell] for cell in row] for row in data["top"]] == [
            [[visible(token) for token in cell] for cell in row] for row in grid.top
        ]
        np.testing.assert_allclose(data["probabilities"], grid.probabilities, rtol=0.006)
        assert len(set(data["tokens"])) == len(data["tokens"])


def test_nothing_in_a_token_or_title_is_markup(page):
    assert page.texts("title") + page.texts("h1") == ["Lenses <of> a&b"] * 2
    titles = ["plays sport (LRE of layer 1)", "<b>logit</b> lens", "plays sport"]
    assert page.texts("h3") == titles
    assert [found["aria-label"] for found in page.all("table")] == titles
    assert len(page.all("script")) == len(GRIDS) + 1
    assert page.all("b") == []
    assert page.all("h2")[0]["text"] == visible("".join(AWKWARD)).replace("␣", " ")


def test_the_page_needs_nothing_from_outside(html, page):
    assert not re.search(r"https?:|//\w|url\(|@import", html)
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
    for part, colours in zip(html.split("prefers-color-scheme: dark", 1), ("magma_r", "magma"), strict=True):
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


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = """
<script>
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const told = [];
const tell = (name) => told.push([name, tip.hidden, tip.innerText, document.querySelectorAll("[tabindex]").length]);
const first = document.querySelector("table.grid");
const cell = first.querySelector("td");
cell.focus();
// A browser that has just started may not have given the page the focus yet; focus() then sends no event.
if (!document.hasFocus()) cell.dispatchEvent(new FocusEvent("focusin", {bubbles: true}));
tell("focus");
press("ArrowUp"); press("ArrowLeft"); tell("edge");
press("ArrowDown"); press("ArrowRight"); tell("moved");
press("Escape"); tell("escape");
first.rows[0].cells[3].dispatchEvent(new PointerEvent("pointerover", {bubbles: true})); tell("hover");
first.dispatchEvent(new PointerEvent("pointerleave")); tell("left");
first.rows[2].cells[1].click(); tell("click");
document.body.textContent = "told" + JSON.stringify(told) + "end";
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium to run the page's script")
def test_a_browser_shows_the_most_likely_tokens_on_hover_and_by_keyboard(html, tmp_path):
    path = tmp_path / "lenses.html"
    path.write_text(html.replace("</body>", KEYS + "</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    result = subprocess.run([BROWSER, *options, path.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"told(\[.*\])end\s*</body>", result.stdout, re.DOTALL)
    assert found, result.stdout[-2000:] + result.stderr[-2000:]
    told = {name: rest for name, *rest in json.loads(unescape(found[1]))}
    grid, last = GRIDS[0], len(GRIDS[0].layers) - 1
    places = {"focus": (last, 0), "edge": (last, 0), "moved": (last - 1, 1), "hover": (last, 2), "click": (last - 2, 0)}
    for name, (y, x) in places.items():
        likely = zip(grid.top[y][x], grid.probabilities[y][x], strict=True)
        tip = ["plays sport (LRE of layer 1)", f"layer {grid.layers[y]}, token {x + 1}: {visible(grid.tokens[x])}"]
        tip += [f"{visible(token)}\t{float(f'{100 * probability:.3g}'):g} %" for token, probability in likely]
        assert [line for line in told[name][1].split("\n") if line] == tip, name
    assert {name for name, (hidden, *_) in told.items() if hidden} == {"escape", "left"}
    assert {count for _, _, count in told.values()} == {len(GRIDS)}  # one stop of the tab key per grid
