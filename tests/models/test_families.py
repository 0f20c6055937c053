"""All supported families, each a tiny random model in float64, against plain runs of transformers' own code."""

from itertools import cycle
from pathlib import Path

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian, sweep
from lre_lightning.models.activations import one_slope_for_all_lanes
from lre_lightning.models.backward import check_backward
from lre_lightning.models.caches import Joined
from lre_lightning.models.language_model import LanguageModel
from scripts.models.__main__ import attempt
from tests.helpers.tiny_models import (
    FAMILIES,
    LAYERS,
    PROMPTS,
    STREAMS,
    SUBJECTS,
    UNSHARED,
    VOCAB,
    WAYS,
    WIDTH,
    batch_of,
    plain_output,
    tiny_model,
    widen_casts,
)
from tests.lre.test_jacobian import PROMPT, check_jacobian, plain_jacobians, relative_error
from tests.models.test_backward import REFUSED

ROOT = Path(__file__).parents[2]
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}
IDS = torch.arange(20).reshape(2, 10) * 7 % VOCAB
CONTEXT = torch.arange(9) * 7 % VOCAB  # longer than the sliding window of 6
MORE = torch.tensor([[3, 50, 8], [60, 61, 9]])
SUFFIX = torch.tensor([[11, 12], [13, 14], [15, 16], [17, 18]])  # two for each row of MORE


@pytest.fixture(scope="module", params=[*FAMILIES, *UNSHARED, *STREAMS])
def lm(request):
    with pytest.MonkeyPatch.context() as monkeypatch:
        widen_casts(monkeypatch, request.param)
        lm = LanguageModel(tiny_model(request.param), name=request.param)
        assert lm.way == WAYS[request.param]
        yield lm


shared = pytest.mark.parametrize("lm", FAMILIES, indirect=True)
"""The families in which a prefix is shared."""


@pytest.fixture
def joins(monkeypatch):
    """The joins of keys or values that were computed."""
    found, join = [], Joined.tensor
    monkeypatch.setattr(Joined, "tensor", lambda joined: found.append(joined) or join(joined))
    return found


@shared
@torch.no_grad()
def test_hidden_states_and_logits_are_those_of_transformers(lm):
    expected = lm.model(IDS, output_hidden_states=True)
    found = lm.hidden_states(IDS, lm.layers)
    for index in range(LAYERS - 1):  # the last of transformers' hidden states has gone through the final norm
        torch.testing.assert_close(found[index], expected.hidden_states[index + 1], rtol=1e-12, atol=1e-12)
    assert torch.equal(found["emb"], lm.model.get_input_embeddings()(IDS))
    torch.testing.assert_close(lm.decode(found[LAYERS - 1]), expected.logits, rtol=1e-12, atol=1e-12)
    # A control: without the final norm, or without the soft cap, D is something else.
    assert not torch.allclose(lm.model.get_output_embeddings()(found[LAYERS - 1]), expected.logits, rtol=1e-3)
    assert lm.layers == ("emb", 0, 1, 2)
    assert (lm.hidden_size, lm.vocab_size, lm.num_layers) == (WIDTH, VOCAB, LAYERS)
    padded = torch.cat([IDS[:, :6], torch.zeros(2, 4, dtype=torch.long)], dim=1)
    torch.testing.assert_close(lm(padded)[:, :6], lm(IDS[:, :6]), **TOLERANCE)


@torch.no_grad()
def check_suffix(lm, suffix, prompts, *prefixes):
    """Compare a suffix run after prefixes with whole prompts, twice: the first run must not change the prefix."""
    expected = lm.hidden_states(prompts, lm.layers)
    for prefix in prefixes * 2:
        found = lm.hidden_states(suffix, lm.layers, prefix)
        for layer in lm.layers:
            torch.testing.assert_close(found[layer], expected[layer][:, -suffix.shape[1] :], **TOLERANCE)
    assert not torch.allclose(expected[0][0], expected[0][-1])


@shared
def test_a_suffix_on_one_shared_prefix_equals_whole_prompts(lm, joins):
    check_suffix(lm, SUFFIX, torch.cat([CONTEXT.expand(4, -1), SUFFIX], 1), lm.prefix(CONTEXT[None]))
    joins = [joined for joined in joins if joined.shape[0] == 4]
    assert bool(joins) == (lm.name == "bloom")  # which calls baddbmm


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt_neo", "llama", "gemma2"])
def test_eager_attention_does_not_compute_the_join_either(monkeypatch, family, joins):
    widen_casts(monkeypatch, family)
    lm = LanguageModel(tiny_model(family, attn_implementation="eager"))
    assert lm.model.config._attn_implementation == "eager"
    context, joins[:] = lm.prefix(CONTEXT[None]), []
    check_suffix(lm, SUFFIX, torch.cat([CONTEXT.expand(4, -1), SUFFIX], 1), context)
    assert not joins


def test_prefixes_that_grow_equal_whole_prompts(lm):
    if not lm.shares_prefix:
        pytest.skip("it runs whole prompts")
    context = lm.prefix(CONTEXT[None])
    longer = torch.cat([CONTEXT.expand(2, -1), MORE], 1)
    prompts = torch.cat([longer.repeat_interleave(2, 0), SUFFIX], 1)
    grown = lm.prefix(MORE, context)
    twice = lm.prefix(MORE[:, 1:], lm.prefix(MORE[:, :1], context))
    check_suffix(lm, SUFFIX, prompts, grown, twice)
    check_suffix(lm, SUFFIX[2:], prompts[2:], grown.select(torch.tensor([1])))
    assert (grown.count, grown.length, context.length) == (2, 12, 9)


@torch.no_grad()
def test_patched_runs_equal_a_plain_hook_on_whole_prompts(lm):
    new = torch.randn(3, 2, lm.hidden_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = batch_of(lm)
    subject, output = batch.hidden_states(lm.layers)
    for row, (prompt, position) in enumerate(zip(PROMPTS, SUBJECTS, strict=True)):
        whole = lm.hidden_states(torch.tensor([prompt]), lm.layers)
        expected = torch.stack([whole[layer][0, position] for layer in lm.layers])
        torch.testing.assert_close(subject[row], expected, **TOLERANCE)
        torch.testing.assert_close(output[row], whole[LAYERS - 1][0, -1], **TOLERANCE)
    for column, layer in enumerate(lm.layers):
        lm.chunk_size = (2, 64)[column % 2]
        patched = batch.patched(layer, new)
        for row, (prompt, position) in enumerate(zip(PROMPTS, SUBJECTS, strict=True)):
            if row in (column % 3, 2):
                expected = plain_output(lm, prompt, position, layer, new[row, row % 2])
                torch.testing.assert_close(patched[row, row % 2], expected, **TOLERANCE)
                # At the last block only the last token reaches o, which is not the subject's. Keys may be older.
                unused = (LAYERS - 1,) if lm.name != "gemma4_shared_keys" else (LAYERS - 2, LAYERS - 1)
                assert torch.allclose(expected, output[row]) == (layer in unused)
    chosen = batch.select(torch.tensor([2, 0])).patched(lm.layers[1], new[[2, 0]])
    torch.testing.assert_close(chosen, batch.patched(lm.layers[1], new)[[2, 0]], **TOLERANCE)
    torch.testing.assert_close(batch.patched(lm.layers[1], subject[:, 1, None])[:, 0], output, **TOLERANCE)


@torch.no_grad()
def test_continued_runs_equal_a_plain_hook_on_whole_prompts(lm):
    rows, tokens = torch.tensor([1, 0, 1]), torch.tensor([[4, 5], [80, 7], [8, 9]])
    lm.chunk_size = 2
    new = torch.randn(3, lm.hidden_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = batch_of(lm).continued(1, new, rows, tokens, lambda outputs, some: outputs + some.start)
    for run, row in enumerate(rows.tolist()):
        for place in (0, 1):
            ids = [*PROMPTS[row], *tokens[run, : place + 1].tolist()]
            expected = plain_output(lm, ids, SUBJECTS[row], 1, new[row]) + (0, 0, 2)[run]
            torch.testing.assert_close(found[run, place], expected, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("lm", ["deepseek_v4", "hy_v4", "gemma3n"], indirect=True)
def test_streams_are_side_by_side(lm):
    name, seen = lm.name, []
    embedding, block = lm.model.get_input_embeddings(), lm.module_at(1)
    hook = block.register_forward_hook(lambda *given: seen.append(given[2]))
    logits = lm.model(IDS).logits
    hook.remove()
    streams = seen[0][0] if name == "hy_v4" else seen[0]
    streams = streams.unbind(0 if name == "gemma3n" else 2)
    assert (len(streams), lm.layers, lm.hidden_size) == (3, (0, 1, 2), 3 * WIDTH)
    found = lm.hidden_states(IDS, lm.layers)
    assert torch.equal(found[1], torch.cat(streams, -1))
    torch.testing.assert_close(lm.decode(found[2]), logits, rtol=1e-12, atol=1e-12)
    with pytest.raises(LREError, match=f"layer 'emb' is out of range: {name} has the layers 0 to 2"):
        lm.check_layers(["emb"])
    # A row of the unembedding becomes the streams that a token's embedding becomes.
    before = embedding.weight.clone()
    embedding.weight[7] = lm.model.get_output_embeddings().weight[9] / getattr(embedding, "scalar_embed_scale", 1)
    hook = lm.module_at(0).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    lm.model(torch.tensor([[7]]))
    hook.remove()
    embedding.weight.copy_(before)
    expected = torch.cat([one.reshape(-1) for one in seen[-1].unbind(0 if name == "gemma3n" else 2)])
    torch.testing.assert_close(lm.unembedding(torch.tensor([[9], [9]])), expected.expand(2, 1, -1), **TOLERANCE)


POSITIONS = dict(zip([*FAMILIES, *UNSHARED, *STREAMS], cycle(((9,), (13,))), strict=False))
POSITIONS |= dict.fromkeys(("gpt2", "llama", "bloom"), (9, 13, 0))
"""Of subjects, of the families in turn: in the middle, at the end, and with no token before it."""


def test_jacobians_are_those_of_whole_prompts(lm):
    lm.chunk_size = 6  # does not divide the width
    for position in POSITIONS[lm.name]:
        check_jacobian(lm, position, 1e-9)


@pytest.mark.parametrize("lm", ["gpt2", "gemma2", "openai", "mamba", "qwen3_next"], indirect=True)
def test_object_at_another_layer_and_over_several_tokens(lm):
    lm.chunk_size = 6
    for target in ((1, 1), (1, 3), (2, 3), ("emb", 5)):
        object_layer, tokens = target
        result = prompt_jacobian(lm, PROMPT, 9, object_layer=object_layer, object_tokens=tokens)
        assert lm.layers[: lm.layers.index(object_layer) + 1] == tuple(result.jacobian)
        output, plain = plain_jacobians(lm, PROMPT, 9, *target)
        for layer, (expected, _) in plain.items():
            assert expected.any() == (object_layer != layer or tokens == 5)
            assert relative_error(result.jacobian[layer], expected) < 1e-9, (target, layer)
            assert relative_error(result.object, output) < 1e-9


@pytest.mark.parametrize("lm", ["gpt2", "mixtral", "openai", "mamba", "lfm2"], indirect=True)
def test_prompts_of_one_shape_share_a_sweep(lm):
    lm.chunk_size = None
    prompts = torch.stack([PROMPT, (PROMPT + 5) % 97, PROMPT.flip(0)])
    alone = [prompt_jacobian(lm, ids, 9, ["emb", 1]) for ids in prompts]
    for chunk_size in (7, 100):
        lm.chunk_size = chunk_size
        found = sweep(lm, prompts, range(9, 10), range(13, 14), ["emb", 1])
        for example, one in zip(found, alone, strict=True):
            for layer in ("emb", 1):
                assert relative_error(example.jacobian[layer], one.jacobian[layer]) < 1e-9
                assert relative_error(example.bias(layer), one.bias(layer)) < 1e-9
        assert relative_error(found[0].jacobian[1], found[1].jacobian[1]) > 1e-3


@pytest.mark.parametrize("lm", REFUSED, indirect=True)
def test_blocks_without_attention_weights_refuse_the_frozen_rule(lm):
    with pytest.raises(
        LREError, match=rf"{lm.name} cannot run with backward 'frozen': a block, \w+, shows no weights of"
    ):
        check_backward(lm, "frozen")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.modules())


@shared
def test_activations_are_found(lm):
    with one_slope_for_all_lanes(lm, 3, 3, 2):
        found = sum("forward" in vars(module) for module in lm.modules())
    assert found >= lm.num_layers * (lm.name != "bloom")  # which has a class of its own


@pytest.mark.parametrize(
    ("family", "change"),
    [
        *((name, {"sliding_window": 64}) for name, (_, options) in FAMILIES.items() if "sliding_window" in options),
        ("gpt_neo", {"window_size": 64}),
        ("falcon_alibi", {"alibi": False}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("cohere", {"logit_scale": 1.0}),
        ("granite", {"logits_scaling": 1.0}),
    ],
    ids=str,
)
def test_the_options_of_a_family_change_its_tiny_model(family, change):
    """With a misspelt option, or a prompt shorter than the window, the tests of that family would prove nothing."""
    with torch.no_grad():
        logits, others = (tiny_model(family, **options)(IDS).logits for options in ({}, change))
    assert not torch.allclose(logits, others, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("llama4_text", "works, shared prefix"),
        ("minimax", "works, copied prefix"),  # with states beside the layers of its cache
        ("bert", "refused: its hidden states depend on later tokens, so it is not a decoder-only LM"),
    ],
)
def test_the_table_of_all_types_says_what_a_tiny_model_does(kind, outcome):
    found, _, in_16_bits = attempt(kind)
    assert found == outcome
    assert in_16_bits == "refused" if outcome.startswith("refused") else 1e-3 < float(in_16_bits.split(", ")[-1]) < 0.1
    assert f"| {kind} | {outcome} |" in (ROOT / "docs" / "models.md").read_text()
