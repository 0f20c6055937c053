"""The chapters of a report: one per LM, and one that compares them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lre_lightning.concepts.record import ConceptRecord
from lre_lightning.records import analysis
from lre_lightning.records.analysis import ModelResults
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import relations, sweeps
from lre_lightning.report.columns import Column, columns
from lre_lightning.report.comparison import comparison, dataset, paired
from lre_lightning.report.concepts import concepts
from lre_lightning.report.findings import findings
from lre_lightning.report.sections import Chapter, Section, collapsed
from lre_lightning.report.tables import by_relation, cell_text
from lre_lightning.report.training import training
from lre_lightning.scoring.measure import known_measures


def chapters_of(
    models: Sequence[ModelResults], measured: Sequence[ConceptRecord] = (), given: Sequence[Column] = ()
) -> list[Chapter]:
    """Return a chapter per LM and, if there are several, first one that compares them.

    Records of concepts, `measured`, of other LMs are left out; `given` are columns of the user's.
    """
    names, own = analysis.names_of(models), columns(models, given)
    if len(models) == 1:
        main = models[0].main
        facts = (dataset(models),) if _several(main) else ()
        return [Chapter(names[0], "", (*_sections(models[0], measured), *own, *facts), _facts(main))]
    chapters = [
        Chapter(name, folder, _sections(model, measured), _facts(model.main))
        for name, folder, model in zip(names, folders_of(names), models, strict=True)
    ]
    compared = (paired(models), *training(models), *comparison(models), *own, dataset(models))
    return [Chapter("Comparison", "", compared), *chapters]


def _sections(model: ModelResults, measured: Sequence[ConceptRecord]) -> tuple[Section, ...]:
    records = model.main
    own = [record for record in measured if record.model == model.model]
    several = _several(records)
    first = (
        *([Section("Findings", tables=(findings(records, model.bare),))] if several else []),
        relations.relations(records),
    )
    last = (concepts(own),) if own else ()
    if not analysis.counted(records):
        return (*first, *last)
    sections = (
        *([relations.categories(model)] if several and any(analysis.categories(records).values()) else ()),
        *measured_sections(records),
        *([relations.agreement(records)] if several else []),
        sweeps.layers(records),
        sweeps.mode_switch(model),
        sweeps.ranks(records),
        sweeps.betas(records),
        sweeps.n_shots(model),
        relations.templates(model),
    )
    return collapsed((*first, *sections, *last))


def _several(records: Sequence[TrialRecord]) -> bool:
    """Return whether there are several relations: what compares relations says nothing of one."""
    return len({record.relation for record in records}) > 1


def measured_sections(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return the sections of all measures: of those that were imported their own, else a table of their columns."""
    found: list[Section] = []
    known = known_measures()
    for name in dict.fromkeys([*known, *(name for record in records for name in record.measures)]):
        own = known[name].sections(records) if name in known else None
        found += section_of(name, records) if own is None else own
    return tuple(found)


def section_of(name: str, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return a table of a measure's columns by relation; nothing where it has none."""
    measured = [record for record in analysis.counted(records) if name in record.measures]
    labels = dict.fromkeys(
        label for record in measured for label, tally in record.measures[name].tallies.items() if tally.column
    )
    columns = {label: analysis.per_relation(measured, analysis.tally_score(name, label)) for label in labels}
    if not columns:
        return ()
    table = by_relation(
        name.replace(" ", "_"),
        f"{name[:1].upper()}{name[1:]} by relation on {analysis.lm_of(measured)}. Means and standard deviations over "
        "trials, in the last row over relations.",
        analysis.categories(measured),
        columns,
        ("mean", *map(analysis.overall, columns.values())),
    )
    return (Section(f"{name[:1].upper()}{name[1:]}", tables=(table,)),)


def _facts(records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
    scored = analysis.counted(records)
    faithful, causal = map(cell_text, analysis.both_scores(records))
    return (
        ("relations scored", f"{len(analysis.categories(scored))} of {len(analysis.categories(records))}"),
        ("examples, n", str(records[0].n_shot)),
        ("trials", str(len({record.trial for record in scored}))),
        ("faithfulness", faithful),
        ("causality", causal),
        ("their correlation", cell_text(analysis.agreement(records))),
    )


def folders_of(names: Iterable[str]) -> list[str]:
    """Return names as folders and anchors, each of them unique and none that of another part of the page."""
    used = ["all", "how"]
    for name in names:
        folder = anchor(name) or "lm"
        while folder in used:
            folder += "-2"
        used.append(folder)
    return used[2:]


def anchor(text: str) -> str:
    """Return a text as an anchor or a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
