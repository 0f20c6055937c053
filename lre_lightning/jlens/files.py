"""Files of Jacobian lenses: a safetensors file of our own, and those of others, all checked before use.

The published format is a dictionary written by `torch.save`: ``J`` {block: `(hidden, hidden)`}, ``n_prompts``,
``source_layers``, ``d_model``. As safetensors there is no format that all share: J of a block is a tensor ``J_12``,
``layer_12`` or ``12``, or row 12 of a single tensor; what else there is to say is in the header or in another file.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import save
from torch import Tensor
from typing_extensions import TypedDict

from lre_lightning.errors import LREError, first_line
from lre_lightning.grid import MOST_LAYERS, WIDEST, Layer, layer_of
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.models.identity import Identity
from lre_lightning.models.tokenizer import StartToken
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import listing, mapping, number, printable, shown, whole
from lre_lightning.storage.tensors import FLOATS, check_tensor, opened
from lre_lightning.storage.typed import Checked, Name, Text, typed

OWN, PUBLISHED, PLAIN = "jacobian_lens.safetensors", "lens.pt", "lens.safetensors"
"""Names of our file and of those for others, in folders."""

NAME = "jacobian_lens"
"""What our metadata are under in the header of a file."""

NAMES = (OWN, PUBLISHED, PLAIN, "jlens.safetensors", "jacobians.safetensors")
"""Names that are looked for in folders."""

BLOCK = re.compile(r"(?:J_|layer_)?(\d{1,5})")
"""Names of the tensors of blocks in safetensors files of others."""

GLOBALS = re.compile(r"collections OrderedDict|builtins set|torch._utils _rebuild_tensor_v2|torch [A-Z]\w+Storage")
"""Names that the pickle of a lens may refer to: others that ``weights_only`` permits allocate arrays of any size."""

HUB = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(/(?P<file>.+))?")


@dataclass(frozen=True)
class LensOrigin:
    """Provenance of a Jacobian lens.

    Attributes:
        model: Name or folder of the LM.
        identity: What the LM computes, `LanguageModel.identity`.
        revision: The LM's revision on the hub; None for a local LM.
        averaging: The estimator's options, `lre_lightning.Averaging`.
        texts: Digests of the sets of token sequences that it was estimated from: several after a merge.
        adapter: Folder or hub name of the adapter in the LM, if any.
        start_token: What the sequences start with; None if unknown.
    """

    model: Text
    identity: Identity
    revision: Name | None = None
    averaging: Averaging = Averaging()
    texts: tuple[Name, ...] = ()
    adapter: Text | None = None
    start_token: StartToken | None = None


class JacobianLensMetadata(TypedDict):
    """All of a lens but its Jacobians."""

    n_prompts: Annotated[int, Checked(whole, least=1)]
    squares: dict[str, Annotated[float, Checked(number, largest=1e300)]]
    origin: LensOrigin | None


def layer_named(name: str) -> Layer:
    """Return the layer that a name in a file stands for."""
    return layer_of(int(name) if name.isdecimal() and len(name) < 6 else name, "a layer of a Jacobian lens")


def check_jacobians(shapes: Sequence[Sequence[int]]) -> None:
    """Check the shapes of Jacobians: `(hidden, hidden)`, all of one width, and neither too many nor too large."""
    width = shapes[0][0] if shapes and shapes[0] else 0
    distinct = {tuple(shape) for shape in shapes}
    if not 1 <= width <= WIDEST or len(shapes) > MOST_LAYERS + 1 or distinct != {(width, width)}:
        raise LREError(f"the Jacobians of a lens must be of one shape, (hidden, hidden), not {sorted(distinct)[:3]}")


def is_own(path: Path) -> bool:
    """Return whether a safetensors file is one that `JacobianLens.save` wrote, as far as its header says."""
    with opened(path, "the file of a Jacobian lens", None) as (_, header):
        return NAME in header


def read_lens(path: Path) -> tuple[JacobianLensMetadata, dict[Layer, Tensor]]:
    """Read our own file of a lens: its metadata, checked, and its Jacobians by layer."""
    with opened(path, "the file of a Jacobian lens", NAME) as (file, metadata):
        names = file.keys()
        check_jacobians([file.get_slice(name).get_shape() for name in names])
        checked = typed(JacobianLensMetadata, metadata)
        return checked, {layer_named(name): check_tensor(file.get_tensor(name), "a Jacobian") for name in names}


def read_others(path: Path) -> tuple[dict[Layer, Tensor], int]:
    """Read a safetensors file of others: Jacobians by layer, in float32 or float64, and the number of texts.

    If its header does not say how many texts there were, it counts as one.
    """
    with opened(path, "the file of a Jacobian lens", None) as (file, header):
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no mapping
        stack = next(iter(shapes)) if len(shapes) == 1 and len(*shapes.values()) == 3 else None
        check_jacobians([shapes[stack][1:]] * shapes[stack][0] if stack else [*shapes.values()])
        blocks = {name: BLOCK.fullmatch(name) for name in shapes}
        unknown = [name for name, block in blocks.items() if block is None]
        if stack:
            jacobians = dict(enumerate(file.get_tensor(stack)))
        elif unknown:
            raise LREError(f"{str(path)!r} has tensors that are no Jacobians of blocks, J_0 and so on: {unknown[:5]}")
        else:
            jacobians = {int(block[1]): file.get_tensor(name) for name, block in blocks.items() if block}
        count = header.get("n_prompts", "1")
        if len(jacobians) < len(shapes):
            raise LREError(f"{str(path)!r} has several Jacobians of a block")
        checked = {
            layer_of(block, "a block"): check_tensor(tensor, "a Jacobian", FLOATS)
            for block, tensor in jacobians.items()
        }
        return _widened(checked), whole(int(count) if count.isdecimal() else count, "n_prompts", 1)


def _widened(jacobians: Mapping[Layer, Tensor]) -> dict[Layer, Tensor]:
    dtypes = {layer: torch.promote_types(tensor.dtype, torch.float32) for layer, tensor in jacobians.items()}
    return {layer: tensor.to(dtypes[layer]).contiguous() for layer, tensor in jacobians.items()}


def write_published(
    path: Path, jacobians: Mapping[Layer, Tensor], n_prompts: int, origin: LensOrigin | None = None
) -> None:
    """Write Jacobians of blocks for others, atomically, in float16: as safetensors, or else the published format.

    The fields of the published format are texts in the header of a safetensors file, with the layer of o and the LM.
    """
    blocks = sorted(layer for layer in jacobians if layer != "emb")
    if not blocks:
        raise LREError("the published format needs the Jacobian of a block, and the lens has 'emb' alone")
    half = {layer: jacobians[layer].to("cpu", torch.float16).contiguous() for layer in blocks}
    if not all(torch.isfinite(jacobian).all() for jacobian in half.values()):
        raise LREError("a Jacobian is too large for float16, in which the published format keeps it")
    width = len(half[blocks[0]])
    fields = {"n_prompts": n_prompts, "source_layers": blocks, "d_model": width}
    if path.suffix == ".safetensors":
        if origin is not None:
            target = origin.averaging.object_layer
            fields |= {"target_layer": origin.identity.blocks - 1 if target is None else target, "model": origin.model}
        header = {name: str(value) for name, value in fields.items()}
        write_whole(path, save({f"J_{block}": jacobian for block, jacobian in half.items()}, header))
        return
    buffer = BytesIO()
    torch.save({"J": half, **fields}, buffer)
    write_whole(path, buffer.getvalue())


def read_published(path: Path) -> tuple[dict[Layer, Tensor], int]:
    """Read the published format: its Jacobians by layer, in float32 or float64, and the number of texts."""
    try:
        given = _read_archive(path)
        jacobians = given.get("J")
        if not isinstance(jacobians, dict):
            raise LREError(f"it has no entry J of Jacobians by layer, but {sorted(map(str, given))[:10]}")
        names = [whole(layer, "a layer of J", most=MOST_LAYERS) for layer in jacobians]
        tensors = [check_tensor(tensor, "a Jacobian", FLOATS) for tensor in jacobians.values()]
        check_jacobians([tensor.shape for tensor in tensors])
        width = whole(given.get("d_model"), "d_model")
        blocks = [whole(block, "an entry of source_layers") for block in listing(given.get("source_layers"), "it")]
        if width != len(tensors[0]) or sorted(blocks) != sorted(names):
            raise LREError("its d_model and source_layers are not those of its Jacobians")
        count = whole(given.get("n_prompts"), "n_prompts", 1)
    except LREError as error:
        raise LREError(f"Jacobian lens {str(path)!r} is invalid: {first_line(error)}") from error
    return _widened(dict(zip(names, tensors, strict=True))), count


def _read_archive(path: Path) -> dict[str, Any]:
    """Read a dictionary that `torch.save` wrote, and that is no larger in memory than as a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size for e in entries):
                raise LREError("it is compressed, which files of torch.save never are")
            pickles = [entry for entry in entries if entry.filename.lower().endswith(".pkl")]
            if len(pickles) != 1:
                raise LREError(f"it contains {len(pickles)} pickles instead of one")
            for operation, argument, _ in pickletools.genops(archive.read(pickles[0])):
                if operation.name == "GLOBAL" and not GLOBALS.fullmatch(str(argument)):
                    more = shown(str(argument).replace(" ", "."))
                    raise LREError(f"it holds more than tensors and plain data: {more}")
        given = torch.load(path, map_location="cpu", weights_only=True)
    except LREError:
        raise
    except Exception as error:  # readers of archives and pickles raise anything on broken bytes
        raise LREError(f"it cannot be read; is it truncated? ({printable(first_line(error))})") from error
    return mapping(given, "it")


def find_lens(source: str, revision: str | None = None) -> Path:
    """Find the file of a lens by its path, its folder or its hub name, from where it is downloaded."""
    path = Path(source).expanduser()
    for file in (path, *(path / name for name in NAMES)):
        if file.is_file():
            return file
    name = HUB.fullmatch(source)
    if path.exists() or name is None:
        raise LREError(
            f"there is no Jacobian lens at {source!r}: give a file, a folder with {' or '.join(NAMES)}, or a hub name"
        )
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name["repository"], name["file"] or PUBLISHED, revision=revision))
    except Exception as error:  # of the hub, of the network
        raise LREError(f"no Jacobian lens can be loaded from {source!r}: {first_line(error)}") from error
