"""Scores on whole objects against plain loops: a hook, whole prompts, one token at a time."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures.whole_objects import KNOWN, WHOLE_OBJECT_SCORES, WholeObjects
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord
from lre_lightning.scoring.states import draw_targets
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import VOCAB, plain_output, tiny_model
from tests.scoring.trials import prompt_of, scored, state, states_of

LAYER, BETA, RANK, COUNT = 1, 1.5, 9, 14


@cache
@torch.no_grad()
def logits(lm, prompt, said, value=None):
    """The logits after a prompt and some tokens, with s replaced if a value is given."""
    ids, position = [*prompt.input_ids, *said], prompt.subject_position
    hidden = lm(torch.tensor([ids]))[0, -1] if value is None else plain_output(lm, ids, position, LAYER, value)
    return lm.decode(hidden)


def greedy(lm, prompt, length, value=None, first=None):
    """What the LM says after a prompt, token by token; the first one may be given."""
    said = () if first is None else (int(first),)
    while len(said) < length:
        said += (int(logits(lm, prompt, said, value).argmax()),)
    return said


def score(lm, prompt, tokens, value=None, first=None):
    """The log-probability of an object as a sequence; that of the first token may come from other logits."""
    total = 0.0
    for place, token in enumerate(tokens):
        found = first if first is not None and place == 0 else logits(lm, prompt, tokens[:place], value)
        total += float(found.log_softmax(-1)[token])
    return total


def best(lm, prompt, sequences, **how):
    return max(sequences, key=lambda tokens: score(lm, prompt, tokens, **how))


def prompts_for(lm, longest):
    """Prompts with objects of up to `longest` tokens; of two the first token is wrong, of two more only the last."""
    prompts = []
    for number in range(COUNT):
        prompt = prompt_of(number, 0)
        tokens = list(greedy(lm, prompt, 1 + number % longest))
        if number < 4:
            tokens[0 if number < 2 else -1] = (tokens[0 if number < 2 else -1] + 1) % VOCAB
        prompts.append(replace(prompt, object=str(tokens), object_tokens=tuple(tokens)))
    return prompts


def lre_of(lm, prompts):
    estimator = LREEstimator([LAYER])
    for prompt in prompts[4:8]:
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, [LAYER]))
    ((layer, weight, bias),) = estimator.means()
    return LRE(weight, bias, layer, Origin("", SOME, ""))


def record_of():
    numbers = {"samples": COUNT, "range_size": COUNT, "tested": COUNT, "known": COUNT}
    return TrialRecord("toy", "", 0, **numbers, layers=(LAYER,), layer=LAYER, beta=BETA, rank=RANK)


def by_loops(lm, prompts, lre, sequences):
    """The counts, from their definitions."""
    known = [greedy(lm, prompt, len(prompt.object_tokens)) == prompt.object_tokens for prompt in prompts]
    numbers = [sequences.index(prompt.object_tokens) if yes else -1 for prompt, yes in zip(prompts, known, strict=True)]
    targets = draw_targets(prompts, numbers, "toy\x1f0", range(COUNT))
    left, values, right = torch.linalg.svd(lre.weight)
    inverse = right[:RANK].T @ torch.diag(1 / values[:RANK]) @ left[:, :RANK].T
    counts = [sum(known), sum(target is not None for target in targets), *[0] * 6]
    for prompt, yes, target in zip(prompts, known, targets, strict=True):
        if not yes:
            continue
        subject, length = state(lm, prompt, LAYER), len(prompt.object_tokens)
        first = lm.decode(BETA * lre.weight @ subject + lre.bias)
        counts[2] += greedy(lm, prompt, length, first=first.argmax()) == greedy(lm, prompt, length)
        by_lm = best(lm, prompt, sequences)
        counts[3] += best(lm, prompt, sequences, first=first) == by_lm
        counts[4] += best(lm, prompt, sequences, first=lm.decode(lre.bias)) == by_lm
        if target is None:
            continue
        first = lm.decode(BETA * lre.weight @ state(lm, prompts[target], LAYER) + lre.bias)
        counts[5] += best(lm, prompt, sequences, first=first) == by_lm
        value = subject + inverse @ (state(lm, prompts[target], 2, -1) - state(lm, prompt, 2, -1))
        wanted = prompts[target].object_tokens
        counts[6] += greedy(lm, prompt, len(wanted), value) == wanted
        counts[7] += best(lm, prompt, sequences, value=value) == wanted
    return counts


def counts_of(states, lre, tokens):
    """The samples that are known as a whole and edited, and the successes of each score."""
    found = WholeObjects().measure(scored(record_of(), states, {lre.layer: lre}, tokens=tokens)).tallies
    return [found[KNOWN].sums, found["closed-set causality"].total, *(found[name].sums for name in WHOLE_OBJECT_SCORES)]


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 6), ("mamba", 3)])
def test_the_counts_are_those_of_plain_loops(family, seed, monkeypatch):
    lm = LanguageModel(tiny_model(family, seed=seed))
    prompts = prompts_for(lm, 3)
    tokens = {prompt.object: prompt.object_tokens for prompt in prompts}
    # Objects that no sample has: with the first token of another one, with more tokens than one, and less likely ones.
    more = [(*p.object_tokens[:1], (p.object_tokens[-1] + 5) % VOCAB) for p in prompts[:6]]
    tokens |= {str(one): one for one in [*more, (7,), (8, 9, 10, 11, 12)]}
    lre = lre_of(lm, prompts)
    expected = by_loops(lm, prompts, lre, list(dict.fromkeys(tokens.values())))
    for chunk_size, size in ((None, 100), (3, 5)):
        monkeypatch.setattr(lm, "chunk_size", chunk_size)
        states = states_of(lm, prompts, (LAYER,), size=size)
        assert counts_of(states, lre, tokens) == expected
    assert min(expected) > 0


def test_a_trial_in_which_the_lm_says_no_whole_object_counts_nothing():
    lm = LanguageModel(tiny_model("gpt2", seed=6))
    wrong = [
        replace(p, object_tokens=(*p.object_tokens[:1], (p.object_tokens[1] + 1) % VOCAB))
        for p in prompts_for(lm, 2)[1::2]
    ]
    states = states_of(lm, wrong, (LAYER,))
    assert states.all_known > 3
    counts = counts_of(states, lre_of(lm, prompts_for(lm, 1)), {p.object: p.object_tokens for p in wrong})
    assert set(counts) == {0}
