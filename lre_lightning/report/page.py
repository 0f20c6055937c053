"""The page with all tables and figures of runs, and their files next to it."""

from __future__ import annotations

import base64
import io
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rich.console import Console
from rich.progress import track

from lre_lightning.errors import LREError
from lre_lightning.lens.page import load_template
from lre_lightning.records.record import read_records, result_files
from lre_lightning.report import analysis
from lre_lightning.report.chapters import Chapter, anchor, chapters_of
from lre_lightning.report.sections import Picture
from lre_lightning.report.tables import Table, to_text, write_table
from lre_lightning.storage.files import check_writable, write_whole

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PACKAGES = ("lre-lightning", "torch", "lightning", "transformers", "torchmetrics")
LARGE_SVG = 400_000
"""Number of characters from which a figure is on the page as a PNG, if that is smaller."""
MATHEMATICS = re.compile(rb"font-family: 'cm\w+'")
"""A text in Computer Modern."""
LONGEST_CONFIG = 1_000_000
"""Number of characters of a configuration that the page shows."""
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Plotted:
    """A figure as files; where there was nothing to plot, `svg` and `png` are empty and `note` is the reason."""

    svg: bytes = b""
    png: bytes = b""
    note: str = ""


@dataclass(frozen=True)
class Run:
    """The source of results: a file, or the folder of an evaluation, and its configurations by path."""

    results: str
    configs: dict[str, str]
    job: str = "fit"

    @property
    def command(self) -> str:
        """Command that reproduces the results."""
        return shlex.join(["lre", self.job, "--config", *list(self.configs)[:1]])


def make_report(results: Sequence[str | Path], out: str | Path, title: str | None = None) -> Path:
    """Write ``index.html``, which is self-contained, and the files ``figures/*`` and ``tables/*`` next to it.

    Args:
        results: Files with the records of runs, or folders of runs; they are merged.
        out: The folder to write to.
        title: Title of the page; it names the LMs if None.

    Returns:
        The page.

    Raises:
        LREError: If there are no results, they contradict each other, or `out` is not writable; nothing is written
            then.
    """
    models = analysis.by_model(read_records(results))
    if not models:
        given = ", ".join(map(repr, map(str, results))) or "nothing"
        raise LREError(f"there are no results in {given}: run lre fit first")
    folder = Path(out)
    check_writable(folder)
    chapters = chapters_of(models)
    wanted = {path_of(c, picture): picture for c in chapters for section in c.sections for picture in section.pictures}
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    tracked = track(wanted.items(), "Plotting", console=console, transient=True, disable=hidden)
    plotted = {path: plot(picture) for path, picture in tracked}
    files = dict.fromkeys(file for given in results for file in result_files(Path(given)))
    newest = datetime.fromtimestamp(max(file.stat().st_mtime for file in files), tz=timezone.utc)
    template = load_template(
        "lre_lightning.report", "report.html.j2", to_text=to_text, inline=inline, anchor=anchor, path_of=path_of
    )
    page = template.render(
        title=title or f"Linear relational embeddings of {', '.join(analysis.names_of(models))}",
        chapters=chapters,
        plotted=plotted,
        runs=[*evaluations(results), *map(run_of, files)],
        command=shlex.join(["lre", "report", *map(str, results), *(["--title", title] if title else [])]),
        date=newest.strftime("%Y-%m-%d %H:%M UTC"),
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    )
    for path, figure in plotted.items():
        if figure.svg:
            write_whole(folder / "figures" / f"{path}.svg", figure.svg)
            write_whole(folder / "figures" / f"{path}.png", figure.png)
    for chapter in chapters:
        for table in (table for section in chapter.sections for table in section.tables if table.rows):
            write_table(table, folder / "tables" / path_of(chapter, table), f"{chapter.folder}-".removeprefix("-"))
    write_whole(folder / "index.html", page)
    return folder / "index.html"


def run_of(results: Path) -> Run:
    """Return the run of a file of results, with Lightning's newest configuration of a fit and the run's own."""

    def version(config: Path) -> int:
        number = config.parent.name.removeprefix("version_")
        return int(number) if number.isdecimal() else -1

    folder = results.parent
    versions = sorted(filter(Path.is_file, folder.glob("lightning_logs/version_*/config.yaml")), key=version)
    # Both fit and validate write one; only that of validate has the option `verbose`.
    fits = [path for path in versions if not re.search("^verbose:", _text(path), re.MULTILINE)]
    found = [*fits[-1:], *(path for path in [folder / "config.yaml"] if path.is_file())]
    return Run(str(results), {str(path): _text(path) for path in found})


def evaluations(results: Iterable[str | Path]) -> list[Run]:
    """Return the folders among the given ones that `lre evaluate` wrote, which leaves its configuration there."""
    found = [Path(given) / "config.yaml" for given in results if not (Path(given) / "fit_results.jsonl").is_file()]
    return [Run(str(path.parent), {str(path): _text(path)}, "evaluate") for path in found if path.is_file()]


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_CONFIG)


def path_of(chapter: Chapter, item: Picture | Table) -> str:
    """Return the path of an item's files below ``figures`` or ``tables``, without the suffix."""
    return f"{chapter.folder}/{item.name}".removeprefix("/")


def plot(picture: Picture) -> Plotted:
    """Return a figure as SVG and PNG, with the same bytes every time.

    Text in the SVG remains text, which can be searched and suits any sans-serif font, unless some of it needs
    matplotlib's own font for mathematics, which browsers lack.
    """
    import matplotlib

    def saved(figure: Figure, kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format=kind, **options)
        return file.getvalue()

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture.name}):
        try:
            figure = picture.plot()
        except LREError as error:
            return Plotted(note=str(error))
        svg = saved(figure, "svg", metadata={"Date": None})
        if MATHEMATICS.search(svg):
            matplotlib.rcParams["svg.fonttype"] = "path"
            svg = saved(figure, "svg", metadata={"Date": None})
        return Plotted(svg, saved(figure, "png", dpi=150, metadata={"Software": None}))


def inline(plotted: Plotted, alt: str, prefix: str) -> Markup:
    """Return a figure as an element of the page, from SVG, or from PNG if the SVG is large and the PNG smaller.

    The text `alt` describes it to readers who cannot see it; `prefix` keeps its identifiers apart from those of others.
    """
    from markupsafe import Markup

    svg = _svg_element(plotted.svg, alt, prefix)
    data = base64.b64encode(plotted.png).decode()
    if len(svg) <= max(LARGE_SVG, len(data)):
        return Markup(svg)
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(alt, data)


def _svg_element(svg: bytes, alt: str, prefix: str) -> str:
    """Return an SVG document as a labelled element without size or metadata, its identifiers prefixed."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    # A style would apply to the whole page, which has one of its own for all figures.
    for parent in list(root.iter()):
        for unwanted in (*parent.findall(f"{{{SVG}}}style"), *parent.findall(f"{{{SVG}}}metadata")):
            parent.remove(unwanted)
        for name, value in parent.attrib.items():
            if name == "id":
                parent.set(name, prefix + value)
            elif name in ("href", f"{{{XLINK}}}href"):
                parent.set(name, re.sub("^#", f"#{prefix}", value))
            else:
                parent.set(name, value.replace("url(#", f"url(#{prefix}"))
    width = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"]
    root.attrib.update({"role": "img", "aria-label": alt, "style": f"max-width: {width * 4 / 3:.0f}px"})
    return ElementTree.tostring(root, encoding="unicode")
