"""Attribute lenses as figures and as pages: what is in them, and that any token can be read in its cell."""

import json
import random
import re
import shutil
import subprocess
import unicodedata
import warnings
from html import unescape
from html.parser import HTMLParser

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import font_manager, ft2font
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lre_lightning.errors import LREError
from lre_lightning.lens import drawing as lens_drawing
from lre_lightning.lens.drawing import families_of, lens_page, luminance, plot_lenses, to_pixels, visible
from lre_lightning.lens.lens import Lens

AWKWARD = [
    *(
        " ",
        "\n",
        "\t",
        "\n\n",
        "   ",
        "\r",
        "\x00",
        "\xa0",
        "\xad",
        "\u200b",
        "\u202e",
        "\ufeff",
        "\u2028",
        "\u0301",
        "",
    ),
    *(
        "<0xE4><0xB8>",
        "<0x0A>",
        "<50300>",
        " 中国",
        "東京",
        "한국어",
        "नमस्ते",
        "ไทย",
        "שלום",
        " مرحبا",
        "שָׁלוֹם",
        "😀",
        "👍🏽",
        "❤️",
        "e\u0301",
    ),
    *("<script>alert(1)</script>", "</script>", "&amp;", "\"'", "$x^2$", "$\\frac", "a\\b", "{{ x }}", "\u2313"),
    *(" extraordinarily", "WWWWWWWWWWWW", "iiiiiiiiiiiiiiiiiiiiiiii"),
]
WORDS = [" the", " Paris", " basketball", "ing", ",", " University"]


def lens(
    name="plays sport",
    tokens=("Bill", " Bradley", " was"),
    layers=("emb", 0, 1, 2),
    seed=0,
    words=WORDS,
    k=3,
    layer=None,
):
    """A grid of tokens and probabilities drawn at random."""
    draw = random.Random(f"{name}{seed}")
    top = tuple(tuple(tuple(draw.choices(words, k=k)) for _ in tokens) for _ in layers)
    shares = tuple(
        tuple(tuple(sorted((draw.random() for _ in range(k)), reverse=True)) for _ in tokens) for _ in layers
    )
    return Lens(name, "".join(tokens), tuple(tokens), tuple(layers), top, shares, layer)


@pytest.fixture
def one_font(monkeypatch):
    """Matplotlib's own font alone, whatever is installed."""
    own = [(name, path) for name, path in lens_drawing._installed() if name == "DejaVu Sans"]
    monkeypatch.setattr(lens_drawing, "_installed", lambda: own)
    monkeypatch.setattr(lens_drawing, "_families", {" ": "DejaVu Sans"})


# What is shown of a token.


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" Paris", "␣Paris"),
        ("a b\n\n\t", "a␣b⏎⏎⇥"),
        ("\r\x00\x7f", "\\u000d\\u0000\\u007f"),
        ("\xa0\u3000\u2028", "\\u00a0\\u3000\\u2028"),
        ("a\u200bb\u202e\ufeff\xad", "a\\u200bb\\u202e\\ufeff\\u00ad"),
        ("\u0301", "\\u0301"),
        (" \u0301", "␣\\u0301"),
        ("e\u0301\u0302", "e\u0301\u0302"),
        ("\u200d\u0301", "\\u200d\\u0301"),
        ("\u3164\u2800", "\\u3164\\u2800"),
        ("\U000e0041\U000f0000", "\\U000e0041\\U000f0000"),
        ("", "∅"),
        ("中שلあ😀é<0xE4>$", "中שلあ😀é<0xE4>$"),
        ("❤\ufe0f", "❤\ufe0f"),
    ],
)
def test_how_a_token_is_shown(token, shown):
    assert visible(token) == shown


def test_no_character_is_invisible():
    hidden = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs", "Mn", "Mc", "Me"}
    for code in [*range(0x3000), *range(0xD7F0, 0x10200), *range(0xE0000, 0xE0200)]:
        shown = visible(chr(code))
        assert shown
        assert not hidden & {unicodedata.category(character) for character in shown}, hex(code)


# Fonts.


def test_a_font_is_found_for_characters_that_matplotlibs_own_lacks():
    found = families_of("a⌓")
    assert found["a"] == "DejaVu Sans"
    assert found["⌓"] not in (None, "DejaVu Sans")
    assert font_manager.get_font(font_manager.findfont(found["⌓"])).get_char_index(ord("⌓"))


def test_a_font_is_no_font_for_a_character_that_it_draws_nothing_or_a_box_for(monkeypatch):
    monkeypatch.setattr(lens_drawing, "_families", {})
    assert families_of("\u200b\ue123")["\u200b"] is None  # DejaVu Sans has it, without a line
    names = [name for name, _ in lens_drawing._installed()]
    assert names[0] == "DejaVu Sans"
    assert not [name for name in names if name.startswith(("Last", "cmr", "STIXSize"))]


def test_of_a_family_the_regular_face_is_looked_into():
    faces = {entry.fname: entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"}
    entry = faces[dict(lens_drawing._installed())["DejaVu Sans"]]
    assert (entry.style, entry.weight) == ("normal", 400)


def test_a_broken_font_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    broken = [("Broken", str(tmp_path / "broken.ttf")), ("Gone", str(tmp_path / "gone.ttf"))]
    monkeypatch.setattr(lens_drawing, "_installed", lambda own=lens_drawing._installed(): [*broken, *own])  # noqa: B008
    monkeypatch.setattr(lens_drawing, "_families", {})
    assert families_of("a") == {"a": "DejaVu Sans"}


def written(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_characters_without_a_font_are_escapes(one_font):
    grid = lens(tokens=("中a", "\U0001f9ff", "❤️"), words=["x"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where it draws a box
        figure = plot_lenses([grid])
        to_pixels(figure)
    assert {"\\u4e2da", "\\U0001f9ff", "❤"} <= set(written(figure))
    assert figure.texts[0].get_text() == "\\u4e2da\\U0001f9ff❤"


def test_a_character_of_another_font_is_drawn_in_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_lenses([lens(tokens=("⌓",), words=["x"])])
        pixels = to_pixels(figure)
    assert "⌓" in written(figure)
    assert (pixels < 128).any()


def ink_of(text, size=40):
    """The columns and rows of a text that have ink, drawn large."""
    pen = lens_drawing._Pen([text, "…"])
    figure = Figure((6, 1.5), dpi=100)
    pen.write(figure, 0.1, 0.4, pen.drawable(text), size)
    dark = to_pixels(figure).min(-1) < 128
    return dark[:, dark.any(0).argmax() : dark.shape[1] - dark.any(0)[::-1].argmax()]


def alike(ink, other):
    return np.logical_and(ink, other).sum() / np.logical_or(ink, other).sum()


def test_a_right_to_left_token_begins_on_the_right():
    both, first = ink_of("שם"), ink_of("ש")
    width = first.shape[1]
    assert alike(both[:, -width:], first) > 0.8
    assert alike(both[:, :width], first) < 0.5
    spaced = ink_of("␣ש")  # its space is before it, on the right
    assert alike(spaced[:, :width], first) > 0.8


def test_a_matplotlib_that_knows_no_right_to_left_gets_the_letters_from_left_to_right(monkeypatch):
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    assert lens_drawing._ordered("␣שלום") == "םולש␣"
    assert lens_drawing._ordered("שלום ab") == " abםולש"  # noqa: RUF001
    assert lens_drawing._ordered("שָׁל") == "לשָׁ"
    assert lens_drawing._ordered("␣abc") == "␣abc"
    monkeypatch.setattr(ft2font, "__libraqm_version__", "0.10", raising=False)
    assert lens_drawing._ordered("␣שלום") == "␣שלום"


# The figure.


def cells_of(axes, grid):
    """The text of each cell by (layer's row, token's column)."""
    found = {}
    for text in axes.texts:
        x, y = text.get_position()
        if x > 0 and 0 <= y < len(grid.layers):
            found[int(y), int(x)] = text
    return found


def labels_of(axes):
    below = [text for text in axes.texts if text.get_position()[1] < 0]
    beside = [text for text in axes.texts if text.get_position()[0] < 0]
    return (
        [text.get_text() for text in sorted(below, key=lambda text: text.get_position()[0])],
        [text.get_text() for text in sorted(beside, key=lambda text: text.get_position()[1])],
    )


def test_cells_hold_the_top_tokens_shaded_by_their_probabilities():
    grids = [lens("plays sport", layer=2), lens("attended", layer="emb"), lens("logit lens")]
    titles = ["plays sport (LRE of layer 2)", "attended (LRE of layer emb)", "logit lens"]
    figure = plot_lenses(grids)
    *panels, scale = figure.axes
    assert figure.texts[0].get_text() == "Bill Bradley was"
    for axes, grid, title in zip(panels, grids, titles, strict=True):
        cells = cells_of(axes, grid)
        assert len(cells) == 12
        (mesh,) = axes.collections
        assert (mesh.norm.vmin, mesh.norm.vmax, mesh.get_cmap().name) == (0, 1, "magma_r")
        shades = np.asarray(mesh.get_array()).reshape(4, 3)
        for (y, x), text in cells.items():
            assert text.get_text() == visible(grid.top[y][x][0])
            assert shades[y, x] == grid.probabilities[y][x][0]
        assert labels_of(axes) == (["Bill", "␣Bradley", "␣was"], ["emb", "0", "1", "2"])
        assert [text.get_text() for text in axes.texts if text.get_position()[1] > 4] == [title]
        assert axes.get_ylim() == (0, 4)
    assert [text.get_text() for text in scale.texts] == ["0", "0.5", "1", "probability"]
    ramp = scale.images[0].get_array()
    assert (ramp[0, 0], ramp[0, -1]) == (0, 1)
    assert scale.images[0].get_cmap().name == "magma_r"


def test_texts_stand_out_from_their_cells():
    shares = tuple(tuple((share / 100,) for share in range(row, row + 11)) for row in range(0, 100, 10))
    top = tuple(tuple(("x",) for _ in row) for row in shares)
    grid = Lens("a", "b", tuple("0123456789a"), tuple(range(10)), top, shares)
    axes = plot_lenses([grid]).axes[0]
    cells = cells_of(axes, grid)
    inks = set()
    for (y, x), text in cells.items():
        shade = luminance(matplotlib.colormaps["magma_r"](shares[y][x][0])[:3])
        ink = luminance(text.get_color())
        inks.add(ink)
        assert (max(shade, ink) + 0.05) / (min(shade, ink) + 0.05) >= 4.5
    assert inks == {0, 1}


def test_any_token_can_be_read_in_its_cell():
    tokens = (AWKWARD * 2)[:40]
    grid = lens(tokens=tokens, layers=("emb", *range(7)), words=AWKWARD, k=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_lenses([grid])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    axes, renderer = figure.axes[0], canvas.get_renderer()
    for (y, x), text in cells_of(axes, grid).items():
        box, (left, bottom), (right, top) = (
            text.get_window_extent(renderer),
            *axes.transData.transform([(x, y), (x + 1, y + 1)]),
        )
        assert text.get_text()
        assert left <= box.x0, text.get_text()
        assert box.x1 <= right, text.get_text()
        assert bottom - 3 <= box.y0
        assert box.y1 <= top + 3
        assert text.get_size() * figure.dpi / 72 >= 11  # pixels
        assert not text.get_parse_math()
    shown = {text.get_text() for text in cells_of(axes, grid).values()}
    assert {"$x^2$", "a\\b", "\\u200b", "␣␣␣", "⏎⏎", "∅", "&amp;", "<50300>"} <= shown
    assert any(text.startswith("␣extra") and text.endswith("…") for text in shown)
    assert any(text.startswith("WWWW") and text.endswith("…") for text in shown)
    assert not any("�" in text for text in shown)


def test_words_of_eight_characters_are_whole():
    grid = lens(words=[" Bradley", "Columbia", " sweaters"], tokens=(" Bradley", "Columbia"))
    shown = written(plot_lenses([grid]))
    assert not any("…" in text for text in shown)
    assert "␣sweaters" in shown


def test_cells_are_no_wider_than_their_tokens_need():
    narrow, wide = (plot_lenses([lens(words=[word], tokens=["a"] * 20)]) for word in ("a", "Columbia"))
    assert narrow.get_figwidth() < 0.8 * wide.get_figwidth()


def test_tex_and_other_settings_of_a_user_change_nothing():
    grid = lens(words=["$x", "a_b"])
    with matplotlib.rc_context({"text.usetex": True, "font.family": "serif", "text.parse_math": True}):
        found = to_pixels(plot_lenses([grid]))
    assert np.array_equal(found, to_pixels(plot_lenses([grid])))


def places(figure):
    return [tuple(np.round(axes.get_position().bounds[:2], 3)) for axes in figure.axes[:-1]]


def test_grids_are_beside_each_other_and_below_each_other_where_wide():
    beside = plot_lenses([lens(name) for name in "abc"])
    assert len({x for x, _ in places(beside)}) == 3
    assert len({y for _, y in places(beside)}) == 1
    wide = [lens(name, tokens=[" Columbia"] * 40, words=["Columbia"], layers=("emb", *range(48))) for name in "abc"]
    below = plot_lenses(wide)
    assert len({x for x, _ in places(below)}) == 1
    assert sorted((y for _, y in places(below)), reverse=True) == [y for _, y in places(below)]
    many = plot_lenses([lens(str(i), tokens=["Columbia"] * 20, layers=range(4), words=["Columbia"]) for i in range(40)])
    assert 0.4 < many.get_figwidth() / many.get_figheight() < 2.5
    boxes = [axes.get_position() for axes in many.axes]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1 and box.y1 <= 1 for box in boxes)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_a_picture_that_would_be_too_large_has_a_lower_resolution():
    tall = lens(tokens=["a"], layers=range(3000), words=["x"], k=1)
    figure = plot_lenses([tall])
    assert figure.bbox.height <= 2**16 - 1 < figure.get_figheight() * 144
    assert plot_lenses([lens()]).dpi == 144


def test_pixels_are_the_figures_and_the_same_every_time():
    grids = [lens("a"), lens("b")]
    figure = plot_lenses(grids)
    pixels = to_pixels(figure)
    assert pixels.shape == (round(figure.bbox.height), round(figure.bbox.width), 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, to_pixels(plot_lenses(grids)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


def test_grids_of_several_texts_or_none_are_no_picture():
    with pytest.raises(LREError, match=r"of one text, and 2 are given: \['a', 'b'\]"):
        plot_lenses([lens(tokens=["a"]), lens(tokens=["b"])])
    with pytest.raises(LREError, match="and 0 are given"):
        plot_lenses([])


def test_drawing_leaves_pyplot_alone():
    before = plt.get_fignums()
    to_pixels(plot_lenses([lens()]))
    assert plt.get_fignums() == before


# The page.


class Page(HTMLParser):
    """Elements of a page with their attributes and texts, and every element that was left open or closed wrongly."""

    VOID = ("meta", "link", "img", "br", "input", "base")

    def __init__(self, page):
        super().__init__()
        self.elements, self.open, self.wrong = [], [], []
        self.feed(page)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()["tag"] != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {"tag": tag, **attributes}
        return [found for found in self.elements if wanted.items() <= found.items()]


def data_of(page):
    return [json.loads(script["text"]) for script in page.all("script", type="application/json")]


GRIDS = [
    lens("plays sport", AWKWARD, words=AWKWARD, layer=1),
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
    assert page.wrong == []
    cells, heads = page.all("td"), page.all("th")
    assert len(page.all("table")) == len(GRIDS)
    for grid in GRIDS:
        count = len(grid.layers) * len(grid.tokens)
        shown, cells = cells[:count], cells[count:]
        expected = [
            (visible(cell[0]), f"p{round(100 * share[0])}")
            for row, shares in zip(reversed(grid.top), reversed(grid.probabilities), strict=True)
            for cell, share in zip(row, shares, strict=True)
        ]
        assert [(cell["text"], cell["class"]) for cell in shown] == expected
        assert all(cell["dir"] == "auto" for cell in shown)
        labels = [str(layer) for layer in reversed(grid.layers)] + ["layer", *map(visible, grid.tokens)]
        assert [head["text"] for head in heads[: len(labels)]] == labels
        assert all(head["title"] == head["text"] for head in heads[len(grid.layers) + 1 : len(labels)])
        heads = heads[len(labels) :]
    assert cells == heads == []


def test_the_page_holds_the_likeliest_tokens_of_every_cell(page):
    for grid, data in zip(GRIDS, data_of(page), strict=True):
        assert [[[data["tokens"][i] for i in cell] for cell in row] for row in data["top"]] == [
            [[visible(token) for token in cell] for cell in row] for row in grid.top
        ]
        np.testing.assert_allclose(data["probabilities"], grid.probabilities, rtol=0.006)
        assert len(set(data["tokens"])) == len(data["tokens"])


def test_nothing_of_a_token_or_title_is_markup(page):
    assert [found["text"] for found in page.all("title") + page.all("h1")] == ["Lenses <of> a&b"] * 2
    titles = ["plays sport (LRE of layer 1)", "<b>logit</b> lens", "plays sport"]
    assert [found["text"] for found in page.all("h3")] == titles
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
    assert [link["text"] for link in page.all("a")] == [heading["text"] for heading in page.all("h2")]
    assert len(page.all("h2")) == 2
    assert Page(lens_page(GRIDS[:2])).all("nav") == []


def test_colours_of_the_page_stand_out_in_the_light_and_in_the_dark(html):
    light, dark = html.split("prefers-color-scheme: dark", 1)
    names = {}
    for part, colours in ((light, "magma_r"), (dark, "magma")):
        rules = re.findall(r"\.p(\d+) { background: (#\w{6}); color: (#\w{6}); }", part)
        assert [int(step) for step, _, _ in rules] == list(range(101))
        for step, background, text in rules:
            rgb = matplotlib.colormaps[colours](int(step) / 100)[:3]
            np.testing.assert_allclose(matplotlib.colors.to_rgb(background), rgb, atol=0.003)
            high, low = sorted([luminance(background), luminance(text)], reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5
        names[colours] = luminance(rules[-1][1]) > luminance(rules[0][1])
    assert names == {"magma_r": False, "magma": True}


def test_a_page_is_the_same_every_time_and_is_of_at_least_one_grid(html):
    assert lens_page(GRIDS, title="Lenses <of> a&b") == html
    with pytest.raises(LREError, match="at least one"):
        lens_page([])


def test_a_page_of_48_layers_and_40_tokens_is_small():
    big = [lens(name, (AWKWARD * 2)[:40], ("emb", *range(47)), words=AWKWARD, k=5) for name in "abc"]
    assert len(lens_page(big).encode()) < 1_000_000


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
def test_a_browser_shows_the_likeliest_tokens_on_hover_and_by_keyboard(html, tmp_path):
    path = tmp_path / "lenses.html"
    path.write_text(html.replace("</body>", KEYS + "</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    result = subprocess.run([BROWSER, *options, path.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"told(\[.*\])end\s*</body>", result.stdout, re.DOTALL)
    assert found, result.stdout[-2000:] + result.stderr[-2000:]
    grid = GRIDS[0]
    told = {name: rest for name, *rest in json.loads(unescape(found[1]))}

    def tip(y, x):
        lines = [f"layer {grid.layers[y]}, token {x + 1}: {visible(grid.tokens[x])}"]
        lines += [
            f"{visible(token)}\t{float(f'{100 * share:.3g}'):g} %"
            for token, share in zip(grid.top[y][x], grid.probabilities[y][x], strict=True)
        ]
        return lines

    def lines(name):
        return [line for line in told[name][1].split("\n") if line]

    last = len(grid.layers) - 1
    for name, y, x in (("focus", last, 0), ("edge", last, 0), ("moved", last - 1, 1), ("hover", last, 2)):
        assert told[name][0] is False, name
        assert lines(name) == tip(y, x), name
    assert lines("click") == tip(last - 2, 0)
    assert told["escape"][0] is told["left"][0] is True
    assert {count for _, _, count in told.values()} == {len(GRIDS)}  # one stop of the tab key a grid
