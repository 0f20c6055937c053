"""Prompts in use: with the LM's own tokenizer and start token, and without any start token."""

import logging

import pytest
import torch

from lre_lightning import LanguageModel, LREError, LREModule, RelationDataModule, estimate, read_lenses
from lre_lightning.callbacks.log import RelationLog
from lre_lightning.datamodules import TextDataModule
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.module import JacobianLensModule
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import TextStates
from lre_lightning.lens.table import read_answers
from lre_lightning.lre.lre import LRE
from lre_lightning.measures import Baselines, Distributions, WholeObjects
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.texts import Text
from lre_lightning.relations.sources import load_relations
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.toy import write_toy_model, write_toy_relations
from tests.helpers.trainer import trainer_of

NONE = Prompts(start_token="none", template="{} is governed from")
LAYER = 2


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("demo")


@pytest.fixture(scope="module")
def lre(lm):
    return estimate(lm, "country capital city", LAYER, n_shot=1, prompts=NONE)


def output_of(lm, ids, position, value=None):
    """s and o of a plain run in which `value` may replace s."""
    states = []

    def block(module, args, output):
        states.append(output[0, position])
        if value is None:
            return output
        return torch.cat([output[:, :position], value[None, None], output[:, position + 1 :]], 1)

    handles = [lm.module_at(LAYER).register_forward_hook(block)]
    handles.append(lm.module_at(lm.num_layers - 1).register_forward_hook(lambda m, a, o: states.append(o[0, -1])))
    logits = lm.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return *states, logits


def test_w_is_the_jacobian_at_the_first_position_where_nothing_is_in_front(lm, lre):
    ((subject, _),) = lre.origin.train
    name, ids = (lm.tokenizer(text)["input_ids"] for text in (subject, f"{subject} is governed from"))
    s, o, _ = output_of(lm, ids, len(name) - 1)
    jacobian = torch.autograd.functional.jacobian(lambda s: output_of(lm, ids, len(name) - 1, s)[1], s)
    torch.testing.assert_close(lre.weight, jacobian, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(lre.bias, o - jacobian @ s, rtol=1e-3, atol=1e-4)
    assert lre.origin.form["start_token"] == "none"
    with_start = estimate(lm, "country capital city", LAYER, n_shot=1, prompts=Prompts(template=NONE.template))
    assert with_start.origin.form["start_token"] == "eos"
    assert not torch.allclose(with_start.weight, lre.weight, rtol=0.1)


def test_the_first_token_is_edited_where_nothing_is_in_front(lm, lre):
    edit = lre.edit_prompt("A is governed from", target="Peru", subject="A")
    ids = lm.tokenizer("A is governed from")["input_ids"]
    assert (list(edit.prompt.input_ids), edit.position, edit.prompt.start) == (ids, 0, 0)
    s, _, logits = output_of(lm, ids, 0)
    _, _, expected = output_of(lm, ids, 0, edit.at(LAYER, s))
    assert not torch.allclose(logits, expected, atol=0.1)
    with edit.active(), torch.no_grad():
        torch.testing.assert_close(lm.model(torch.tensor([ids])).logits[0, -1], expected)
        lead = lm.model(torch.tensor([[0, *ids]])).logits[0, -1]  # a run may have a start token
    assert not torch.allclose(lead, lm.model(torch.tensor([[0, *ids]])).logits[0, -1], atol=0.1)
    before, _ = edit.continuations(max_new_tokens=2)[0]
    assert before


def test_lenses_read_texts_with_the_start_token_of_the_prompts(lm, lre):
    text, lres = "Canada is cold", {("country capital city", 0): lre}
    ids = torch.tensor([lm.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        hidden = lm.hidden_states(ids, [LAYER])[LAYER][0]
        shares = lm.decode(lre(hidden)).softmax(-1)
    states = TextStates.of(lm, lm.tokenizer, text, [LAYER], "none")
    torch.testing.assert_close(states.hidden[0], hidden)
    assert states.ids.tolist() == ids[0].tolist()
    grid, _ = read_lenses(lm, lm.tokenizer, text, lres, layers=[LAYER])
    assert grid.probabilities[0][0] == pytest.approx(shares[0].topk(5).values.tolist(), rel=1e-3)
    (row,) = read_answers(lm, [lre], [Text(text, "Canada")])
    last = len(lm.tokenizer("Canada")["input_ids"]) - 1
    assert row["token"] == grid.tokens[last]
    assert row["probability_1"] == pytest.approx(float(shares[last].max()), rel=1e-3)
    (instruments,) = load_relations("person instrument", "demo")
    other = estimate(lm, instruments, LAYER, n_shot=2, prompts=Prompts(start_token="none"))
    made = Likenesses(lm, lres | {(instruments.name, 0): other}, [LAYER])["country capital city"]
    assert torch.isfinite(made(hidden[None])).all()


@pytest.mark.parametrize("start_token", ["auto", "none"])
def test_a_fit_names_its_start_token_and_takes_the_lms_tokenizer(tmp_path, caplog, start_token):
    model, relations = str(write_toy_model(tmp_path / "model")), str(write_toy_relations(tmp_path / "relations"))
    prompts = Prompts(start_token=start_token, shots=0)
    data = RelationDataModule(None, "thing colour", relations, n_shot=2, trials=1, prompts=prompts)
    measures = [Baselines(), Distributions(), WholeObjects()]
    module = LREModule(model, layers=[0], betas=[1.0], ranks=[4], measures=measures)
    used = {"auto": "bos", "none": "none"}[start_token]
    words = {"bos": "start token '[BOS]' (bos)", "none": "no start token"}[used]
    assert words in str(module.forecast(data))
    with caplog.at_level(logging.INFO, "lre_lightning"):
        trainer_of(tmp_path, callbacks=[RelationLog()]).fit(module, datamodule=data)
    assert words in next(line for line in caplog.messages if line.startswith("fit of"))
    (record,), (lre,) = module.records.values(), module.lres.values()
    assert (record.known, record.tested, record.scored) == (22, 22, True)
    assert record.prompts["start_token"] == lre.origin.form["start_token"] == used
    path = lre.save(tmp_path / "lre.safetensors")
    assert LRE.load(path or tmp_path / "lre.safetensors").origin.form["start_token"] == used
    again = RelationDataModule.of_record(record, module.lm.tokenizer, source=relations)
    assert again.prompts.start_token == used
    batch = next(iter(again.val_dataloader()))
    assert batch.input_ids.tolist() == next(iter(data.val_dataloader([0]))).input_ids.tolist()
    assert int(batch.subject_position.max()) == {"bos": 1, "none": 0}[used]
    assert data.hparams["prompts"]["start_token"] == start_token  # as it was given


def test_a_wrong_tokenizer_ends_a_fit_at_its_beginning(tmp_path, lm):
    data = RelationDataModule(tokenizers.make("characters"), "country capital city", "demo", trials=1)
    module = LREModule(lm, layers=[1])
    for work in ("fit", "validate"):
        with pytest.raises(LREError, match=r"the tokenizer '' is not that of 'demo': leave --data\.tokenizer out"):
            getattr(trainer_of(tmp_path), work)(module, datamodule=data)


def test_a_jacobian_lens_of_texts_without_start_token(tmp_path, lm):
    (tmp_path / "texts.txt").write_text("The capital of Canada is Ottawa\n\nThe capital of Peru is Lima")
    reading, module = {"start_token": "none"}, JacobianLensModule(lm, layers=[1], averaging=Averaging(skip=1))
    data = TextDataModule(str(tmp_path / "texts.txt"), None, length=8, shortest=5, reading=reading)
    trainer_of(tmp_path).fit(module, datamodule=data)
    assert data.sequences[0] == lm.tokenizer("The capital of Canada is Ottawa")["input_ids"][:8]
    assert module.lens.origin.start_token == "none"
    own = TextDataModule(str(tmp_path / "texts.txt"), None, length=8, shortest=5)
    own.use(lm)
    assert own.sequences[0][0] == lm.tokenizer.eos_token_id
    assert own.start_token == "eos"
