"""A page that holds all tables and figures of runs, with their files beside it."""

from __future__ import annotations

import base64
import io
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from lre_lightning.errors import LREError
from lre_lightning.records.record import read_records, result_files
from lre_lightning.report import analysis
from lre_lightning.report.drawing import short_names
from lre_lightning.report.sections import Chapter, Picture, anchor, chapters_of
from lre_lightning.report.tables import Table, to_csv, to_latex, to_text
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.templates import load_template

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PACKAGES = ("lre-lightning", "torch", "lightning", "transformers", "torchmetrics")
LONG_TABLE = 20
"""Lines from which on a table is folded, unless it is the main one."""
MAIN_TABLE = "hyperparameters"
LARGE_SVG = 400_000
"""Characters from which on a figure is in the page as a PNG, if that is smaller."""
MATHEMATICS = re.compile(rb"font-family: 'cm\w+'")
"""A text in Computer Modern."""
LONGEST_CONFIG = 1_000_000
"""Characters of a configuration that the page shows."""
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Drawn:
    """A figure as files: `svg` and `png` are empty, and `note` says why, where there was nothing to draw."""

    svg: bytes = b""
    png: bytes = b""
    note: str = ""


@dataclass(frozen=True)
class Run:
    """Where results came from: a file, or the folder of an evaluation, and the configurations of it by their paths."""

    results: str
    configs: tuple[tuple[str, str], ...]
    job: str = "fit"

    @property
    def command(self) -> str:
        """What would make the results again."""
        return shlex.join(["lre", self.job, "--config", *(path for path, _ in self.configs[:1])])


def make_report(results: Sequence[str | Path], out: str | Path, title: str | None = None) -> Path:
    """Write ``index.html``, which holds everything, and the files ``figures/*`` and ``tables/*`` beside it.

    Args:
        results: Files with the records of runs, or folders of runs; they are merged.
        out: The folder to write to.
        title: Title of the page; it names the LMs if None.

    Returns:
        The page.

    Raises:
        LREError: If there are no results, they contradict each other, or `out` cannot be written to; nothing is
            written then.
    """
    models = analysis.by_model(read_records(results))
    if not models:
        raise LREError(
            f"there are no results in {', '.join(map(repr, map(str, results))) or 'nothing'}: run lre fit first"
        )
    folder = _writable(Path(out))
    names = short_names([model.model for model in models])
    chapters = chapters_of(models, names)
    drawn = _draw(chapters)
    files = dict.fromkeys(file for given in results for file in result_files(Path(given)))
    template = load_template(
        "lre_lightning.report", "report.html.j2", to_text=to_text, inline=inline, anchor=anchor, path_of=path_of
    )
    page = template.render(
        long_table=LONG_TABLE,
        main_table=MAIN_TABLE,
        title=title or f"Linear relational embeddings of {', '.join(names)}",
        chapters=chapters,
        drawn=drawn,
        runs=[*evaluations(results), *(run_of(file) for file in files)],
        command=shlex.join(["lre", "report", *map(str, results), *(["--title", title] if title else [])]),
        date=_newest(files),
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    )
    for path, content in _files(chapters, drawn).items():
        write_whole(folder / path, content)
    index = folder / "index.html"
    write_whole(index, page)
    return index


def _writable(folder: Path) -> Path:
    """The folder, made where it is not there.

    Raises:
        LREError: If it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LREError(f"cannot make the folder {str(folder)!r} for the report: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise LREError(f"cannot write to the folder {str(folder)!r}: give another one for the report")
    return folder


def _newest(files: Iterable[Path]) -> str:
    newest = max(file.stat().st_mtime for file in files)
    return datetime.fromtimestamp(newest, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def run_of(results: Path) -> Run:
    """The run of a file of results, with the newest configuration that Lightning wrote for fit, and the run's own."""
    folder = results.parent
    versions = sorted(filter(Path.is_file, folder.glob("lightning_logs/version_*/config.yaml")), key=_version)
    # Both fit and validate write one; only that of validate has the option `verbose`.
    fits = [path for path in versions if not re.search("^verbose:", _text(path), re.MULTILINE)]
    found = [*fits[-1:], *(path for path in [folder / "config.yaml"] if path.is_file())]
    return Run(str(results), tuple((str(path), _text(path)) for path in found))


def evaluations(results: Sequence[str | Path]) -> list[Run]:
    """Those of the given folders that `lre evaluate` wrote, which leaves its configuration there."""
    found = [Path(given) / "config.yaml" for given in results if not (Path(given) / "fit_results.jsonl").is_file()]
    return [Run(str(path.parent), ((str(path), _text(path)),), "evaluate") for path in found if path.is_file()]


def _version(config: Path) -> int:
    number = config.parent.name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_CONFIG)


def _draw(chapters: Iterable[Chapter]) -> dict[str, Drawn]:
    """Draw all figures, by `path_of` them, with a progress bar in a terminal."""
    from rich.console import Console
    from rich.progress import track

    wanted = [
        (chapter, picture) for chapter in chapters for section in chapter.sections for picture in section.pictures
    ]
    shown = sys.stderr.isatty()
    tracked = track(wanted, "Drawing", console=Console(stderr=True), transient=True, disable=not shown)
    return {path_of(chapter, picture): draw(picture) for chapter, picture in tracked}


def path_of(chapter: Chapter, item: Picture | Table) -> str:
    """The path of an item's files below ``figures`` or ``tables``, without their suffix."""
    return f"{chapter.folder}/{item.name}".removeprefix("/")


def draw(picture: Picture) -> Drawn:
    """A figure as SVG and as PNG; the same bytes every time.

    Texts of the SVG stay texts, which can be searched for and are drawn well in any sans-serif font; unless one has a
    sign of matplotlib's own font for mathematics, which browsers lack.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture.name}):
        try:
            figure = picture.draw()
        except LREError as error:
            return Drawn(note=str(error))
        svg = _saved(figure, "svg", metadata={"Date": None})
        if MATHEMATICS.search(svg):
            matplotlib.rcParams["svg.fonttype"] = "path"
            svg = _saved(figure, "svg", metadata={"Date": None})
        return Drawn(svg, _saved(figure, "png", dpi=150, metadata={"Software": None}))


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


def inline(drawn: Drawn, alt: str, prefix: str) -> Markup:
    """A figure as a part of the page, from SVG, or from PNG where that would be large.

    Args:
        drawn: The figure.
        alt: What it is, for those who do not see it.
        prefix: Goes before its identifiers, which the page's other figures may have too.
    """
    from markupsafe import Markup

    svg = _svg_part(drawn.svg, alt, prefix)
    data = base64.b64encode(drawn.png).decode()
    if len(svg) <= max(LARGE_SVG, len(data)):
        return Markup(svg)
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(alt, data)


def _svg_part(svg: bytes, alt: str, prefix: str) -> str:
    """An SVG document as an element of a page: named, without a size or metadata, its identifiers with a prefix."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    for element in list(root):
        if element.tag == f"{{{SVG}}}metadata":
            root.remove(element)
    for parent in list(root.iter()):
        for style in parent.findall(f"{{{SVG}}}style"):
            parent.remove(style)  # it would hold for the whole page, which has one of its own for all figures
        for name, value in parent.attrib.items():
            parent.set(name, _prefixed(name, value, prefix))
    width = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"]
    root.attrib.update({"role": "img", "aria-label": alt, "style": f"max-width: {width * 4 / 3:.0f}px"})
    return ElementTree.tostring(root, encoding="unicode")


def _prefixed(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name in ("href", f"{{{XLINK}}}href"):
        return re.sub("^#", f"#{prefix}", value)
    return re.sub(r"url\(#", f"url(#{prefix}", value)


def _files(chapters: Iterable[Chapter], drawn: Mapping[str, Drawn]) -> dict[str, str | bytes]:
    """The files beside the page, by their paths."""
    files: dict[str, str | bytes] = {}
    for path, figure in drawn.items():
        if figure.svg:
            files |= {f"figures/{path}.svg": figure.svg, f"figures/{path}.png": figure.png}
    for chapter in chapters:
        for table in (table for section in chapter.sections for table in section.tables if table.rows):
            path = f"tables/{path_of(chapter, table)}"
            latex = to_latex(table, f"{chapter.folder}-".removeprefix("-"))
            files |= {f"{path}.csv": to_csv(table), f"{path}.tex": latex}
    return files
