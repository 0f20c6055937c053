"""Records of results for tests, made without an LM."""

import csv

from lre_lightning.records.record import GENERIC, MEASURES, TrialRecord

COUNTS = {"category": "factual", "samples": 20, "range_size": 4, "tested": 12, "known": 10, "edited": 8}
"""Fields that records of most tests share."""


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
        "faithful_baselines": {"linear regression": (1, 2, 3), "translation": (4, 5, 6), "identity": (7, 8, 9)},
        "faithful_zero_shot": ((9, 8), (7, 6), (5, 4)),
        "zero_shot_baselines": {"linear regression": (3, 2, 1), "translation": (6, 5, 4), "identity": (9, 8, 7)},
        "causal_baselines": {"oracle": (8, 7, 6), "unembedding": (5, 4, 3), "object": (2, 1, 0)},
        "faithful_low_rank": (2, 3, 4, 5),
        "line_integrals": ((1.5, 1.25), (0.1, 1e-9)),
        "generations": (("The capital of France is", "Paris", "Rome", "Paris, a city", "Rome, a city"),),
        "generic_layers": (0, 3),
        "generic_faithful": {name: ((1, 2), (3, 4)) for name in GENERIC},
        "generic_causal": {name: ((1, 2, 3, 4), (4, 3, 2, 1)) for name in GENERIC[1:]},
        "likeness": ((0.5, 0.25, 0.75), (-0.5, 0.0, 1.0)),
        "whole_objects": {
            "known": 9,
            "edited": 7,
            "first-token faithfulness": 6,
            "closed-set faithfulness": 8,
            "closed-set faithfulness, b alone": 3,
            "closed-set faithfulness, another s": 2,
            "whole-object causality": 4,
            "closed-set causality": 5,
        },
        "measures": {
            name: ((0.5,) * {"betas": 2, "ranks": 4, "": 1}[axis],) * 3 for name, (axis, _) in MEASURES.items()
        },
        "majority": {"training": 3, "data": 6},
        "outcomes": tuple((2 * i if i < 2 else i + 2, i % 2, i % 3 - 1) for i in range(9)),
        "train": (("France", "Paris"), ("日本", "東京")),
        "seed": 7,
        "digest": "0a" * 32,
        "prompts": {"separator": "; ", "shots": 2, "chat": False, "system": None, "sampling": "balanced"},
    }
    return TrialRecord(relation=relation, trial=trial, **{**fields, **changes})


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
