"""A page that holds all tables and figures of runs, with their files beside it."""

from __future__ import annotations

import base64
import io
import itertools
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from lre_lightning.errors import LREError
from lre_lightning.files import written_whole
from lre_lightning.records import PairRecord, read_records
from lre_lightning.report import analysis, figures, tables
from lre_lightning.report.analysis import ModelResults
from lre_lightning.report.drawing import short_names
from lre_lightning.report.tables import Table, to_csv, to_latex, to_text
from lre_lightning.selection import Criterion, reselect

if TYPE_CHECKING:
    from jinja2 import Template
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
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
WHOLE = "all"
"""Anchor of a chapter whose files have no folder of their own."""
HOW = "how"
"""Anchor of what tells how the page was made."""


@dataclass(frozen=True)
class Picture:
    """A figure that is to be drawn.

    Attributes:
        name: Stem of its files.
        alt: What it is, for those who do not see it.
        caption: What it shows.
        draw: Draws it.
    """

    name: str
    alt: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """Figures and tables that belong together.

    Attributes:
        title: Its heading.
        pictures: Its figures.
        tables: Its tables; those without lines are left out.
        note: What was not measured, and what would measure it.
    """

    title: str
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Chapter:
    """Sections about one LM, or about several.

    Attributes:
        title: Its heading.
        folder: Sub-folder of its files; "" for none.
        sections: Its sections.
        facts: Its main numbers by their names.
    """

    title: str
    folder: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def anchor(self) -> str:
        """What its anchors begin with."""
        return self.folder or WHOLE


@dataclass(frozen=True)
class Drawn:
    """A figure as files: `svg` and `png` are empty, and `note` says why, where there was nothing to draw."""

    svg: bytes = b""
    png: bytes = b""
    note: str = ""


@dataclass(frozen=True)
class Run:
    """Where results came from: the file, and the configurations beside it by their paths, the first one Lightning's."""

    results: str
    configs: tuple[tuple[str, str], ...]

    @property
    def command(self) -> str:
        """What would make the results again."""
        return shlex.join(["lre", "fit", "--config", *(path for path, _ in self.configs[:1])])


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
    page = _template().render(
        title=title or f"Linear relational embeddings of {', '.join(names)}",
        chapters=chapters,
        drawn=drawn,
        runs=[run_of(file) for file in files],
        command=shlex.join(["lre", "report", *map(str, results), *(["--title", title] if title else [])]),
        date=_newest(files),
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    )
    for path, content in _files(chapters, drawn).items():
        _write(folder / path, content)
    return _write(folder / "index.html", page.encode())


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


def _write(path: Path, content: bytes) -> Path:
    with written_whole(path) as part:
        part.write_bytes(content)
    return path


def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(
        to_text=to_text, inline=inline, anchor=anchor, path_of=path_of, long_table=LONG_TABLE, main_table=MAIN_TABLE
    )
    source = resources.files("lre_lightning.report").joinpath("report.html.j2")
    return environment.from_string(source.read_text(encoding="utf-8"))


def result_files(path: Path) -> list[Path]:
    """The files that `lre_lightning.records.read_records` reads."""
    return [path] if path.is_file() else sorted(path.rglob("fit_results.jsonl"))


def _newest(files: Iterable[Path]) -> str:
    newest = max(file.stat().st_mtime for file in files)
    return datetime.fromtimestamp(newest, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def run_of(results: Path) -> Run:
    """The run of a file of results, with the newest configuration that Lightning wrote for fit, and the run's own."""
    folder = results.parent
    versions = sorted(folder.glob("lightning_logs/version_*/config.yaml"), key=_version)
    # Both fit and validate write one; only that of validate has the option `verbose`.
    fits = [path for path in versions if not re.search("^verbose:", _text(path), re.MULTILINE)]
    found = [*fits[-1:], *(path for path in [folder / "config.yaml"] if path.is_file())]
    return Run(str(results), tuple((str(path), _text(path)) for path in found))


def _version(config: Path) -> int:
    number = config.parent.name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def chapters_of(models: Sequence[ModelResults], names: Sequence[str]) -> list[Chapter]:
    """A chapter for each LM and, where there are several, one that compares them.

    Args:
        models: The results.
        names: The LMs' names, as they are to be shown.
    """
    if len(models) == 1:
        sections = (*_model_sections(models[0]), _dataset(models))
        return [Chapter(names[0], "", sections, _facts(models[0].main))]
    return [
        *(
            Chapter(name, folder, _model_sections(model), _facts(model.main))
            for name, folder, model in zip(names, _folders(names), models, strict=True)
        ),
        Chapter("Comparison", "", (*_comparison(models), _dataset(models))),
    ]


def _folders(names: Iterable[str]) -> list[str]:
    """Names as folders and anchors, none of them twice."""
    used = [WHOLE, HOW]
    for name in names:
        plain = anchor(name) or "lm"
        numbered = (f"{plain}-{number}" for number in itertools.count(2))
        used.append(next(folder for folder in [plain, *itertools.islice(numbered, len(used))] if folder not in used))
    return used[2:]


def anchor(text: str) -> str:
    """A text as an anchor or a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _facts(records: Sequence[PairRecord]) -> tuple[tuple[str, str], ...]:
    """The main numbers of an LM."""
    scored = analysis.counted(records)
    faithful = analysis.per_relation(records, analysis.faithfulness)
    agreement = analysis.correlation(faithful, analysis.per_relation(records, analysis.causality))
    overall = to_text(tables.categories(records))[-1]
    return (
        ("relations scored", f"{len(faithful)} of {len(analysis.categories(records))}"),
        ("examples, n", str(records[0].n_shot)),
        ("trials", str(len({record.trial for record in scored}))),
        ("faithfulness", overall[2]),
        ("causality", overall[3]),
        ("their correlation", "-" if agreement is None else f"{agreement:.2f}"),
    )


def _model_sections(model: ModelResults) -> tuple[Section, ...]:
    """All that there is to show of one LM."""
    records = model.main
    scored = analysis.counted(records)
    findings = Section("Findings", tables=(tables.findings(records, model.bare),))
    if not scored:
        note = "No relation was scored: the LM knows fewer than n test samples of each."
        return (findings, Section("Relations", tables=(tables.hyperparameters(records),), note=note))
    return (
        findings,
        Section(
            "Relations",
            (
                Picture(
                    "relations",
                    "Bars: faithfulness and causality of each relation, with the random guess",
                    "Relation-wise LRE faithfulness to the LM's computation, and causality. Means and standard "
                    "deviations over trials; the mark is a random guess.",
                    lambda: figures.plot_relations(records),
                ),
            ),
            (tables.hyperparameters(records),),
        ),
        Section(
            "Categories",
            (
                Picture(
                    "categories",
                    "Bars: faithfulness and causality of each category of relations",
                    "LRE performance in different relation categories. Means and standard deviations over relations.",
                    lambda: figures.plot_categories([model]),
                ),
            ),
            (tables.categories(records),),
        ),
        *_baselines(records),
        _agreement(records),
        _layers(records),
        _mode_switch(model),
        _ranks(records),
        _betas(records),
        _underestimation(records),
        _n_shots(model),
        _templates(model),
    )


def _missing(title: str, what: str, option: str) -> Section:
    return Section(title, note=f"{what} not measured: use lre evaluate, or lre fit with {option}.")


def _baselines(records: Sequence[PairRecord]) -> tuple[Section, ...]:
    if not analysis.has_baselines(records):
        return (_missing("Baselines", "Baselines were", "--model.baselines true"),)
    faithfulness = Picture(
        "faithfulness_baselines",
        "Bars: faithfulness of the LRE and its baselines by category",
        "Faithfulness of different linear approximations of LM decoding, stratified across relation types: the LRE at "
        "its layer and at the embedding, linear regression, translation and identity (the logit lens). Means and "
        "standard deviations over relations.",
        lambda: figures.plot_faithfulness_baselines(records),
    )
    prompting = Picture(
        "faithfulness_baselines_zero_shot",
        "Bars: faithfulness of the LRE and its baselines by category, with few-shot and zero-shot prompts",
        "The same where s is read in zero-shot prompts that contain only the subject and no further context (light), "
        "beside few-shot prompts (dark).",
        lambda: figures.plot_faithfulness_baselines(records, zero_shot=True),
    )
    causality = Picture(
        "causality_baselines",
        "Bars: causality of the LRE and its baselines by category",
        "LRE causality compared with inserting in place of s: s' of the target subject (the oracle), the row of the "
        "decoder head for o', and o' itself. Means and standard deviations over relations.",
        lambda: figures.plot_causality_baselines(records),
    )
    by_layer = Picture(
        "causality_by_layer",
        "Curves: causality of the LRE and its baselines over layers, for each relation",
        "LRE causality across different layers, compared with its baselines. Means over trials.",
        lambda: figures.plot_causality_by_layer(records),
    )
    by_relation = Picture(
        "baselines_by_relation",
        "Dots: faithfulness and causality of the LRE and of each baseline, by relation",
        "LRE faithfulness and causality compared with their baselines by relation. Means over trials.",
        lambda: figures.plot_baselines_by_relation(records),
    )
    return (
        Section("Faithfulness baselines", (faithfulness, prompting), (tables.faithfulness_baselines(records),)),
        Section(
            "Causality baselines",
            (causality, by_layer),
            (tables.causality_baselines(records), tables.causality_by_layer(records)),
        ),
        Section("Baselines by relation", (by_relation,), (tables.baselines_by_relation(records),)),
    )


def _agreement(records: Sequence[PairRecord]) -> Section:
    def picture(criterion: Criterion, title: str) -> Picture:
        return Picture(
            f"scatter_by_{criterion}",
            f"Scatter plot: causality over faithfulness with layer and rank chosen by {criterion}",
            f"Faithfulness against causality when layer and rank are selected to achieve best {criterion}. Each dot "
            "represents LRE performance for one relation.",
            lambda: figures.plot_scatter(reselect(records, criterion), title=title),
        )

    return Section(
        "Agreement of faithfulness and causality",
        (picture("causality", "Chosen by causality"), picture("faithfulness", "Chosen by faithfulness")),
        (tables.correlations(records),),
    )


def _layers(records: Sequence[PairRecord]) -> Section:
    table = tables.layers(records)
    if len(table.rows) < 2:
        return _missing("Layers", "Other layers were", "several --model.layers")
    mean = Picture(
        "layers",
        "Curves: faithfulness and causality over layers, mean over relations",
        "LRE performance in different layers. Means over relations, with the middle half of the relations shaded.",
        lambda: figures.plot_layers(records),
    )
    each = Picture(
        "layers_by_relation",
        "Curves: faithfulness and causality over layers, for each relation",
        "LRE performance for each relation in different layers. Means over trials, with their deviations shaded; the "
        "line is the chosen layer.",
        lambda: figures.plot_layers_by_relation(records),
    )
    return Section("Layers", (mean, each), (table,))


def _mode_switch(model: ModelResults) -> Section:
    title = "With and without relation-specific text"
    table = tables.mode_switch(model.main, model.bare)
    if not table.rows:
        return _missing(title, "Prompts without relation-specific text were", "--data.template '{}'")
    picture = Picture(
        "mode_switch",
        "Curves: faithfulness over layers with and without relation-specific text",
        "Later layers switching roles from enriching s to predicting the next token: LRE faithfulness across different "
        "layers with and without relation-specific text in the prompt.",
        lambda: figures.plot_mode_switch(model.main, model.bare),
    )
    return Section(title, (picture,), (table,))


def _ranks(records: Sequence[PairRecord]) -> Section:
    table = tables.ranks(records)
    if len(table.rows) < 2:
        return _missing("Ranks", "Other ranks were", "several --model.ranks")
    picture = Picture(
        "ranks",
        "Curves: faithfulness and causality over ranks",
        "Faithfulness with W cut down to a rank, and causality with W inverted at it, at the chosen layers. Means over "
        "relations, with the middle half of the relations shaded.",
        lambda: figures.plot_ranks(records),
    )
    return Section("Ranks", (picture,), (table,))


def _betas(records: Sequence[PairRecord]) -> Section:
    table = tables.betas(records)
    if len(table.rows) < 2:
        return _missing("Choosing β", "Other values of β were", "several --model.betas")
    picture = Picture(
        "betas",
        "Curves: faithfulness, causality and their correlation over β",
        "Scores achieved by LRE on different values of β, and the correlation of faithfulness and causality.",
        lambda: figures.plot_beta(records),
    )
    return Section("Choosing β", (picture,), (table,))


def _underestimation(records: Sequence[PairRecord]) -> Section:
    title = "Why β is above 1"
    table = tables.underestimation(records)
    if not table.rows:
        return _missing(title, "How much W underestimates changes of F was", "--model.line_integrals 10")
    picture = Picture(
        "underestimation",
        "Dots: ratio of the actual change of F to that which W estimates, by relation",
        "Ratio between the actual change of F from one subject to another and the change that W estimates. Means and "
        "standard deviations over pairs of subjects.",
        lambda: figures.plot_underestimation(records),
    )
    return Section(title, (picture,), (table,))


def _n_shots(model: ModelResults) -> Section:
    by_n = {n: records for n, records in model.by_n.items() if analysis.counted(records)}
    if len(by_n) < 2:
        return _missing("Number of examples", "Other n were", "another --data.n_shot")
    picture = Picture(
        "n_shots",
        "Curves: faithfulness and causality over the number of examples",
        "LRE performance across different n. Means and standard deviations over relations; thin lines are relations.",
        lambda: figures.plot_n(by_n),
    )
    return Section("Number of examples", (picture,), (tables.n_shots(by_n),))


def _templates(model: ModelResults) -> Section:
    table = tables.templates(model.by_template)
    if not table.rows:
        return _missing("Prompt templates", "Other templates were", "--data.template 1")
    return Section("Prompt templates", tables=(table,))


def _comparison(models: Sequence[ModelResults]) -> tuple[Section, ...]:
    categories = Picture(
        "models_by_category",
        "Bars: faithfulness and causality of each category of relations, for each LM",
        "LRE performance in different relation categories on different LMs. Means and standard deviations over "
        "relations.",
        lambda: figures.plot_categories(models),
    )
    relations = Picture(
        "models_by_relation",
        "Bars: faithfulness of each relation, for each LM",
        "Relation-wise LRE faithfulness to the LMs' computation, in the order of the first LM. Means and standard "
        "deviations over trials; the mark is a random guess, and relations that were not scored are grey.",
        lambda: figures.plot_models_by_relation(models),
    )
    agreement = Picture(
        "model_agreement",
        "Scatter plots: relation-wise faithfulness of one LM over that of another",
        "Relation-wise LRE faithfulness in one LM against another, with Spearman's rank-order correlation.",
        lambda: figures.plot_model_agreement(models),
    )
    return (
        Section("LMs by category", (categories,), (tables.models_overview(models),)),
        Section("LMs by relation", (relations,)),
        Section("Agreement of LMs", (agreement,), (tables.model_agreement(models),)),
    )


def _dataset(models: Sequence[ModelResults]) -> Section:
    known = Picture(
        "known",
        "Bars: share of each relation's test samples that an LM knows",
        "Test samples whose object the LM itself predicts, the only ones that count. Means over trials.",
        lambda: figures.plot_known(models),
    )
    tokens = tables.first_tokens(models)
    made = (tables.dataset(models), tables.full_dataset(models), *([tokens] if len(tokens.rows) > 1 else []))
    return Section("Relations and what is known of them", (known,), made)


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


def _files(chapters: Iterable[Chapter], drawn: Mapping[str, Drawn]) -> dict[str, bytes]:
    """The files beside the page, by their paths."""
    files: dict[str, bytes] = {}
    for path, figure in drawn.items():
        if figure.svg:
            files |= {f"figures/{path}.svg": figure.svg, f"figures/{path}.png": figure.png}
    for chapter in chapters:
        for table in (table for section in chapter.sections for table in section.tables if table.rows):
            path = f"tables/{path_of(chapter, table)}"
            latex = to_latex(table, f"{chapter.folder}-".removeprefix("-"))
            files |= {f"{path}.csv": to_csv(table).encode(), f"{path}.tex": latex.encode()}
    return files
