"""What a report holds: its chapters and sections, with the figures and tables that the records have data for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import Criterion, reselect
from lre_lightning.report import analysis, figures, tables
from lre_lightning.report.analysis import ModelResults
from lre_lightning.report.findings import findings
from lre_lightning.report.tables import Table, to_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def _facts(records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
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
    found = Section("Findings", tables=(findings(records, model.bare),))
    if not scored:
        note = "No relation was scored: the LM knows fewer than n test samples of each."
        return (found, Section("Relations", tables=(tables.hyperparameters(records),), note=note))
    return (
        found,
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


def _baselines(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    if not analysis.has_baselines(records):
        return (_missing("Baselines", "Baselines were", "--model.fitting.baselines true"),)
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


def _agreement(records: Sequence[TrialRecord]) -> Section:
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


def _layers(records: Sequence[TrialRecord]) -> Section:
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
        return _missing(title, "Prompts without relation-specific text were", "--data.prompts.template '{}'")
    picture = Picture(
        "mode_switch",
        "Curves: faithfulness over layers with and without relation-specific text",
        "Later layers switching roles from enriching s to predicting the next token: LRE faithfulness across different "
        "layers with and without relation-specific text in the prompt. Where the prompt ends in the subject, s at the "
        "last layer is o itself.",
        lambda: figures.plot_mode_switch(model.main, model.bare),
    )
    return Section(title, (picture,), (table,))


def _ranks(records: Sequence[TrialRecord]) -> Section:
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


def _betas(records: Sequence[TrialRecord]) -> Section:
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


def _underestimation(records: Sequence[TrialRecord]) -> Section:
    title = "Why β is above 1"
    table = tables.underestimation(records)
    if not table.rows:
        return _missing(title, "How much W underestimates changes of F was", "--model.fitting.line_integrals 10")
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
        return _missing("Prompt templates", "Other templates were", "--data.prompts.template 1")
    picture = Picture(
        "templates",
        "Dots: faithfulness and causality of each relation with each of its prompt templates",
        "LRE performance on different prompt templates, by relation. Means over trials.",
        lambda: figures.plot_templates(model.by_template),
    )
    return Section("Prompt templates", (picture,), (table,))


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
