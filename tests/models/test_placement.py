"""LMs on several devices or offloaded, against the same LM in one place."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights, load_checkpoint_and_dispatch
from torch import Tensor
from transformers import AutoModelForCausalLM

import lre_lightning.lre.jacobian as engine
import lre_lightning.models.memory as memory
from lre_lightning.errors import LREError
from lre_lightning.lens.reading import read_lenses
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.measures import Baselines, LineIntegrals
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.models.products import vjp
from lre_lightning.training.module import LREModule
from tests.helpers.split_devices import CPU, FAR, NEAR, SplitDevices, places, split
from tests.helpers.tiny_models import FAMILIES, LAYERS, PROMPTS, SUBJECTS, WAYS, WIDTH, batch_of, tiny_model
from tests.helpers.toy import toy_tokenizer, write_toy_model, write_toy_relations
from tests.training.test_module import GRID, data_of, trainer_of


def everything(lm, new_device="cpu"):
    """Return all that LREs need from an LM, by name; s is replaced by values on `new_device`."""
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(3, 2, lm.hidden_size, generator=generator, dtype=torch.float64).to(new_device)
    u = torch.randn(3, lm.hidden_size, generator=generator, dtype=torch.float64)
    around = prompt_jacobian(lm, torch.tensor(PROMPTS[2]), SUBJECTS[2])
    batch = batch_of(lm)
    subject, output = batch.hidden_states(lm.layers)
    found = {"s": subject, "o": output, "o of the prompt": around.object, "D": lm.decode(output)}
    found |= {"answers": lm.predict(output), "rows": lm.unembedding(torch.arange(9))}
    for layer in lm.layers:
        found |= {f"J {layer}": around.jacobian[layer], f"s of the prompt {layer}": around.subject[layer]}
    for layer in lm.layers[::2]:
        found[f"patched {layer}"] = batch.patched(layer, new)
        found[f"pullback {layer}"] = batch.pullback(layer, new, u)
        found[f"J^T u {layer}"] = batch.products(layer, u[:, None], vjp)
    rows = [2, 0, 0, 1, 2]
    joined = PromptBatch.join([batch.select(torch.tensor(rows[:2], device=new_device)), batch])
    lm.chunk_size = 4
    found["patched, joined, in chunks"] = joined.patched(0, new[rows])
    found["pullback, joined, in chunks"] = joined.pullback(0, new[rows], u[rows])
    lm.chunk_size = None
    return found


def check_equal(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].cpu(), value.cpu(), msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


def check_same(lm, plain, expected):
    check_equal(everything(lm), expected, rtol=1e-12, atol=1e-12)
    assert lm.identity == plain.identity
    assert (lm.dtype, lm.vocab_size) == (plain.dtype, plain.vocab_size)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_what_the_cpu_gives(family):
    lm = LanguageModel(tiny_model(family))
    expected = everything(lm)
    check_equal(everything(lm.cuda(), "cuda"), expected, rtol=1e-5, atol=1e-5)


class Saved(NamedTuple):
    """An LM in a folder, the same LM in one place with its results, and the names of its embedding and blocks."""

    folder: str
    plain: LanguageModel
    expected: dict[str, Tensor]
    embedding: str
    blocks: list[str]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def saved(request, tmp_path_factory):
    """GPT-2 ties its unembedding to its embedding, Llama does not."""
    folder = tmp_path_factory.mktemp("saved")
    tiny_model(request.param, torch.float32).save_pretrained(folder)
    plain = LanguageModel.from_pretrained(str(folder), dtype="float64")
    names = {module: name for name, module in plain.model.named_modules()}
    blocks = [names[plain.module_at(index)] for index in range(LAYERS)]
    return Saved(str(folder), plain, everything(plain), names[plain.module_at("emb")], blocks)


tied = pytest.mark.parametrize("saved", ["gpt2"], indirect=True)
ON_DISK = {
    "a block": lambda emb, blocks: blocks[1:2],
    "the vocabulary": lambda emb, blocks: [emb, "lm_head"],
}


@pytest.mark.parametrize(
    ("saved", "name"),
    [("gpt2", "auto"), ("gpt2", "the vocabulary"), ("llama", "disk"), ("llama", "a block")],
    indirect=["saved"],
)
def test_an_lm_gives_the_same_results_wherever_its_parts_are(saved, name):
    folder, plain, expected, emb, blocks = saved
    device_map = places(plain.model, ON_DISK[name](emb, blocks), "disk", "cpu") if name in ON_DISK else name
    lm = LanguageModel.from_pretrained(folder, dtype="float64", device_map=device_map)
    assert bool(lm.offloaded) == (name != "auto")
    check_same(lm, plain, expected)
    if name == "auto":  # with less memory than it takes
        most = {"cpu": int(0.7 * sum(parameter.nbytes for parameter in plain.parameters()))}
        lm = LanguageModel.from_pretrained(folder, dtype="float64", device_map="auto", max_memory=most)
        assert set(lm.model.hf_device_map.values()) == {"cpu", "disk"}
        check_same(lm, plain, expected)


@pytest.mark.parametrize(("family", "changes"), [("mamba", {}), ("lfm2", {"layer_types": ["conv", "full_attention"]})])
def test_copied_prefixes_give_the_same_results_with_an_offloaded_block(tmp_path, family, changes):
    tiny_model(family, torch.float32, num_hidden_layers=2, **changes).save_pretrained(tmp_path)
    plain = LanguageModel.from_pretrained(str(tmp_path), dtype="float64")
    names = {module: name for name, module in plain.model.named_modules()}
    device_map = places(plain.model, [names[plain.module_at(0)]], "disk", "cpu")
    lm = LanguageModel.from_pretrained(str(tmp_path), dtype="float64", device_map=device_map)
    assert lm.offloaded
    assert lm.way == plain.way == WAYS[family]
    check_equal(everything(lm), everything(plain), rtol=1e-9, atol=1e-9)


def test_weights_that_are_stored_in_another_form_need_an_offload_folder(tmp_path):
    """Experts are stored one by one and used as one tensor."""
    tiny_model("mixtral", torch.float32).save_pretrained(tmp_path / "saved")
    plain = LanguageModel.from_pretrained(str(tmp_path / "saved"))
    with pytest.raises(LREError, match="Please provide an `offload_folder`"):
        LanguageModel.from_pretrained(str(tmp_path / "saved"), device_map="disk")
    folder = str(tmp_path / "offload")
    lm = LanguageModel.from_pretrained(str(tmp_path / "saved"), device_map="disk", offload_folder=folder)
    assert list((tmp_path / "offload").iterdir())
    assert torch.equal(lm(torch.tensor(PROMPTS[:1])), plain(torch.tensor(PROMPTS[:1])))
    for one in (lm, plain):
        one.model.config._experts_implementation = "eager"  # an expert at a time: a graph keeps views of the weights
    jacobians = [prompt_jacobian(one, torch.tensor(PROMPTS[0]), SUBJECTS[0]).jacobian for one in (lm, plain)]
    check_equal(*jacobians, rtol=1e-5, atol=1e-6)


@tied
def test_a_model_that_accelerate_dispatched(saved):
    folder, plain, expected, emb, _ = saved
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(plain.model.config, dtype=torch.float64)
    with pytest.raises(LREError, match=r"empty has no values for its \S+\.weight, which is on the meta device: load"):
        LanguageModel(model, name="empty")
    model.tie_weights()
    places = {emb.split(".")[0]: "cpu", "lm_head": "cpu"}
    check_same(LanguageModel(load_checkpoint_and_dispatch(model, folder, places, dtype=torch.float64)), plain, expected)


@tied
def test_a_model_that_accelerate_offloaded(saved, tmp_path):
    for offload in (cpu_offload, partial(disk_offload, offload_dir=tmp_path / "offload")):
        model = AutoModelForCausalLM.from_pretrained(saved.folder, dtype=torch.float64)
        offload(model, execution_device=CPU)
        lm = LanguageModel(model)
        assert lm.offloaded
        check_same(lm, saved.plain, saved.expected)


@tied
def test_a_graph_does_not_keep_offloaded_weights(saved, monkeypatch):
    plain, lm = saved.plain, LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map="disk")
    for one in (lm, plain):
        one.lane_bytes.clear()
        prompt_jacobian(one, torch.tensor(PROMPTS[2]), SUBJECTS[2])
    (kept,), (expected,) = lm.lane_bytes.values(), plain.lane_bytes.values()
    assert kept < 1.3 * expected  # an allocator that hands out an address again makes either smaller
    assert kept < sum(parameter.nbytes for parameter in plain.parameters())
    monkeypatch.setattr(engine, "slim_graph", lambda _, note=None: memory.slim_graph((), note))
    lm.lane_bytes.clear()
    prompt_jacobian(lm, torch.tensor(PROMPTS[2]), SUBJECTS[2])
    assert next(iter(lm.lane_bytes.values())) > 2 * kept  # a control: what it keeps without that


@tied
def test_a_pullback_loads_offloaded_weights_again(saved, monkeypatch):
    lm = LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map="disk")
    batch, loaded, at_hand = batch_of(lm), [], memory.weights_at_hand
    batch.patched(0, torch.zeros(3, 1, WIDTH))
    monkeypatch.setattr(memory, "weights_at_hand", lambda module: loaded.append(module) or at_hand(module))
    batch.pullback(0, torch.zeros(3, 1, WIDTH), torch.ones(3, WIDTH))
    assert {id(module) for module in loaded} <= {id(module) for module in lm.offloaded}
    assert len(loaded) > 2 * (LAYERS - 1)


def test_offloaded_weights_are_loaded_for_as_many_rows_as_fit(tmp_path, monkeypatch):
    tiny_model("gpt2", torch.float32, n_embd=80).save_pretrained(tmp_path)
    monkeypatch.setattr(engine, "NUMBERS_AT_A_TIME", {"cpu": 40 * 80})
    lanes = {}
    for place in ("cpu", "disk"):
        lm = LanguageModel.from_pretrained(str(tmp_path), device_map=place)
        lanes[place] = engine._fitting_lanes(lm, torch.tensor([[1, 2]]), None, lm.layers)
    assert lanes == {"cpu": 40, "disk": 80}


@tied
def test_an_lm_with_a_device_map_stays_where_it_is_and_cannot_be_cast(saved):
    device_map = places(saved.plain.model, saved.blocks[1:2], "disk", "cpu")
    lm = LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map=device_map)
    before = {name: parameter.device.type for name, parameter in lm.named_parameters()}
    assert set(before.values()) == {"cpu", "meta"}
    for one in (lm, LREModule(lm)):
        one.cpu()
        one.to("meta")
        with pytest.raises(LREError, match="quantized or on several devices, and cannot be cast: load it in that"):
            one.half()
    lm.double()  # its own dtype
    assert {name: parameter.device.type for name, parameter in lm.named_parameters()} == before
    assert torch.equal(lm(torch.tensor(PROMPTS[:1])), saved.plain(torch.tensor(PROMPTS[:1])))
    assert LanguageModel.from_pretrained(saved.folder, device_map="cpu").bfloat16().dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_map": {"": "cuda:99"}}, "no decoder-only LM can be loaded .* with device_map {'': 'cuda:99'}: "),
        ({"device_map": "gpu"}, "no decoder-only LM can be loaded .* with device_map 'gpu': Expected one of cpu, "),
        ({"device_map": "meta"}, "which is on the meta device"),
        (
            {"device_map": {"model.layers": "cpu", "model.layers.1": "disk"}},
            "device_map names 'model.layers' and, within it, 'model.layers.1': name every part once",
        ),
        (
            {"device_map": {"model.layers": "disk", "lm_head": "cpu"}},
            "The device_map provided does not give any device for the following parameters: model.embed_tokens.weight",
        ),
        ({"max_memory": {"cpu": "much"}, "device_map": "auto"}, "`size` much is not in a valid format"),
    ],
)
def test_invalid_device_maps_are_refused(tmp_path, options, message):
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(LREError, match=message):
        LanguageModel.from_pretrained(str(tmp_path), **options)


SPLITS = {
    "gpt2": ["transformer.h.1", "transformer.h.2", "transformer.ln_f"],  # the tied unembedding is near
    "gemma2": ["model.layers.0", "model.layers.2", "model.norm", "lm_head"],  # sliding windows; there and back
    "mamba": ["backbone.layers.1"],
}
CHANGES = {"gpt2": {}, "gemma2": {"tie_word_embeddings": False}, "mamba": {"num_hidden_layers": 2}}


@pytest.mark.parametrize(("family", "given"), [("gpt2", CPU), ("gemma2", FAR), ("mamba", NEAR)], ids=str)
def test_blocks_on_different_devices(monkeypatch, family, given):
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    expected = everything(LanguageModel(tiny_model(family, **CHANGES[family])))
    model = split(tiny_model(family, **CHANGES[family]), SPLITS[family])
    with SplitDevices():
        lm = LanguageModel(model)
        assert (lm.device, lm.devices) == (NEAR, {NEAR, FAR})
        with torch.no_grad():
            states = lm.hidden_states(torch.tensor(PROMPTS[:1], device=NEAR), lm.layers)
        names = {module: name for name, module in model.named_modules()}
        for layer, hidden in states.items():
            assert hidden.device == (FAR if names[lm.module_at(layer)] in SPLITS[family] else NEAR)
        found = everything(lm, given)
        for name, value in found.items():
            where = given if name.startswith(("patched", "pullback")) else model.lm_head.weight.device
            assert value.device == (where if name.startswith(("p", "D", "rows")) else NEAR), name
    check_equal(found, expected, rtol=1e-12, atol=1e-12)


def fit_all(folders, root, lm):
    """Fit and validate with everything that can be measured, and read a text."""
    module, data = LREModule(lm, measures=[Baselines(), LineIntegrals(2)], **GRID), data_of(folders, trials=1)
    trainer = trainer_of(root)
    trainer.fit(module, datamodule=data)
    fitted = dict(module.records)
    trainer.validate(module, datamodule=data, verbose=False)
    return fitted, dict(module.records), read_lenses(lm, toy_tokenizer(), "thing1 thing2", module.lres)


def test_a_whole_fit_on_several_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    folders = str(write_toy_model(tmp_path / "model")), str(write_toy_relations(tmp_path / "relations"))
    fitted, again, lenses = fit_all(folders, tmp_path / "plain", LanguageModel.from_pretrained(folders[0]))
    assert [record.scored for record in fitted.values()] == [True, True, False]
    model = split(AutoModelForCausalLM.from_pretrained(folders[0]), ["model.layers.1", "model.norm", "lm_head"])
    with SplitDevices():
        lm = LanguageModel(model, name=folders[0])
        assert fit_all(folders, tmp_path / "split", lm) == (fitted, again, lenses)


def test_lanes_follow_the_device_with_the_least_memory(monkeypatch):
    model = split(tiny_model("gpt2"), SPLITS["gpt2"])
    with SplitDevices():
        lm = LanguageModel(model)
        for free, lanes in (({NEAR: 2**40, FAR: 0}, 1), ({NEAR: 0, FAR: None}, 1), ({NEAR: 2**40, FAR: 2**40}, WIDTH)):
            monkeypatch.setattr(memory, "free_memory", free.get)
            assert min(WIDTH, engine._fitting_lanes(lm, torch.tensor([[1, 2]], device=NEAR), None, lm.layers)) == lanes


def test_split_devices_refuse_to_mix():
    """A control of the helper."""
    near, far = torch.ones(2), torch.ones(2)
    near.claimed, far.claimed = NEAR, FAR
    with SplitDevices():
        assert (near + far.to(NEAR)).device == NEAR
        with pytest.raises(RuntimeError, match="add mixes"):
            near + far
        with pytest.raises(RuntimeError, match="mixes"):
            near[torch.zeros(1, dtype=torch.long, device=FAR)]


def test_a_forked_process_loads_an_lm_with_several_threads(launch, tmp_path):
    code = "import sys; from tests.helpers.forked_lm import load_in_forks; sys.exit(load_in_forks(20))"
    assert launch(tmp_path, code=code).status == 0
