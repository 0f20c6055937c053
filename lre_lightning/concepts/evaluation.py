"""What concepts are worth beside probes: classification of unseen subjects, and steering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_f1_score as f1_score

from lre_lightning.concepts.concepts import Concepts, few_shot, make_concepts, steering, widened
from lre_lightning.concepts.probes import fit_probes
from lre_lightning.concepts.record import (
    RESULTS,
    ConceptOptions,
    ConceptRecord,
    read_concept_records,
    write_concept_records,
)
from lre_lightning.concepts.states import KnownStates, known_states
from lre_lightning.grid import Layer
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.source import PromptSource
from lre_lightning.prompts.trials import Trial, test_prompts, train_prompts
from lre_lightning.relations.relation import draw_order
from lre_lightning.scoring.states import draw_key
from lre_lightning.storage.files import safe_name


def evaluate_relations(
    lm: LanguageModel, data: PromptSource, options: ConceptOptions, folder: Path
) -> list[ConceptRecord]:
    """Estimate and score concepts and probes of every relation and trial of a datamodule.

    `n_shot` of the training samples are the examples that prompts show. Records and concepts are kept in the folder
    after every trial; those that it holds already are not computed again.

    Returns:
        The records of all relations and trials, in their order.
    """
    done = {record.place: record for record in read_concept_records(folder / RESULTS)}
    data.use(lm)
    prompts, records = few_shot(data.prompts, data.n_shot), []
    for index in progress(range(len(data.schedule)), "Concepts"):
        trial = widened(data.trial(index), options.train_fraction, data.seed, data.prompts)
        planned = _planned(lm, trial, prompts, options)
        earlier = done.get(planned.place)
        if earlier is None or not earlier.repeats(planned):
            done[planned.place], concepts = evaluate_trial(lm, trial, prompts, options)
            if concepts is not None:
                concepts.save(folder / safe_name(trial.relation.name) / f"trial{trial.number}.safetensors")
            write_concept_records(done.values(), folder / RESULTS)
        records.append(done[planned.place])
    return records


def _planned(lm: LanguageModel, trial: Trial, prompts: Prompts, options: ConceptOptions) -> ConceptRecord:
    origin = asdict(Origin.of(lm, trial, prompts))
    return ConceptRecord(origin, asdict(options), trial.relation.digest, objects=0, trained=0, tested=0)


def evaluate_trial(
    lm: LanguageModel, trial: Trial, prompts: Prompts, options: ConceptOptions
) -> tuple[ConceptRecord, Concepts | None]:
    """Estimate the concepts of one trial and score them, and probes trained on the same samples.

    An edit replaces the concept of the subject's object by that of a target: another object with another first token,
    which a hash draws. It succeeds if the LM's answer is the target's first token.

    Returns:
        The record, and the concepts; None if the trial cannot be scored.
    """
    train, test = (
        known_states(lm, make(trial, lm.tokenizer, options=prompts), options) for make in (train_prompts, test_prompts)
    )
    objects = train.objects
    test = test.rows([row for row, prompt in enumerate(test.prompts) if prompt.object in objects])
    record = replace(_planned(lm, trial, prompts, options), objects=len(objects), trained=len(train), tested=len(test))
    if len(objects) < 2:
        return replace(record, reason="the LM knows training samples of fewer than 2 objects"), None
    if not len(test):
        return replace(record, reason="no test sample that the LM knows has an object of a training sample"), None
    concepts = make_concepts(lm, train, Origin.of(lm, trial, prompts), options)
    labels = test.labels(objects)
    classifiers = {"concepts": (concepts.vectors, concepts.vectors.new_zeros(len(objects)))}
    classifiers |= fit_probes(train.subject, train.labels(objects))
    answers = {name: (test.subject @ rows.T + offsets).argmax(-1) for name, (rows, offsets) in classifiers.items()}
    edited, targets = _draw_targets(train, test, draw_key(trial))
    vectors = {name: nn.functional.normalize(directions) for name, (directions, _) in classifiers.items()}
    record = replace(
        record,
        edited=len(edited),
        correct={name: int((given == labels).sum()) for name, given in answers.items()},
        f1={name: float(f1_score(given, labels, len(objects), "macro")) for name, given in answers.items()},
        causal=_count_causal(lm, concepts.layer, train, edited, targets, vectors, options.magnitude),
    )
    return record, concepts


def _draw_targets(train: KnownStates, test: KnownStates, key: str) -> tuple[KnownStates, list[int]]:
    """Draw for test samples an object of the training samples with another first token, where there is one.

    The draw depends on the key that seeds it, the subject and the object alone.

    Returns:
        The samples that have a target, and the targets, as indices of `train.objects`.
    """
    tokens = train.first_tokens()

    def order(subject: str, target: int) -> bytes:
        return draw_order(key, subject, train.objects[target])

    drawn: dict[int, int] = {}
    for row, prompt in enumerate(test.prompts):
        others = [target for target, token in enumerate(tokens) if token != prompt.object_token]
        if others:
            drawn[row] = min(others, key=partial(order, prompt.subject))
    return test.rows([*drawn]), [*drawn.values()]


def _count_causal(
    lm: LanguageModel,
    layer: Layer,
    train: KnownStates,
    edited: KnownStates,
    targets: Sequence[int],
    vectors: Mapping[str, Tensor],
    magnitude: float,
) -> dict[str, int]:
    """Count by method how often the LM answers the target after `vectors`, `(objects, hidden)`, have steered to it."""
    if not len(edited):
        return dict.fromkeys(vectors, 0)
    runs = prompts_to_run(lm, edited.prompts)
    states, sources = edited.subject, edited.labels(train.objects)
    changed = [states + steering(directions, states, sources, targets, magnitude) for directions in vectors.values()]
    answers = lm.predict(runs.patched(layer, torch.stack(changed, 1)))
    wanted = torch.tensor(train.first_tokens(), device=answers.device)[targets]
    return dict(zip(vectors, (answers == wanted[:, None]).sum(0).tolist(), strict=True))
