"""Loading a causal LM from the hub or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lre_lightning.demo import resolve
from lre_lightning.errors import LREError, check_choice, check_number, first_line
from lre_lightning.models.quantization import QUANTIZATIONS, Quantization
from lre_lightning.options import option

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Place: TypeAlias = int | str
"""A device, as torch names it or by the accelerator's index, or ``"disk"``."""

DeviceMap: TypeAlias = str | dict[str, Place]
"""A strategy (`STRATEGIES`), a place for the whole LM, or places by the names of modules."""

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Loading:
    """Options for loading and running a language model.

    Attributes:
        dtype: Dtype of the LM: ``"auto"`` (as stored), ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        attn_implementation: Attention implementation as in transformers, such as ``"sdpa"`` or ``"eager"``; the model's
            default if None.
        device_map: Where the parts of the LM go (needs accelerate). ``"auto"``, ``"balanced"``, ``"balanced_low_0"``
            and ``"sequential"`` fill all devices, then the CPU, then the disk; a device, such as ``"cuda:1"`` or
            ``"disk"``, takes the whole LM; a mapping gives a device to each module by name, and no module may be within
            another. An LM on several devices, or offloaded, stays there, and the Trainer must have one
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
        check_choice("dtype", self.dtype, DTYPES)
        if self.quantization is not None:
            check_choice("quantization", self.quantization, [*QUANTIZATIONS])
        places = self.device_map if isinstance(self.device_map, dict) else {}
        for part in places:
            for name in places:
                if part.startswith(f"{name}." if name else "") and name != part:
                    raise LREError(f"device_map names {name!r} and, within it, {part!r}: name every part once")
        if self.max_memory is not None and self.device_map not in STRATEGIES:
            raise LREError(
                f"max_memory needs a device_map of {', '.join(STRATEGIES)}, not {self.device_map!r}: it limits what "
                "they fill"
            )
        if self.chunk_size is not None:
            check_number("chunk_size", self.chunk_size, 1)


def load_model(name_or_path: str, loading: Loading) -> PreTrainedModel:
    """Load a causal LM with its unembedding from a hub name or a folder; ``"demo"`` is the bundled LM.

    Raises:
        LREError: If a device is unknown, something is not installed, or no causal LM can be loaded.
    """
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    path = locate(name_or_path)
    names = ("attn_implementation", "max_memory", "offload_folder", "revision", "trust_remote_code")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(loading, name)) is not None}
    given["dtype"] = loading.dtype if loading.dtype == "auto" else getattr(torch, loading.dtype)
    try:
        if loading.quantization is not None:
            given["quantization_config"] = BitsAndBytesConfig(**QUANTIZATIONS[loading.quantization])
        if loading.device_map is not None:
            whole = isinstance(loading.device_map, str) and loading.device_map not in STRATEGIES
            given["device_map"] = {"": loading.device_map} if whole else loading.device_map
        return AutoModelForCausalLM.from_pretrained(path, **given)
    except Exception as error:  # of a hub, a config, a file of weights, a device
        where = "" if loading.device_map is None else f" with device_map {loading.device_map!r}"
        raise LREError(f"no decoder-only LM can be loaded from {name_or_path!r}{where}: {first_line(error)}") from error


def check_model(name_or_path: str, revision: str | None = None, trust_remote_code: bool = False) -> None:
    """Check that there is an LM, by reading its configuration alone."""
    from transformers import AutoConfig

    path = locate(name_or_path)
    try:
        AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=trust_remote_code)
    except Exception as error:
        name = f"{name_or_path}@{revision}" if revision else name_or_path
        raise LREError(f"no LM can be loaded from {name!r}: {first_line(error)}") from error


def locate(name_or_path: str) -> str:
    """Return the argument for `from_pretrained`: the path of a folder, which must exist, or a hub name as it is."""
    path = Path(resolve(name_or_path)).expanduser()
    looks_local = path.is_absolute() or name_or_path.startswith(".") or len(path.parts) > 2
    if looks_local and not path.is_dir():
        raise LREError(f"model folder {name_or_path!r} does not exist: give a folder with a config.json, or a hub name")
    return str(path) if looks_local else name_or_path
