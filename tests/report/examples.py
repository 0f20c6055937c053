"""Records with counts that are easy to compute with."""

from dataclasses import replace

from lre_lightning.records.analysis import by_model
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.chapters import chapters_of
from tests.helpers.records import COUNTS, baselines, generations, line_integrals, low_rank

LAYERS, BETAS, RANKS = ("emb", 0, 1), (1.0, 2.0), (2, 4)


def record(relation, trial, predicted, answered, **changes):
    """Make a record with `predicted` of 10 known facts and `answered` of 8 edits at layer 0, beta 2 and rank 4."""
    fields = {
        **COUNTS,
        "layers": LAYERS,
        "betas": BETAS,
        "ranks": RANKS,
        "faithful": ((1, 2), (predicted - 3, predicted), (2, 3)),
        "causal": ((0, 1), (answered - 1, answered), (1, 2)),
        "layer": 0,
        "beta": 2.0,
        "rank": 4,
        "model": "/models/demo",
        "n_shot": 4,
        "template": f"The {relation} of {{}} is",
        "first_tokens": 4,
        **changes,
    }
    known, edited = fields["known"], fields["edited"]
    measures = {
        "baselines": baselines(
            {"linear regression": (0, predicted - 2, 1), "translation": (0, 3, 1), "identity": (1, 0, 0)},
            {"oracle": (1, 8, 2), "unembedding": (0, 2, 1), "object": (0, 1, 1)},
            {"linear regression": (0, 2, 1), "translation": (0, 1, 1), "identity": (0, 0, 0)},
            ((0, 1), (1, predicted - 1), (0, 2)),
            known,
            edited,
        ),
        "low rank": low_rank(predicted - 4, predicted - 1, known=known),
        "line integrals": line_integrals((3.0, 1.0), (4.0, 2.0), (1.0, -1.0)),
        "generations": generations((f"The {relation} is", "one", "another", "one, as ever", "another & more")),
    }
    return TrialRecord(relation=relation, trial=trial, **{"measures": measures, **fields})


def unscored(relation="ceo", **changes):
    fields = {"model": "/models/demo", "n_shot": 4, "template": "{} is led by", "first_tokens": 18, **changes}
    return TrialRecord(
        relation,
        fields.pop("category", "factual"),
        fields.pop("trial", 0),
        samples=30,
        range_size=20,
        tested=26,
        known=3,
        **fields,
    )


WORDS = {"category": "linguistic", "samples": 50, "range_size": 25, "first_tokens": 25}
MAIN = [
    record("capital", 0, 8, 8),
    record("capital", 1, 6, 6),
    record("antonym", 0, 9, 8, **WORDS),
    record("antonym", 1, 9, 4, **WORDS),
    record("Colour", 0, 5, 3),
    record("Colour", 1, 4, 3),
    unscored(),
]
F = {"capital": [0.8, 0.6], "antonym": [0.9, 0.9], "Colour": [0.5, 0.4]}
C = {"capital": [1.0, 0.75], "antonym": [1.0, 0.5], "Colour": [0.375, 0.375]}
# By faithfulness, Colour moves to layer 1, where it has 9 of 10 and 2 of 8.
TORN = [replace(r, faithful=(*r.faithful[:2], (2, 9))) if r.relation == "Colour" else r for r in MAIN]


def moved(records, by):
    """Records with the count of faithful predictions at the chosen point changed."""
    return [
        replace(r, faithful=(r.faithful[0], (r.faithful[1][0], r.faithful[1][1] + by), r.faithful[2]))
        if r.scored
        else r
        for r in records
    ]


def bare_of(records):
    """Records without relation-specific text, which are faithful at the last layer too."""
    late = [replace(r, faithful=(*r.faithful[:2], (7, 8)), template="{}", template_index=None) for r in records]
    return [r for r in late if r.scored and r.relation != "Colour"]


def minimal(r, **changes):
    """A record of a fit with one layer, rank and beta, and nothing but the scores."""
    if not r.scored:
        return replace(r, first_tokens=None, **changes)
    return TrialRecord(
        **{name: getattr(r, name) for name in ("relation", "category", "trial", "samples", "range_size", "tested")},
        known=r.known,
        layers=(0,),
        betas=(2.0,),
        ranks=(4,),
        faithful=((r.faithful[1][1],),),
        causal=((r.causal[1][1],),),
        edited=8,
        layer=0,
        beta=2.0,
        rank=4,
        **{"model": "/models/demo", "n_shot": 4, "template": r.template, **changes},
    )


def table(name, records):
    """The table of that name in a report on records; None if the report lacks it."""
    sections = [section for chapter in chapters_of(by_model(records)) for section in chapter.sections]
    return next((found for section in sections for found in section.tables if found.name == name), None)


def rows(name, records):
    """The rows of a table by their first cells."""
    return {row[0]: row[1:] for row in table(name, records).rows}
