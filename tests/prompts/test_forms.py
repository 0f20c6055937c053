"""Forms of prompts, several templates and padding, from the datamodule to the LREs and their records."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule

from lre_lightning.datamodules import RelationBatch, RelationDataModule, collate
from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import load_tokenizer, make_prompt, make_prompts
from lre_lightning.prompts.trials import draw
from lre_lightning.records.record import BETWEEN_TEMPLATES, read_records, write_records
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.selection import cap
from lre_lightning.relations.sources import load_relations
from lre_lightning.training.module import LREModule
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.options import nested
from tests.helpers.tiny_models import tiny_model
from tests.prompts.test_chat import LINES
from tests.training.test_module import trainer_of

(CAPITALS,) = load_relations("country capital city", "demo")
N = 3
PLAIN = {"separator": "\n", "shots": None, "chat": False, "system": None, "sampling": "random"}


def data_of(*relations, **options):
    """The demo's tokenizer, three examples, and few enough samples for a fit in a second."""
    source = list(relations or [CAPITALS])
    given = {"n_shot": N, "trials": 1, "max_samples": 16, "batch_size": 8}
    return RelationDataModule(source=source, **nested(**given | options))


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("demo")


def fitted(lm, data, folder):
    module = LREModule(lm, layers=["emb", 1], betas=[1.0, 2.0], ranks=[8])
    trainer_of(folder).fit(module, datamodule=data)
    return module


def lines(prompt, separator="\n"):
    return prompt.text.split(separator)


def prompts_of(loader):
    return [prompt for batch in loader for prompt in batch.prompts]


def line(sample, template=CAPITALS.template):
    return f"{template.replace('{}', sample.subject)} {sample.object}"


# The form of a prompt


@pytest.mark.parametrize("separator", ["\n", "\n\n", ". ", " | ", "; \n", "§", "{}"])
@pytest.mark.parametrize("name", ["byte-level", "sentencepiece, legacy", "tiktoken", "characters"])
def test_what_stands_between_lines(name, separator):
    tokenizer = tokenizers.make(name)
    context = [Sample("Rome", "Italy"), Sample("{}", "|"), Sample("Paris", "France")]
    form = Prompts(separator=separator)
    for prompt in make_prompts(tokenizer, "In {} is", [Sample("Paris", "x"), Sample("{}", "y")], context, form):
        given = [f"In {sample.subject} is {sample.object}" for sample in context]
        assert prompt.text == separator.join([*given, f"In {prompt.subject} is"])
        begins = len(prompt.text) - len(f"{prompt.subject} is")
        assert prompt.subject_chars == (begins, begins + len(prompt.subject))
        first, last = prompt.subject_span
        assert tokenizer.decode(prompt.input_ids[first:]).strip() == prompt.text[begins:]
        assert tokenizer.decode(prompt.input_ids[last:]).strip() == "is"


@pytest.mark.parametrize("shots", [0, 1, 2, 3, 7, None])
def test_the_number_of_examples(shots):
    data = data_of(shots=shots)
    train = data.trial(0).train
    for prompt, i in zip(prompts_of(data.train_dataloader()), range(N), strict=True):
        assert lines(prompt)[:-1] == [line(sample) for sample in (train[:i] + train[i + 1 :])[:shots]]
        assert prompt.text.endswith(CAPITALS.template.replace("{}", train[i].subject))
    for prompt in prompts_of(data.val_dataloader()):
        assert lines(prompt)[:-1] == [line(sample) for sample in train[:shots]]
    assert data.trial(0) == data_of().trial(0)
    assert (data.digest == data_of().digest) is (shots is None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ""}, "separator is '': lines must be kept apart"),
        ({"separator": None}, "separator is None"),
        ({"separator": 3}, "separator is 3"),
        ({"shots": -1}, "shots must be a whole number of at least 0, got -1"),
        ({"shots": 1.0}, r"shots must be .*, got 1\.0"),
        ({"shots": True}, r"shots must be .*, got True"),
        ({"shots": "2"}, r"shots must be .*, got '2'"),
        ({"system": "Be brief."}, "system is a message of conversations: set chat, or leave system out"),
        ({"system": 3, "chat": True}, "system must be a text, got 3"),
    ],
)
def test_forms_that_are_none(options, message):
    with pytest.raises(LREError, match=message):
        Prompts(**options)
    with pytest.raises(LREError, match=message):
        data_of(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding_side": "both"}, "padding_side must be 'right' or 'left', got 'both'"),
        ({"epoch": "every"}, "epoch must be 'trial' or 'all', got 'every'"),
        ({"sampling": "even"}, "sampling must be 'random' or 'balanced', got 'even'"),
        (
            {"selection": {"domain_name": "country"}},
            "selection has no option 'domain_name': it has exclude, category, ",
        ),
        ({"template": "few"}, r"template 'few' must have exactly one \{\}"),
        ({"template": {"country capital city": "no slot"}}, r"template 'no slot' must have exactly one \{\}"),
    ],
)
def test_choices_that_are_none(options, message):
    with pytest.raises(LREError, match=message):
        data_of(**options)


# Several templates

ZERO_SHOT = replace(CAPITALS, name="asked", prompt_templates=("{}'s capital is",))
FEW_SHOT_ONLY = replace(CAPITALS, name="told", zero_shot_templates=())
DOUBLE = replace(CAPITALS, name="double", prompt_templates=("{}:", "{} is", "{}:"), zero_shot_templates=("{}:", "{}?"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (0, {"asked": ["{}'s capital is"], "told": [CAPITALS.templates[0]], "double": ["{}:"]}),
        (1, {"asked": [CAPITALS.templates[2]], "told": [CAPITALS.templates[1]], "double": ["{} is"]}),
        ("few-shot", {"asked": ["{}'s capital is"], "told": list(CAPITALS.templates[:2]), "double": ["{}:", "{} is"]}),
        ("zero-shot", {"asked": [CAPITALS.templates[2]], "double": ["{}:", "{}?"]}),
        (
            "all",
            {
                "asked": ["{}'s capital is", CAPITALS.templates[2]],
                "told": list(CAPITALS.templates[:2]),
                "double": ["{}:", "{} is", "{}?"],
            },
        ),
        ("bare", {"asked": ["{}"], "told": ["{}"], "double": ["{}"]}),
        ("Of {}:", {"asked": ["Of {}:"], "told": ["Of {}:"], "double": ["Of {}:"]}),
        ({"told": "{}!"}, {"asked": ["{}'s capital is"], "told": ["{}!"], "double": ["{}:"]}),
    ],
)
def test_choices_of_templates(template, expected):
    data = data_of(ZERO_SHOT, FEW_SHOT_ONLY, DOUBLE, template=template)
    assert {relation.name: list(data.trial(i).asked_with) for i, relation in enumerate(data.relations)} == expected
    for i, relation in enumerate(data.relations):
        asked = expected[relation.name]
        assert relation.template == asked[0]
        train, test = prompts_of(data.train_dataloader(i)), prompts_of(data.val_dataloader([i]))
        drawn = data.trial(i)
        assert [lines(prompt)[-1] for prompt in (*train, *test)] == [
            template.replace("{}", sample.subject) for sample in (*drawn.train, *drawn.test) for template in asked
        ]
        for place, prompt in enumerate(test):  # the examples have the question's template
            assert lines(prompt)[:-1] == [line(sample, asked[place % len(asked)]) for sample in drawn.train]
        assert drawn.train == data_of(ZERO_SHOT, FEW_SHOT_ONLY, DOUBLE).draw(relation, 0).train
    again = RelationDataModule(**{**data.hparams, "source": [ZERO_SHOT, FEW_SHOT_ONLY, DOUBLE]})
    assert again.digest == data.digest


def test_a_relation_may_be_drawn_from_before_anything_else_but_no_strange_one():
    drawn = data_of(template="all").draw(CAPITALS, 0)
    assert drawn == draw(CAPITALS, N, 0, 0, templates=CAPITALS.templates)
    with pytest.raises(LREError, match="'asked' is none of the 1 relations"):
        data_of().draw(ZERO_SHOT, 0)


def test_templates_that_no_relation_has():
    with pytest.raises(LREError, match="none of the 1 relations has a template for 'zero-shot': give one yourself"):
        data_of(FEW_SHOT_ONLY, template="zero-shot").setup()
    with pytest.raises(LREError, match="a template is given for 'tolled', which is none of the 1 relations"):
        data_of(FEW_SHOT_ONLY, template={"tolled": "{}"}).setup()
    bare = replace(CAPITALS, prompt_templates=(), zero_shot_templates=())
    with pytest.raises(LREError, match="has no template: give one"):
        data_of(bare).setup()
    for template in ("bare", "{} is", {CAPITALS.name: "{} is"}):
        assert data_of(bare, template=template).trial(0).asked_with == (
            {"bare": "{}"}.get(template, "{} is") if isinstance(template, str) else "{} is",
        )


def test_every_sample_is_asked_for_once_with_each_template_on_every_process():
    data, seen = data_of(template="all", batch_size=4), {"train": [], "test": []}
    for rank in range(2):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, state=SimpleNamespace(fn="validate"))
        for split, batches in (("train", data.train_dataloader(0)), ("test", data.val_dataloader([0]))):
            for batch in batches:
                asked = getattr(data.trial(0), f"{split}_asked")
                assert [asked[i].subject for i in batch.sample] == [prompt.subject for prompt in batch.prompts]
                seen[split] += batch.sample[batch.weight > 0].tolist()
    assert {split: sorted(places) for split, places in seen.items()} == {
        "train": list(range(3 * N)),
        "test": list(range(3 * (16 - N))),
    }


@pytest.fixture(scope="module")
def all_templates(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    data = data_of(template="all", batch_size=4, sampling="balanced")
    return fitted(lm, data, folder), data, folder


def test_an_lre_of_several_templates_is_the_mean_over_all_their_prompts(all_templates, lm):
    module, data, _ = all_templates
    drawn, (lre,) = data.trial(0), module.lres.values()
    estimator = LREEstimator([lre.layer])
    for i, sample in enumerate(drawn.train):
        for template in CAPITALS.templates:
            others = drawn.train[:i] + drawn.train[i + 1 :]
            prompt = make_prompt(data.tokenizer, template, sample, others)
            assert lines(prompt) == [*(line(o, template) for o in others), template.replace("{}", sample.subject)]
            ids = torch.tensor(prompt.input_ids)
            estimator.update(prompt_jacobian(lm, ids, prompt.subject_position, [lre.layer]))
    assert estimator.count == 9
    torch.testing.assert_close(lre.weight, estimator.weight(lre.layer), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(lre.bias, estimator.bias(lre.layer), rtol=1e-4, atol=1e-5)


def test_the_record_says_which_templates_were_asked_with(all_templates):
    module, data, _ = all_templates
    (record,) = module.records.values()
    assert record.template == BETWEEN_TEMPLATES.join(CAPITALS.templates)
    assert record.template_index is None
    assert (record.tested, record.n_shot, record.samples) == (3 * 13, 3, 16)
    assert record.prompts == {**PLAIN, "sampling": "balanced", "template": "all"}
    assert record.train == tuple((sample.subject, sample.object) for sample in data.trial(0).train)
    assert (record.seed, record.digest) == (0, data.relations[0].digest)


# Padding


def batches_of(name="characters"):
    """Prompts of many lengths, of which the shortest are a third of the longest."""
    samples = [Sample("x" * length, "y") for length in (1, 9, 4, 23, 2)]
    prompts = make_prompts(tokenizers.make(name), "{} is", samples, [Sample("b", "c")])
    return [collate(prompts, 0, 0, range(5), 9, padding_side=side) for side in ("right", "left")]


def test_left_padding_by_hand():
    right, left = batches_of()
    length = right.input_ids.shape[1]
    for row, prompt in enumerate(left.prompts):
        pads = length - len(prompt.input_ids)
        assert left.input_ids[row].tolist() == [9] * pads + list(prompt.input_ids)
        assert left.attention_mask[row].tolist() == [0] * pads + [1] * len(prompt.input_ids)
        assert left.position_ids[row].tolist() == [0] * pads + list(range(len(prompt.input_ids)))
        assert right.position_ids[row].tolist() == list(range(len(prompt.input_ids))) + [0] * pads
        assert left.subject_position[row] == pads + prompt.subject_position
        assert left.last_position[row] == length - 1
    assert [prompt.last_position for prompt in left.prompts] == right.last_position.tolist()


def same(one, other):
    return all(
        torch.equal(getattr(one, field.name), getattr(other, field.name))
        if field.name != "prompts"
        else one.prompts == other.prompts
        for field in fields(RelationBatch)
    )


def test_padding_moves_back_and_forth():
    right, left = batches_of()
    assert same(right.padded("left"), left)
    assert same(left.padded("right"), right)
    assert right.padded("right") is right
    assert left.padded("left") is left
    assert not same(left, right)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_left_padded_prompts_have_the_hidden_states_of_right_padded_ones(family):
    longest = {"gpt2": "n_positions", "llama": "max_position_embeddings"}[family]
    model = tiny_model(family, vocab_size=600, **{longest: 128})
    right, left = batches_of()

    def states(batch, **options):
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **options}
        with torch.no_grad():
            found = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
        rows = torch.arange(len(batch))
        return found[:, rows, batch.subject_position], found[:, rows, batch.last_position]

    alone = [states(collate([prompt], 0, 0, [0])) for prompt in right.prompts]
    expected = [torch.cat(some, 1) for some in zip(*alone, strict=True)]
    for batch in (right, left):
        torch.testing.assert_close(list(states(batch, position_ids=batch.position_ids)), expected, rtol=0, atol=1e-10)
    # The control: GPT-2 counts padding on the left where nobody gives it positions.
    wrong = states(left)[1] - expected[1]
    assert (wrong.abs().max() > 1e-3) == (family == "gpt2")


def test_a_fit_is_the_same_with_padding_on_either_side(lm, tmp_path):
    sides = ("right", "left")
    right, left = (fitted(lm, data_of(padding_side=side, template="all"), tmp_path / side) for side in sides)
    assert right._data.trial(0) == left._data.trial(0)
    batch = next(iter(left._data.val_dataloader([0])))
    assert batch.attention_mask[:, 0].min() == 0
    assert batch.attention_mask[:, -1].min() == 1
    assert right.records == left.records
    assert all(record.scored for record in left.records.values())
    for key, lre in right.lres.items():
        assert torch.equal(lre.weight, left.lres[key].weight)
        assert torch.equal(lre.bias, left.lres[key].bias)


# Batches as values


def test_the_index_of_the_object_in_the_relations_range():
    samples = tuple(Sample(f"s{i}", f"o{i % 4}") for i in range(12))
    relation = Relation("toy", "toy", ("{} is",), (), "", "", False, samples)
    data = data_of(relation, tokenizer=tokenizers.make("characters"))
    for batch in (*data.train_dataloader(), *data.val_dataloader()):
        assert [relation.objects[i] for i in batch.object] == [prompt.object for prompt in batch.prompts]
        assert data.subjects_alone(batch).object.tolist() == [-1] * len(batch)
    assert collate(batch.prompts, 0, 0, [0] * len(batch), objects=["o3", "else"]).object.tolist() == [
        0 if prompt.object == "o3" else -1 for prompt in batch.prompts
    ]


@pytest.mark.parametrize("change", ["to", "pin_memory", "padded"])
def test_what_changes_a_batch_keeps_all_fields(change, monkeypatch):
    _, batch = batches_of()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    arguments = {"to": [torch.device("meta")], "pin_memory": [], "padded": ["right"]}[change]
    changed = getattr(batch, change)(*arguments)
    assert changed.prompts == batch.prompts
    for field in fields(RelationBatch):
        if field.name == "prompts":
            continue
        before, after = getattr(batch, field.name), getattr(changed, field.name)
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        if change == "to":
            assert after.device.type == "meta"
        if change == "pin_memory":
            assert after is not before
            assert torch.equal(after, before)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_as_rows_of_a_dataset_and_back(side):
    datasets = pytest.importorskip("datasets")
    data = data_of(trials=2, first_trial=1, padding_side=side, batch_size=5)
    batches = [*data.train_dataloader(1), *data.val_dataloader([1])]
    rows = [row for batch in batches for row in batch.rows()]
    table = datasets.Dataset.from_list(rows)
    assert table.to_list() == rows
    prompts = prompts_of(batches)
    for row, prompt in zip(table, prompts, strict=True):
        assert row["text"][slice(*row["subject_chars"])] == row["subject"] == prompt.subject
        assert data.tokenizer.decode(row["input_ids"][slice(*row["subject_span"])]).strip() == prompt.subject
        assert data.tokenizer.decode(row["object_tokens"]).strip() == row["object"] == prompt.object
        assert tuple(row["input_ids"]) == prompt.input_ids
        assert (row["relation"], row["trial"], row["weight"]) == (0, 2, 1.0)
    assert table["sample"] == [i for batch in batches for i in batch.sample.tolist()]


# All pairs in an epoch

SMALL = [replace(CAPITALS, name=f"capitals {i}", samples=CAPITALS.samples[i : i + 9]) for i in range(3)]


class Probe(LightningModule):
    """A parameter that is trained, and what it was served."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(()))
        self.served, self.validated = {}, {}

    def training_step(self, batch, batch_idx):
        self.served.setdefault(self.current_epoch, []).append(key_of(batch))
        return (self.scale - batch.sample.float()).square().mean()

    def validation_step(self, batch, batch_idx):
        self.validated.setdefault(self.current_epoch, []).append(key_of(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def key_of(batch):
    assert len({*batch.relation.tolist()}) == len({*batch.trial.tolist()}) == 1
    return int(batch.relation[0]), int(batch.trial[0]), tuple(batch.sample.tolist())


def every_pair(**options):
    return data_of(*SMALL, **{"epoch": "all", "trials": 2, "batch_size": 2, **options})


@pytest.mark.parametrize("reload", [0, 1])
def test_every_epoch_serves_all_pairs_in_another_order(tmp_path, reload):
    probe = Probe()
    options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": reload}
    trainer_of(tmp_path, **options).fit(probe, datamodule=every_pair())
    first, second = probe.served.values()
    expected = [(relation, trial, some) for relation in range(3) for trial in range(2) for some in ((0, 1), (2,))]
    assert sorted(first) == sorted(second) == expected
    assert first != second
    assert expected not in (first, second)
    again = Probe()
    trainer_of(tmp_path / "again", **options).fit(again, datamodule=every_pair())
    assert again.served == probe.served
    other = Probe()
    trainer_of(tmp_path / "other", **options).fit(other, datamodule=every_pair(seed=1))
    assert list(other.served.values()) != list(probe.served.values())
    tested = [(relation, trial, i) for relation in range(3) for trial in range(2) for i in range(6)]
    for served in probe.validated.values():
        assert [(relation, trial, i) for relation, trial, some in served for i in some] == tested


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_equally_many_batches_of_all_pairs_and_miss_no_prompt(size):
    found = []
    for rank in range(size):
        data = every_pair(template="all")
        data.trainer = SimpleNamespace(global_rank=rank, world_size=size, state=SimpleNamespace(fn="fit"))
        found.append(list(data.train_dataloader()))
    assert len({len(batches) for batches in found}) == 1
    for together in zip(*found, strict=True):  # a step has one pair on all processes
        assert len({key_of(batch)[:2] for batch in together}) == 1
        assert len({len(batch) for batch in together}) == 1
    served = [
        (int(batch.relation[0]), int(batch.trial[0]), i)
        for batches in found
        for batch in batches
        for i in batch.sample[batch.weight > 0].tolist()
    ]
    assert sorted(served) == [(relation, trial, i) for relation in range(3) for trial in range(2) for i in range(9)]


def test_an_lre_module_takes_one_pair_an_epoch(lm, tmp_path):
    with pytest.raises(LREError, match="needs one trial per epoch"):
        fitted(lm, every_pair(), tmp_path)


def test_all_pairs_in_a_loop_without_a_trainer():
    loader = every_pair().train_dataloader()
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append([key_of(batch) for batch in loader])
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    # One pair that is asked for comes in its own order.
    assert [key_of(batch) for batch in every_pair().train_dataloader(3)] == [(1, 1, (0, 1)), (1, 1, (2,))]


# A trial again, from its record

FORMS = {
    "random": {},
    "balanced, another form": {"sampling": "balanced", "separator": ". ", "shots": 1, "seed": 5},
    "all templates": {"template": "all", "shots": 2},
    "own template": {"template": {CAPITALS.name: "The government of {} sits in"}, "sampling": "balanced"},
    "second template": {"template": 1, "separator": "\n\n"},
    "own samples": {
        "train_samples": {CAPITALS.name: [s.subject for s in cap(CAPITALS, 16, 0).samples[5:2:-1]]},
        "trials": 1,
    },
}


@pytest.mark.parametrize("name", FORMS)
def test_a_trial_is_repeated_from_its_record(name, lm, tmp_path):
    data = data_of(**{"trials": 2, **FORMS[name]})
    last = data.trials - 1
    module = fitted(lm, data, tmp_path / "first")
    write_records(module.records.values(), tmp_path / "records.jsonl")
    records = read_records([tmp_path / "records.jsonl"])
    assert records == list(module.records.values())
    record = records[last]
    assert record.trial == last
    assert record.scored
    again = RelationDataModule.of_record(
        record, source=[CAPITALS], selection={"max_samples": 16}, loader={"batch_size": 3}
    )
    assert again.schedule == [(0, last)]
    assert prompts_of(again.train_dataloader()) == prompts_of(data.train_dataloader(last))
    assert prompts_of(again.val_dataloader()) == prompts_of(data.val_dataloader([last]))
    repeated = fitted(lm, again, tmp_path / "again")
    (found,) = repeated.records.values()
    assert replace(found, template_index=record.template_index) == record
    lre, before = repeated.lres[CAPITALS.name, last], module.lres[CAPITALS.name, last]
    torch.testing.assert_close(lre.weight, before.weight, rtol=1e-5, atol=1e-6)
    # And once more, from the record of the repetition.
    third = RelationDataModule.of_record(found, source=[CAPITALS], selection={"max_samples": 16})
    assert prompts_of(third.val_dataloader()) == prompts_of(data.val_dataloader([last]))


def test_a_fit_on_conversations_is_repeated_from_its_record(lm, tmp_path):
    """In a chat template that writes lines, conversations are the prompts that they are elsewhere."""
    tokenizer = load_tokenizer("demo")
    tokenizer.chat_template = LINES
    talking = {"tokenizer": tokenizer, "chat": True, "system": "Be brief."}
    module = fitted(lm, data_of(**talking, shots=2), tmp_path / "chat")
    (record,) = module.records.values()
    assert record.prompts == {**PLAIN, "shots": 2, "chat": True, "system": "Be brief."}
    again = RelationDataModule.of_record(record, tokenizer, source=[CAPITALS], selection={"max_samples": 16})
    assert prompts_of(again.val_dataloader()) == prompts_of(data_of(**talking, shots=2).val_dataloader([0]))
    assert all(prompt.text.startswith("Be brief.\n") for prompt in prompts_of(again.val_dataloader()))
    del talking["system"]
    silent, plain = (fitted(lm, data_of(**o), tmp_path / str(len(o))) for o in (talking, {}))
    ((one, other),) = zip(silent.records.values(), plain.records.values(), strict=True)
    assert other.scored
    assert replace(one, prompts=other.prompts) == other


@pytest.fixture(scope="module")
def record(all_templates):
    (record,) = all_templates[0].records.values()
    return record


def test_a_record_of_a_relation_that_has_changed_is_refused(record):
    def again(relation, **options):
        return RelationDataModule.of_record(record, source=[relation], selection={"max_samples": 16, **options})

    assert len(again(CAPITALS).trial(0).train) == N
    samples = CAPITALS.samples
    with pytest.raises(LREError, match="has other samples than the one of the record: give the source"):
        again(CAPITALS, max_samples=None).setup()
    with pytest.raises(LREError, match="has other samples than the one of the record"):
        again(replace(CAPITALS, samples=samples[::-1])).setup()
    trained = record.train[0][0]
    without = tuple(sample for sample in samples if sample.subject != trained)
    with pytest.raises(LREError, match="has other samples than the one of the record"):
        again(replace(CAPITALS, samples=without)).setup()
    with pytest.raises(LREError, match=r"the templates of 'country capital city' are .*, and those of the record"):
        again(replace(CAPITALS, prompt_templates=CAPITALS.prompt_templates[:1])).setup()
    with pytest.raises(LREError, match="no relation, category or path 'country capital city'"):
        again(replace(CAPITALS, name="another")).setup()


def test_a_template_with_what_is_put_between_templates_is_one_template(record):
    template = f"The capital{BETWEEN_TEMPLATES}city of {{}} is"
    one = replace(record, template=template, prompts={**record.prompts, "template": template})
    given = {"source": [CAPITALS], "selection": {"max_samples": 16}}
    assert RelationDataModule.of_record(one, **given).trial(0).asked_with == (template,)
    del one.prompts["template"]
    assert RelationDataModule.of_record(one, **given).trial(0).asked_with == (template,)


def test_a_record_that_does_not_know_its_draw_is_refused(record):
    with pytest.raises(LREError, match="'country capital city', trial 0, does not say what was drawn"):
        RelationDataModule.of_record(replace(record, train=()))


def test_later_trials_have_the_counts_of_a_longer_run(lm, tmp_path):
    longer = fitted(lm, data_of(trials=3), tmp_path / "longer")
    later = fitted(lm, data_of(trials=1, first_trial=2), tmp_path / "later")
    ((key, found),) = later.records.items()
    record = longer.records[key]
    assert key == (CAPITALS.name, 2)
    assert (found.tested, found.known, found.faithful, found.causal, found.train) == (
        record.tested,
        record.known,
        record.faithful,
        record.causal,
        record.train,
    )
