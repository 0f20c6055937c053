"""Loading a causal LM from the hub, a folder or a GGUF file."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch

from lre_lightning.demo import resolve
from lre_lightning.errors import LREError, check_choice, check_number, first_line
from lre_lightning.models.placement import is_offloaded
from lre_lightning.models.quantization import QUANTIZATIONS, Quantization
from lre_lightning.options import option
from lre_lightning.storage.cache import LIMIT, checksum, kept

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
        tensor_parallel: Number of processes that share one copy of the LM, each with a part of every large weight; one
            if None. The Trainer must have as many devices, or a multiple of them, and trials are split over the copies.
        quantization: ``"8bit"`` or ``"4bit"`` (NF4) to store the weights quantized (needs bitsandbytes); they are
            multiplied in `dtype`.
        gguf_file: Name of the GGUF file in a folder or a repository on the hub that has several or other files. The
            weights are dequantized into `dtype`.
        revision: Branch, tag or commit on the hub.
        adapter: Folder or hub name of a PEFT adapter, such as a LoRA (needs peft). It is merged into the weights in
            `dtype`: 16 bits round what it adds.
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
    tensor_parallel: int | None = option(harmless=True, explicit=True)
    quantization: Quantization | None = option()
    gguf_file: str | None = option()
    revision: str | None = option()
    adapter: str | None = option()
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
        if self.tensor_parallel is not None:
            check_number("tensor_parallel", self.tensor_parallel, 1)
        if self.adapter is not None and self.quantization is not None:
            raise LREError(
                f"quantized weights, {self.quantization}, cannot take in an adapter: merge it, save the LM, and load "
                "that quantized"
            )
        for name in ("device_map", "quantization"):
            if self.shared and getattr(self, name) is not None:
                raise LREError(
                    f"tensor_parallel {self.tensor_parallel} splits the LM over processes, and {name} "
                    f"{getattr(self, name)!r} does not go with it: leave one of them out"
                )

    @property
    def shared(self) -> bool:
        """Whether several processes share an LM."""
        return (self.tensor_parallel or 1) > 1


def load_model(name_or_path: str, loading: Loading) -> PreTrainedModel:
    """Load a causal LM with its unembedding from a hub name, a folder or a GGUF file; see `demo.resolve` for others."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    path, gguf_file = locate(name_or_path, loading.gguf_file)
    if gguf_file is not None and loading.quantization is not None:
        raise LREError("the weights of a GGUF file are dequantized: leave quantization or gguf_file out")
    names = ("attn_implementation", "max_memory", "offload_folder", "revision", "trust_remote_code")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(loading, name)) is not None}
    given["dtype"] = loading.dtype if loading.dtype == "auto" else getattr(torch, loading.dtype)
    # In a forked process (ddp_notebook), torch replaces its pool of threads at the first use, which fails where the
    # threads that read the weights all come first.
    torch.set_num_threads(torch.get_num_threads())
    try:
        if loading.quantization is not None:
            given["quantization_config"] = BitsAndBytesConfig(**QUANTIZATIONS[loading.quantization])
        if loading.device_map is not None:
            whole = isinstance(loading.device_map, str) and loading.device_map not in STRATEGIES
            given["device_map"] = {"": loading.device_map} if whole else loading.device_map
        with bars_where_seen():
            model: PreTrainedModel
            if gguf_file is None:
                model = AutoModelForCausalLM.from_pretrained(path, **given)
            else:
                model = _load_gguf(path, gguf_file, given)
    except Exception as error:  # of a hub, a config, a file of weights, a device
        where = "" if loading.device_map is None else f" with device_map {loading.device_map!r}"
        raise LREError(
            f"no decoder-only LM can be loaded from {name_or_path!r}{where}: {why_not(error, gguf_file)}"
        ) from error
    return model if loading.adapter is None else merge_adapter(model, loading.adapter, name_or_path)


def merge_adapter(model: PreTrainedModel, adapter: str, name: str) -> PreTrainedModel:
    """Merge a PEFT adapter, from a folder or the hub, into the weights of an LM called `name`."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise LREError("an adapter needs peft: pip install 'lre-lightning[adapters]'") from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys")
            tuned: Any = PeftModel.from_pretrained(model, adapter)
        return cast("PreTrainedModel", tuned.merge_and_unload())
    except Exception as error:  # of a hub, a config, a file of weights, a kind of adapter that changes no weights
        why = " ".join(str(error).split())[:300]
        raise LREError(f"the adapter {adapter!r} cannot be merged into {name!r}: {why}") from error


@contextmanager
def bars_where_seen() -> Iterator[None]:
    """Show the loaders' progress bars only in terminals and notebooks: they would fill a log file."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        yield
        return
    gguf: Any = modeling_gguf_pytorch_utils  # which imports its bar by name
    shown, bar = logging.is_progress_bar_enabled(), getattr(gguf, "tqdm", None)
    logging.disable_progress_bar()
    if bar is not None:
        gguf.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        if bar is not None:
            gguf.tqdm = bar


@contextmanager
def _read_once() -> Iterator[None]:
    """Read the header of a GGUF file once, and map the names of its tensors once.

    transformers reads it once for the configuration and once for the weights, and maps the names once for every module
    of the LM, both of which are slow in Python.
    """
    import gguf

    plain = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, function in plain.items():
        setattr(gguf, name, cache(function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(gguf, name, function)


def _load_gguf(path: str, gguf_file: str, given: dict[str, Any]) -> PreTrainedModel:
    """Load an LM from a GGUF file with dequantized weights, which are kept in the user's cache."""
    from transformers import AutoModelForCausalLM

    file = gguf_path(path, gguf_file, given.get("revision"))
    make = partial(_dequantized, path, gguf_file, given)
    model: Any = kept(
        gguf_key(file, str(given["dtype"])), make, _save, partial(AutoModelForCausalLM.from_pretrained, **given)
    )
    model.name_or_path = model.config.name_or_path = path  # not that of the cache
    return cast("PreTrainedModel", model)


def _save(model: PreTrainedModel, folder: Path) -> None:
    """Save the weights of an LM, unless they are too many, or are on disk already."""
    if sum(weight.nbytes for weight in model.parameters()) < LIMIT and not any(map(is_offloaded, model.modules())):
        model.save_pretrained(folder, max_shard_size=LIMIT)


def _dequantized(path: str, gguf_file: str, given: dict[str, Any]) -> PreTrainedModel:
    """Dequantize the weights of a GGUF file: of a plain LM, which can be moved, cast and saved."""
    import transformers

    if hasattr(transformers, "GgufConfig"):  # else weights are dequantized anyway
        given = given | {"quantization_config": transformers.GgufConfig(dequantize=True)}
    with _read_once():
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, gguf_file=gguf_file, **given)
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    return cast("PreTrainedModel", model)


def gguf_path(path: str, gguf_file: str, revision: str | None) -> str:
    """Return the path of a GGUF file in a folder, or of its copy from a repository on the hub."""
    from transformers.utils.hub import cached_file

    return str(cached_file(path, gguf_file, revision=revision))


def gguf_key(file: str, form: str) -> str:
    """Return what something converted from a GGUF file depends on: its content, and what reads it."""
    versions = [version(package) for package in ("transformers", "gguf")]
    return " ".join([_digest(file, os.stat(file).st_mtime_ns), form, *versions])


@cache
def _digest(file: str, _changed: int) -> str:
    """Return the checksum of a file that was changed at a time; both weights and tokenizer ask for it."""
    return checksum(file)


def check_model(
    name_or_path: str, revision: str | None = None, trust_remote_code: bool = False, gguf_file: str | None = None
) -> None:
    """Check that there is an LM, by reading its configuration alone."""
    from transformers import AutoConfig

    path, gguf_file = locate(name_or_path, gguf_file)
    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    try:
        AutoConfig.from_pretrained(path, **options, **({"gguf_file": gguf_file} if gguf_file else {}))
    except Exception as error:
        name = f"{name_or_path}@{revision}" if revision else name_or_path
        raise LREError(f"no LM can be loaded from {name!r}: {why_not(error, gguf_file)}") from error


def why_not(error: Exception, gguf_file: str | None) -> str:
    """Return the reason why an LM or its tokenizer can't be loaded, as one line."""
    reason = first_line(error)
    if gguf_file is None:
        return reason
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        return f"a GGUF file needs {' and '.join(missing)}: pip install 'lre-lightning[gguf]'"
    told = any(word in reason for word in ("supported", "GGUF", "does not appear", "device", "dtype"))
    return reason if told else f"{gguf_file!r} is cut off or damaged ({reason})"


_HUB_NAME = re.compile(r"[\w.-]*(/[\w.-]+)?")
"""The form of names on the hub."""


class Located(NamedTuple):
    """Where an LM and its tokenizer are: a hub name or the path of a folder, and the GGUF file there, if it is one."""

    path: str
    gguf_file: str | None


def locate(name_or_path: str, gguf_file: str | None = None) -> Located:
    """Find what `from_pretrained` takes for a hub name, a folder or a GGUF file, which must exist."""
    name = resolve(name_or_path)
    path = Path(os.path.expanduser(name))  # which leaves the ~ of an unknown user, unlike Path's own
    looks_local = not _HUB_NAME.fullmatch(name) or name.startswith(".") or path.suffix in (".json", ".safetensors")
    if path.suffix.lower() == ".gguf" and gguf_file is None:
        if not path.is_file():
            raise LREError(
                f"GGUF file {name_or_path!r} does not exist; for one on the hub, give the name of the "
                "repository, and that of the file as the option gguf_file"
            )
        return Located(str(path.parent), path.name)
    if looks_local and not path.is_dir():
        raise LREError(f"model folder {name_or_path!r} does not exist: give a folder with a config.json, or a hub name")
    if not looks_local and not path.is_dir():
        _check_hub(name)
    return Located(str(path) if looks_local else name, gguf_file)


def _check_hub(name: str) -> None:
    """Ask the hub for an LM that isn't in its cache, once: loading asks again for half a minute without a network.

    Raises:
        LREError: If there is no such LM, or the hub cannot be asked.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError

    if Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir():
        return
    try:
        HfApi().model_info(name)
    except RepositoryNotFoundError as error:
        raise LREError(f"there is no folder {name!r} here, and no such LM on the hub that you may see") from error
    except Exception as error:  # of the network
        why = first_line(error)
        raise LREError(f"there is no folder {name!r} here, and the hub cannot be asked for it: {why}") from error
