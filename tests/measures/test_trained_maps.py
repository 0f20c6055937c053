"""Maps trained by KL: stationary where training ends, and counted as whole prompts run one by one."""

from dataclasses import replace

import pytest
import torch

from lre_lightning.measures import TrainedMaps
from lre_lightning.measures.trained_maps import MAPS, NAME, train_map
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import draw_order
from lre_lightning.scoring.states import draw_key, draw_targets
from tests.helpers.records import COUNTS, with_measures
from tests.helpers.tiny_models import WIDTH, tiny_model
from tests.measures.test_whole_objects import BETA, LAYER, RANK, lre_of, record_of
from tests.scoring.trials import answer, normal, pinv, prompt_of, prompts_for, scored, state, states_of

COUNT, TIMES = 14, 3


@pytest.fixture(scope="module")
def lm():
    return LanguageModel(tiny_model("gpt2", seed=6))


def divergence(lm, said, objects):
    wanted = lm.decode(objects).log_softmax(-1)
    return (wanted.exp() * (wanted - lm.decode(said).log_softmax(-1))).sum(-1).mean()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_ends_where_no_change_of_the_map_helps(lm, mode):
    with mode():
        subjects, objects, bias = normal(5, WIDTH), normal(5, WIDTH, seed=1), normal(WIDTH, seed=2)
        start = normal(WIDTH, WIDTH, seed=3) / 9
        weight, offset = train_map(lm, subjects, objects, start, bias)
    weight, offset = weight.clone().requires_grad_(), offset.clone().requires_grad_()
    subjects, objects, bias = (tensor.clone() for tensor in (subjects, objects, bias))
    before = divergence(lm, subjects @ start.T + bias, objects)
    after = divergence(lm, subjects @ weight.T + offset, objects)
    after.backward()
    assert after < before / 50
    assert offset.grad.norm() < 0.02 * before
    other = torch.linalg.qr((subjects - subjects.mean(0)).T, mode="complete").Q[:, 4:]
    torch.testing.assert_close(weight @ other, start @ other)


def test_counts_are_those_of_whole_prompts(lm):
    prompts, train = prompts_for(lm, COUNT), [prompt_of(number, 0) for number in range(20, 23)]
    states, lre = states_of(lm, prompts, (0, LAYER), size=5), lre_of(lm, prompts)
    point = {"betas": (BETA,), "layers": (0, LAYER), "ranks": (RANK,), "layer": LAYER, "beta": BETA, "rank": RANK}
    trial = scored(replace(record_of(), **point), states, {0: lre, LAYER: lre}, prompts=train)
    found = TrainedMaps(times=TIMES).measure(trial)
    assert found.chosen == ("layer", "beta", "rank")

    key, last = draw_key(states.trial), lm.num_layers - 1
    order = sorted(range(COUNT), key=lambda place: draw_order(key, prompts[place].subject))
    expected = {}
    for size, drawn in (("n", []), (f"{TIMES} n", order[: (TIMES - 1) * len(train)])):
        taught = [*train, *(prompts[place] for place in drawn)]
        subjects = torch.stack([state(lm, prompt, LAYER) for prompt in taught])
        objects = torch.stack([state(lm, prompt, last, -1) for prompt in taught])
        zero = torch.zeros(WIDTH, WIDTH, dtype=subjects.dtype)
        maps = {
            "LRE": (BETA * lre.weight, lre.bias, BETA),
            "KL": (*train_map(lm, subjects, objects, zero, objects.mean(0)), 1.0),
            "KL from the LRE": (*train_map(lm, subjects, objects, BETA * lre.weight, lre.bias), BETA),
        }
        held = [place for place in range(COUNT) if place not in drawn]
        known = [place for place in held if place > 1]  # the LM does not know the first two
        tokens = [prompt.object_tokens[0] if place in known else -1 for place, prompt in enumerate(prompts)]
        targets = draw_targets(states.trial.test_asked, tokens, key, known)
        for name, (weight, bias, beta) in maps.items():
            right = [int(lm.decode(weight @ state(lm, prompts[i], LAYER) + bias).argmax()) == tokens[i] for i in known]
            inverse, moved = torch.from_numpy(pinv((weight / beta).numpy(), RANK)), 0
            for place, target in zip(known, targets, strict=True):
                change = state(lm, prompts[target], last, -1) - state(lm, prompts[place], last, -1)
                after = answer(lm, prompts[place], LAYER, state(lm, prompts[place], LAYER) + inverse @ change)
                moved += after == tokens[target]
            expected[f"faithfulness: {name}, {size}"] = Tally(sum(right), len(known))
            expected[f"causality: {name}, {size}"] = Tally(moved, len(known))
    assert found.tallies == expected
    assert len({tally.at() for tally in expected.values()}) > 4

    few = TrainedMaps(times=6).measure(trial).tallies
    assert few == {name: tally for name, tally in expected.items() if name.endswith(", n")}


def test_a_report_compares_maps_of_the_same_trials():
    fields = {**COUNTS, "layers": (0,), "betas": (1.0,), "ranks": (2,), "faithful": ((5,),), "causal": ((2,),)}
    records = []
    for relation, sizes in (("a", ("n", "3 n")), ("b", ("n",))):
        tallies = {
            f"{metric}: {name}, {size}": Tally(place + 2 * (metric == "faithfulness"), 10)
            for metric in ("faithfulness", "causality")
            for size in sizes
            for place, name in enumerate(MAPS)
        }
        record = TrialRecord(relation=relation, trial=0, **fields, layer=0, rank=2)
        records.append(with_measures(record, {NAME: Measurement(tallies)}))
    (section,) = TrainedMaps.sections(records)
    table, own = section.tables
    assert [(*row[:3], *(cell.value for cell in row[3:])) for row in table.rows] == [
        (size, name, count, (place + 2) / 10, place / 10)
        for size, count in (("n", 2), ("3 n", 1))
        for place, name in enumerate(MAPS)
    ]
    assert own.columns == ("relation", *(f"{name}, {size}" for size in ("n", "3 n") for name in MAPS))
    assert own.rows[1][4:] == (None, None, None)
    assert len(section.pictures[0].plot().axes) == 2
