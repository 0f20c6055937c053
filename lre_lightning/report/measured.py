"""The section of a report on any measure, made from its tallies."""

from __future__ import annotations

from collections.abc import Sequence

from lre_lightning.records import analysis
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.sections import Section
from lre_lightning.report.tables import by_relation


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
