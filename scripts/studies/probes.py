"""Linear maps that are trained, beside LREs from as many samples: is a Jacobian worth its price?

A map o = W s + b is trained by the KL of its answers from the LM's, on n subjects in the same prompts in which it is
tested, which show the same eight examples; W starts at zero and b at the mean of o, or both at the LRE's. What n
subjects do not say of W stays as it is: its change is sought among maps of the span of their s. The LRE has the
Jacobians of the same n prompts, and linear regression their s and o.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures.baselines import linear_regression
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.prompts.batch import collate, prompts_to_run
from lre_lightning.prompts.prompt import Prompt, make_prompts
from lre_lightning.relations.relation import Sample
from lre_lightning.report.tables import Row, Table
from lre_lightning.scoring.cross import counts
from lre_lightning.scoring.states import TrialStates
from lre_lightning.statistics.estimates import mean_over
from scripts.studies.common import MOST, Setting, drawn, run

SIZES = (1, 4, 16, 64)
JACOBIANS = 16
"""The largest n of LREs."""

RELATIONS = 4
"""The number of relations: those whose LRE says most beyond b alone, among those with enough subjects."""

STEPS = 40


def train(lm: LanguageModel, subjects: Tensor, objects: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Train o = W s + b by the KL of its answers from the LM's, with L-BFGS.

    Args:
        lm: The LM.
        subjects: s, `(samples, hidden)`.
        objects: o, `(samples, hidden)`.
        weight: The W to start at, `(hidden, hidden)`.
        bias: The b to start at, `(hidden,)`.

    Returns:
        W and b. The change of W maps what is orthogonal to all differences of s to zero.
    """
    centre = subjects.mean(0)
    _, values, basis = torch.linalg.svd(subjects - centre, full_matrices=False)
    basis = basis[values > 1e-5 * subjects.norm()]
    scale = max(float((subjects - centre).norm(dim=1).mean()), 1e-6)
    coordinates = (subjects - centre) @ basis.T / scale
    wanted = lm.decode(objects).log_softmax(-1)
    start = subjects @ weight.T + bias
    change = bias.new_zeros(len(basis), len(bias)).requires_grad_()
    offset = torch.zeros_like(bias, requires_grad=True)
    optimizer = torch.optim.LBFGS([change, offset], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        said = lm.decode(start + coordinates @ change + offset).log_softmax(-1)
        found: Tensor = (wanted.exp() * (wanted - said)).sum(-1).mean()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
    learned = change.detach().T @ basis / scale
    return weight + learned, bias + offset.detach() - learned @ centre


def estimates(lm: LanguageModel, lre: LRE, prompts: Sequence[Prompt]) -> Iterator[tuple[int, LRE, float]]:
    """Yield the LRE of the first n prompts at the layer and beta of `lre`, for n of `SIZES`, and its CPU seconds."""
    estimator, seconds = LREEstimator([lre.layer]), 0.0
    for prompt in prompts[:JACOBIANS]:
        start = time.process_time()
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, [lre.layer]))
        seconds += time.process_time() - start
        if estimator.count in SIZES:
            weight, bias = estimator.weight(lre.layer), estimator.bias(lre.layer)
            yield estimator.count, replace(lre, weight=weight, bias=bias), seconds


def fits(lm: LanguageModel, lre: LRE, seconds: float | None, prompts: Sequence[Prompt]) -> dict[str, tuple[LRE, float]]:
    """Return all maps of some prompts, as LREs at one layer, and the CPU seconds that each took.

    `lre` is that of the prompts and took `seconds`, which the map that is trained from it takes as well; this one has
    its beta too, so that edits are made at beta 1, as for the LRE. With None there is neither.
    """
    found = {} if seconds is None else {"LRE": (lre, seconds)}
    weight, bias = lre.operator.dense(), lre.bias
    start = time.process_time()
    subject, objects = prompts_to_run(lm, prompts).hidden_states([lre.layer])
    subjects, states = subject[:, 0], time.process_time() - start

    def timed(name: str, product: Tensor, offset: Tensor, start: float, beta: float = 1.0) -> None:
        changed = replace(lre, weight=product / beta, bias=offset, beta=beta)
        found[name] = changed, time.process_time() - start + states

    start = time.process_time()
    regression = linear_regression(subjects, objects)
    offset = regression(torch.zeros_like(bias))
    timed("linear regression", (regression(torch.eye(len(bias))) - offset).T.contiguous(), offset, start)
    start = time.process_time()
    timed("KL", *train(lm, subjects, objects, torch.zeros_like(weight), objects.mean(0)), start)
    if seconds is not None:
        start = time.process_time() - seconds
        timed("KL from the LRE", *train(lm, subjects, objects, lre.beta * weight, bias), start, lre.beta)
    return found


def chosen(setting: Setting) -> list[str]:
    """Return the relations with enough subjects whose LRE says most beyond b alone in their records."""

    def beyond(name: str) -> float:
        record = setting.records[name]
        row = record.faithful[record.layers.index(record.layer)]
        return (max(row) - row[record.betas.index(0.0)]) / record.known

    least = setting.data.n_shot + SIZES[-1] + setting.data.n_shot
    large = [name for name, record in setting.records.items() if record.samples >= least and record.layer != "emb"]
    return sorted(large, key=beyond, reverse=True)[:RELATIONS]


def study(setting: Setting) -> list[Table]:
    """Return the table of maps by the number of samples."""
    lm, rows = setting.lm, defaultdict(list)
    for relation in progress(chosen(setting), f"Maps of {setting.name}"):
        trial = setting.data.trial(setting.indices[relation])
        layer, names = setting.collection[relation].layer, {sample.name: sample for sample in trial.test}
        order = [names[name] for name in drawn([*names], relation, 3 * SIZES[-1])]
        pool, asked = order[: SIZES[-1]], order[SIZES[-1] :]

        def made(samples: Sequence[Sample], trial: object = trial) -> list[Prompt]:
            return make_prompts(lm.tokenizer, trial.template, samples, trial.train, setting.data.prompts)  # type: ignore[attr-defined]

        batch, test = collate(made(asked), 0, 0, range(len(asked))), replace(trial, test=tuple(asked))
        states = TrialStates.run(lm, [batch], test, [layer], max_known=MOST)
        if not states.all_known:
            continue
        lre = LRE(
            torch.eye(lm.hidden_size),
            torch.zeros(lm.hidden_size),
            layer,
            Origin.of(lm, trial, setting.data.prompts),
            setting.point[1],
            setting.rank(relation, layer),
        )
        prompts = made(pool)
        larger = ((size, lre, None) for size in SIZES if size > JACOBIANS)
        for size, estimated, seconds in chain(estimates(lm, lre, prompts), larger):
            for name, (found, taken) in fits(lm, estimated, seconds, prompts[:size]).items():
                right, moved = counts(states, found, 0)
                edited = len(states.all_edited)
                rows[size, name].append((right / states.all_known, moved / edited if edited else None, taken))
    table: list[Row] = [
        (
            size,
            name,
            len(found),
            *(mean_over([x for x in column if x is not None]) for column in zip(*found, strict=True)),
        )
        for (size, name), found in rows.items()
    ]
    return [Table("probes", "", ("n", "map", "relations", "faithfulness", "causality", "seconds"), tuple(table))]


if __name__ == "__main__":
    run(study)
