"""The page with all tables and figures of runs, and their files next to it."""

from __future__ import annotations

import io
import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from lre_lightning.concepts.record import read_concept_records
from lre_lightning.errors import LREError
from lre_lightning.lens.files import LENSES, read_lenses_file
from lre_lightning.lens.grid import script, style
from lre_lightning.lens.page import grid_json
from lre_lightning.lens.reading import LensGrid
from lre_lightning.lens.tokens import sentence
from lre_lightning.progress import progress
from lre_lightning.records import analysis
from lre_lightning.records.files import read_records, result_files
from lre_lightning.report.chapters import anchor, chapters_of
from lre_lightning.report.columns import read_columns
from lre_lightning.report.sections import Chapter, Picture
from lre_lightning.report.tables import Table, to_text, write_table
from lre_lightning.storage.files import check_writable, write_whole
from lre_lightning.storage.templates import load_template

if TYPE_CHECKING:
    from markupsafe import Markup

PACKAGES = ("lre-lightning", "torch", "lightning", "transformers", "torchmetrics")
NOT_MEASURED = "not measured"
"""What the table of findings says of those that were not measured."""
LONGEST_CONFIG = 1_000_000
"""Number of characters of a configuration that the page shows."""
SVG_STYLE = "color-scheme: light dark; color: CanvasText; fill: currentColor; stroke-linejoin: round"
"""Style of a figure, which is light or dark as its reader prefers."""


def versions() -> dict[str, str]:
    """Return the versions of `PACKAGES`."""
    return {name: metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True)
class Source:
    """A file of results or the folder of an evaluation, the path and text of its configuration, and what repeats it."""

    results: str
    config: str = ""
    text: str = ""
    command: str = ""


def make_report(
    results: Sequence[str | Path], out: str | Path, title: str | None = None, columns: Sequence[str | Path] = ()
) -> Path:
    """Write ``index.html``, which is self-contained, and the files ``figures/*`` and ``tables/*`` next to it.

    Args:
        results: Files with the records of runs, or folders of runs; they are merged.
        out: The folder to write to.
        title: Title of the page; it names the LMs if None.
        columns: Tables with columns ``relation``, ``subject`` or ``object``, and columns of numbers to set
            beside the scores.

    Returns:
        The page.

    Raises:
        LREError: If there are no results, they contradict each other, `columns` do not fit them, or `out` is not
            writable; nothing is written then.
    """
    models = analysis.by_model(read_records(results))
    if not models:
        places = ", ".join(map(repr, map(str, results))) or "nothing"
        raise LREError(f"there are no results in {places}: run lre fit first")
    folder = Path(out)
    check_writable(folder)
    concepts = (record for place in map(Path, results) if place.is_dir() for record in read_concept_records(place))
    own = [column for table in columns for column in read_columns(Path(table))]
    chapters = chapters_of(models, list({record.place: record for record in concepts}.values()), own)
    given = ["lre", "report", *map(str, results), "--out", str(out), *(["--title", title] if title else [])]
    command = shlex.join([*given, *(["--column", *map(str, columns)] if columns else [])])
    default = f"Linear relational embeddings of {', '.join(analysis.names_of(models))}"
    files = [place / part / "lenses" / LENSES for place in map(Path, results) for part in ("", "main")]
    lenses = [lens for file in files if file.is_file() for lens in read_lenses_file(file)]
    return write_page(folder, title or default, chapters, results, command, lenses)


def write_page(
    folder: Path,
    title: str,
    chapters: Sequence[Chapter],
    results: Sequence[str | Path],
    command: str,
    lenses: Sequence[LensGrid] = (),
) -> Path:
    """Write a page of chapters, and its figures and tables as files next to it; return the page.

    The records come from `results`, as in `make_report`, and `command` writes the page again. `lenses` are shown after
    the chapters.
    """
    wanted = {path_of(c, picture): picture for c in chapters for section in c.sections for picture in section.pictures}
    tracked = progress(list(wanted.items()), "Plotting", transient=True)
    plotted = {path: plot(picture, path) for path, picture in tracked}
    files = dict.fromkeys(file for given in results for file in result_files(Path(given)))
    newest = datetime.fromtimestamp(max(file.stat().st_mtime for file in files), tz=timezone.utc)
    template = load_template(
        "lre_lightning.report",
        "report.html.j2",
        to_text=to_text,
        as_shown=as_shown,
        inline=inline,
        anchor=anchor,
        path_of=path_of,
        sentence=sentence,
        grid_json=grid_json,
    )
    page = template.render(
        title=title,
        chapters=chapters,
        plotted=plotted,
        runs=list(runs_of(results)),
        command=command,
        texts=[(text, list(group)) for text, group in groupby(lenses, lambda lens: lens.text)],
        script=script(),
        style=style(),
        date=newest.strftime("%Y-%m-%d %H:%M UTC"),
        versions={"python": platform.python_version(), **versions()},
    )
    for path, (svg, png) in plotted.items():
        write_whole(folder / "figures" / f"{path}.svg", svg)
        write_whole(folder / "figures" / f"{path}.png", png)
    for chapter in chapters:
        for table in (table for section in chapter.sections for table in section.tables if table.rows):
            write_table(table, folder / "tables" / path_of(chapter, table), f"{chapter.folder}-".removeprefix("-"))
    write_whole(folder / "index.html", page)
    return folder / "index.html"


def runs_of(results: Sequence[str | Path]) -> Iterator[Source]:
    """Yield the evaluations and the files of results in the given places, with the newest configuration of each.

    Those of validations and predictions are left out: only they have the options `verbose` and `texts`.
    """
    folders = [path for path in map(Path, results) if path.is_dir() and not (path / "fit_results.jsonl").is_file()]
    sources = [("evaluate", folder, [folder / "config.yaml"]) for folder in folders]
    files = dict.fromkeys(file for given in results for file in result_files(Path(given)))
    # Those of other runs, in folders below, have more folders between.
    places = ("config.yaml", "*/version_*/config.yaml")
    sources += [("fit", file, [config for place in places for config in file.parent.glob(place)]) for file in files]
    for job, path, configs in sources:
        texts = {config: _text(config) for config in configs if config.is_file()}
        fits = [config for config, text in texts.items() if not re.search("^(verbose|texts):", text, re.MULTILINE)]
        newest = max(fits, key=lambda config: config.stat().st_mtime, default=None)
        if newest:
            yield Source(str(path), str(newest), texts[newest], shlex.join(["lre", job, "--config", str(newest)]))
        elif job == "fit":
            yield Source(str(path))


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_CONFIG)


def as_shown(table: Table) -> Table:
    """Return a table as the page shows it, without rows of what was not measured and columns without a value."""
    rows = [row for row in table.rows if NOT_MEASURED not in row]
    kept = [i for i in range(len(table.columns)) if any(row[i] is not None for row in rows)]
    columns = tuple(table.columns[i] for i in kept)
    return replace(table, columns=columns, rows=tuple(tuple(row[i] for i in kept) for row in rows))


def path_of(chapter: Chapter, item: Picture | Table) -> str:
    """Return the path of an item's files below ``figures`` or ``tables``, without the suffix."""
    return f"{chapter.folder}/{item.name}".removeprefix("/")


def plot(picture: Picture, salt: str = "") -> tuple[str, bytes]:
    """Return a figure as SVG and PNG, with the same bytes every time.

    The SVG has no background, and black is the colour of the text around it or that of the reader's theme. Text remains
    text, which can be searched. Its identifiers differ from those of figures with another `salt`.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure, svg, png = picture.plot(), io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    # A style would apply to the whole page; groups are named by numbers, which all figures have.
    plain = re.sub(r'(?s)<metadata>.*?</metadata>|<style.*?</style>| id="[\w.]+_\d+"', "", svg.getvalue())
    plain = re.sub("(fill|stroke): #000000", r"\1: currentColor", plain)
    return plain.replace("<svg ", f'<svg style="{SVG_STYLE}" ', 1), png.getvalue()


def inline(svg: str, alt: str) -> Markup:
    """Return a figure as an element of the page, which `alt` describes to readers who cannot see it."""
    from markupsafe import Markup

    return Markup('<svg role="img" aria-label="{}"{}').format(alt, Markup(svg[svg.index("<svg ") + 4 :]))
