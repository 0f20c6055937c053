"""Prompts that distract, and what the LM and the attribute lens say after them: in closed form, and by a plain loop."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from jsonargparse import ArgumentError, ArgumentParser
from lightning import LightningModule, Trainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.datamodules import DistractionBatch, DistractionDataModule, RelationDataModule
from lre_lightning.datamodules.distraction import false_objects
from lre_lightning.errors import LREError
from lre_lightning.lens import distraction as module
from lre_lightning.lens.distraction import LENS, LM, OTHER_LENS, LatentKnowledge, latent_knowledge
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.metrics import recall_at_k
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.relations.relation import Sample
from lre_lightning.report.distraction import distraction_table
from lre_lightning.report.tables import to_csv, to_latex, to_text
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers import toy
from tests.helpers.tiny_models import WIDTH, tiny_model
from tests.relations.test_relations import CAPITALS, write

TEMPLATE = CAPITALS["prompt_templates"][0]
CITIES = ["Paris", "Tokyo", "Rome", "Tesla", "Davis"]
COUNTRIES = [f"{first} {second}" for first in ("New", "Old", "Far") for second in ("France", "Japan", "Italy", "Peru")]
SAMPLES = [{"subject": subject, "object": CITIES[i % 5]} for i, subject in enumerate(COUNTRIES)]


@pytest.fixture
def make(tmp_path):
    """Datamodules of one relation, `SAMPLES` unless others are given, in GPT-2's kind of tokens."""

    def make(samples=None, tokenizer="byte-level", **arguments):
        path = write(tmp_path / "relation.json", CAPITALS, name="capital", samples=samples or SAMPLES)
        given = {"tokenizer": tokenizers.make(tokenizer), "relations": str(path), "n_shot": 3, "trials": 2}
        return DistractionDataModule(**(given | arguments))

    return make


def served(data, pairs=None):
    """All prompts that are served, as (relation, trial, distracted, undistracted, false object, its token)."""
    return [
        row
        for batch in data.val_dataloader(pairs)
        for row in zip(
            batch.relation.tolist(),
            batch.trial.tolist(),
            batch.prompts,
            batch.undistracted.prompts,
            batch.false_objects,
            batch.false_token.tolist(),
            strict=True,
        )
    ]


def falsehoods(data):
    """The false object of every fact and trial."""
    return {(trial, asked.subject, asked.object): false for _, trial, asked, _, false, _ in served(data)}


# The prompts


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "{T} {O}. {T} {O}. {T}"),
        ({"distraction": "repetition", "repetitions": 1}, "{T} {O}. {T}"),
        ({"repetitions": 3, "falsehood_separator": "\n"}, "{T} {O}\n{T} {O}\n{T} {O}\n{T}"),
        ({"distraction": "instruction"}, "{T} {O}. Repeat exactly: {T}"),
        (
            {"distraction": "instruction", "repetitions": 3, "falsehood_separator": ".\n"},
            "{T} {O}.\nRepeat exactly: {T}",
        ),
    ],
)
def test_what_the_prompts_say(make, options, expected):
    data = make(**options)
    rows = served(data)
    assert len(rows) == 2 * 9
    for _, _, asked, undistracted, false, _ in rows:
        statement = TEMPLATE.format(asked.subject)
        assert asked.text == expected.format(T=statement, O=false)
        assert undistracted.text == statement
        assert (undistracted.subject, undistracted.object) == (asked.subject, asked.object)


@pytest.mark.parametrize("kind", ["repetition", "instruction"])
def test_the_example_of_the_docstring(tmp_path, kind):
    samples = [{"subject": "England", "object": "London"}, {"subject": "Norway", "object": "Oslo"}]
    own = {"name": "capital", "prompt_templates": ["The capital city of {} is"], "samples": samples}
    path = write(tmp_path / "capital.json", CAPITALS, **own)
    tokenizer = word_tokenizer(["London", "Oslo", "England", "Norway"])
    data = DistractionDataModule(tokenizer, kind, relations=str(path), n_shot=1, trials=8)
    texts = {asked.text for _, _, asked, *_ in served(data) if asked.subject == "England"}
    (text,) = texts
    assert f"``{text}``" in " ".join(DistractionDataModule.__doc__.split())


def test_the_few_shot_question_has_the_training_examples_before_it(make):
    few, zero = make(undistracted="few-shot"), make()
    for row, plain in zip(served(few), served(zero), strict=True):
        train = few.trial(row[1]).train
        lines = [f"{TEMPLATE.format(sample.subject)} {sample.object}" for sample in train]
        assert row[3].text == "\n".join([*lines, TEMPLATE.format(row[3].subject)])
        assert row[2] == plain[2], "the distracted prompt has none"


@pytest.mark.parametrize("tokenizer", ["byte-level", "byte-level, bos added", "qwen", "sentencepiece, prepend first"])
@pytest.mark.parametrize("kind", ["repetition", "instruction"])
def test_tokens_and_positions(make, tokenizer, kind):
    data = make(tokenizer=tokenizer, distraction=kind, batch_size=4)
    own = data.tokenizer
    start = own.bos_token_id if own.bos_token_id is not None else own.eos_token_id
    for batch in data.val_dataloader():
        assert isinstance(batch, DistractionBatch)
        for i, prompt in enumerate(batch.prompts):
            ids = own(prompt.text, add_special_tokens=False)["input_ids"]
            length = int(batch.last_position[i]) + 1
            assert batch.input_ids[i, :length].tolist() == [start, *ids]
            assert batch.attention_mask[i].tolist() == [1] * length + [0] * (batch.input_ids.shape[1] - length)
            position = int(batch.subject_position[i])
            assert own.decode(ids[:position]).endswith(prompt.subject), "up to the end of the subject …"
            assert prompt.text.rindex(prompt.subject) + len(prompt.subject) == len(
                prompt.text.removesuffix(own.decode(ids[position:]))
            ), "… where it is mentioned last"
            for false, token in ((prompt.object, batch.object_token), (batch.false_objects[i], batch.false_token)):
                answered = own(f"{prompt.text} {false}", add_special_tokens=False)["input_ids"]
                assert answered[: len(ids)] == ids
                assert int(token[i]) == answered[len(ids)]
            asked = batch.undistracted
            assert int(asked.object_token[i]) == int(batch.object_token[i])
            assert asked.input_ids[i, : asked.last_position[i] + 1].tolist() == [
                start,
                *own(asked.prompts[i].text, add_special_tokens=False)["input_ids"],
            ]


def test_it_serves_the_test_samples_of_the_same_draw(make):
    data = make(batch_size=2, seed=5)
    plain = RelationDataModule(data.tokenizer, data.selection, n_shot=3, trials=2, seed=5)
    assert data.schedule == plain.schedule
    for pair in range(2):
        assert data.trial(pair) == plain.trial(pair)
        rows = served(data, [pair])
        assert [(r[0], r[1], r[2].subject) for r in rows] == [(0, pair, s.subject) for s in plain.trial(pair).test]
    assert [len(batch) for batch in data.val_dataloader()] == [2, 2, 2, 2, 1] * 2
    assert [batch.sample.tolist() for batch in data.val_dataloader([1])] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


# The false object


def test_a_false_object_is_another_one_of_the_range_with_another_first_token(make):
    seen = Counter()
    for seed in range(12):
        data = make(seed=seed)
        for _, _, asked, _, false, token in served(data):
            assert false in CITIES
            assert false != asked.object
            assert token != asked.object_token
            seen[asked.object, false] += 1
    assert set(seen) == {(true, false) for true in CITIES for false in CITIES if true != false}
    assert max(seen.values()) < 4 * min(seen.values()), "each about equally often"


def test_the_draw_depends_on_seed_relation_and_trial_alone(make):
    first = falsehoods(make())
    assert falsehoods(make(batch_size=1)) == first
    assert falsehoods(make(samples=SAMPLES[::-1])) == first
    assert falsehoods(make(distraction="instruction")) == first
    other = falsehoods(make(seed=1))
    assert sum(other.get(fact) != false for fact, false in first.items()) > len(first) / 3
    trials = make().trial(0), make().trial(1)
    both = [sample for sample in trials[0].test if sample in trials[1].test]
    assert any(first[0, s.subject, s.object] != first[1, s.subject, s.object] for s in both)
    renamed = replace(trials[0], relation=replace(trials[0].relation, name="other"))
    assert any(false_objects(trials[0], s, 0) != false_objects(renamed, s, 0) for s in both)


def test_another_object_in_the_range_moves_a_draw_only_to_itself(make):
    draw = make().trial(0)
    more = replace(draw.relation, samples=(Sample("Nowhere", "Quito"), *draw.relation.samples))
    for sample in draw.test:
        order = false_objects(replace(draw, relation=more), sample, 0)
        assert [name for name in order if name != "Quito"] == false_objects(draw, sample, 0)
        assert "Quito" in order


def test_no_object_of_the_subject_is_false(make):
    twice = [{"subject": f" {COUNTRIES[i]}", "object": CITIES[(i + 2) % 5]} for i in range(12)]
    data = make(samples=SAMPLES + twice)
    true = {(sample["subject"].strip(), sample["object"]) for sample in SAMPLES + twice}
    rows = served(data)
    assert len(rows) == 2 * 2 * 9
    assert not any((asked.subject.strip(), false) in true for _, _, asked, _, false, _ in rows)


def test_another_is_drawn_where_the_first_token_is_the_same(make):
    cities = ["New York", "New Delhi", "Rome"]
    samples = [{"subject": COUNTRIES[i], "object": cities[i % 3]} for i in range(12)]
    for seed in range(4):
        data = make(samples=samples, seed=seed)
        assert data.trial(0) == RelationDataModule(data.tokenizer, data.selection, n_shot=3, seed=seed).trial(0)
        falses = {(asked.object, false) for _, _, asked, _, false, _ in served(data)}
        assert falses <= {("New York", "Rome"), ("New Delhi", "Rome"), ("Rome", "New York"), ("Rome", "New Delhi")}


def test_samples_without_a_false_object_are_left_out(make):
    cities = ["New York", "New Delhi", "Rome"]
    samples = [{"subject": COUNTRIES[i], "object": cities[i % 2]} for i in range(12)]
    both = [{"subject": COUNTRIES[0], "object": "Rome"}]  # Rome is true of this subject, and false of all others
    data = make(samples=samples + both, trials=12)
    whole = RelationDataModule(data.tokenizer, data.selection, n_shot=3, trials=12)
    left_out = 0
    for pair in range(12):
        expected = [s for s in whole.trial(pair).test if s.subject != COUNTRIES[0] or s.object == "Rome"]
        assert {s for s in data.trial(pair).test if s.object != "Rome"} == {s for s in expected if s.object != "Rome"}
        assert [row[2].subject for row in served(data, [pair])] == [s.subject for s in data.trial(pair).test]
        assert data.trial(pair).train == whole.trial(pair).train
        left_out += len(whole.trial(pair).test) - len(data.trial(pair).test)
    assert left_out > 0


def test_a_pair_may_serve_nothing(make):
    data = make(tokenizer="characters")  # where every object's first token is the space before it
    assert list(data.val_dataloader()) == []
    assert data.trial(0).test == ()


def test_a_relation_with_one_object(make):
    data = make(samples=[{"subject": subject, "object": "Rome"} for subject in COUNTRIES])
    for _ in range(2):
        with pytest.raises(LREError, match=r"'capital' has the one object 'Rome', so nothing false .* exclude"):
            data.setup()


def test_subjects_with_braces(make):
    samples = [
        {"subject": f"{{{subject}}} {{}}", "object": SAMPLES[i]["object"]} for i, subject in enumerate(COUNTRIES)
    ]
    for _, _, asked, _, false, _ in served(make(samples=samples)):
        statement = TEMPLATE.replace("{}", asked.subject, 1)
        assert asked.text == f"{statement} {false}. {statement} {false}. {statement}"


# The datamodule


def test_arguments_are_hyperparameters(make):
    options = {
        "distraction": "instruction",
        "repetitions": 4,
        "falsehood_separator": "\n",
        "undistracted": "few-shot",
        "seed": 3,
    }
    data = make(**options)
    assert options.items() <= dict(data.hparams).items()
    again = DistractionDataModule(**{**data.hparams, "tokenizer": data.tokenizer})
    assert served(again) == served(data)
    changed = data.changed(distraction="repetition")
    assert isinstance(changed, DistractionDataModule)
    assert served(changed)[0][2].text.count("\n") == 4


def test_a_command_line_has_the_arguments_of_both():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DistractionDataModule, "data")
    options = ["--data.distraction=instruction", "--data.n_shot=5", "--data.source=demo"]
    data = DistractionDataModule(**parser.parse_args(options).data.as_dict())
    assert (data.distraction, data.n_shot, data.repetitions, data.trials) == ("instruction", 5, 2, 3)
    with pytest.raises(ArgumentError):
        parser.parse_args(["--data.distraction=noise"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distraction": "noise"}, "distraction must be 'repetition' or 'instruction', got 'noise'"),
        ({"undistracted": "one-shot"}, "undistracted must be 'zero-shot' or 'few-shot', got 'one-shot'"),
        ({"repetitions": 0}, "repetitions must be a whole number of at least 1, got 0"),
        ({"repetitions": 1.0}, "repetitions must be a whole number"),
        ({"falsehood_separator": ""}, "falsehood_separator is ''"),
        ({"n_shot": 0}, "n_shot must be a whole number"),
        ({"chat": True}, "leave chat out"),
        ({"template": "all", "source": "demo"}, "have one template, and template 'all' is several"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(LREError, match=message):
        DistractionDataModule(**options).setup()


def test_there_is_no_training_data(make):
    with pytest.raises(LREError, match="nothing is estimated from distracted prompts"):
        make().train_dataloader()


def test_all_of_a_batch_moves(make):
    batch = next(iter(make().val_dataloader()))
    moved = batch.to("meta")
    assert isinstance(moved, DistractionBatch)
    for one in (moved, moved.undistracted):
        assert {value.device.type for value in vars(one).values() if isinstance(value, torch.Tensor)} == {"meta"}
    assert moved.false_objects == batch.false_objects
    assert batch.undistracted.input_ids.device.type == "cpu"


class Recorder(LightningModule):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.seen += [(batch.trial[i].item(), prompt.text) for i, prompt in enumerate(batch.prompts)]


def test_in_a_trainer(make, tmp_path):
    data, recorder = make(batch_size=4), Recorder()
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(accelerator="cpu", default_root_dir=tmp_path, **options).validate(recorder, data, verbose=False)
    assert recorder.seen == [(trial, asked.text) for _, trial, asked, *_ in served(make())]


# An LM that copies what it has read, on subjects whose object it knows


SEEN, OWN = (
    slice(0, 4),
    slice(4, 8),
)  # where an object's mention is in a hidden state, and where the subject's object is


def copying_toy(strength=5.0):
    """The toy with an LM that attends to all tokens alike and says the object that it has read, else the subject's own.

    In the hidden state of a subject its object's unit vector is in `OWN`; in that of an object's mention it is in
    `SEEN`, which attention copies to all later positions.
    """
    model = toy.toy_model().double()
    embed, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embed.zero_(), head.zero_()
    unit = torch.eye(toy.WIDTH, dtype=torch.float64)
    for i, name in enumerate(toy.OBJECTS):
        embed[toy.WORDS.index(name)] = unit[SEEN][i]
        head[toy.WORDS.index(name)] = strength * unit[SEEN][i] + unit[OWN][i]
    for i, name in enumerate(toy.SUBJECTS):
        embed[toy.WORDS.index(name)] = unit[OWN][i % 4]
    embed[toy.WORDS.index("[UNK]")] = embed[toy.WORDS.index("[BOS]")] = unit[12]
    attention = model.model.layers[0].self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        projection.weight.data.zero_()
    attention.v_proj.weight.data[SEEN] = attention.o_proj.weight.data[SEEN] = 1.0 * unit[SEEN]
    return LanguageModel(model)


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory):
    """Relations of the toy: two that the LM knows, one that it does not, and one that it half knows."""
    folder = toy.write_toy_relations(tmp_path_factory.mktemp("toy") / "relations")
    half = toy.relation_json("some colour")
    for i, sample in enumerate(half["samples"]):
        sample["object"] = toy.OBJECTS[(i + i // 12) % 4]  # the first 12 are right
    (folder / "some_colour.json").write_text(json.dumps(half))
    return folder


def toy_data(folder, **options):
    return DistractionDataModule(
        toy.toy_tokenizer(), source=str(folder), **({"trials": 2, "n_shot": 3, "falsehood_separator": "\n"} | options)
    )


def projection(part, shift=0):
    """W that keeps a part of the hidden state, moved to where the decoder head reads the subject's own object."""
    weight = torch.zeros(toy.WIDTH, toy.WIDTH)
    unit = torch.eye(4)
    weight[OWN, part] = unit[[(i - shift) % 4 for i in range(4)]]
    return weight


def toy_lres(lm, data, weights, layer=0, beta=1.0):
    """One LRE a relation and trial, whose W is that of its relation."""
    bias = torch.zeros(toy.WIDTH)
    return {
        (draw.relation.name, draw.number): LRE(
            weights[draw.relation.name],
            bias,
            layer,
            Origin(
                lm.name,
                lm.fingerprint,
                draw.relation.name,
                trial=draw.number,
                template=draw.relation.template,
                train=tuple((sample.subject, sample.object) for sample in draw.train),
            ),
            beta,
        )
        for draw in map(data.trial, range(len(data.schedule)))
        if draw.relation.name in weights
    }


@pytest.mark.parametrize("kind", ["repetition", "instruction"])
@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_an_lm_that_copies_says_the_falsehood_and_the_lens_finds_the_fact(toy_folder, kind, batch_size):
    lm, data = copying_toy(), toy_data(toy_folder, distraction=kind, batch_size=batch_size, relations=["thing colour"])
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    results = latent_knowledge(lm, data, lres)
    assert [(result.relation, result.trial) for result in results] == [("thing colour", 0), ("thing colour", 1)]
    for result in results:
        assert (result.tested, result.known, result.range_size, result.layer) == (21, 21, 4, 0)
        assert (result.distraction, result.model, result.category) == (kind, lm.name, "factual")
        assert result.found == {LM: (0, 21, 21), LENS: (21, 21, 21)}
        assert result.false_found[LM] == (21, 21, 21)
        assert result.false_found[LENS][0] == 0
        assert result.other_relation is None


def test_a_lens_on_what_the_lm_has_read_finds_the_falsehood(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour"])
    (first, _) = latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(SEEN)}))
    assert first.false_found[LENS] == (21, 21, 21)
    assert first.found[LENS][0] == 0


def test_the_lens_reads_its_layer(toy_folder):
    """What the LM has read is in no embedding."""
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour"])
    weights = {"thing colour": projection(OWN) + 5 * projection(SEEN)}
    at_embedding, after = (latent_knowledge(lm, data, toy_lres(lm, data, weights, layer))[0] for layer in ("emb", 1))
    assert (at_embedding.layer, after.layer) == ("emb", 1)
    assert at_embedding.found[LENS] == (21, 21, 21)
    assert after.found[LENS][0] == 0
    assert after.false_found[LENS] == (21, 21, 21)


def test_an_lm_that_only_listens_a_little_keeps_to_the_fact(toy_folder):
    lm, data = copying_toy(strength=0.1), toy_data(toy_folder, relations=["thing colour"])
    (result, _) = latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(OWN)}))
    assert result.found[LM] == (21, 21, 21)
    assert result.false_found[LM] == (0, 21, 21)


def test_only_facts_that_the_lm_knows_undistracted_count(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder, batch_size=4)
    names = ["some colour", "wrong colour", "thing colour"]
    results = latent_knowledge(lm, data, toy_lres(lm, data, dict.fromkeys(names, projection(OWN))))
    assert len(results) == 6
    for result in results:
        draw = data.trial(data.schedule.index(([r.name for r in data.relations].index(result.relation), result.trial)))
        right = [s for s in draw.test if toy.OBJECTS[toy.SUBJECTS.index(s.subject) % 4] == s.object]
        assert (result.tested, result.known) == (21, len(right))
        assert result.found[LENS] == (len(right),) * 3, "the lens is right about all of them"
        most = sorted(Counter(sample.object for sample in right).values(), reverse=True)
        assert result.most_frequent == tuple(sum(most[:k]) for k in (1, 2, 3))
    assert {result.known for result in results if result.relation == "wrong colour"} == {0}
    assert {result.found[LM] for result in results if result.relation == "wrong colour"} == {(0, 0, 0)}
    some = [result.known for result in results if result.relation == "some colour"]
    assert 0 < min(some) <= max(some) < 21


def test_examples_in_the_undistracted_prompt_decide_what_is_known(toy_folder):
    """After examples this LM says one of theirs; without any it knows the fact."""
    lm = copying_toy()
    zero, few = (
        latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(OWN)}))[0]
        for data in (toy_data(toy_folder, undistracted=form) for form in ("zero-shot", "few-shot"))
    )
    examples = {sample.object for sample in toy_data(toy_folder, relations=["thing colour"]).trial(0).train}
    assert (zero.known, few.known) == (21, 5 * len(examples))


def test_the_lens_of_another_relation_does_not_find_the_fact(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour", "half colour"])
    weights = {"thing colour": projection(OWN), "half colour": projection(OWN, shift=1)}
    for result in latent_knowledge(lm, data, toy_lres(lm, data, weights)):
        assert {result.relation, result.other_relation} == set(weights)
        own, other = result.found[LENS], result.found[OTHER_LENS]
        if result.relation == "half colour":
            own, other = other, own
        assert own == (result.known,) * 3
        assert other[0] == 0


def test_the_other_relation_is_drawn_from_those_of_the_trial(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder, trials=12)
    names = ["thing colour", "half colour", "wrong colour", "some colour"]
    lres = toy_lres(lm, data, dict.fromkeys(names, projection(OWN)))
    del lres["half colour", 3], lres["some colour", 3]
    drawn = {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, lres)}
    assert list(drawn) == [pair for pair in drawn if pair in lres]
    assert len(drawn) == 46
    assert all(other != relation and (other, trial) in lres for (relation, trial), other in drawn.items())
    assert {drawn["thing colour", 3], drawn["wrong colour", 3]} == {"thing colour", "wrong colour"}
    assert len({drawn["thing colour", trial] for trial in range(12)}) == 3
    reordered = dict(reversed(list(lres.items())))
    assert drawn == {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, reordered)}
    seeds = {module._draw_other(lres, "thing colour", 0, seed) for seed in range(12)}
    assert seeds == set(names[1:])


# A random LM, one prompt at a time


FIRST_WORD = 4
WORDS = [f"w{i}" for i in range(90)]


def word_tokenizer(words=WORDS):
    vocabulary = {"[BOS]": 0, "[UNK]": 1, ".": 2, "Repeat": 3} | {word: i + FIRST_WORD for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[BOS]", unk_token="[UNK]")


def random_setting(tmp_path, family):
    """A random LM, and relations of which it knows some facts: what it says itself is the object of two in three."""
    lm, tokenizer = LanguageModel(tiny_model(family)), word_tokenizer()
    for number, template in enumerate(["w1 {} w2", "w3 w4 {} w5"]):
        samples = []
        for i in range(24):
            subject = f"w{20 + i} w{60 + i}"
            ids = [0, *tokenizer(template.format(subject))["input_ids"]]
            said = int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())
            word = WORDS[said - FIRST_WORD] if i % 3 and said in range(FIRST_WORD, 94) else WORDS[i + number]
            samples.append({"subject": subject, "object": word})
        own = {"prompt_templates": [template], "prompt_templates_zs": []}
        write(tmp_path / f"{number}.json", CAPITALS | own, name=f"relation {number}", samples=samples)
    return lm, tokenizer


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("kind", ["repetition", "instruction"])
@pytest.mark.parametrize("beta", [None, 2.5])
def test_against_a_plain_loop(tmp_path, family, kind, beta):
    lm, tokenizer = random_setting(tmp_path, family)
    data = DistractionDataModule(tokenizer, source=str(tmp_path), distraction=kind, n_shot=3, trials=1, batch_size=6)
    generator = torch.Generator().manual_seed(0)
    lres = {}
    for pair, layer in ((0, 1), (1, "emb")):
        draw = data.trial(pair)
        train = tuple((sample.subject, sample.object) for sample in draw.train)
        origin = Origin("", lm.fingerprint, draw.relation.name, template=draw.relation.template, train=train)
        weight, bias = (torch.randn(*shape, generator=generator) for shape in ((WIDTH, WIDTH), (WIDTH,)))
        lres[draw.relation.name, 0] = LRE(weight, bias, layer, origin, beta=0.5)
    ks = (1, 3, 20)
    results = latent_knowledge(lm, data, lres, beta, ks)
    assert [result.relation for result in results] == ["relation 0", "relation 1"]
    for pair, result in enumerate(results):
        own = lres[result.relation, 0]
        other = lres[results[1 - pair].relation, 0]
        expected = plain_loop(lm, data, pair, {LENS: own, OTHER_LENS: other}, 0.5 if beta is None else beta, ks)
        assert (result.known, result.found, result.false_found) == expected
        assert 0 < result.known < result.tested == len(data.trial(pair).test)
        assert (result.layer, result.beta) == (own.layer, beta or 0.5)
    counts = {tuple(found) for r in results for side in (r.found, r.false_found) for found in side.values()}
    assert len(counts) > 4, "numbers that all agree would show little"


def plain_loop(lm, data, pair, lenses, beta, ks):
    """The same counts: whole prompts without a cache, one at a time, and sorted lists."""
    draw, tokenizer = data.trial(pair), data.tokenizer
    template, known = draw.relation.template, 0
    counts = {reader: ([0] * len(ks), [0] * len(ks)) for reader in (LM, *lenses)}
    token = {word: i + FIRST_WORD for i, word in enumerate(WORDS)}
    for sample, row in zip(draw.test, served(data, [pair]), strict=True):
        false = row[4]
        statement = template.format(sample.subject)
        bait = f"{statement} {false}. "
        text = (bait * 2 if data.distraction == "repetition" else bait + "Repeat exactly: ") + statement
        plain, ids = ([0, *tokenizer(t, add_special_tokens=False)["input_ids"]] for t in (statement, text))
        if int(lm.model(torch.tensor([plain])).logits[0, -1].argmax()) != token[sample.object]:
            continue
        known += 1
        run = lm.model(torch.tensor([ids]), output_hidden_states=True)
        after = len(template.split("{}")[1].split())
        position = len(ids) - 1 - after
        assert WORDS[ids[position] - FIRST_WORD] == sample.subject.split()[-1]
        answers = {LM: run.logits[0, -1]}
        for reader, lre in lenses.items():
            if lre.layer == "emb":
                hidden = lm.model.get_input_embeddings()(torch.tensor([ids]))[0, position]
            else:
                hidden = run.hidden_states[lre.layer + 1][0, position]
            output = beta * (lre.weight.to(torch.float64) @ hidden) + lre.bias
            answers[reader] = lm.decode(output.float())
        for reader, logits in answers.items():
            order = sorted(range(len(logits)), key=lambda i, logits=logits: (-float(logits[i]), i))
            for side, wanted in enumerate((sample.object, false)):
                rank = order.index(token[wanted])
                for i, k in enumerate(ks):
                    counts[reader][side][i] += rank < k
    found, false_found = ({r: tuple(sides[side]) for r, sides in counts.items()} for side in (0, 1))
    return known, found, false_found


def test_logits_in_chunks(toy_folder, monkeypatch):
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour"])
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    expected, decode, rows = latent_knowledge(lm, data, lres), lm.decode, []
    monkeypatch.setattr(lm, "decode", lambda hidden: rows.append(len(hidden)) or decode(hidden))
    monkeypatch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", 3 * lm.vocab_size * 8)
    assert latent_knowledge(lm, data, lres) == expected
    assert max(rows) == 3


def test_nothing_is_left_on_stderr(toy_folder, capfd):
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour"])
    latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(OWN)}))
    assert capfd.readouterr() == ("", "")


# What does not fit


def test_lres_that_do_not_fit(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder, relations=["thing colour"])
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    with pytest.raises(LREError, match=r"no LRE of any relation and trial .*: 0 are given"):
        latent_knowledge(lm, data, {})
    with pytest.raises(LREError, match=r"1 are given, the first of which is \('thing', 0\)"):
        latent_knowledge(lm, data, {("thing", 0): lres["thing colour", 0]})
    for other in (
        toy_data(toy_folder, seed=1),
        toy_data(toy_folder, n_shot=4),
        toy_data(toy_folder, template="colour {}"),
    ):
        with pytest.raises(LREError, match="trial 0, was estimated from other prompts than the datamodule draws"):
            latent_knowledge(lm, other, lres)
    with pytest.raises(LREError, match="was estimated from 'LlamaForCausalLM'"):
        latent_knowledge(LanguageModel(toy.toy_model(seed=1)), data, lres)
    origin = replace(lres["thing colour", 0].origin, fingerprint="another", relation="other")
    control = replace(lres["thing colour", 0], origin=origin)
    with pytest.raises(LREError, match="was estimated from 'LlamaForCausalLM'"):
        latent_knowledge(lm, data, {**lres, ("other", 0): control})


# The table


def counted(relation="a", trial=0, distraction="repetition", known=10, other=(1, 2, 3), **changes):
    given = {
        "model": "demo",
        "relation": relation,
        "category": "factual",
        "trial": trial,
        "distraction": distraction,
        "range_size": 5,
        "tested": 2 * known,
        "known": known,
        "layer": 3,
        "beta": 1.0,
        "other_relation": "b" if other else None,
        "ks": (1, 2, 3),
        "found": {LM: (0, 2, 4), LENS: (5, 6, 8)} | ({OTHER_LENS: other} if other else {}),
        "false_found": {LM: (9, 9, 10), LENS: (2, 3, 4)} | ({OTHER_LENS: (0, 0, 0)} if other else {}),
        "most_frequent": (4, 6, 7),
    }
    return LatentKnowledge(**(given | changes))


def test_the_table_has_the_papers_rows_and_the_controls():
    results = [
        counted(),
        counted(distraction="instruction", found={LM: (1, 1, 1), LENS: (7, 8, 9), OTHER_LENS: (0, 0, 1)}),
    ]
    for given in (results, results[::-1]):
        table = distraction_table(given)
        assert table.columns == ("condition", "R@1", "R@2", "R@3", "false object R@1", "prompts")
        assert to_text(table) == [
            ["Repetition-distracted prompt", "0.00", "0.20", "0.40", "0.90", "10"],
            ["Attribute lens on RD prompts", "0.50", "0.60", "0.80", "0.20", "10"],
            ["Instruction-distracted prompt", "0.10", "0.10", "0.10", "0.90", "10"],
            ["Attribute lens on ID prompts", "0.70", "0.80", "0.90", "0.20", "10"],
            ["Lens of another relation on RD prompts", "0.10", "0.20", "0.30", "0.00", "10"],
            ["Most frequent objects, RD prompts", "0.40", "0.60", "0.70", "-", "10"],
            ["Random guess, RD prompts", "0.20", "0.40", "0.60", "-", "10"],
            ["Lens of another relation on ID prompts", "0.00", "0.00", "0.10", "0.00", "10"],
            ["Most frequent objects, ID prompts", "0.40", "0.60", "0.70", "-", "10"],
            ["Random guess, ID prompts", "0.20", "0.40", "0.60", "-", "10"],
        ]
        assert table.totals == 6
        assert "attribute_lens}" in to_latex(table)
        assert to_csv(table).splitlines()[2] == "Attribute lens on RD prompts,0.5,0.6,0.8,0.2,10"


def test_averages_over_prompts_and_over_relations():
    results = [
        counted("a", 0),
        counted("a", 1, known=30, found={LM: (3, 6, 30), LENS: (30, 30, 30), OTHER_LENS: (0, 0, 0)}),
        counted("b", 0, known=60, other=(), range_size=2, found={LM: (6, 6, 6), LENS: (0, 30, 60)}),
        counted("c", 0, known=0, found={LM: (0, 0, 0), LENS: (0, 0, 0), OTHER_LENS: (0, 0, 0)}),
    ]
    micro = {row[0]: row[1:] for row in distraction_table(results).rows}
    macro = {row[0]: row[1:] for row in distraction_table(results, "macro").rows}
    assert micro["Repetition-distracted prompt"][0] == 9 / 100
    assert micro["Attribute lens on RD prompts"][:3] == (0.35, 0.66, 0.98)
    assert micro["Attribute lens on RD prompts"][-1] == macro["Attribute lens on RD prompts"][-1] == 100
    lens = macro["Attribute lens on RD prompts"]
    assert lens[0] == pytest.approx((35 / 40 / 2, 35 / 40 / 2**0.5))
    assert lens[2][0] == pytest.approx((38 / 40 + 1) / 2)
    assert micro["Lens of another relation on RD prompts"] == (1 / 40, 2 / 40, 3 / 40, 0, 40)
    assert macro["Lens of another relation on RD prompts"][0] == (1 / 40, None)
    assert micro["Random guess, RD prompts"][:3] == pytest.approx((0.38, 0.76, 0.84))
    assert macro["Random guess, RD prompts"][0][0] == pytest.approx(0.35)


def test_a_table_without_results_and_without_known_facts():
    assert distraction_table([]).rows == ()
    rows = distraction_table([counted(known=0)]).rows
    assert [row[1:] for row in rows] == [(None, None, None, None, 0)] * len(rows)


def test_a_table_that_can_not_be():
    with pytest.raises(LREError, match=r"different k do not fit into one table: \(1, 2, 3\), \(1, 5\)"):
        distraction_table([counted(), counted(ks=(1, 5))])
    with pytest.raises(LREError, match="average must be 'micro' or 'macro', got 'none'"):
        distraction_table([counted()], "none")


def test_counts_survive_json():
    result = counted()
    assert LatentKnowledge.from_plain(json.loads(json.dumps(result.plain()))) == result
    with pytest.raises(LREError, match="these are no counts of latent knowledge: KeyError 'found'"):
        LatentKnowledge.from_plain({name: value for name, value in result.plain().items() if name != "found"})


def test_recall_is_what_the_metric_counts(toy_folder):
    lm, data = copying_toy(strength=0.7), toy_data(toy_folder, relations=["thing colour"], trials=1, batch_size=50)
    (result,) = latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(OWN)}))
    (batch,) = data.val_dataloader()
    output = lm(batch.input_ids)[torch.arange(21), batch.last_position]
    for token, found in ((batch.object_token, result.found), (batch.false_token, result.false_found)):
        shares = recall_at_k(lm.decode(output), token)
        assert shares.tolist() == pytest.approx([count / 21 for count in found[LM]])


def test_guesses_never_find_more_than_all():
    assert counted(range_size=2, ks=(1, 2, 3)).guessed == (5, 10, 10)
