"""A trial again, from the record of its results."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.options import options_of
from lre_lightning.prompts.options import BETWEEN_TEMPLATES, Prompts
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import Relation
from lre_lightning.relations.selection import Selection


def arguments_of(record: TrialRecord, selection: Any = None) -> dict[str, Any]:
    """Return the arguments of the datamodule that serves the trial of a record again."""
    if not record.train:
        raise LREError(f"the record of {record.relation!r}, trial {record.trial}, does not say what was drawn")
    known = [field.name for field in fields(Prompts) if field.metadata["recorded"]]
    for name in record.prompts.keys() - set(known):
        raise LREError(f"the record has {name!r} of prompts, which is none of {', '.join(known)}")
    train_samples = {record.relation: [list(sample) for sample in record.train]}
    return {
        "relations": [record.relation],
        "n_shot": record.n_shot,
        "trials": 1,
        "seed": record.seed,
        "prompts": Prompts(**{"template": record.template, **record.prompts, "train_samples": train_samples}),
        "selection": replace(options_of(Selection, selection, "selection"), first_trial=record.trial),
    }


def check_repeatable(record: TrialRecord, relation: Relation, templates: Sequence[str]) -> None:
    """Check that a relation and the templates to ask with are those of a record."""
    if relation.digest != record.digest:
        raise LREError(
            f"the relation {relation.name!r} has other samples than the one of the record: give the source, and "
            "the selection of its samples, of that fit"
        )
    joined = BETWEEN_TEMPLATES.join(templates)
    if joined != record.template:
        raise LREError(
            f"the templates of {relation.name!r} are {joined!r}, and those of the record {record.template!r}: "
            "give the source of that fit"
        )
