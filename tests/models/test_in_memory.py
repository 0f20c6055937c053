"""An LM that is already in memory, in a training loop or elsewhere: what it computes, and that it is left as it was."""

from dataclasses import replace

import pytest
import torch
from accelerate import cpu_offload, dispatch_model

from lre_lightning import Averaging, estimate, estimate_concepts, estimate_jacobian_lens, read_lenses
from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.relations.relation import Relation, Sample
from tests.helpers.tiny_models import tiny_model
from tests.helpers.toy import OBJECTS, SUBJECTS, WORDS, toy_tokenizer

peft = pytest.importorskip("peft")

SAMPLES = tuple(Sample(subject, OBJECTS[i % len(OBJECTS)]) for i, subject in enumerate(SUBJECTS))
COLOURS = Relation("thing colour", "factual", ("{} colour",), (), "thing", "colour", False, SAMPLES)
TOKENIZER = toy_tokenizer()
MODULES = {"layers_to_transform": [0, 1], "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}


def in_training(dtype=torch.float64, dropout=0.5):
    """An LM as a user trains it: with dropout, gradients, a frozen part, a block in eval mode and a hook."""
    options = {"vocab_size": len(WORDS), "bos_token_id": 0, "resid_pdrop": dropout, "embd_pdrop": dropout}
    model = tiny_model("gpt2", dtype, attn_pdrop=dropout, tie_word_embeddings=False, **options)
    model.train()
    model.transformer.h[1].eval()
    model.transformer.wpe.requires_grad_(False)
    model(torch.tensor([[0, 5, 6]])).logits.sum().backward()
    model.lm_head.register_forward_hook(lambda *_: None)
    return model


def with_lora(model, wrapper=True):
    """The same with a LoRA whose weights are not the initial ones, around it or only in its layers."""
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, lora_dropout=0.5, modules_to_save=["lm_head"], **MODULES)
    tuned = peft.get_peft_model(model, config) if wrapper else peft.inject_adapter_in_model(config, model)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            parameter.data.normal_(std=0.3)
    return tuned


def never(*_):
    """A backend of `torch.compile`, which an estimate must not call: it runs the plain code."""
    raise AssertionError("compiled")


def in_place(model):
    model.compile(backend=never)
    return model


FORMS = {
    "plain": lambda model: model,
    "LoRA": with_lora,
    "LoRA inside": lambda model: with_lora(model, wrapper=False),
    "compiled": lambda model: torch.compile(model, backend=never),
    "compiled in place": in_place,
    "compiled LoRA": lambda model: torch.compile(with_lora(model), backend=never),
    "placed": lambda model: dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True),
    "offloaded": lambda model: cpu_offload(model, "cpu"),
}


@pytest.fixture(scope="module")
def expected():
    """The LREs of plain LMs in eval mode, without and with a LoRA that is merged into the weights."""
    models = [in_training(dropout=0), with_lora(in_training(dropout=0)).merge_and_unload()]
    return [estimate(model.eval().requires_grad_(False), TOKENIZER, COLOURS, 0, 3) for model in models]


def state(model):
    """All that an estimate must leave as it was, module by module and parameter by parameter."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    modules = [
        (m.training, id(vars(m).get("forward")), id(m._compiled_call_impl), *(tuple(vars(m)[name]) for name in hooks))
        for m in model.modules()
    ]
    return modules, [(name, p.requires_grad, id(p.grad)) for name, p in model.named_parameters()]


@pytest.mark.parametrize("name", FORMS)
def test_an_lm_in_training_gives_the_lre_of_its_copy_at_rest_and_is_left_as_it_was(name, expected):
    model, wanted = FORMS[name](in_training()), expected["LoRA" in name]
    before = state(model)
    assert {kept[0] for kept in before[0]} == {kept[1] for kept in before[1]} == {True, False}
    method = "matrix_free" if name == "compiled in place" else "dense"
    found = estimate(model, TOKENIZER, COLOURS, 0, 3, method=method)
    states = torch.randn(4, found.width, dtype=torch.float64)
    torch.testing.assert_close(found(states), wanted(states), rtol=1e-9, atol=1e-9)
    said, right = (dict(lre.predict("thing3", top_k=len(WORDS))) for lre in (found, wanted))
    assert said == pytest.approx(right, rel=1e-9)
    assert found.origin.adapter == ("default" if name in ("LoRA", "compiled LoRA") else None)
    assert state(model) == before


def test_an_exception_leaves_it_as_it_was_too():
    model = in_training()
    before = state(model)
    lm = LanguageModel(model)
    for where in (model.transformer.h[1], model.lm_head):
        with pytest.raises(ZeroDivisionError), where.register_forward_hook(lambda *_: 1 / 0):
            lm.decode(lm(torch.tensor([[0, 5]])))
        assert state(model) == before
    with pytest.raises(LREError, match="not supported"), model.lm_head.register_forward_hook(lambda *_: 1 / 0):
        estimate(model, TOKENIZER, COLOURS, 0, 3)
    assert state(model) == before


def test_an_lm_of_this_package_stays_at_rest_in_a_module_that_trains():
    lm = LanguageModel.from_pretrained("demo")
    torch.nn.Sequential(lm).train()
    assert not any(module.training for module in lm.modules())
    assert not any(parameter.requires_grad for parameter in lm.parameters())
    torch.nn.Sequential(LanguageModel(model := in_training())).eval()
    assert model.training  # left to its owner


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_an_adapter_around_the_lm_is_refused(kind):
    tuned = peft.get_peft_model(in_training(), getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(
        LREError, match=r"the adapter of this PeftModelForCausalLM works around the LM, such as a learn"
    ):
        LanguageModel(tuned)


@pytest.mark.parametrize("whole", [True, False])
def test_rows_of_an_unembedding_with_an_adapter_are_those_of_the_merged_one(whole):
    config = {"modules_to_save": ["lm_head"]} if whole else {"target_modules": ["c_attn", "lm_head"]}
    tuned = peft.get_peft_model(in_training(), peft.LoraConfig(r=2, lora_dropout=0.5, **MODULES | config))
    for parameter in tuned.parameters():
        parameter.data += 0.1
    ids = torch.tensor([[3, 9], [4, 31]])
    found, plain = LanguageModel(tuned).unembedding(ids), LanguageModel(tuned.merge_and_unload()).unembedding(ids)
    torch.testing.assert_close(found, plain)


def test_other_functions_take_it_too_and_say_what_is_missing():
    model = in_training(torch.bfloat16)
    before = state(model)
    lre = estimate(model, TOKENIZER, COLOURS, layer=1, n_shot=3)
    assert lre.weight.dtype == torch.float32
    ids = [[0, 5, 6, 7, 8], [0, 9, 10, 11, 12]]
    lens = estimate_jacobian_lens(model, ids, layers=[1], averaging=Averaging(skip=1))
    grids = read_lenses(model, TOKENIZER, "thing3 colour", {("thing colour", 0): lre}, jacobian_lens=lens)
    assert [grid.name for grid in grids] == ["thing colour", "Jacobian lens", "logit lens"]
    assert replace(lre, lm=None).bind(model, TOKENIZER).predict("thing1") == lre.predict("thing1")
    assert state(model) == before
    message = (
        r"estimate takes a LanguageModel, or a model and its tokenizer: estimate\(model, tokenizer, ...\), not GPT2LM"
    )
    for rest in (["country capital city"], []):
        with pytest.raises(LREError, match=message):
            estimate(model, *rest, layer=1)
    with pytest.raises(LREError, match="estimate_concepts takes a LanguageModel, or a model and its tokenizer"):
        estimate_concepts(model, "country capital city")
