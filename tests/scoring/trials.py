"""Trials made of given prompts, and whole prompts run without the engine, for the tests of scoring."""

import numpy as np
import torch

from lre_lightning.models.hooks import replace
from lre_lightning.prompts.batch import collate
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import Trial
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.measure import ScoredTrial
from lre_lightning.scoring.states import TrialStates
from tests.helpers.tiny_models import VOCAB, plain_output


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pinv(weight, rank):
    """The pseudo-inverse of a rank by numpy."""
    left, values, right = np.linalg.svd(weight)
    return (right[:rank].T / values[:rank]) @ left[:, :rank].T


def edits_of(states):
    """The subject and target of each edit of a trial."""
    pairs = zip(states.edited.tolist(), states.targets.tolist(), strict=True)
    return [(states.prompts[row].subject, states.prompts[target].subject) for row, target in pairs]


def trial_of(prompts, number=0, train=()):
    """The trial whose test samples are those of the prompts."""
    samples = tuple(Sample(prompt.subject, prompt.object) for prompt in prompts)
    return Trial(Relation("toy", "factual", ("{}",), (), "", "", False, samples), number, tuple(train), samples)


def states_of(lm, prompts, layers, size=100, alone=None, **trial):
    """Run the test prompts of a trial in batches of `size`; `alone` are prompts of their subjects alone."""
    places = [range(start, min(start + size, len(prompts))) for start in range(0, len(prompts), size)]

    def batches(some):
        return [collate([some[i] for i in at], 0, 0, at) for at in places]

    bare = batches(alone) if alone else None
    return TrialStates.run(lm, batches(prompts), trial_of(prompts, **trial), layers, alone=bare)


def scored(record, states, lres=None, *, prompts=(), tokens=None, said=None, edited=None, data=None):
    """A scored trial, as measures see it."""
    return ScoredTrial(record, states, lres or {}, said, edited, prompts, tokens or {}, data)


def sums_of(measurement, start=""):
    """The sums of a measurement by the names of its tallies, of those that begin so."""
    tallies = measurement.tallies.items()
    return {name.removeprefix(start): tally.sums for name, tally in tallies if name.startswith(start)}


def state(lm, prompt, layer, position=None):
    """The hidden state of a whole prompt at its subject, or at `position`."""
    at = prompt.subject_position if position is None else position
    with torch.no_grad():
        return lm.hidden_states(torch.tensor([prompt.input_ids]), [layer])[layer][0, at]


def answer(lm, prompt, layer=None, value=None):
    """The LM's answer to a whole prompt, with the hidden state of its subject replaced if a value is given."""
    with torch.no_grad():
        if value is None:
            return int(lm.model(torch.tensor([prompt.input_ids])).logits[0, -1].argmax())
        return int(lm.decode(plain_output(lm, prompt.input_ids, prompt.subject_position, layer, value)).argmax())


def answers(lm, prompt, layer, values):
    """The LM's answers to a whole prompt, with the hidden state of its subject replaced by each of some values."""
    ids, position = torch.tensor([prompt.input_ids] * len(values)), torch.tensor([prompt.subject_position])

    def put(hidden):
        return hidden.index_copy(1, position, torch.stack([value.to(hidden) for value in values])[:, None])

    with torch.no_grad(), replace(lm.module_at(layer), put):
        return lm.model(ids).logits[:, -1].argmax(-1).tolist()


def prompt_of(number, object_token):
    """Context, a subject of two tokens, none to two tokens of template."""
    ids = (1, 7, 7, 9, 20 + number % 3, 30 + number, *(3, 5)[: (number + 2) % 3])
    return Prompt(f"s{number} is", f"s{number}", f"o{object_token}", ids, (4, 6), (object_token,))


def prompts_for(lm, count):
    """Prompts of which the LM knows all but the first two."""
    said = [answer(lm, prompt_of(number, 0)) for number in range(count)]
    assert len(set(said)) > 2
    return [prompt_of(number, token if number > 1 else (token + 1) % VOCAB) for number, token in enumerate(said)]
