"""A trial again, from the record of its results."""

from dataclasses import replace

import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import load_tokenizer
from lre_lightning.prompts.options import BETWEEN_TEMPLATES
from lre_lightning.prompts.prompt import make_prompt
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.selection import cap
from lre_lightning.relations.sources import load_relations
from lre_lightning.scoring.scores import new_record
from lre_lightning.training.module import LREModule
from tests.datamodules.test_relations import prompts_of
from tests.helpers.options import nested
from tests.prompts.test_chat import LINES
from tests.training.test_module import trainer_of

(CAPITALS,) = load_relations("country capital city", "demo")
N = 3
PLAIN = {"separator": "\n", "shots": None, "chat": False, "system": None, "sampling": "random", "choosing_trials": 0}
AGAIN = {"source": [CAPITALS], "selection": {"max_samples": 16}}


def data_of(**options):
    """Return data with the demo's tokenizer, and few enough samples for a fit in a second."""
    given = {"source": [CAPITALS], "n_shot": N, "trials": 1, "max_samples": 16, "batch_size": 8}
    return RelationDataModule(**nested(**given | options))


def record_of(data, index=0):
    """Return the record of a trial, before it is scored and after it was in a file."""
    record = new_record(data.trial(index), data, tested=1, known=0)
    return TrialRecord.from_plain(record.plain())


FORMS = {
    "random": {},
    "balanced, another form": {"sampling": "balanced", "separator": ". ", "shots": 1, "seed": 5},
    "all templates": {"template": "all", "shots": 2},
    "own template": {"template": {CAPITALS.name: "The government of {} sits in"}, "sampling": "balanced"},
    "own samples": {"train_samples": {CAPITALS.name: [s.subject for s in cap(CAPITALS, 16, 0).samples[5:2:-1]]}},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_trial_is_repeated_from_its_record(form):
    data = data_of(**{"trials": 1 if form == "own samples" else 2, **FORMS[form]})
    last = data.trials - 1
    record = record_of(data, last)
    for _ in range(2):
        again = RelationDataModule.of_record(record, **AGAIN, loader={"batch_size": 3})
        assert again.schedule == [(0, last)]
        assert prompts_of(again.train_dataloader()) == prompts_of(data.train_dataloader(last))
        assert prompts_of(again.val_dataloader()) == prompts_of(data.val_dataloader([last]))
        repeated = record_of(again)
        assert replace(repeated, template_index=record.template_index) == record
        record = repeated  # and once more, from the record of the repetition


def test_conversations_are_repeated_from_their_record():
    tokenizer = load_tokenizer("demo")
    tokenizer.chat_template = LINES
    data = data_of(tokenizer=tokenizer, chat=True, system="Be brief.", shots=2)
    record = record_of(data)
    assert record.prompts == {**PLAIN, "shots": 2, "chat": True, "system": "Be brief.", "start_token": "auto"}
    again = RelationDataModule.of_record(record, tokenizer, **AGAIN)
    assert prompts_of(again.val_dataloader()) == prompts_of(data.val_dataloader())
    assert all(prompt.text.startswith("Be brief.\n") for prompt in prompts_of(again.val_dataloader()))


def test_a_fit_with_several_templates_padded_on_either_side(tmp_path):
    """Its LRE is the mean over all their prompts, and its record names them and the draw."""
    lm, fits = LanguageModel.from_pretrained("demo"), []
    for side in ("left", "right"):
        data = data_of(template="all", batch_size=4, sampling="balanced", padding_side=side, max_samples=10)
        module = LREModule(lm, layers=["emb", 1], betas=[1.0, 2.0], ranks=[8])
        trainer_of(tmp_path / side).fit(module, datamodule=data)
        fits.append((module, next(iter(data.val_dataloader([0]))).attention_mask))
    trial, (lre,) = data.trial(0), module.lres.values()
    estimator = LREEstimator([lre.layer])
    for i, sample in enumerate(trial.train):
        for template in CAPITALS.templates:
            prompt = make_prompt(data.tokenizer, template, sample, trial.train[:i] + trial.train[i + 1 :])
            ids = torch.tensor(prompt.input_ids)
            estimator.update(prompt_jacobian(lm, ids, prompt.subject_position, [lre.layer]))
    assert estimator.count == 9
    torch.testing.assert_close(lre.weight, estimator.weight(lre.layer), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(lre.bias, estimator.bias(lre.layer), rtol=1e-4, atol=1e-5)
    (record,) = module.records.values()
    assert record.scored
    assert record.template == BETWEEN_TEMPLATES.join(CAPITALS.templates)
    assert record.template_index is None
    assert (record.tested, record.n_shot, record.samples) == (3 * 7, 3, 10)
    assert record.prompts == {**PLAIN, "sampling": "balanced", "template": "all", "start_token": "eos"}
    assert record.train == tuple((sample.subject, sample.object) for sample in data.trial(0).train)
    assert (record.seed, record.digest) == (0, data.relations[0].digest)
    (left, mask), _ = fits
    assert (mask[:, 0].min(), mask[:, -1].min()) == (0, 1)
    assert left.records == module.records
    (other,) = left.lres.values()
    assert torch.equal(other.weight, lre.weight)
    assert torch.equal(other.bias, lre.bias)


def test_a_relation_that_has_changed_is_refused():
    record = record_of(data_of(template="all"))
    samples = CAPITALS.samples
    without = tuple(sample for sample in samples if sample.subject != record.train[0][0])
    for relation, selection, message in (
        (CAPITALS, {}, "'country capital city' has other samples than the one of the record: give the source"),
        (replace(CAPITALS, samples=samples[::-1]), AGAIN["selection"], "has other samples"),
        (replace(CAPITALS, samples=without), AGAIN["selection"], "has other samples"),
        (replace(CAPITALS, prompt_templates=()), AGAIN["selection"], "templates of '.* city' are .* of the record"),
        (replace(CAPITALS, name="x"), AGAIN["selection"], "no relation, category or path 'country capital city'"),
    ):
        with pytest.raises(LREError, match=message):
            RelationDataModule.of_record(record, source=[relation], selection=selection).setup()


def test_a_template_with_the_text_between_templates_is_one_template():
    template = f"The capital{BETWEEN_TEMPLATES}city of {{}} is"
    record = record_of(data_of(template=template))
    assert RelationDataModule.of_record(record, **AGAIN).trial(0).asked_with == (template,)


def test_a_record_without_a_draw_or_with_unknown_options_is_refused():
    record = record_of(data_of())
    with pytest.raises(LREError, match="'country capital city', trial 0, does not say what was drawn"):
        RelationDataModule.of_record(replace(record, train=()))
    with pytest.raises(LREError, match="the record has 'train_samples' of prompts, which is none of template, shots"):
        RelationDataModule.of_record(replace(record, prompts={"train_samples": {}}))
