"""What an edit leaves alone: against texts put together by hand and run one by one."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures import Specificity
from lre_lightning.measures.specificity import KINDS
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import draw_order
from lre_lightning.relations.sources import load_relations
from lre_lightning.scoring.states import draw_key, run_trial
from tests.helpers.identities import SOME
from tests.helpers.records import COUNTS, with_measures
from tests.scoring.trials import answer, pinv, scored, state

LAYER, RANKS, COUNT = 1, (2, 40), 10
CAPITAL, LANGUAGE, CONTINENT = "country capital city", "country language", "country continent"


def write(relation, folder, objects):
    """Write a relation of some samples with some objects."""
    properties = {"relation_type": "factual", "domain_name": "", "range_name": "", "symmetric": False}
    samples = [{"subject": s.subject, "object": o} for s, o in zip(relation.samples, objects, strict=False)]
    plain = {"name": relation.name, "prompt_templates": relation.prompt_templates, "samples": samples}
    plain |= {"prompt_templates_zs": relation.zero_shot_templates, "properties": properties}
    (folder / f"{relation.name.replace(' ', '_')}.json").write_text(json.dumps(plain))


def text_of(template, context, subject):
    lines = [f"{template.replace('{}', sample.subject)} {sample.object}\n" for sample in context]
    return "".join(lines) + template.replace("{}", subject)


def prompt_at(lm, text, end, start):
    """A prompt's tokens, and the one that holds the character before `end`."""
    found = lm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    place = next(i for i, (first, last) in enumerate(found["offset_mapping"]) if first < end <= last)
    return SimpleNamespace(input_ids=(*start, *found["input_ids"]), subject_position=len(start) + place)


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """The demo's first trial of capitals; continents are wrong but for a few."""
    folder, lm = tmp_path_factory.mktemp("relations"), LanguageModel.from_pretrained("demo")
    for relation in load_relations([CAPITAL, LANGUAGE, CONTINENT], "demo"):
        objects = [sample.object for sample in relation.samples][:COUNT]
        write(relation, folder, [*objects[:4], *["Nowhere"] * 6] if relation.name == CONTINENT else objects)
    data = RelationDataModule("demo", source=str(folder), n_shot=3, trials=1)
    data.use(lm)
    index = [data.relations[relation].name for relation, _ in data.schedule].index(CAPITAL)
    states = run_trial(lm, data, index, [LAYER])
    estimator = LREEstimator([LAYER])
    for prompt in train_prompts(states.trial, data.tokenizer, options=data.prompts):
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, [LAYER]))
    ((layer, weight, bias),) = estimator.means()
    lre = LRE(weight, bias, layer, Origin("", SOME, ""))
    numbers = {"samples": COUNT, "range_size": COUNT, "tested": COUNT - 3, "known": states.all_known}
    point = {"layers": (LAYER,), "ranks": RANKS, "layer": LAYER, "rank": RANKS[-1]}
    record = TrialRecord(CAPITAL, "", 0, **numbers, edited=len(states.edited), **point)
    return scored(record, states, {LAYER: lre}, data=data)


def by_hand(trial):
    """The sums and totals, from their definitions."""
    lm, states, data = trial.lm, trial.states, trial.data
    train, key, test = states.trial.train, draw_key(states.trial), states.trial.test
    prompts, last = states.prompts, lm.num_layers - 1
    start = prompts[0].input_ids[: prompts[0].start]
    relations = {relation.name: relation for relation in data.relations}
    trains = {data.trial(i).relation.name: data.trial(i).train for i in range(len(data.schedule))}
    totals, sums = dict.fromkeys(KINDS, 0), {name: [0] * len(RANKS) for name in KINDS}

    inverses = [torch.from_numpy(pinv(trial.lre.weight.numpy(), rank)) for rank in RANKS]

    def first_token(object_):
        return lm.tokenizer(f" {object_}", add_special_tokens=False)["input_ids"][0]

    for row, target in zip(states.edited.tolist(), states.targets.tolist(), strict=True):
        sample, other = test[row], test[target]
        own, wanted = (first_token(name) for name in (sample.object, other.object))
        change = state(lm, prompts[target], last, -1) - state(lm, prompts[row], last, -1)
        questions = {name: [] for name in KINDS}
        facts = [(name, one.object) for name in trains for one in relations[name].samples if one.name == sample.name]
        facts = sorted(facts, key=lambda fact: draw_order(key, sample.subject, *fact))
        for name, object_ in facts:
            if name == CAPITAL:
                continue
            context = [one for one in trains[name] if one.subject != sample.subject]
            text = text_of(relations[name].templates[0], context, sample.subject)
            if first_token(object_) not in (own, wanted):
                questions["other relations kept"].append((text, text.rindex(sample.subject), object_, object_))
        template, *rest = relations[CAPITAL].templates
        near = [test[i] for i in range(len(test)) if states.known[i] and i != row and test[i].object != other.object]
        near = min(near, key=lambda one: draw_order(key, "neighbour", sample.subject, one.subject, one.object))
        text = text_of(template, [*train, sample], near.subject)
        questions["neighbours kept"].append((text, text.rindex(sample.subject), near.object, near.object))
        for one in sorted(rest, key=lambda one: draw_order(key, sample.subject, one)):
            text = text_of(one, train, sample.subject)
            questions["paraphrases moved"].append((text, text.rindex(sample.subject), sample.object, other.object))
        for name, asked in questions.items():
            for text, begin, object_, right in asked:
                prompt = prompt_at(lm, text, begin + len(sample.subject), start)
                if answer(lm, prompt) != first_token(object_):
                    continue
                totals[name] += 1
                s = state(lm, prompt, LAYER)
                for place, inverse in enumerate(inverses):
                    sums[name][place] += answer(lm, prompt, LAYER, s + inverse @ change) == first_token(right)
                break
    return {name: (tuple(sums[name]), totals[name]) for name in KINDS}


def test_shares_are_those_of_whole_texts(capitals):
    found = Specificity().measure(capitals).tallies
    expected = by_hand(capitals)
    assert {name: (found[name].sums[0], found[name].total) for name in KINDS} == expected
    assert all(total > 3 for _, total in expected.values())
    assert len({sums for sums, _ in expected.values()}) == 3
    assert any(0 < count < total for sums, total in expected.values() for count in sums)


def test_a_relation_alone_has_no_others(capitals):
    alone = RelationDataModule("demo", CAPITAL, n_shot=3, trials=1)
    alone.use(capitals.lm)
    tallies = Specificity().measure(replace(capitals, data=alone)).tallies
    assert (tallies["other relations kept"].sums, tallies["other relations kept"].total) == (((0, 0),), 0)
    assert tallies["neighbours kept"].total > 0


def test_a_report_has_the_trade_by_rank():
    fields = {**COUNTS, "layers": (0,), "betas": (1.0,), "ranks": (2, 4), "faithful": ((5,),), "causal": ((2, 6),)}
    record = TrialRecord(relation="a", trial=0, **fields, layer=0, rank=4)
    tallies = {name: Tally((5, 3), 6, ("rank",), column=True) for name in KINDS}
    tallies["other relations kept"] = Tally((0, 0), 0, ("rank",), column=True)
    (section,) = Specificity.sections([with_measures(record, {"specificity": Measurement(tallies)})])
    table, by_rank = section.tables
    assert table.columns == ("relation", "causality", *KINDS)
    assert [cell and cell.value for cell in table.rows[0][1:]] == [0.75, None, 0.5, 0.5]
    assert [[row[0], *(cell and cell.value for cell in row[1:])] for row in by_rank.rows] == [
        [2, 0.25, None, 5 / 6, 5 / 6],
        [4, 0.75, None, 0.5, 0.5],
    ]
    assert len(section.pictures[0].plot().axes[0].lines) == 3
