"""Weights stored as whole numbers, those of bitsandbytes and others, against the LM of the dequantized weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

import lre_lightning.lre.jacobian as engine
from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.training.module import LREModule
from tests.helpers.tiny_models import LAYERS, PROMPTS, tiny_model
from tests.models.test_placement import check_equal, everything


class NoGradient(torch.autograd.Function):
    """The identity, with a gradient of zero."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class IntegerLinear(torch.nn.Module):
    """A layer of an unknown quantization."""

    def __init__(self, linear):
        super().__init__()
        self.register_buffer("packed", (linear.weight * 64).round().to(torch.int8))
        self.stop = torch.nn.Identity()

    def forward(self, hidden):
        return self.stop(hidden @ self.packed.to(hidden).T / 64)


@pytest.mark.parametrize("stop", [Tensor.detach, NoGradient.apply])
def test_layers_that_pass_no_gradients_on_are_refused(stop):
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    attention.o_proj = IntegerLinear(attention.o_proj)
    assert LanguageModel(model).num_layers == LAYERS
    attention.o_proj.stop.forward = stop
    with pytest.raises(LREError, match="LlamaForCausalLM is not supported: its IntegerLinear passes on no gradients"):
        LanguageModel(model)
    with torch.inference_mode(), pytest.raises(LREError, match="passes on no gradients"):
        LanguageModel(model)


QUANTIZED = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
pytestmark = pytest.mark.gpu
WIDE = {"llama": {"hidden_size": 64, "intermediate_size": 128}, "gpt2": {"n_embd": 64}}


@pytest.fixture(params=WIDE)
def wide(request, tmp_path):
    """A folder with an LM that is wide enough for blocks of 64 weights, and with outliers among its activations."""
    model = tiny_model(request.param, torch.float32, **WIDE[request.param])
    model.get_input_embeddings().weight.data[:, 3] *= 200
    model.save_pretrained(tmp_path)
    return str(tmp_path)


@QUANTIZED
@pytest.mark.parametrize(("quantization", "device_map"), [("8bit", None), ("4bit", "auto")])
def test_a_quantized_lm_is_the_lm_of_its_dequantized_weights_and_stays_so(wide, quantization, device_map):
    lm = LanguageModel.from_pretrained(wide, quantization=quantization, device_map=device_map)
    found = everything(lm)
    plain = LanguageModel(LanguageModel.from_pretrained(wide, quantization=quantization).model.dequantize())
    kinds = {type(module).__name__ for module in lm.modules()} - {type(module).__name__ for module in plain.modules()}
    assert kinds == {"Linear8bitLt" if quantization == "8bit" else "Linear4bit"}
    check_equal(found, everything(plain), rtol=1e-3, atol=1e-3)
    assert lm.identity == plain.identity
    original = LanguageModel.from_pretrained(wide)
    assert not torch.allclose(found["o"], everything(original)["o"], rtol=1e-2)  # a control: weights were rounded
    sizes = [engine._graph_bytes(one, torch.tensor([[1, 2]]), None, one.layers) for one in (lm, original)]
    assert sizes[0] < 1.3 * sizes[1]  # the graph keeps no dequantized weights
    module = LREModule(lm)
    module.cpu()
    module.to("meta")
    check_equal(everything(lm), found, rtol=0, atol=0)
    with pytest.raises(LREError, match="cannot be cast"):
        module.half()


@QUANTIZED
def test_a_quantized_lm_reads_a_prompt_alone_as_beside_another_with_outliers(tmp_path):
    model = tiny_model("llama", torch.float32, **WIDE["llama"])
    model.get_input_embeddings().weight.data[90, 3] = 300
    model.save_pretrained(tmp_path)
    lm = LanguageModel.from_pretrained(str(tmp_path), quantization="8bit")
    prompt = torch.tensor(PROMPTS[:1])
    beside = lm(torch.cat([prompt, torch.full_like(prompt, 90)]))
    torch.testing.assert_close(beside[:1], lm(prompt), rtol=1e-5, atol=1e-5)


@QUANTIZED
def test_layers_that_were_put_in_by_hand():
    import bitsandbytes as bnb

    model = tiny_model("llama", torch.float32, **WIDE["llama"])
    expected = tiny_model("llama", torch.float32, **WIDE["llama"])
    for index, kind in enumerate((bnb.nn.Linear8bitLt, bnb.nn.Linear4bit)):
        mlp, linear = model.model.layers[index].mlp, model.model.layers[index].mlp.up_proj
        options = {"has_fp16_weights": False} if kind is bnb.nn.Linear8bitLt else {"quant_type": "nf4"}
        layer = kind(linear.in_features, linear.out_features, bias=False, **options)
        layer.load_state_dict(linear.state_dict())
        mlp.up_proj = layer.to("cpu")
        weight = torch.eye(linear.in_features)  # the layer's own weights, from its products with unit vectors
        with LanguageModel(model).at_rest():
            expected.model.layers[index].mlp.up_proj.weight.data = mlp.up_proj(weight).T.detach()
        assert "forward" not in vars(mlp.up_proj)
    check_equal(everything(LanguageModel(model)), everything(LanguageModel(expected)), rtol=1e-3, atol=1e-3)


@QUANTIZED
def test_weights_that_were_packed_for_the_cpu_are_refused(wide):
    import bitsandbytes as bnb

    if not bnb.functional.has_avx512bf16():
        pytest.skip("this CPU packs no 4-bit weights")
    quantized = LanguageModel.from_pretrained(wide, quantization="4bit").model
    layer = next(module for module in quantized.modules() if isinstance(module, bnb.nn.Linear4bit))
    with torch.no_grad():
        layer(torch.zeros(1, layer.in_features))
    with pytest.raises(LREError, match=r"packed the 4-bit weights for the CPU .*: create the LanguageModel before"):
        LanguageModel(quantized)


@QUANTIZED
def test_quantized_weights_cannot_be_offloaded(wide):
    with pytest.raises(LREError, match="with device_map 'disk': Some modules are dispatched on the CPU or the disk"):
        LanguageModel.from_pretrained(wide, quantization="4bit", device_map="disk")


@QUANTIZED
def test_a_quantized_vocabulary_is_refused():
    import bitsandbytes as bnb

    model = tiny_model("llama", torch.float32, **WIDE["llama"])
    head = bnb.nn.Linear8bitLt(64, model.lm_head.out_features, bias=False, has_fp16_weights=False)
    head.load_state_dict(model.lm_head.state_dict())
    model.lm_head = head.to("cpu")
    with pytest.raises(LREError, match="the weights of its Linear8bitLt are quantized: quantize only its blocks"):
        LanguageModel(model)
