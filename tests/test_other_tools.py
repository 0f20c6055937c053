"""Hidden states and runs of other tools: plain hooks, nnsight and TransformerLens, against our own.

`make other-tools` installs nnsight and TransformerLens in an environment of their own, and runs these.
"""

import copy

import pytest
import torch

from lre_lightning import JacobianLens, LanguageModel, LRECollection, LREError
from lre_lightning.concepts.concepts import Concepts
from lre_lightning.lens.reading import TextStates
from lre_lightning.lre.editing import hidden_at
from lre_lightning.lre.moving import Coordinates, move_prompt, put
from lre_lightning.models.hooks import replace

RELATION = "country capital city"
CASES = {"demo": ("The capital of Canada is", "Peru"), "smollm2": ("The capital city of France is", "Japan")}
CLOSE = {"rtol": 1e-4, "atol": 2e-4}
"""TransformerLens computes the norms and the attention of its bridge itself: SmolLM2's states differ by 5e-5."""


class PlainHooks:
    def __init__(self, lm):
        self.model = lm.model

    def states(self, ids, layers):
        found = {}
        handles = [
            self.model.model.layers[layer].register_forward_hook(
                lambda _module, _inputs, output, layer=layer: found.update({layer: output})
            )
            for layer in layers
        ]
        self.model(ids)
        for handle in handles:
            handle.remove()
        return found

    def logits(self, ids, layers, edit):
        handles = [
            replace(self.model.model.layers[layer], lambda hidden, layer=layer: edit(hidden, layer)) for layer in layers
        ]
        logits = self.model(ids).logits
        for handle in handles:
            handle.remove()
        return logits


class NNsight(PlainHooks):
    def __init__(self, lm):
        nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed: make other-tools")
        self.model = nnsight.NNsight(lm.model)

    def states(self, ids, layers):
        found = {}
        with self.model.trace(ids):
            for layer in layers:
                found[layer] = self.model.model.layers[layer].output.save()
        return found

    def logits(self, ids, layers, edit):
        with self.model.trace(ids):
            for layer in layers:
                block = self.model.model.layers[layer]
                block.output = edit(block.output, layer)
            logits = self.model.lm_head.output.save()
        return logits  # noqa: RET504 - nnsight ends the trace first


class TransformerLens(PlainHooks):
    def __init__(self, lm):
        reason = "TransformerLens is not installed: make other-tools"
        bridge = pytest.importorskip("transformer_lens.model_bridge", reason=reason).TransformerBridge
        model = copy.deepcopy(lm.model)  # which the bridge wraps in place
        self.model = bridge.boot_transformers(lm.name, hf_model=model, tokenizer=lm.tokenizer, device="cpu")

    def states(self, ids, layers):
        _, cache = self.model.run_with_cache(ids)
        return {layer: cache[f"blocks.{layer}.hook_resid_post"] for layer in layers}

    def logits(self, ids, layers, edit):
        return self.model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.hook_resid_post", edit) for layer in layers])


@pytest.fixture(scope="module")
def language_models():
    return {}


@pytest.fixture(params=["demo", pytest.param("smollm2", marks=pytest.mark.real)])
def lre(request, language_models):
    name = request.param
    if name not in language_models:
        lm = language_models[name] = LanguageModel.from_pretrained(name)
        lm.case = CASES[name]
    lres = LRECollection.from_pretrained(name)
    return next(lre for (relation, _), lre in lres.items() if relation == RELATION).bind(language_models[name])


@pytest.fixture(params=[PlainHooks, NNsight, TransformerLens])
def tool(request, lre):
    return request.param(lre.lm)


@torch.no_grad()
def test_hidden_states_of_other_tools_are_read_like_our_own(lre, tool):
    lm, (text, _) = lre.lm, lre.lm.case
    own = TextStates.of(lm, lm.tokenizer, text, start_token=lre.origin.form["start_token"])
    (prompt,) = lre.origin.asked(lm, "{} is", text.removesuffix(" is"))
    layers = range(lm.num_layers)
    found = tool.states(torch.tensor([prompt.input_ids]), layers)
    states = torch.stack([found[layer][0, prompt.start :] for layer in layers])
    torch.testing.assert_close(states, own.hidden[1:], **CLOSE)

    place = prompt.subject_position - prompt.start
    s, ours = states[lre.layer, place], own.hidden[1 + lre.layer, place]
    torch.testing.assert_close(lre(s), lre(ours), **CLOSE)
    assert [text for text, _ in lre.predict_from(s)] == [text for text, _ in lre.predict_from(ours)]
    grid = TextStates(lm, lm.tokenizer, text, own.ids, [*layers], states).grid(lre, 1)
    expected = own.grid(lre, 1)
    assert grid.top == expected.top[1:]
    torch.manual_seed(0)
    concepts = Concepts(
        ("a", "b"), torch.randn(2, lm.hidden_size), lre.layer, 1, lm.num_layers - 1, "first", lre.origin
    )
    assert concepts.classify(states[lre.layer]) == concepts.classify(own.hidden[1 + lre.layer])
    lens = JacobianLens({lre.layer: torch.randn(lm.hidden_size, lm.hidden_size) / lm.hidden_size}, n_prompts=1)
    torch.testing.assert_close(lens(s, lre.layer), lens(ours, lre.layer), **CLOSE)


@torch.no_grad()
def test_edits_and_moves_are_hooks_of_other_tools(lre, tool):
    lm, (text, target) = lre.lm, lre.lm.case
    edit = lre.edit_prompt(text, target)
    ids = torch.tensor([edit.prompt.input_ids])
    plain = lm.model(ids).logits
    with edit.active():
        expected = lm.model(ids).logits
    assert (expected - plain).abs().max() > 1
    torch.testing.assert_close(tool.logits(ids, [lre.layer], edit), expected, rtol=0, atol=1e-3)

    last = lm.num_layers - 1
    asked = [lre.origin.asked(lm, "{}", one)[0] for one in (text, text.replace(edit.prompt.subject, target))]
    o, wanted = (tool.states(torch.tensor([prompt.input_ids]), [last])[last][0, -1] for prompt in asked)
    hook = lre.hook(o, wanted, edit.position)
    by_hand = tool.logits(ids, [lre.layer], lambda hidden, layer=None, hook=None, own=hook: own(hidden, hook=hook))
    torch.testing.assert_close(by_hand, expected, rtol=0, atol=0.02)
    assert torch.equal(hook(o[None]), o[None])  # a step of a generation with a cache

    layers = [lre.layer - 1, lre.layer]
    coordinates = Coordinates.of_lre(lre, layers)
    prompt = edit.prompt
    move = move_prompt(lm, prompt, coordinates, put(coordinates(hidden_at(lm, prompt, last, -1), lre.layer)))
    with move.active():
        moved = lm.model(ids).logits
    assert (moved - expected).abs().max() > 1
    torch.testing.assert_close(tool.logits(ids, layers, move), moved, rtol=0, atol=1e-3)


def test_one_hidden_state_is_asked_for(lre):
    with pytest.raises(LREError, match=r"takes one hidden state, \[\d+\], not \[2, \d+\]"):
        lre.predict_from(torch.zeros(2, lre.width))
    with pytest.raises(LREError, match="position must be a whole number of at least 0, got -1"):
        lre.hook(torch.zeros(lre.width), torch.zeros(lre.width), -1)
