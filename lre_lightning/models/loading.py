"""Loading a causal LM from a hub or a folder, with one clear sentence for what can go wrong."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from lre_lightning.demo import resolve
from lre_lightning.errors import LREError, check_number, first_line
from lre_lightning.models.hooks import is_offloaded
from lre_lightning.options import option

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")

Place: TypeAlias = int | str
"""A device, as torch or by the accelerator's index, or ``"disk"``."""

DeviceMap: TypeAlias = str | dict[str, Place]
"""A way to spread an LM (`SPREADS`), a place for all of it, or places by the names of modules."""

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")

Quantization: TypeAlias = Literal["8bit", "4bit"]

QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "8bit": {"load_in_8bit": True},
    "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}
"""What bitsandbytes is asked for."""


@dataclass(frozen=True)
class Loading:
    """Options for loading and running a language model.

    Attributes:
        dtype: Dtype of the LM: ``"auto"`` (as stored), ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        attn_implementation: Attention implementation as in transformers, such as ``"sdpa"`` or ``"eager"``; the model's
            default if None.
        device_map: Where the parts of the LM go (needs accelerate): ``"auto"``, ``"balanced"``, ``"balanced_low_0"`` or
            ``"sequential"`` fill all devices, then the CPU, then the disk; one device, such as ``"cuda:1"`` or
            ``"disk"``, takes the whole LM; a mapping gives a device for each module name, with ``""`` for everything
            that is not named. An LM on several devices, or offloaded, stays where it is, and the Trainer must have one
            device; an LM on a single device is moved by Lightning.
        max_memory: How much of each device ``"auto"`` and the like may fill: ``{0: "20GiB", "cpu": "60GiB"}``.
        offload_folder: Folder for weights on disk that cannot be read from the LM's own safetensors files.
        quantization: ``"8bit"`` or ``"4bit"`` (NF4) to store the weights quantized (needs bitsandbytes); they are
            multiplied in `dtype`.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run code that comes with the LM.
        chunk_size: Number of rows of a Jacobian, and of patched prompts, computed at a time; memory grows with it. If
            None, it is chosen to fit the LM's devices.

    Raises:
        LREError: If a value is invalid on any machine. Devices are checked when the LM is loaded.
    """

    dtype: str = option("float32")
    attn_implementation: str | None = option(harmless=True)
    device_map: DeviceMap | None = option(harmless=True)
    max_memory: dict[Place, Place] | None = option(harmless=True)
    offload_folder: str | None = option(harmless=True, explicit=True)
    quantization: Quantization | None = option()
    revision: str | None = option()
    trust_remote_code: bool = option(False, harmless=True, explicit=True)
    chunk_size: int | None = option(harmless=True)

    def __post_init__(self) -> None:
        """Check what holds on any machine."""
        if self.dtype not in DTYPES:
            raise LREError(f"dtype {self.dtype!r} is unknown: use one of {', '.join(DTYPES)}")
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise LREError(
                f"quantization {self.quantization!r} is unknown: use one of {', '.join(QUANTIZATIONS)}, or none"
            )
        if self.max_memory is not None and (not isinstance(self.device_map, str) or self.device_map not in SPREADS):
            raise LREError(
                f"max_memory limits what {', '.join(SPREADS)} fill, and device_map is {self.device_map!r}: give one of "
                "those"
            )
        if self.chunk_size is not None:
            check_number("chunk_size", self.chunk_size, 1)


def load_model(name_or_path: str, loading: Loading) -> PreTrainedModel:
    """Load a causal LM with its unembedding.

    Args:
        name_or_path: Hub name or folder; ``"demo"`` is the bundled LM.
        loading: The options.

    Raises:
        LREError: If a device or a part is unknown, something is not installed, or no causal LM can be loaded.
    """
    from transformers import AutoModelForCausalLM

    path = locate(name_or_path)
    names = ("revision", "trust_remote_code", "attn_implementation", "offload_folder")
    given = {name: value for name in names if (value := getattr(loading, name)) is not None}
    if loading.quantization is not None:
        given["quantization_config"] = _quantization_config(loading.quantization)
    if loading.max_memory is not None:
        given["max_memory"] = _checked_memory(loading.max_memory)
    dtype = loading.dtype if loading.dtype == "auto" else getattr(torch, loading.dtype)
    try:
        if loading.device_map is not None:
            given["device_map"] = places = _checked_map(loading.device_map, path, given)
            if loading.quantization is not None and isinstance(places, dict):
                _check_not_offloaded(loading.quantization, places)
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **given)
    except LREError:
        raise
    except Exception as error:  # whatever a hub, a config or a file of weights may be wrong with
        raise LREError(f"no decoder-only LM can be loaded from {name_or_path!r}: {first_line(error)}") from error


def locate(name_or_path: str) -> str:
    """Return what to hand to `from_pretrained`: a folder's path, or a hub name as it is.

    Raises:
        LREError: If the name can only be that of a folder, and there is none.
    """
    path = Path(resolve(name_or_path)).expanduser()
    looks_local = path.is_absolute() or name_or_path.startswith(".") or len(path.parts) > 2
    if looks_local and not path.is_dir():
        raise LREError(f"model folder {name_or_path!r} does not exist: give a folder with a config.json, or a hub name")
    return str(path) if looks_local else name_or_path


def _quantization_config(quantization: str) -> BitsAndBytesConfig:
    for name in ("bitsandbytes", "accelerate"):
        _check_installed(name, f"{quantization} weights need {name}")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(**QUANTIZATIONS[quantization])


def _check_not_offloaded(quantization: str, places: Mapping[str, Place]) -> None:
    for name, place in places.items():
        if place == "disk" or (place == "cpu" and set(places.values()) != {"cpu"}):
            raise LREError(f"{quantization} weights cannot be offloaded, and device_map has {name!r} on {place!r}")


def _check_installed(name: str, need: str) -> None:
    if find_spec(name) is None:
        raise LREError(f"{need}, which is not installed: pip install 'lre-lightning[{name}]'")


def _check_place(place: Place, option: str) -> None:
    """Refuse a place that does not exist on this machine."""
    count = torch.accelerator.device_count()
    try:
        device = torch.device("cpu") if place == "disk" else torch.device(place)
    except RuntimeError:
        device = None
    if device is not None and device.type != "cpu":
        accelerator = torch.accelerator.current_accelerator()
        here = accelerator is not None and device.type == accelerator.type and (device.index or 0) < count
        device = device if here else None
    if device is None:
        places = ", ".join(map(repr, [*range(count), "cpu", "disk"]))
        raise LREError(f"{option} names the device {place!r}, which is not here: use {places}")


def _checked_memory(max_memory: Mapping[Place, Place]) -> dict[Place, Place]:
    """How much of each device may be filled, with devices that are here and sizes that can be read."""
    _check_installed("accelerate", "max_memory needs accelerate")
    from accelerate.utils import convert_file_size_to_int  # type: ignore[import-untyped]

    found: dict[Place, Place] = {}
    for place, size in max_memory.items():
        device = int(place) if str(place).isdecimal() else place
        _check_place(device, "max_memory")
        try:
            found[device] = convert_file_size_to_int(size)
        except ValueError as error:
            raise LREError(
                f"max_memory of {place!r} is {size!r}, which is no size: give one such as '20GiB'"
            ) from error
    return found


def _checked_map(device_map: DeviceMap, path: str, options: Mapping[str, Any]) -> DeviceMap:
    """A map of devices that are here and parts that the LM has, each named once.

    Weights that the embedding and the unembedding share are one matrix: they go to one place, the embedding's unless
    that is the disk.
    """
    _check_installed("accelerate", "device_map needs accelerate")
    if device_map in SPREADS:
        return device_map
    places: dict[str, Place] = device_map if isinstance(device_map, dict) else {"": device_map}
    for place in places.values():
        _check_place(place, "device_map")
    if set(places) == {""}:
        return places
    model = _without_weights(path, options)
    names = {name for name, _ in itertools.chain(model.named_modules(), model.named_parameters())}
    for name in places:
        if name not in names:
            parts = [f"{one}.{part}" for one, module in model.named_children() for part, _ in module.named_children()]
            raise LREError(
                f"device_map names {name!r}, which the LM does not have: it has {', '.join(parts)} and parts of those"
            )
    return _spread(model, places | _place_of_tied(model, places))


def _without_weights(path: str, options: Mapping[str, Any]) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    trust = {"trust_remote_code": options["trust_remote_code"]} if "trust_remote_code" in options else {}
    revision = {"revision": options["revision"]} if "revision" in options else {}
    config = AutoConfig.from_pretrained(path, **revision, **trust)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **trust)
    return model


def _place_of_tied(model: PreTrainedModel, places: Mapping[str, Place]) -> dict[str, Place]:
    """One place for an embedding and an unembedding that share their weights, by the names of both."""
    pair = [model.get_input_embeddings(), model.get_output_embeddings()]
    if pair[1] is None or pair[0].weight is not pair[1].weight:
        return {}
    names = [name for module in pair for name, one in model.named_modules() if one is module]
    wanted = [places[max(keys, key=len)] for name in names if (keys := [key for key in places if _within(name, key)])]
    if not wanted or (len(wanted) == len(names) and len(set(wanted)) == 1):
        return {}
    return dict.fromkeys(names, next((place for place in wanted if place != "disk"), "disk"))


def _within(name: str, part: str) -> bool:
    return part in ("", name) or name.startswith(f"{part}.")


def _spread(
    module: nn.Module, places: Mapping[str, Place], name: str = "", place: Place | None = None
) -> dict[str, Place]:
    """`places`, without parts of other parts: accelerate knows no exceptions.

    Args:
        module: The LM or a part of it.
        places: A place by the name of a part, but for parts of it that are named too.
        name: The name of `module`.
        place: Where `module` goes if it is not named.
    """
    place = places.get(name, place)
    tensors = dict(itertools.chain(module.named_parameters(name), module.named_buffers(name)))
    if not tensors:
        return {}
    if all(key == name or not _within(key, name) for key in places):
        if place is None:
            raise LREError(
                f"device_map has no place for {next(iter(tensors))!r}: give one to '', all that is not named"
            )
        return {name: place}
    found: dict[str, Place] = {}
    for child_name, child in module.named_children():
        found |= _spread(child, places, f"{name}.{child_name}".lstrip("."), place)
    own = {key: places.get(key, place) for key in tensors if key.rpartition(".")[0] == name}
    return found | {key: where for key, where in own.items() if where is not None}


def check_loaded(model: nn.Module, name: str) -> None:
    """Refuse a model without weights.

    Raises:
        LREError: If a weight is on the meta device, and no hook brings its values in.
    """
    offloaded = [module for module in model.modules() if is_offloaded(module)]
    brought_in = {id(tensor) for module in offloaded for tensor in (*module.parameters(), *module.buffers())}
    for path, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta and id(tensor) not in brought_in:
            raise LREError(
                f"{name} has no values for its {path}, which is on the meta device: load the weights first, with "
                "from_pretrained or accelerate's load_checkpoint_and_dispatch"
            )


def multiply_dequantized(model: nn.Module) -> bool:
    """Let the layers of bitsandbytes multiply by their dequantized weights, in the dtype of what they are given.

    bitsandbytes' own 8-bit product rounds what it is given too, columns of outliers excepted: those of the whole batch,
    so that what an LM does with a prompt depends on the prompts beside it. Its 4-bit product passes no gradients on
    where it packs the weights for the CPU.

    Returns:
        Whether the model has such layers.

    Raises:
        LREError: If weights are packed already.
    """
    library: Any = sys.modules.get("bitsandbytes")
    found = False
    for module in model.modules() if library else ():
        if isinstance(module, library.nn.Linear8bitLt) and module.weight.dtype == torch.int8:
            weight = partial(_from_8bit, module)
        elif isinstance(module, library.nn.Linear4bit) and module.weight.quant_state is not None:
            if getattr(module.weight.quant_state, "packing_format_for_cpu", False):
                raise LREError(
                    "bitsandbytes packed the 4-bit weights for the CPU when they ran, and rounded their scales: make "
                    "the LanguageModel before anything runs"
                )
            weight = partial(_from_4bit, module, library.functional.dequantize_4bit)
        else:
            continue
        module.forward, found = partial(_multiply, module, weight), True
    return found


def _from_8bit(module: Any, dtype: torch.dtype) -> Tensor:
    rows: Tensor = module.weight.data
    scale: Tensor = module.state.SCB if module.weight.SCB is None else module.weight.SCB
    return rows.to(dtype) * (scale.to(dtype) / 127)[:, None]


def _from_4bit(module: Any, dequantize: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
    return dequantize(module.weight.data, module.weight.quant_state).to(dtype)


def _multiply(module: Any, weight: Callable[[torch.dtype], Tensor], inputs: Tensor) -> Tensor:
    product: Tensor = _Product.apply(inputs.to(module.weight.device), weight)  # type: ignore[no-untyped-call]
    return product if module.bias is None else product + module.bias.to(product.dtype)


class _Product(torch.autograd.Function):
    """Inputs times a weight that exists for as long as a product takes."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Callable[[torch.dtype], Tensor]) -> Tensor:
        ctx.weight = weight
        return functional.linear(inputs, weight(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.weight(gradients[0].dtype), None
