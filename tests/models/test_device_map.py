"""LMs spread over devices, offloaded or quantized, against the same LM in one place.

Two accelerators are not to be had here. `SplitDevices` lets tensors say that they are on devices that do not exist and
refuses operations that mix them, while their values are on the CPU and can be compared. (Torch's own fake tensors know
devices too, but not values, and abort the process in a backward pass where torch was built without CUDA.)
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.hooks import attach_align_device_hook_on_blocks
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

import lre_lightning.lre.jacobian as engine
import lre_lightning.models.memory as memory
from lre_lightning.errors import LREError
from lre_lightning.lens.lens import read_lenses
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.caches import _METADATA, Joined
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.training.module import LREModule
from tests.helpers.tiny_models import LAYERS, WIDTH, tiny_model
from tests.helpers.toy import toy_tokenizer, write_toy_model, write_toy_relations
from tests.training.test_module import GRID, data_of, trainer_of

SHARED = [5, 9, 2, 40, 41, 7]
PROMPTS = [[*SHARED, 11, 12, 13], [*SHARED, 21, 8], [*SHARED, 11, 12, 60, 61, 62]]
SUBJECTS = [7, 6, 7]


def batch_of(lm):
    length = max(map(len, PROMPTS))
    ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in PROMPTS])
    return PromptBatch(lm, ids, torch.tensor(SUBJECTS), torch.tensor([len(prompt) - 1 for prompt in PROMPTS]))


def everything(lm, new_device="cpu"):
    """What LREs ask of an LM, by name, with what is put in place of s on `new_device`."""
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
        found[f"patched {layer}"] = batch.patched(layer, new)
        found[f"pullback {layer}"] = batch.pullback(layer, new, u)
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
    assert lm.fingerprint == plain.fingerprint
    assert (lm.dtype, lm.vocab_size) == (plain.dtype, plain.vocab_size)


# Devices that are here: the CPU and the disk


class Saved(NamedTuple):
    """A folder with an LM, the same loaded plainly with all that it does, the names of its embedding and its blocks."""

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


MAPS = {
    "one device": lambda emb, blocks: "cpu",
    "auto": lambda emb, blocks: "auto",
    "all on disk": lambda emb, blocks: "disk",
    "two blocks on disk": lambda emb, blocks: {"": "cpu", blocks[1]: "disk", blocks[2]: "disk"},
    "one block not on disk": lambda emb, blocks: {"": "disk", blocks[1]: "cpu"},
    "half a block on disk": lambda emb, blocks: {"": "cpu", f"{blocks[1]}.mlp": "disk"},
    "embedding on disk": lambda emb, blocks: {"": "cpu", emb: "disk"},
    "unembedding on disk": lambda emb, blocks: {"": "cpu", "lm_head": "disk"},
    "embedding and unembedding on disk": lambda emb, blocks: {"": "cpu", emb: "disk", "lm_head": "disk"},
    "unembedding not on disk": lambda emb, blocks: {emb.split(".")[0]: "disk", "lm_head": "cpu"},
}


@pytest.mark.parametrize("name", MAPS)
def test_an_lm_is_the_same_wherever_its_parts_are(saved, name):
    folder, plain, expected, emb, blocks = saved
    lm = LanguageModel.from_pretrained(folder, dtype="float64", device_map=MAPS[name](emb, blocks))
    tied = plain.module_at("emb").weight is plain.model.get_output_embeddings().weight
    shared = tied and name in ("embedding on disk", "unembedding on disk")  # the values are in memory in any case
    assert bool(lm.offloaded) == ("disk" in name and not shared)
    check_same(lm, plain, expected)


def test_what_does_not_fit_goes_to_the_disk(saved):
    folder, plain, expected, _, _ = saved
    weights = sum(parameter.nbytes for parameter in plain.parameters())
    most = {"cpu": int(0.7 * weights)}
    lm = LanguageModel.from_pretrained(folder, dtype="float64", device_map="auto", max_memory=most)
    assert set(lm.model.hf_device_map.values()) == {"cpu", "disk"}
    check_same(lm, plain, expected)


def test_weights_on_disk_are_read_in_the_lms_dtype(saved):
    plain = LanguageModel.from_pretrained(saved.folder, dtype="bfloat16")
    lm = LanguageModel.from_pretrained(saved.folder, dtype="bfloat16", device_map="disk")
    prompt = torch.tensor(PROMPTS[:1])
    assert torch.equal(lm.decode(lm(prompt)), plain.decode(plain(prompt)))
    assert lm.fingerprint == plain.fingerprint
    assert lm.dtype == torch.bfloat16


def test_weights_that_are_stored_otherwise_need_a_folder(tmp_path):
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


def test_a_model_that_accelerate_dispatched(saved):
    folder, plain, expected, emb, _ = saved
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(plain.model.config, dtype=torch.float64)
    with pytest.raises(LREError, match=r"empty has no values for its \S+\.weight, which is on the meta device: load"):
        LanguageModel(model, name="empty")
    model.tie_weights()
    places = {emb.split(".")[0]: "cpu", "lm_head": "cpu"}
    check_same(LanguageModel(load_checkpoint_and_dispatch(model, folder, places, dtype=torch.float64)), plain, expected)


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_a_model_that_accelerate_offloaded(saved, tmp_path, where):
    folder, plain, expected, _, _ = saved
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    if where == "cpu":
        cpu_offload(model, CPU)
    else:
        disk_offload(model, tmp_path / "offload", CPU)
    lm = LanguageModel(model)
    assert lm.offloaded
    check_same(lm, plain, expected)


# What a graph keeps


def test_a_graph_does_not_keep_offloaded_weights(saved, monkeypatch):
    plain, lm = saved.plain, LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map="disk")
    for one in (lm, plain):
        one.lane_bytes.clear()
        prompt_jacobian(one, torch.tensor(PROMPTS[2]), SUBJECTS[2])
    (kept,), (expected,) = lm.lane_bytes.values(), plain.lane_bytes.values()
    assert kept < 1.3 * expected  # an allocator that hands out an address again makes either smaller
    assert kept < sum(parameter.nbytes for parameter in plain.parameters())
    monkeypatch.setattr(lm, "offloaded", ())
    lm.lane_bytes.clear()
    prompt_jacobian(lm, torch.tensor(PROMPTS[2]), SUBJECTS[2])
    assert next(iter(lm.lane_bytes.values())) > 2 * kept  # a control: what it keeps without that


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
        lanes[place] = engine._fitting_lanes(lm, torch.tensor([1, 2]), None, lm.layers)
    assert lanes == {"cpu": 40, "disk": 80}


# What moves and what stays


@pytest.mark.parametrize("move", [lambda one: one.cpu(), lambda one: one.to("cpu"), lambda one: one.to("meta")])
def test_an_lm_with_a_device_map_stays_where_it_is(saved, move):
    lm = LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map={"": "cpu", saved.blocks[1]: "disk"})
    before = {name: parameter.device.type for name, parameter in lm.named_parameters()}
    assert set(before.values()) == {"cpu", "meta"}
    move(lm)
    move(LREModule(lm))
    assert {name: parameter.device.type for name, parameter in lm.named_parameters()} == before
    assert torch.equal(lm(torch.tensor(PROMPTS[:1])), saved.plain(torch.tensor(PROMPTS[:1])))


@pytest.mark.parametrize("cast", [lambda one: one.half(), lambda one: one.to(torch.bfloat16)])
def test_an_lm_with_a_device_map_cannot_be_cast(saved, cast):
    lm = LanguageModel.from_pretrained(saved.folder, dtype="float64", device_map={"": "cpu", saved.blocks[1]: "disk"})
    for one in (lm, LREModule(lm)):
        with pytest.raises(LREError, match="is quantized or on several devices, and cannot be cast: load it in the"):
            cast(one)
    lm.double()  # no cast
    assert cast(LanguageModel.from_pretrained(saved.folder, device_map="cpu")).dtype.itemsize == 2


# Options that cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"device_map": {"": "cuda:99"}},
            r"no decoder-only LM can be loaded from .* with device_map {'': 'cuda:99'}: ",
        ),
        (
            {"device_map": "gpu"},
            "no decoder-only LM can be loaded from .* with device_map 'gpu': Expected one of cpu, ",
        ),
        ({"device_map": "meta"}, "which is on the meta device"),
        (
            {"device_map": {"": "cpu", "model.layer.0": "disk"}},
            "device_map names 'model.layer.0', which the LM does not have: it has model.embed_tokens, model.layers, ",
        ),
        ({"device_map": {"model.layers": "cpu"}}, "device_map has no place for 'model.embed_tokens.weight'"),
        ({"device_map": {}}, "device_map has no place for 'model.embed_tokens.weight'"),
        ({"max_memory": {"cpu": "1GiB"}}, "max_memory needs a device_map of auto, .*, not None"),
        ({"max_memory": {"cpu": "1GiB"}, "device_map": {"": "cpu"}}, "max_memory needs a device_map of auto"),
        ({"max_memory": {"cpu": "much"}, "device_map": "auto"}, "`size` much is not in a valid format"),
        ({"max_memory": {"7": "1GiB"}, "device_map": "auto"}, "Device 7 is not recognized"),
        ({"quantization": "2bit"}, "quantization '2bit' is unknown: use one of 8bit, 4bit"),
    ],
)
def test_places_that_cannot_be(tmp_path, options, message):
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(LREError, match=message):
        LanguageModel.from_pretrained(str(tmp_path), **options)


# Several devices

NEAR, FAR = torch.device("cuda:0"), torch.device("cuda:1")
CPU = torch.device("cpu")


def device_of(tensor):
    return device_of(tensor.own) if isinstance(tensor, Joined) else getattr(tensor, "claimed", CPU)


def tensors_in(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class SplitDevices(TorchFunctionMode):
    """Within the context, tensors have the devices that they claim; an operation on several of them is an error.

    As in torch, scalars of the CPU go with all devices, and so do indices of the CPU; `Tensor.copy_` may copy from
    anywhere.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function == Tensor.device.__get__:
            return device_of(args[0])
        if Joined in types and function not in _METADATA:
            with self:
                return Joined.__torch_function__(function, types, args, kwargs)
        if function is torch.autograd.grad:
            return self.gradients(*args, **kwargs)
        if function is Tensor.to:
            return self.moved(*args, **kwargs)
        if function is Tensor.cpu:
            return self.moved(args[0], CPU)
        device = self.common_device(function, args, kwargs)
        if kwargs.get("device") is not None:
            device, kwargs = torch.device(kwargs["device"]), kwargs | {"device": CPU}
        found = function(*args, **kwargs)
        for tensor in tensors_in(found):
            if not hasattr(tensor, "claimed"):  # an argument that was changed in place has its own
                tensor.claimed = device
        return found

    @staticmethod
    def common_device(function, args, kwargs):
        indices = tensors_in(args[1]) if function in (Tensor.__getitem__, Tensor.__setitem__) else []
        anywhere = {id(index) for index in indices if device_of(index) == CPU}
        if function is Tensor.copy_:
            anywhere.add(id(args[1]))
        used = [tensor for tensor in tensors_in(args, kwargs) if id(tensor) not in anywhere]
        devices = {device_of(tensor) for tensor in used if tensor.ndim or device_of(tensor) != CPU}
        if len(devices) > 1 or (function is Tensor.numpy and devices != {CPU}):
            raise RuntimeError(f"{function.__name__} mixes {devices}")
        return next(iter(devices), CPU)

    @staticmethod
    def gradients(outputs, inputs, grad_outputs=None, **options):
        for output, cotangent in zip(tensors_in(outputs), tensors_in(grad_outputs), strict=False):
            assert device_of(output) == device_of(cotangent)
        found = torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        for gradient, given in zip(found, tensors_in(inputs), strict=True):
            gradient.claimed = device_of(given)
        return found

    @staticmethod
    def moved(tensor, *args, **kwargs):
        wanted = [torch.device(one) for one in (*args, kwargs.get("device")) if isinstance(one, str | torch.device)]
        device = (wanted + [device_of(one) for one in tensors_in(args)] + [device_of(tensor)])[0]
        here = [CPU if isinstance(one, str | torch.device) else one for one in args]
        found = tensor.to(*here, **(kwargs | {"device": CPU} if "device" in kwargs else kwargs))
        if found is not tensor or device != device_of(tensor):
            found = found.clone() if found is tensor else found
            found.claimed = device
        return found


def split(model, far):
    """Let accelerate place a model's parts, those named in `far` and all others; only the devices are claimed."""
    blocks = {f"{name}.{i}" for name, module in model.named_modules() for i, _ in enumerate(_listed(module))}
    names = [name for name, _ in model.named_modules() if name.count(".") == 1 and f"{name}.0" not in blocks]
    places = {name: FAR if name in far else NEAR for name in [*names, *blocks, "lm_head"]}
    attach_align_device_hook_on_blocks(
        model, dict.fromkeys(places, "cpu"), dict.fromkeys(places, False), skip_keys=model._skip_keys_device_placement
    )
    model._hf_hook.execution_device = None
    for name, device in places.items():
        for module in model.get_submodule(name).modules():
            if hasattr(module, "_hf_hook"):
                module._hf_hook.execution_device = device
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.claimed = device
    return model


def _listed(module):
    return module if isinstance(module, torch.nn.ModuleList) else ()


SPLITS = {
    "gpt2": ["transformer.h.1", "transformer.h.2", "transformer.ln_f"],  # the tied unembedding is near
    "llama": ["model.layers.1", "model.layers.2", "model.norm", "lm_head"],
    "gemma2": ["model.layers.0", "model.layers.2"],  # sliding windows; there and back
}


@pytest.mark.parametrize(
    ("family", "given"), [("gpt2", CPU), ("llama", NEAR), ("llama", FAR), ("gemma2", FAR)], ids=str
)
def test_blocks_on_different_devices(monkeypatch, family, given):
    monkeypatch.setattr(engine, "free_memory", lambda device: None)
    expected = everything(LanguageModel(tiny_model(family)))
    model = split(tiny_model(family), SPLITS[family])
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
    module, data = LREModule(lm, fitting={"baselines": True, "line_integrals": 2}, **GRID), data_of(folders, trials=1)
    trainer = trainer_of(root)
    trainer.fit(module, datamodule=data)
    fitted = dict(module.records)
    trainer.validate(module, datamodule=data, verbose=False)
    return fitted, dict(module.records), read_lenses(lm, toy_tokenizer(), "thing1 thing2", module.lres)


def test_a_whole_fit_on_several_devices_or_from_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "free_memory", lambda device: None)
    folders = str(write_toy_model(tmp_path / "model")), str(write_toy_relations(tmp_path / "relations"))
    fitted, again, lenses = fit_all(folders, tmp_path / "plain", LanguageModel.from_pretrained(folders[0]))
    assert [record.scored for record in fitted.values()] == [True, True, False]
    places = {"": "disk", "model.layers.0": "cpu"}
    lm = LanguageModel.from_pretrained(folders[0], device_map=places)
    assert fit_all(folders, tmp_path / "disk", lm) == (fitted, again, lenses)
    model = split(AutoModelForCausalLM.from_pretrained(folders[0]), ["model.layers.1", "model.norm", "lm_head"])
    with SplitDevices():
        lm = LanguageModel(model, name=folders[0])
        assert fit_all(folders, tmp_path / "split", lm) == (fitted, again, lenses)


def test_lanes_follow_the_device_with_the_least_memory(monkeypatch):
    model = split(tiny_model("gpt2"), SPLITS["gpt2"])
    with SplitDevices():
        lm = LanguageModel(model)
        for free, lanes in (({NEAR: 2**40, FAR: 0}, 1), ({NEAR: 0, FAR: None}, 1), ({NEAR: 2**40, FAR: 2**40}, WIDTH)):
            monkeypatch.setattr(engine, "free_memory", free.get)
            assert min(WIDTH, engine._fitting_lanes(lm, torch.tensor([1, 2], device=NEAR), None, lm.layers)) == lanes


def test_the_split_tells_devices_apart():
    """A control of the test's own means."""
    near, far = torch.ones(2), torch.ones(2)
    near.claimed, far.claimed = NEAR, FAR
    with SplitDevices(), pytest.raises(RuntimeError, match="add mixes"):
        near + far
    with SplitDevices(), pytest.raises(RuntimeError, match="stack mixes"):
        torch.stack([near, far])
    with SplitDevices():
        assert (near + far.to(NEAR)).device == NEAR
        assert torch.zeros(2, device=FAR)[torch.tensor([0])].device == FAR
        with pytest.raises(RuntimeError, match="mixes"):
            near[torch.zeros(1, dtype=torch.long, device=FAR)]


# Whole numbers as weights


class NoGradient(torch.autograd.Function):
    """The identity, with a gradient of zero."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class IntegerLinear(torch.nn.Module):
    """A layer of a quantization that nobody here knows."""

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
    with pytest.raises(LREError, match="LlamaForCausalLM is not supported: its IntegerLinear passes no gradients on"):
        LanguageModel(model)
    with torch.inference_mode(), pytest.raises(LREError, match="passes no gradients on"):
        LanguageModel(model)


QUANTIZED = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
WIDE = {"llama": {"hidden_size": 64, "intermediate_size": 128}, "gpt2": {"n_embd": 64}}


@pytest.fixture(params=WIDE)
def wide(request, tmp_path):
    """A folder with an LM that is wide enough for blocks of 64 weights, and with outliers among its activations."""
    model = tiny_model(request.param, torch.float32, **WIDE[request.param])
    model.get_input_embeddings().weight.data[:, 3] *= 200
    model.save_pretrained(tmp_path)
    return str(tmp_path)


@QUANTIZED
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
@pytest.mark.parametrize("device_map", [None, "auto"])
def test_a_quantized_lm_is_the_lm_of_its_dequantized_weights(wide, quantization, device_map):
    lm = LanguageModel.from_pretrained(wide, quantization=quantization, device_map=device_map)
    copy = LanguageModel.from_pretrained(wide, quantization=quantization).model
    plain = LanguageModel(copy.dequantize())
    kinds = {type(module).__name__ for module in lm.modules()} - {type(module).__name__ for module in plain.modules()}
    assert kinds == {"Linear8bitLt" if quantization == "8bit" else "Linear4bit"}
    check_equal(everything(lm), everything(plain), rtol=1e-3, atol=1e-3)
    assert lm.fingerprint == plain.fingerprint
    original = everything(LanguageModel.from_pretrained(wide))
    assert not torch.allclose(everything(lm)["o"], original["o"], rtol=1e-2)  # a control: weights were rounded


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
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_a_quantized_lm_stays_as_it_is(wide, quantization):
    lm = LanguageModel.from_pretrained(wide, quantization=quantization)
    before = everything(lm)
    module = LREModule(lm)
    module.cpu()
    module.to("meta")
    check_equal(everything(lm), before, rtol=0, atol=0)
    with pytest.raises(LREError, match="cannot be cast"):
        module.half()


@QUANTIZED
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_a_graph_does_not_keep_dequantized_weights(wide, quantization):
    lm, plain = LanguageModel.from_pretrained(wide, quantization=quantization), LanguageModel.from_pretrained(wide)
    sizes = [engine._graph_bytes(one, torch.tensor([[1, 2]]), None, one.layers) for one in (lm, plain)]
    assert sizes[0] < 1.3 * sizes[1] < sum(parameter.nbytes for parameter in plain.parameters())


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
        LanguageModel(model)
        expected.model.layers[index].mlp.up_proj.weight.data = mlp.up_proj(weight).T.detach()
    check_equal(everything(LanguageModel(model)), everything(LanguageModel(expected)), rtol=1e-3, atol=1e-3)


@QUANTIZED
def test_weights_that_were_packed_for_the_cpu_are_refused(wide):
    import bitsandbytes as bnb

    if not bnb.functional.has_avx512bf16():
        pytest.skip("this CPU packs no 4-bit weights")
    quantized = LanguageModel.from_pretrained(wide, quantization="4bit").model
    layer = next(module for module in quantized.modules() if isinstance(module, bnb.nn.Linear4bit))
    del layer.forward
    with torch.no_grad():
        layer(torch.zeros(1, layer.in_features))
    with pytest.raises(LREError, match=r"packed the 4-bit weights for the CPU .*: make the LanguageModel before"):
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
    with pytest.raises(LREError, match="the weights of its Linear8bitLt are quantized: leave them as they are"):
        LanguageModel(model)
