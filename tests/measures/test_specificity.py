"""What an edit leaves alone: against texts put together by hand and run one by one."""

import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures import Specificity
from lre_lightning.measures.specificity import SUCCESS
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import draw_order
from lre_lightning.relations.sources import load_relations
from lre_lightning.scoring.questions import KINDS, LOST, OTHERS
from lre_lightning.scoring.states import draw_key, run_trial
from tests.helpers.identities import SOME
from tests.helpers.records import COUNTS, with_measures
from tests.scoring.trials import answer, answers, pinv, scored, state

LAYERS, LAYER, RANKS, COUNT, HALF = (0, 1), 1, (2, 40), 10, 0.5
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
    states = run_trial(lm, data, index, LAYERS)
    estimator = LREEstimator(LAYERS)
    for prompt in train_prompts(states.trial, data.tokenizer, options=data.prompts):
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS))
    lres = {layer: LRE(weight, bias, layer, Origin("", SOME, "")) for layer, weight, bias in estimator.means()}
    numbers = {"samples": COUNT, "range_size": COUNT, "tested": COUNT - 3, "known": states.all_known}
    point = {"layers": LAYERS, "ranks": RANKS, "layer": LAYER, "rank": RANKS[-1]}
    record = TrialRecord(CAPITAL, "", 0, **numbers, edited=len(states.edited), **point)
    return scored(record, states, lres, data=data)


def swapped(s, one, other):
    """The nearest state whose products with two directions are exchanged."""
    directions = np.stack([one, other])
    now = directions @ s.numpy()
    return s + torch.from_numpy(np.linalg.pinv(directions) @ (now[::-1] - now))


def edits_by_hand(trial, row, target, sample, lens):
    """What each edit makes of s, at every rank or once."""
    lm, prompts, last = trial.lm, trial.states.prompts, trial.lm.num_layers - 1
    change = state(lm, prompts[target], last, -1) - state(lm, prompts[row], last, -1)
    deltas = [torch.from_numpy(pinv(trial.lre.weight.numpy(), rank)) @ change for rank in RANKS]
    seed = draw_order(draw_key(trial.states.trial), "random", sample.subject, sample.object, 0)
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "big"))
    drawn = torch.randn(len(change), generator=generator, dtype=torch.float64)
    outputs = [state(lm, prompts[at], last, -1) for at in (row, target)]
    tokens = [lm.tokenizer(f" {prompts[at].object}", add_special_tokens=False)["input_ids"][0] for at in (row, target)]
    rows = lm.model.get_output_embeddings().weight[tokens].detach()
    instead = {"oracle": state(lm, prompts[target], LAYER), "unembedding": rows[1], "object": outputs[1]}
    reads = (rows @ lens.jacobians[LAYER]).numpy()
    concepts = []
    for rank in RANKS:
        pair = [pinv(trial.lre.weight.numpy(), rank) @ (o - trial.lre.bias).numpy() for o in outputs]
        concepts.append([one / np.linalg.norm(one) for one in pair])
    return {
        "": [lambda s, delta=delta: s + delta for delta in deltas],
        "random times 0.5": [lambda s, d=d: s + HALF * d.norm() * (drawn / drawn.norm()).to(s) for d in deltas],
        "concept": [lambda s, pair=pair: swapped(s, *pair) for pair in concepts],
        "concept times 0.5": [lambda s, pair=pair: s + HALF * (swapped(s, *pair) - s) for pair in concepts],
        "steering": [lambda s, pair=pair: s + s.norm() * torch.from_numpy(pair[1] - pair[0]) for pair in concepts],
        "Jacobian lens": [lambda s: swapped(s, *reads)],
        "Jacobian lens times 0.5": [lambda s: s + HALF * (swapped(s, *reads) - s)],
    } | {f"{name} times 0.5": [lambda s, other=other: s + HALF * (other - s)] for name, other in instead.items()}


def by_hand(trial, lens):
    """The sums and totals, from their definitions, by kind and edit."""
    lm, states, data = trial.lm, trial.states, trial.data
    train, key, test = states.trial.train, draw_key(states.trial), states.trial.test
    start = states.prompts[0].input_ids[: states.prompts[0].start]
    relations = {relation.name: relation for relation in data.relations}
    trains = {data.trial(i).relation.name: data.trial(i).train for i in range(len(data.schedule))}
    totals, sums = Counter(), Counter()

    def first_token(object_):
        return lm.tokenizer(f" {object_}", add_special_tokens=False)["input_ids"][0]

    for row, target in zip(states.edited.tolist(), states.targets.tolist(), strict=True):
        sample, other = test[row], test[target]
        own, wanted = (first_token(name) for name in (sample.object, other.object))
        edits = edits_by_hand(trial, row, target, sample, lens)
        template, *rest = relations[CAPITAL].templates
        questions = {SUCCESS: [(text_of(template, train, sample.subject), sample.object, wanted, None)]}
        questions |= {name: [] for name in KINDS}
        facts = [(name, one.object) for name in trains for one in relations[name].samples if one.name == sample.name]
        for name, object_ in sorted(facts, key=lambda fact: draw_order(key, sample.subject, *fact)):
            context = [one for one in trains[name] if one.subject != sample.subject]
            own_text, twin = (
                text_of(relations[name].templates[0], context, subject) for subject in (sample.subject, other.subject)
            )
            if name != CAPITAL and first_token(object_) not in (own, wanted):
                questions["other relations kept"].append((own_text, object_, first_token(object_), twin))
        near = [test[i] for i in range(len(test)) if states.known[i] and i != row and test[i].object != other.object]
        near = min(near, key=lambda one: draw_order(key, "neighbour", sample.subject, one.subject, one.object))
        text = text_of(template, [*train, sample], near.subject)
        questions["neighbours kept"].append((text, near.object, first_token(near.object), None))
        for one in sorted(rest, key=lambda one: draw_order(key, sample.subject, one)):
            questions["paraphrases moved"].append((text_of(one, train, sample.subject), sample.object, wanted, None))
        for name, asked in questions.items():
            for text, object_, right, twin in asked:
                prompt = prompt_at(lm, text, text.rindex(sample.subject) + len(sample.subject), start)
                if answer(lm, prompt) != first_token(object_):
                    continue
                totals[name] += 1
                s = state(lm, prompt, LAYER)
                meant = {name: right}
                if twin:
                    with torch.no_grad():
                        logits = lm.model(torch.tensor([prompt.input_ids])).logits[0, -1]
                    second = int(logits.argsort(descending=True)[1])
                    meant |= dict(zip(LOST, (wanted, answer(lm, prompt_at(lm, twin, 1, start)), second), strict=True))
                changes = {(edit, at): change(s) for edit, some in edits.items() for at, change in enumerate(some)}
                for (edit, at), said in zip(changes, answers(lm, prompt, LAYER, changes.values()), strict=True):
                    sums[next((kind for kind, token in meant.items() if token == said), None), edit, at] += 1
                break
    return sums, totals


@pytest.fixture(scope="module")
def lens(tmp_path_factory, capitals):
    """A Jacobian lens of one layer: the W of the relation, so that its swaps do something; and its file."""
    path = tmp_path_factory.mktemp("lens") / "lens.safetensors"
    lens = JacobianLens({LAYER: capitals.lre.weight}, 1)
    lens.save(path)
    return lens, str(path)


@pytest.fixture(scope="module")
def every(capitals, lens):
    return Specificity([HALF], every_layer=True, lens=lens[1]).measure(capitals)


def test_shares_are_those_of_whole_texts(capitals, every, lens):
    sums, totals = by_hand(capitals, lens[0])
    assert every.layers == LAYERS
    edits = edits_by_hand(capitals, *[capitals.states.edited.tolist()[0]] * 2, capitals.states.trial.test[0], lens[0])
    for kind in (SUCCESS, *KINDS, *LOST):
        for edit in edits:
            tally = every.tallies[f"{kind}: {edit}" if edit else kind]
            found = tally.sums[LAYER] if "rank" in tally.axes else (tally.sums[LAYER],)
            assert found == tuple(sums[kind, edit, place] for place in range(len(found))), (kind, edit)
            assert tally.total == totals[kind if kind in totals else "other relations kept"]
    assert all(total > 3 for total in totals.values())
    assert any(0 < sums[kind, "", 1] < totals[kind] for kind in KINDS)
    assert sum(sums[LOST[1], edit, 0] for edit in ("", "oracle times 0.5")) > 0
    assert sums[SUCCESS, "steering", 1] * sums[SUCCESS, "Jacobian lens", 0] > 0
    assert sums[OTHERS, "concept", 0] < sums[OTHERS, "concept", 1] == totals[OTHERS]


def test_a_lens_has_no_counts_at_layers_that_it_lacks(every, capitals):
    tally = every.tallies[f"{SUCCESS}: Jacobian lens"]
    assert tally.sums[0] is None
    assert math.isnan(tally.at((0,)))
    assert tally.sums[1] > 0
    every.check("specificity", {"layer": 2, "rank": 2}, capitals.record.tested)
    assert not any("lens" in name for name in Specificity([]).measure(capitals).tallies)


def test_the_chosen_layer_is_that_of_every_layer(capitals, every):
    chosen = Specificity([]).measure(capitals)
    assert chosen.layers == (LAYER,)
    assert {name: tally.sums[0] for name, tally in chosen.tallies.items()} == {
        name: every.tallies[name].sums[LAYER] for name in chosen.tallies
    }
    assert any(tally.sums[0] != tally.sums[1] for tally in every.tallies.values())


def test_strengths_are_positive_and_not_one():
    for strength in (0.0, 1.0, -2.0, float("nan"), float("inf")):
        with pytest.raises(LREError, match="strengths of edits must be above 0"):
            Specificity([0.5, strength])


def test_a_relation_alone_has_no_others(capitals):
    alone = RelationDataModule("demo", CAPITAL, n_shot=3, trials=1)
    alone.use(capitals.lm)
    tallies = Specificity([]).measure(replace(capitals, data=alone)).tallies
    assert (tallies["other relations kept"].sums, tallies["other relations kept"].total) == (((0, 0),), 0)
    assert tallies["neighbours kept"].total > 0


def sharing(relation, kept, causal=(2, 6), questions=6, **found):
    """A record of a layer and two ranks, of which the second is chosen, and what edits keep at them."""
    fields = {**COUNTS, "layers": (0,), "betas": (1.0,), "ranks": (2, 4), "faithful": ((5,),), "causal": (causal,)}
    record = TrialRecord(relation=relation, trial=0, **fields, layer=0, rank=4)
    tallies = {name: Tally(((5, 3),), 6, ("layer", "rank"), column=True) for name in KINDS}
    tallies |= {SUCCESS: Tally((causal,), 8, ("layer", "rank"))}
    tallies |= {name: Tally(((0, 1),), questions, ("layer", "rank")) for name in LOST if questions}
    tallies["other relations kept"] = Tally((kept,), questions, ("layer", "rank"), column=True)
    return with_measures(record, {"specificity": Measurement(tallies | found, layers=(0,))})


def values(rows):
    return [[row[0], *(round(cell.value, 6) if isinstance(cell, tuple) else cell for cell in row[1:])] for row in rows]


def test_a_report_has_shares_by_relation_and_rank():
    (section,) = Specificity.sections([sharing("a", (0, 0), questions=0)])
    table, by_rank = section.tables
    assert table.columns == ("relation", "causality", *KINDS)
    assert values(table.rows)[0][1:] == [0.75, None, 0.5, 0.5]
    assert [row[:5] for row in values(by_rank.rows)] == [
        [2, 0.25, None, 0.833333, 0.833333],
        [4, 0.75, None, 0.5, 0.5],
    ]
    assert len(section.pictures[0].plot().axes[0].lines) == 3


def test_a_report_has_the_trade_by_edit_and_by_what_chooses():
    half = {
        f"{SUCCESS}: oracle times 0.5": Tally((4,), 8, ("layer",)),
        "other relations kept: oracle times 0.5": Tally((3,), 6, ("layer",)),
        f"{SUCCESS}: LRE times 0.5": Tally(((1, 1),), 8, ("layer", "rank")),
    }
    records = [sharing("a", (6, 3), (4, 6), **half), sharing("b", (6, 0), (4, 8), **half)]
    (section,) = Specificity.sections(records)
    _, trade, lost = section.pictures
    by_edit, by_fate, by_choice = section.tables[2:]
    rows = {tuple(row[:2]): row[2:] for row in values(by_edit.rows)}
    assert rows["LRE", 1] == [0.875, 0.25, 0.5, 0.5, 0.3]  # both: 0.6 and 0
    assert rows["oracle", 0.5] == [0.5, 0.5, None, None, 0.5]
    assert values(by_fate.rows)[:2] == [["LRE, rank 2", 1, 0, 0, 0, 0], ["LRE, rank 4", 0.25, *[0.166667] * 3, 0.25]]
    assert [row[:4] for row in values(by_choice.rows)] == [["causality", 4, 0.875, 0.25], ["both", 2, 0.5, 1]]
    by_rank, by_strength = (
        {line.get_label(): line.get_xydata().tolist() for line in axes.lines} for axes in trade.plot().axes
    )
    assert by_rank["LRE"] == [[1, 0.5], [0.25, 0.875]]
    assert by_strength["oracle"] == [[0.5, 0.5]]
    bars = [bar.get_width() for bar in lost.plot().axes[0].patches[:2]]
    assert bars == [1, 0.25]
