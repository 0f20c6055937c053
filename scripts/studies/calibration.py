"""What a lens says of subjects that it cannot know, and whether it shows: calibration of LREs on null subjects.

Null are made-up names, of as many words and tokens as the relation's own subjects, and subjects of relations with
another domain, both in prompts like those of the estimate; and all tokens of sentences about other domains, beside
known subjects in a sentence that asks for nothing. For each statistic of a reading a threshold is set that half of a
relation's nulls exceed at a rate of 5%, and tested on the other half.

Does linearity predict hallucination (Lu et al., 2026)? An answer about a made-up name counts as a hallucination if it
is the first token of one of the relation's objects.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lens.likeness import likeness, threshold
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import fill, make_prompts, tokenize_text
from lre_lightning.prompts.trials import Trial, train_prompts
from lre_lightning.relations.relation import Relation, Sample, draw_order
from lre_lightning.report.tables import Row, Table
from lre_lightning.scoring.states import TrialStates, example_states
from lre_lightning.statistics.correlation import pearson
from lre_lightning.statistics.estimates import estimate, mean_over
from scripts.studies.common import Setting, drawn, run

SENTENCE = "Yesterday we talked about {}"
"""A text that asks for nothing."""

SOUNDS = (
    ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "gr", "kr", "st", "tr"),
    ("a", "e", "i", "o", "u"),
    ("", "", "n", "r", "s", "l", "x"),
)
"""Beginnings, middles and ends of the syllables of made-up names."""

IN_TEXT = "tokens of texts about others"
LIKENESS = "likeness of s"


def made_up(tokenizer: object, name: str, key: str) -> str:
    """Return an invented name of as many words as another one, and of as many tokens where one is found.

    Letters are capital where the other name's words begin with capitals. The draw depends on the key alone.
    """
    draw = random.Random(draw_order(key, name))

    def length(text: str) -> int:
        return len(tokenizer(f" {text}", add_special_tokens=False)["input_ids"])  # type: ignore[operator]

    def word(like: str) -> str:
        found = "".join("".join(map(draw.choice, SOUNDS)) for _ in range(draw.randint(1, max(2, len(like) // 3))))
        return found.capitalize() if like[:1].isupper() else found

    tried = [" ".join(map(word, name.split())) for _ in range(200)]
    return min(tried, key=lambda text: abs(length(text) - length(name)))


def statistics_of(logits: Tensor, of_bias: Tensor) -> dict[str, Tensor]:
    """Return what may tell an answer from noise, `(states,)` each, from logits `(states, vocab)` and b's, `(vocab,)`.

    The probability of the answer; its log-odds with the next token; KL of the answers from those of b alone, in nats;
    and the log-probability of the answer less that by b.
    """
    said, without = logits.log_softmax(-1), of_bias.log_softmax(-1)
    top, answer = said.topk(2)
    return {
        "probability": top[:, 0].exp(),
        "margin": top[:, 0] - top[:, 1],
        "KL from b": (said.exp() * (said - without)).sum(-1),
        "gain over b": top[:, 0] - without[answer[:, 0]],
    }


def auroc(known: Tensor, null: Tensor) -> float:
    """Return how often a value of known subjects is above one of null subjects; ties count half."""
    difference = known[:, None] - null
    return float(((difference > 0).double() + (difference == 0).double() / 2).mean())


def checked(known: Tensor, right: Tensor, null: Tensor) -> dict[str, float]:
    """Return how one statistic tells known from null subjects, with a threshold from every second null."""
    limit = float(threshold(null[::2]))
    kept = known > limit
    return {
        "AUROC": auroc(known, null),
        "false alarms": float((null[1::2] > limit).double().mean()),
        "kept": float(kept.double().mean()),
        "faithful": float(right.double().mean()),
        "faithful if kept": float(right[kept].double().mean()) if kept.any() else float("nan"),
    }


def of_other_domains(relation: Relation, relations: Sequence[Relation]) -> list[Relation]:
    """Return the relations that share neither a domain nor a subject with another one."""
    own = {sample.name for sample in relation.samples}
    return [
        one
        for one in relations
        if one.domain_name != relation.domain_name and not own & {sample.name for sample in one.samples}
    ]


@dataclass(frozen=True)
class Readings:
    """Hidden states at the layer of an LRE, `(states, hidden)` each.

    Attributes:
        known: s of known test subjects, in prompts and in `SENTENCE`.
        null: Those of null subjects, by kind.
        output: o of made-up names, `(names, hidden)`.
        train: s of the training samples in prompts.
    """

    known: tuple[Tensor, Tensor]
    null: dict[str, Tensor]
    output: Tensor
    train: Tensor


def readings(setting: Setting, trial: Trial, states: TrialStates, layer: Layer) -> Readings:
    """Read known and null subjects of a relation."""
    lm, relation, options = setting.lm, trial.relation, setting.data.prompts
    others = of_other_domains(relation, setting.data.relations)

    def read(template: str, samples: Sequence[Sample], context: Sequence[Sample] = ()) -> tuple[Tensor, Tensor]:
        prompts = make_prompts(lm.tokenizer, template, samples, context, options)
        subject, output = prompts_to_run(lm, prompts).hidden_states([layer])
        return subject[:, 0], output

    def asked(names: Sequence[str]) -> tuple[Tensor, Tensor]:
        return read(relation.template, [Sample(name, relation.objects[0]) for name in names], trial.train)

    own = drawn([sample.name for sample in trial.test], relation.name)
    invented, output = asked([made_up(lm.tokenizer, name, relation.name) for name in own])
    foreign, _ = asked(drawn([sample.name for one in others for sample in one.samples], relation.name))
    texts = [f"{fill(one.template, sample.subject)} {sample.object}" for one in others for sample in one.samples]
    ids = [tokenize_text(lm.tokenizer, text, options.start_token) for text in drawn(texts, relation.name)]
    tokens = torch.cat([lm.hidden_states(torch.tensor([i]), [layer])[layer][0, first + 1 :] for i, first in ids])
    prompts = (prompt for prompt, known in zip(states.prompts, states.known.tolist(), strict=True) if known)
    in_text, _ = read(SENTENCE, [Sample(prompt.subject, prompt.object) for prompt in prompts])
    train = example_states(lm, train_prompts(trial, lm.tokenizer, options=options), [layer])[0]
    null = {"made-up names": invented, "subjects of other relations": foreign, IN_TEXT: tokens}
    return Readings((states.subject[states.known, 0], in_text), null, output, train)


def measured(lm: LanguageModel, lre: LRE, found: Readings, subject: Tensor) -> dict[str, Tensor]:
    """Return all statistics of states `(states, hidden)`.

    The likeness of s is its highest cosine with s of a training sample, both less the mean of the tokens that set the
    threshold in texts.
    """
    centre = found.null[IN_TEXT][::2].mean(0)
    logits = lm.decode(torch.cat([lre(subject), lre.bias[None]]))
    return {**statistics_of(logits[:-1], logits[-1]), LIKENESS: likeness(subject, found.train, centre)}


def study(setting: Setting) -> list[Table]:
    """Return the table of thresholds, and that of what goes with hallucinations."""
    lm, rows, outcomes = setting.lm, defaultdict(list), []
    for relation, index in progress([*setting.indices.items()], f"Null subjects, {setting.name}"):
        lre, trial = setting.collection[relation], setting.data.trial(index)
        states = setting.states(relation, [lre.layer])
        found = readings(setting, trial, states, lre.layer)
        known = [measured(lm, lre, found, subject) for subject in found.known]
        right = [lm.predict(lre(subject)) == states.predicted[states.known] for subject in found.known]
        for kind, subject in found.null.items():
            place = int(kind == IN_TEXT)
            for name, value in measured(lm, lre, found, subject).items():
                rows[kind, name].append(checked(known[place][name], right[place], value))
        of_lm = [lm.decode(output).softmax(-1).amax(-1) for output in (states.object[states.known], found.output)]
        rows["made-up names", "probability by the LM"].append(checked(of_lm[0], right[0], of_lm[1]))
        outcomes.append(hallucinated(setting, lre, states, found.output))
    return [thresholds(rows), linearity(outcomes)]


def thresholds(rows: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> Table:
    """Return the table of means over relations, each with its interval."""
    names = ("AUROC", "false alarms", "kept", "faithful", "faithful if kept")
    means: list[Row] = [
        (*key, *(mean_over([one[name] for one in found if one[name] == one[name]]) for name in names))
        for key, found in rows.items()
    ]
    return Table("calibration", "", ("null", "statistic", *names), tuple(means))


def hallucinated(setting: Setting, lre: LRE, states: TrialStates, output: Tensor) -> dict[str, float]:
    """Return what a relation's linearity is, and what the LM answers about made-up names, from o `(names, hidden)`."""
    lm, relation = setting.lm, states.trial.relation
    first = {tokens[0] for tokens in setting.data.coverage(relation).tokens.values()}
    answers, logits = lm.predict(output).tolist(), lm.decode(output)
    said = lre(states.subject[states.known, 0])
    own = states.object[states.known]
    cosines = torch.cosine_similarity(said, own) - torch.cosine_similarity(states.subject[states.known, 0], own)
    faithful = states.count_faithful(torch.stack([lm.predict(said), lm.predict(lre.bias.expand_as(said))], 1))
    right, blind = (faithful / states.all_known).tolist()
    return {
        "faithfulness": right,
        "faithfulness beyond b alone": right - blind,
        "cosine of LRE(s) and o, less that of s and o": float(cosines.mean()),
        "known": states.all_known / len(states.prompts),
        "an object of the relation": sum(answer in first for answer in answers) / len(answers),
        "the most frequent answer": max(map(answers.count, answers)) / len(answers),
        "mean probability": float(logits.softmax(-1).amax(-1).mean()),
    }


def linearity(outcomes: Sequence[Mapping[str, float]]) -> Table:
    """Return the correlations over relations of linearity with what the LM answers about made-up names."""
    names = [*outcomes[0]]
    rows: list[Row] = [
        (name, *(estimate([(one[name], one[answer]) for one in outcomes], pearson) for answer in names[4:]))
        for name in names[:4]
    ]
    means: Row = ("mean over relations", *(mean_over([one[answer] for one in outcomes]) for answer in names[4:]))
    return Table("linearity", "", ("correlation of", *names[4:]), (*rows, means))


if __name__ == "__main__":
    run(study)
