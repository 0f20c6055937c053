"""Records of results for tests, made without an LM."""

import csv
from dataclasses import replace

from lre_lightning.measures.distributions import DISTRIBUTION_SCORES
from lre_lightning.measures.jacobian_lens import GENERIC
from lre_lightning.measures.whole_objects import KNOWN, WHOLE_OBJECT_SCORES
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord

COUNTS = {"category": "factual", "samples": 20, "range_size": 4, "tested": 12, "known": 10, "edited": 8}
"""Fields that records of most tests share."""


def tallies(metric, counts, total, *axes):
    """Tallies of the methods of a metric, from their counts."""
    return {f"{metric}: {method}": Tally(found, total, axes) for method, found in counts.items()}


def baselines(faithful, causal, zero_shot, zero_shot_lre=None, known=10, edited=8):
    """What baselines have found, from counts by method and layer, and those of the LRE, `[layer][beta]`."""
    found = {} if zero_shot_lre is None else {"LRE": zero_shot_lre}
    return Measurement(
        tallies("zero-shot faithfulness", found, known, "layer", "beta")
        | tallies("faithfulness", faithful, known, "layer")
        | tallies("zero-shot faithfulness", zero_shot, known, "layer")
        | tallies("causality", causal, edited, "layer")
    )


def low_rank(*counts, known=10):
    return Measurement({"faithfulness": Tally(counts, known, ("rank",))}, chosen=("layer", "beta"))


def line_integrals(*pairs):
    return Measurement(rows=pairs, chosen=("layer",))


def generations(*texts):
    return Measurement(rows=texts, chosen=("layer", "rank"))


def outcomes(*lines):
    return Measurement(rows=lines, chosen=("layer", "beta", "rank"))


def majorities(training, data, known=10):
    counts = {"majority of training": training, "majority of data": data}
    return Measurement({name: Tally(count, known, column=True) for name, count in counts.items()})


def whole_objects(known, edited, *counts, tested=12):
    """What the whole objects' scores have counted, in the order of the scores."""
    totals = {"known": known, "edited": edited}
    found = {
        name: Tally(count, totals[over], column=True)
        for (name, over), count in zip(WHOLE_OBJECT_SCORES.items(), counts, strict=True)
    }
    return Measurement({KNOWN: Tally(known, tested), **found}, chosen=("layer", "beta", "rank"))


def distributions(record, sums):
    """Scores beyond the argmax whose sums at each layer of a record are those given, at all points of another axis."""
    found = {}
    for name, (axis, over) in DISTRIBUTION_SCORES.items():
        at = tuple((total,) * len(getattr(record, f"{axis}s")) if axis else total for total in sums)
        axes = ("layer", axis) if axis else ("layer",)
        total = getattr(record, over)
        found[name] = Tally(at, total, axes, counts=False)
    return Measurement(found)


def jacobian_lens(faithful, causal, alike, layers=(0, 3), known=10, edited=8):
    """What LREs beside a Jacobian lens have counted, from their counts by method, and the likeness by layer."""
    assert {*faithful, *causal} == {*GENERIC}
    found = tallies("faithfulness", faithful, known, "layer", "beta")
    return Measurement(found | tallies("causality", causal, edited, "layer", "rank"), alike, layers)


def with_measures(record, found):
    """The record with other or further measurements by name; without those that are None."""
    kept = {name: one for name, one in {**record.measures, **found}.items() if one is not None}
    return replace(record, measures=kept)


def full_record(trial=0, relation="capital", **changes):
    """A record in which every field differs from its default, and few counts are equal."""
    fields = {
        **COUNTS,
        "layers": ("emb", 0, 3),
        "betas": (1.0, 2.25),
        "ranks": (4, 8, 16, 32),
        "faithful": ((0, 1), (2, 3), (4, 5)),
        "causal": ((0, 1, 2, 3), (4, 5, 6, 7), (8, 1, 0, 2)),
        "identity_layers": (0,),
        "layer": 3,
        "beta": 2.25,
        "rank": 4,
        "model": "gpt2",
        "backward": "frozen",
        "n_shot": 5,
        "template": "The capital of {} is",
        "template_index": 1,
        "first_tokens": 3,
        "reported": False,
        "chose": True,
        "train": (("France", "Paris"), ("日本", "東京")),
        "seed": 7,
        "digest": "0a" * 32,
        "prompts": {"separator": "; ", "shots": 2, "chat": False, "system": None, "sampling": "balanced"},
        **changes,
    }
    record = TrialRecord(relation=relation, trial=trial, **fields)
    return record if "measures" in changes else replace(record, measures=_all_measures(record))


def _all_measures(record):
    known, edited = record.known, record.edited
    return {
        "baselines": baselines(
            {"linear regression": (1, 2, 3), "translation": (4, 5, 6), "identity": (7, 8, 9)},
            {"oracle": (8, 7, 6), "unembedding": (5, 4, 3), "object": (2, 1, 0)},
            {"linear regression": (3, 2, 1), "translation": (6, 5, 4), "identity": (9, 8, 7)},
            ((9, 8), (7, 6), (5, 4)),
            known,
            edited,
        ),
        "low rank": low_rank(2, 3, 4, 5, known=known),
        "line integrals": line_integrals((1.5, 1.25), (0.1, 1e-9)),
        "generations": generations(("The capital of France is", "Paris", "Rome", "Paris, a city", "Rome, a city")),
        "Jacobian lens": jacobian_lens(
            {name: ((1, 2), (3, 4)) for name in GENERIC},
            {name: ((1, 2, 3, 4), (4, 3, 2, 1)) for name in GENERIC[1:]},
            ((0.5, 0.25, 0.75), (-0.5, 0.0, 1.0)),
            known=known,
            edited=edited,
        ),
        "whole objects": whole_objects(min(9, known), min(7, edited), 6, 8, 3, 2, 4, 5, tested=record.tested),
        "distributions": distributions(record, (0.5, 0.25, 0.75)),
        "majorities": majorities(3, 6, known),
        "outcomes": outcomes(*((2 * i if i < 2 else i + 2, i % 2, i % 3 - 1) for i in range(9))),
    }


def small_record(trial=0, relation="capital", **changes):
    """A scored record of two layers, betas and ranks, without a choice."""
    fields = {
        **COUNTS,
        "layers": ("emb", 0),
        "betas": (1.0, 2.0),
        "ranks": (4, 8),
        "faithful": ((9, 10), (3, 8)),
        "causal": ((2, 5), (7, 7)),
        "beta": 2.0,
    }
    return TrialRecord(relation=relation, trial=trial, **{**fields, **changes})


def unscored_record(relation="ceo"):
    return TrialRecord(relation, "factual", 0, samples=20, range_size=20, tested=12, known=3)


def csv_rows(path):
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
