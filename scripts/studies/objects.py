"""Answers of several tokens: which object of its relation's range a lens says, as a whole.

The LRE stands for o at one token, which says the object's first one. A template lens reads whole objects: from the
states x, at a layer below the last, in which the LM is about to repeat an object w, whose means are mu_w, it takes the
directions (Sigma + lambda I)^-1 (mu_w - mu) for all w (a linear discriminant). Here x is what another LRE, of the same
training samples, makes of s at that layer. As templates and prompts differ, x is taken less its mean over the training
samples, and the w of the highest cosine in the metric (Sigma + lambda I)^-1 is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lre_lightning.grid import Layer
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.measures.whole_objects import ObjectRuns
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.progress import progress
from lre_lightning.prompts.batch import collate
from lre_lightning.prompts.prompt import Prompt, make_prompts
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.relations.relation import Sample
from lre_lightning.report.tables import Cell, Table
from lre_lightning.statistics.estimates import mean_over
from scripts.studies.common import Setting, drawn, run

TEMPLATES = ("{} is the same as", "{} is another name for", "I said {}, and I say it again:")
REPEATED = (Sample("water", "water"), Sample("the old house", "the old house"))
"""Examples that show that the answer is the subject."""

RELATIONS, OBJECTS, MOST = 5, 60, 30
"""The numbers of relations, whose objects share most first tokens, of their objects and of known samples, at most."""

RIDGE = 0.1
"""Lambda beside the mean variance of a dimension."""


def last_states(lm: LanguageModel, prompts: Sequence[Prompt], layer: Layer) -> Tensor:
    """Return the hidden states at the last tokens of prompts, `(prompts, hidden)`."""
    batch = collate(prompts, 0, 0, range(len(prompts)))
    return PromptBatch(lm, batch.input_ids, batch.last_position, batch.last_position).hidden_states([layer])[0][:, 0]


def about_to_say(lm: LanguageModel, objects: Sequence[str], layer: Layer) -> Tensor:
    """Return the states in which the LM is about to repeat objects, `(templates, objects, hidden)`."""
    samples = [Sample(name, name) for name in objects]
    prompts = [make_prompts(lm.tokenizer, template, samples, REPEATED) for template in TEMPLATES]
    return torch.stack([last_states(lm, some, layer) for some in prompts])


def template_lens(means: Tensor, states: Tensor) -> Tensor:
    """Return the object that states say, int64 `(states,)`: that of the highest cosine in the metric of the objects.

    Args:
        means: The means of objects, `(objects, hidden)`.
        states: States less their mean, `(states, hidden)`.
    """
    apart = (means - means.mean(0)).double()
    covariance = apart.T @ apart / len(apart)
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
    directions = torch.linalg.solve(covariance + ridge, apart.T)
    lengths = (apart.T * directions).sum(0).clamp(min=1e-12).sqrt()
    found: Tensor = (states.double() @ directions / lengths).argmax(-1)
    return found


def first_token_hits(scores: Tensor, first: Tensor, answers: Tensor) -> float:
    """Return how often the most likely first token is that of the answer, divided by the objects that share it.

    `scores` are those of all tokens, `(states, vocab)`, `first` the objects' first tokens and `answers` objects.
    """
    said = first[scores[:, first].argmax(-1)]
    shared = (first == said[:, None]).sum(-1)
    return float(((said == first[answers]) / shared).double().mean())


def upper_estimate(setting: Setting, lre: LRE, prompts: Sequence[Prompt], above: Layer) -> tuple[LRE, Tensor]:
    """Return the LRE from the same layer to one below the last, and its mean over the training samples."""
    estimator, subjects = LREEstimator([lre.layer]), []
    for prompt in prompts:
        ids = torch.tensor(prompt.input_ids)
        found = prompt_jacobian(setting.lm, ids, prompt.subject_position, [lre.layer], above)
        estimator.update(found)
        subjects.append(found.subject[lre.layer])
    made = LRE(estimator.weight(lre.layer), estimator.bias(lre.layer), lre.layer, lre.origin, lre.beta)
    return made, made(torch.stack(subjects)).mean(0)


def scored(setting: Setting, relation: str) -> Mapping[str, float]:
    """Return how often each reading of a relation's known subjects is the LM's own answer among all objects."""
    lm, lre = setting.lm, setting.collection[relation]
    above = max(lm.num_layers * 3 // 4, lre.layer + 1 if isinstance(lre.layer, int) else 0)
    states = setting.states(relation, [lre.layer], MOST)
    tokens = setting.data.coverage(states.trial.relation).tokens
    rows = states.known.nonzero().flatten()
    asked = [states.prompts[row] for row in rows.tolist()]
    own = {prompt.object for prompt in asked}
    names = sorted(own | set(drawn([name for name in tokens if name not in own], relation, max(0, OBJECTS - len(own)))))
    objects = pad_sequence([torch.tensor(tokens[name]) for name in names], batch_first=True, padding_value=-1)
    subject = states.subject[:, 0]
    runs = ObjectRuns(states.runs, lre.layer, subject, objects)
    answers = runs.most_probable(rows, states.object[rows])
    output = lre(subject[rows])
    upper, centre = upper_estimate(
        setting, lre, train_prompts(states.trial, lm.tokenizer, options=setting.data.prompts), above
    )
    means, at_end = about_to_say(lm, names, above).mean(0), last_states(lm, asked, above)
    readings = {
        "the LM gives the other tokens": runs.most_probable(rows, output),
        "template lens of the LRE": template_lens(means, upper(subject[rows]) - centre),
        "template lens of the LM's state": template_lens(means, at_end - at_end.mean(0)),
    }
    return {
        "first token alone": first_token_hits(lm.decode(output), objects[:, 0], answers),
        **{name: float((found == answers).double().mean()) for name, found in readings.items()},
        "most frequent answer": max(Counter(answers.tolist()).values()) / len(rows),
    }


def chosen(setting: Setting) -> list[str]:
    """Return the relations whose objects share most first tokens."""
    relations = {relation.name: relation for relation in setting.data.relations if relation.name in setting.indices}
    fractions = {name: setting.data.coverage(relation).fraction for name, relation in relations.items()}
    several = [name for name, fraction in fractions.items() if fraction < 1 and setting.records[name].layer != "emb"]
    return sorted(several, key=fractions.__getitem__)[:RELATIONS]


def study(setting: Setting) -> list[Table]:
    """Return the table of readings by relation; none if all objects have first tokens of their own."""
    names = chosen(setting)
    found = {name: scored(setting, name) for name in progress(names, f"Whole objects of {setting.name}")}
    if not found:
        return []
    columns = (*found[names[0]],)
    rows: list[tuple[Cell, ...]] = [(name, *found[name].values()) for name in names]
    rows.append(("mean", *(mean_over([found[name][column] for name in names]) for column in columns)))
    return [Table("objects", "", ("relation", *columns), tuple(rows))]


if __name__ == "__main__":
    run(study)
