"""Adapters of PEFT: merged while loading, another LM than without."""

import re
import sys

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.loading import Loading
from lre_lightning.sharing.collection import LRECollection
from tests.helpers.tiny_models import tiny_model

peft = pytest.importorskip("peft")


def adapted(model, **options):
    """A model with a LoRA whose weights are not the initial ones, which change nothing."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "v_proj"], **options)
    tuned = peft.get_peft_model(model, config)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05)
    return tuned.eval()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """The folder of an adapter of the demo, and what the tuned LM computes with the adapter apart."""
    folder = tmp_path_factory.mktemp("adapter")
    tuned = adapted(LanguageModel.from_pretrained("demo").model)
    tuned.save_pretrained(folder)
    ids = torch.arange(60).view(2, 30)
    with torch.no_grad():
        return str(folder), ids, tuned(input_ids=ids).logits


def test_an_adapter_is_merged_and_named(adapter):
    folder, ids, expected = adapter
    lm = LanguageModel.from_pretrained("demo", adapter=folder)
    assert not any("lora" in name for name, _ in lm.named_modules())
    torch.testing.assert_close(lm.model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert (lm.name, lm.adapter, lm.label) == ("demo", folder, f"demo+{folder}")
    assert lm.tokenizer.encode("Canada") == LanguageModel.from_pretrained("demo").tokenizer.encode("Canada")


def test_base_and_tuned_refuse_each_others_lres(adapter):
    base, tuned = (LanguageModel.from_pretrained("demo", adapter=folder) for folder in (None, adapter[0]))
    lre = LRECollection.from_pretrained("demo")["country capital city"]
    assert lre.bind(base).predict("Canada")
    said = re.escape(f"was estimated from 'demo', and 'demo+{adapter[0]}' computes something else")
    with pytest.raises(LREError, match=f"the LRE of 'country capital city' {said}: their hidden states"):
        lre.bind(tuned)
    origin = Origin("demo", tuned.identity, "r", adapter=tuned.adapter)
    own = LRE(torch.eye(tuned.hidden_size), torch.zeros(tuned.hidden_size), 2, origin)
    own.check_model(tuned)
    own.check_model(LanguageModel(tuned.model, "merged by the user"))
    with pytest.raises(LREError, match=re.escape(f"from 'demo+{adapter[0]}', and 'demo' computes something else")):
        own.check_model(base)


def test_what_is_no_adapter_of_the_lm_is_one_line(adapter, tmp_path, monkeypatch):
    with pytest.raises(LREError, match=r"the adapter '.*none' cannot be merged into 'demo': "):
        LanguageModel.from_pretrained("demo", adapter=str(tmp_path / "none"))
    other = tiny_model("llama", torch.float32)
    other.save_pretrained(tmp_path / "lm")
    with pytest.raises(LREError, match=r"cannot be merged into .*: .*size mismatch"):
        LanguageModel.from_pretrained(str(tmp_path / "lm"), adapter=adapter[0])
    adapted(tiny_model("llama", torch.float32), layers_to_transform=[0]).save_pretrained(tmp_path / "part")
    text = (tmp_path / "part" / "adapter_config.json").read_text()
    (tmp_path / "part" / "adapter_config.json").write_text(
        re.sub(r'"layers_to_transform": \[[^]]*\]', '"layers_to_transform": null', text)
    )
    with pytest.raises(LREError, match=r"cannot be merged into .*: Found missing adapter keys"):
        LanguageModel.from_pretrained(str(tmp_path / "lm"), adapter=str(tmp_path / "part"))
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    peft.get_peft_model(tiny_model("llama", torch.float32), prompts).save_pretrained(tmp_path / "prompts")
    with pytest.raises(LREError, match="cannot be merged into"):
        LanguageModel.from_pretrained(str(tmp_path / "lm"), adapter=str(tmp_path / "prompts"))
    with pytest.raises(LREError, match="quantized weights, 8bit, cannot take in an adapter"):
        Loading(adapter="some", quantization="8bit")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LREError, match=r"an adapter needs peft: pip install 'lre-lightning\[adapters\]'"):
        LanguageModel.from_pretrained("demo", adapter=adapter[0])
