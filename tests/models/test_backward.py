"""Rules of the backward pass: forward values bit for bit, and derivatives of LMs that are written out."""

import itertools
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.estimator import estimate_jacobian_lens, text_jacobian
from lre_lightning.lre.estimator import estimate
from lre_lightning.lre.jacobian import prompt_jacobian, sweep
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.matrix_free import MatrixFree, forward_product
from lre_lightning.models import backward
from lre_lightning.models.backward import backward_rule, check_backward
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.products import double_vjp, jvp
from lre_lightning.records.analysis import by_model
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.sources import load_relations
from lre_lightning.training.module import LREModule
from lre_lightning.training.options import Fitting
from tests.helpers.tiny_models import FAMILIES, STREAMS, UNSHARED, VOCAB, WIDTH, batch_of, tiny_model, widen_casts
from tests.helpers.toy import write_toy_model, write_toy_relations
from tests.helpers.trainer import trainer_of
from tests.lre.test_jacobian import plain_jacobians, relative_error

PROMPT = torch.arange(14) * 11 % VOCAB
REFUSED = ["mamba", "rwkv", "recurrent_gemma", "qwen3_next", "lfm2", "jamba", "mamba2"]
ALIKE = ["llama3", "gpt_neox_sequential", "falcon_new", "opt_350m"]  # norms and attention of another tiny model
APPLIES = [family for family in [*FAMILIES, *UNSHARED, *STREAMS] if family not in [*REFUSED, *ALIKE]]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IN_TURN = itertools.cycle(DTYPES)


@pytest.mark.parametrize(("family", "dtype"), list(zip(APPLIES, IN_TURN, strict=False)), ids=str)
def test_no_value_changes_and_derivatives_do(family, dtype):
    lm = LanguageModel(tiny_model(family, dtype))
    check_backward(lm, "frozen")
    exact = prompt_jacobian(lm, PROMPT, 9)
    with backward_rule("frozen"):
        frozen = prompt_jacobian(lm, PROMPT, 9)
    assert torch.equal(frozen.object, exact.object)
    assert all(torch.equal(frozen.subject[layer], exact.subject[layer]) for layer in lm.layers)
    assert relative_error(frozen.jacobian[0], exact.jacobian[0]) > 0.1
    if family == "gpt2":
        again = prompt_jacobian(lm, PROMPT, 9)  # nothing is left of the rule
        assert torch.equal(again.jacobian[0], exact.jacobian[0])


def rms_norm(module, states):
    """Norms of Llama and Gemma with their scale as a constant, written out."""
    scale = 1 / (states.square().mean(-1, keepdim=True) + getattr(module, "variance_epsilon", 0)).sqrt().detach()
    if isinstance(module, Gemma2RMSNorm):
        scale = 1 / (states.square().mean(-1, keepdim=True) + module.eps).sqrt().detach()
        return states * scale * (1 + module.weight)
    return states * scale * module.weight


def layer_norm(module, states):
    centred = states - states.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + module.eps).sqrt().detach()
    return centred / deviation * module.weight + module.bias


def attention(module, query, key, value, mask, scaling=None, softcap=None, **_):
    """Attention with its weights as constants, written out."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:]).tril().log()
    elif mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    weights = functional.softmax(scores + mask, -1).detach()
    return (weights @ value).transpose(1, 2).contiguous(), weights


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gemma2"])
def test_jacobians_are_those_of_an_lm_with_constants_written_out(monkeypatch, family):
    widen_casts(monkeypatch, family)
    lm, plain = LanguageModel(tiny_model(family), chunk_size=6), LanguageModel(tiny_model(family))
    with backward_rule("frozen"):
        found = prompt_jacobian(lm, PROMPT, 9)
    for kind in (LlamaRMSNorm, Qwen3RMSNorm, Gemma2RMSNorm):
        monkeypatch.setattr(kind, "forward", rms_norm)
    monkeypatch.setattr(nn.LayerNorm, "forward", layer_norm)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", attention)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "eager", attention)
    plain.model.config._attn_implementation = "sdpa"
    output, expected = plain_jacobians(plain, PROMPT, 9)
    assert relative_error(found.object, output) < 1e-9
    for layer, (jacobian, subject) in expected.items():
        assert relative_error(found.jacobian[layer], jacobian) < 1e-9, layer
        assert relative_error(found.bias(layer), output - jacobian @ subject) < 1e-9
    assert expected[0][0].any()


@pytest.mark.parametrize(("family", "product"), [("llama", jvp), ("gpt2", jvp), ("bloom", double_vjp)])
def test_products_are_those_of_the_sweep(monkeypatch, family, product):
    widen_casts(monkeypatch, family)
    lm = LanguageModel(tiny_model(family))
    runs = batch_of(lm, [PROMPT.tolist()], [9])
    with backward_rule("frozen"):
        (swept,) = sweep(lm, PROMPT[None], range(9, 10), range(13, 14), [0])
    found = forward_product(runs, "frozen")
    operator, vectors = MatrixFree(runs, 0, found, backward="frozen"), torch.randn(3, WIDTH, dtype=torch.float64)
    assert found is product
    torch.testing.assert_close(operator.apply(vectors), vectors @ swept.jacobian[0].T)
    torch.testing.assert_close(operator.transposed(vectors), vectors @ swept.jacobian[0])
    torch.testing.assert_close(operator.bias(), swept.bias(0))
    exact = MatrixFree(runs, 0, found).apply(vectors)
    assert not torch.allclose(exact, vectors @ swept.jacobian[0].T, rtol=0.1)


@pytest.mark.parametrize(
    ("functions", "what"),
    [
        ((torch.rsqrt,), "the scale of a norm, LlamaRMSNorm, is not held"),
        ((functional.softmax, functional.scaled_dot_product_attention), "a block, LlamaDecoderLayer, shows no weights"),
    ],
    ids=["norms", "attention"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_held_is_noticed(monkeypatch, functions, what, dtype):
    lm = LanguageModel(tiny_model("llama", dtype), name="mine")
    for function in functions:
        monkeypatch.delitem(backward._RULES, function)
    with pytest.raises(LREError, match=f"mine cannot run with backward 'frozen': {what}"):
        check_backward(lm, "frozen")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rule_that_changes_values_is_noticed(monkeypatch, dtype):
    lm = LanguageModel(tiny_model("gpt2", dtype), name="mine")
    monkeypatch.setattr(backward, "_value_of", lambda value, twin: twin)  # the same up to rounding
    with pytest.raises(LREError, match="it changes the hidden states at layer 0"):
        check_backward(lm, "frozen")


def test_routers_and_other_powers_are_left_alone():
    inputs = torch.randn(2, 3, 1, dtype=torch.float64, requires_grad=True)
    functions = [lambda x: functional.softmax(torch.cat([x, -x], -1), -1), lambda x: x.pow(2), lambda x: x**-1.0]
    with ExitStack() as stack:
        expected = [torch.autograd.grad(function(inputs)[..., 0].sum(), inputs)[0] for function in functions]
        stack.enter_context(backward_rule("frozen"))
        found = [torch.autograd.grad(function(inputs)[..., 0].sum(), inputs)[0] for function in functions]
    assert all(map(torch.equal, found, expected))


def test_a_fit_keeps_the_rule_with_its_lres_and_records(tmp_path):
    folders = str(write_toy_model(tmp_path / "model")), str(write_toy_relations(tmp_path / "relations"))
    module = LREModule(folders[0], betas=[0.0], ranks=[1], fitting={"backward": "frozen"})
    data = RelationDataModule(folders[0], source=folders[1], n_shot=4, trials=1, relations=["thing colour"])
    trainer_of(tmp_path).fit(module, datamodule=data)
    (record,), (lre,) = module.records.values(), module.lres.values()
    assert lre.origin.backward == "frozen"
    path = tmp_path / "lre.safetensors"
    lre.save(path)
    assert LRE.load(path).origin == lre.origin
    assert TrialRecord.from_plain(record.plain()) == record
    assert record.label == f"{folders[0]} (frozen)"
    exact = replace(record, backward="exact")
    assert [model.model for model in by_model([exact, record])] == [folders[0], record.label]
    (relation,) = load_relations("thing colour", folders[1])
    alone = estimate(module.lm, relation, lre.layer, 4, backward="frozen")
    assert torch.equal(alone.weight, lre.weight)
    assert alone.origin.backward == "frozen"


def test_w_of_a_fit_is_that_of_the_rule(tmp_path):
    lm = LanguageModel.from_pretrained("demo")
    data = RelationDataModule(lm.tokenizer, "country capital city", "demo", n_shot=2, trials=1)
    lres = []
    for options in ({}, {"backward": "frozen"}, {"backward": "frozen", "method": "matrix_free"}):
        fitting = Fitting(**options, choices={"country capital city": {"layer": 2, "rank": 8}})
        module = LREModule(lm, betas=[1.0], fitting=fitting)
        trainer_of(tmp_path).fit(module, datamodule=data)
        lres += module.lres.values()
    exact, frozen, free = lres
    (relation,) = load_relations("country capital city", "demo")
    for lre, rule in ((exact, "exact"), (frozen, "frozen")):
        assert relative_error(lre.weight, estimate(lm, relation, 2, 2, backward=rule).weight) < 1e-4
    assert relative_error(frozen.weight, exact.weight) > 0.1
    assert relative_error(free.operator.dense(), frozen.weight) < 0.1


def test_an_lm_without_attention_is_refused_before_the_fit():
    lm = LanguageModel(tiny_model("mamba", torch.float32), name="mine")
    with pytest.raises(LREError, match="mine cannot run with backward 'frozen'"):
        LREModule(lm, fitting=Fitting(backward="frozen"))
    with pytest.raises(LREError, match="mine cannot run with backward 'frozen'"):
        estimate_jacobian_lens(lm, [list(range(9))], averaging=Averaging(skip=4, backward="frozen"))
    with pytest.raises(LREError, match="backward"):
        Fitting(backward="relp")


def test_a_jacobian_lens_of_the_rule():
    lm, averaging = LanguageModel(tiny_model("gpt2")), Averaging(skip=4, backward="frozen")
    lens = estimate_jacobian_lens(lm, [PROMPT.tolist()], averaging=averaging)
    with backward_rule("frozen"):
        expected = text_jacobian(lm, PROMPT, Averaging(skip=4))
    torch.testing.assert_close(lens.at(0), expected[0])
    assert relative_error(lens.at(0), text_jacobian(lm, PROMPT, Averaging(skip=4))[0]) > 0.1
    assert lens.origin.averaging == averaging
