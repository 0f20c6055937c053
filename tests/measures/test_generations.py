"""Texts before and after the edits of a fit, against the LM's own `generate` with a hook of this test."""

from types import SimpleNamespace

import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.measures import Generations
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord
from lre_lightning.training.module import LREModule
from tests.helpers import toy
from tests.training.test_module import trainer_of


def generated(lm, text, layer, delta):
    """Continue a text greedily, with `delta` added to the last token of the prompt at a layer."""
    model, tokenizer = lm.model, lm.tokenizer
    ids = torch.tensor([[0, *tokenizer(text, add_special_tokens=False).input_ids]])

    def hook(_module, _inputs, output):
        if output.shape[1] == ids.shape[1]:
            output[:, -1] += delta
        return output

    handle = lm.module_at(layer).register_forward_hook(hook)
    found = model.generate(ids, max_new_tokens=10, do_sample=False, attention_mask=torch.ones_like(ids), pad_token_id=0)
    handle.remove()
    return tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True).strip()


def test_generations_of_a_fit_are_those_of_the_lm_with_a_hook(toy_relations, tmp_path):
    lm = LanguageModel(toy.toy_model(), name="toy")
    lm.model.lm_head.weight.data[len(toy.WORDS) - 8 :].normal_(0, 0.02)  # so that more than one word follows
    module = LREModule(lm, ranks=[toy.WIDTH], betas=[1.0], measures=[Generations(2)])
    data = RelationDataModule(toy.toy_tokenizer(), source=toy_relations, n_shot=4, trials=1)
    trainer_of(tmp_path).fit(module, datamodule=data)
    objects = dict(zip(toy.SUBJECTS, toy.OBJECTS * len(toy.SUBJECTS), strict=False))
    for key, record in ((key, record) for key, record in module.records.items() if record.scored):
        lre = module.lres[key]
        inverse = torch.linalg.pinv(lre.weight)
        assert len({prompt for prompt, *_ in record.rows_of("generations")}) == 2
        for prompt, object_, target, before, after in record.rows_of("generations"):
            assert objects[prompt] == object_ != target
            assert before == generated(lm, prompt, lre.layer, torch.zeros(toy.WIDTH))
            assert before.split()[0] == object_
            assert after.split()[0] == target
            # o is the embedding of the subject: o' is that of one whose object is the target's.
            embedding = lm.model.get_input_embeddings().weight
            token = {name: toy.WORDS.index(name) for name in objects}
            deltas = [
                inverse @ (embedding[token[name]] - embedding[token[prompt]])
                for name, its in objects.items()
                if its == target
            ]
            assert after in [generated(lm, prompt, lre.layer, delta) for delta in deltas]
        assert TrialRecord.from_plain(record.plain()) == record


def test_an_lm_that_does_not_generate_is_refused_at_once():
    with pytest.raises(LREError, match="toy has no method `generate`: leave generations out"):
        Generations().check(SimpleNamespace(model=torch.nn.Identity(), name="toy"))
