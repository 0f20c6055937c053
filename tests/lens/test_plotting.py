"""Attribute lenses as figures: what is in them, and that any token can be read in its cell."""

import random
import unicodedata
import warnings
from dataclasses import replace
from itertools import pairwise

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import font_manager, ft2font
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lre_lightning.errors import LREError
from lre_lightning.lens import plotting
from lre_lightning.lens.grid import inks_of, step_of
from lre_lightning.lens.plotting import families_of, plot_lenses, to_pixels
from lre_lightning.lens.reading import LensGrid
from lre_lightning.lens.tokens import visible

AWKWARD = [
    *(" ", "\n", "\t", "\n\n", "   ", "\r", "\x00", "\xa0", "\xad", "\u200b", "\u202e", "\ufeff", "\u2028", "\u0301"),
    *("", "<0xE4><0xB8>", "<0x0A>", "<50300>", " 中国", "東京", "한국어", "नमस्ते", "ไทย", "שלום", " مرحبا", "שָׁלוֹם"),
    *("😀", "👍🏽", "❤️", "e\u0301", "<script>alert(1)</script>", "</script>", "&amp;", "\"'", "$x^2$", "$\\frac"),
    *("a\\b", "{{ x }}", "\u2313", " extraordinarily", "WWWWWWWWWWWW", "iiiiiiiiiiiiiiiiiiiiiiii"),
]
TOKENS, LAYERS = ("Bill", " Bradley", " was"), ("emb", 0, 1, 2)
WORDS = [" the", " Paris", " basketball", "ing", ",", " University"]


def lens(name="plays sport", tokens=TOKENS, layers=LAYERS, seed=0, words=WORDS, k=3, layer=None):
    """A grid of random tokens and probabilities."""
    draw = random.Random(f"{name}{seed}")
    top = [[draw.choices(words, k=k) for _ in tokens] for _ in layers]
    best = [[sorted((draw.random() for _ in range(k)), reverse=True) for _ in tokens] for _ in layers]
    return LensGrid(name, "".join(tokens), tokens, layers, top, best, layer)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("a b\n\n\t", "a␣b⏎⏎⇥"),
        ("\r\x00\x7f", "\\u000d\\u0000\\u007f"),
        ("a\u200bb\u202e\ufeff\xad", "a\\u200bb\\u202e\\ufeff\\u00ad"),
        ("\u0301", "\\u0301"),
        (" \u0301", "␣\\u0301"),
        ("e\u0301\u0302", "e\u0301\u0302"),
        ("\u200d\u0301", "\\u200d\\u0301"),
        ("\u3164\u2800", "\\u3164\\u2800"),
        ("\U000e0041\U000f0000", "\\U000e0041\\U000f0000"),
        ("中שلあ😀é<0xE4>$", "中שلあ😀é<0xE4>$"),
        ("❤\ufe0f", "❤\ufe0f"),
    ],
)
def test_everything_in_a_token_is_visible(token, shown):
    assert visible(token) == shown


def test_no_character_is_invisible():
    hidden = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs", "Mn", "Mc", "Me"}
    for code in [*range(0x3000), *range(0xD7F0, 0x10200), *range(0xE0000, 0xE0200)]:
        shown = visible(chr(code))
        assert shown
        assert not hidden & {unicodedata.category(character) for character in shown}, hex(code)


# Fonts.


@pytest.fixture
def fonts(monkeypatch):
    """Let a test choose the installed fonts by a predicate, and forget which characters they have."""

    def choose(wanted, *more):
        found = [font for font in font_manager.fontManager.ttflist if wanted(font)]
        monkeypatch.setattr(font_manager.fontManager, "ttflist", [*more, *found])
        monkeypatch.setattr(plotting, "_families", {" ": "DejaVu Sans"})

    return choose


def written(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_character_that_matplotlibs_own_font_lacks_is_written_in_another():
    found = families_of("a⌓")
    assert found["a"] == "DejaVu Sans"
    assert font_manager.get_font(font_manager.findfont(found["⌓"])).get_char_index(ord("⌓"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns if it draws a box
        figure = plot_lenses([lens(tokens=("⌓",), words=["x"])])
        assert (to_pixels(figure) < 128).any()
    assert "⌓" in written(figure)


def test_fonts_with_empty_glyphs_boxes_or_broken_files_are_passed_over(fonts, tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    broken = [
        font_manager.FontEntry(fname=str(tmp_path / f"{name}.ttf"), name=f"{name} Sans") for name in ("broken", "gone")
    ]
    fonts(lambda font: True, *broken)
    found = families_of("\u200b\ue123⌓")
    assert found["\u200b"] is None  # DejaVu Sans has a glyph without ink
    assert found["⌓"] is not None
    assert not str(found["\ue123"]).startswith(("Last", "cmr", "STIXSize"))


def test_characters_without_a_font_are_escapes(fonts):
    fonts(lambda font: font.name == "DejaVu Sans")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_lenses([lens(tokens=("中a", "\U0001f9ff", "❤️"), words=["x"])])
        to_pixels(figure)
    assert {"\\u4e2da", "\\U0001f9ff", "❤"} <= set(written(figure))
    assert figure.texts[0].get_text() == "\\u4e2da\\U0001f9ff❤"


def test_a_matplotlib_that_cannot_write_from_right_to_left_gets_escapes(fonts, monkeypatch):
    grids = [lens(tokens=("של",))]
    for version, shown in (("0.10", "של"), (None, "\\u05e9\\u05dc")):
        fonts(lambda font: True)
        if version is None:
            monkeypatch.delattr(ft2font, "__libraqm_version__")
        else:
            monkeypatch.setattr(ft2font, "__libraqm_version__", version, raising=False)
        assert plot_lenses(grids).texts[0].get_text() == shown


# The figure.


def cells_of(axes, grid):
    """Return the text of each cell by row (layer) and column (token)."""
    places = {text: text.get_position() for text in axes.texts}
    return {(int(y), int(x)): text for text, (x, y) in places.items() if x > 0 and 0 <= y < len(grid.layers)}


def test_cells_hold_the_most_likely_tokens_shaded_by_their_probabilities():
    grids = [lens("plays sport", layer=2), lens("attended", layer="emb"), lens("logit lens")]
    titles = ["plays sport, estimated at layer 2", "attended, estimated at layer emb", "logit lens"]
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
            assert text.get_color() == inks_of("magma_r")[step_of(shades[y, x])][1]
        around = [text for text in axes.texts if text not in cells.values()]
        assert [text.get_text() for text in around] == ["Bill", "␣Bradley", "␣was", "emb", "0", "1", "2", title]
        assert [int(text.get_position()[0]) for text in around[:3]] == [0, 1, 2]
        assert [int(text.get_position()[1]) for text in around[3:7]] == [0, 1, 2, 3]
        assert axes.get_ylim() == (0, 4)
        (row,) = [patch.get_bbox().bounds for patch in axes.patches] or [None]
        assert row == (None if grid.layer is None else (0, grid.layers.index(grid.layer), 3, 1))
    assert [text.get_text() for text in scale.texts] == ["0", "0.5", "1", "probability"]
    ramp = scale.images[0].get_array()
    assert (ramp[0, 0], ramp[0, -1], scale.images[0].get_cmap().name) == (0, 1, "magma_r")


def test_the_columns_of_all_subjects_are_framed_too():
    (axes, _) = plot_lenses([replace(lens(layer=1), mentions=[("a", 0), ("c", 2), ("b c", 2)])]).axes
    assert [patch.get_bbox().bounds for patch in axes.patches] == [(0, 2, 3, 1), (0, 0, 1, 4), (2, 0, 1, 4)]


def test_any_token_can_be_read_in_its_cell():
    grid = lens(tokens=(AWKWARD * 2)[:40], words=AWKWARD, k=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_lenses([grid])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    axes, renderer = figure.axes[0], canvas.get_renderer()
    for (y, x), text in cells_of(axes, grid).items():
        box = text.get_window_extent(renderer)
        (left, bottom), (right, top) = axes.transData.transform([(x, y), (x + 1, y + 1)])
        assert text.get_text()
        assert left <= box.x0, text.get_text()
        assert box.x1 <= right, text.get_text()
        assert bottom - 3 <= box.y0
        assert box.y1 <= top + 3
        assert text.get_size() * figure.dpi / 72 >= 11  # pixels
        assert not text.get_parse_math()
    shown = set(written(figure))
    assert {"$x^2$", "a\\b", "\\u200b", "␣␣␣", "⏎⏎", "∅", "&amp;", "<50300>"} <= shown
    assert any(text.startswith("␣extra") and text.endswith("…") for text in shown)
    assert any(text.startswith("WWWW") and text.endswith("…") for text in shown)
    assert not any("�" in text for text in shown)


def test_cells_are_as_wide_as_words_of_eight_characters_but_no_wider_than_their_tokens_need():
    narrow, wide = (plot_lenses([lens(words=[word], tokens=["a"] * 20)]) for word in ("a", " sweaters"))
    assert "␣sweaters" in written(wide)
    assert narrow.get_figwidth() < 0.8 * wide.get_figwidth()


def test_grids_are_below_each_other_in_the_width_of_one():
    one, many = (plot_lenses([lens(str(i)) for i in range(count)]) for count in (1, 20))
    assert many.get_figwidth() == one.get_figwidth()
    boxes = [axes.get_position() for axes in many.axes]
    assert len({round(box.x0, 6) for box in boxes}) == 1
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1 and box.y1 <= 1 for box in boxes)


def test_a_picture_that_would_be_too_large_has_a_lower_resolution(monkeypatch):
    assert plot_lenses([lens()]).dpi == 144
    monkeypatch.setattr(plotting, "LONGEST_SIDE", 200)
    figure = plot_lenses([lens()])
    assert max(figure.bbox.width, figure.bbox.height) == pytest.approx(200)


def test_pixels_are_the_same_every_time_whatever_the_users_settings():
    grids, before = [lens("a", words=["$x", "a_b"]), lens("b")], plt.get_fignums()
    figure = plot_lenses(grids)
    pixels = to_pixels(figure)
    assert (pixels.shape, pixels.dtype) == ((round(figure.bbox.height), round(figure.bbox.width), 3), np.uint8)
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100
    with matplotlib.rc_context({"text.usetex": True, "font.family": "serif", "text.parse_math": True}):
        assert np.array_equal(pixels, to_pixels(plot_lenses(grids)))
    assert plt.get_fignums() == before


def test_grids_of_several_texts_or_none_cannot_be_plotted():
    with pytest.raises(LREError, match=r"of one text, and 2 are given: \['a', 'b'\]"):
        plot_lenses([lens(tokens=["a"]), lens(tokens=["b"])])
    with pytest.raises(LREError, match="and 0 are given"):
        plot_lenses([])
