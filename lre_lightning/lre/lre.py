"""The frozen result: a linear relational embedding that is applied, inverted, decoded, saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError, first_line
from lre_lightning.grid import WIDEST, Layer, check_ranks, layer_of, rank_of
from lre_lightning.lre.inverse import LowRankInverse
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import LONGEST_NAME, listing, mapping, number, printable, shown, text, whole

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Origin:
    """Where an LRE comes from.

    Attributes:
        model: Name or folder of the LM.
        revision: Its revision on the hub, where it came from there.
        fingerprint: `LanguageModel.fingerprint` of the LM.
        relation: Name of the relation.
        category: The relation's category.
        trial: Number of the trial.
        template: The prompt template.
        train: The training samples (subject, object), in the order of the draw.
    """

    model: str
    fingerprint: str
    relation: str
    revision: str | None = None
    category: str = ""
    trial: int = 0
    template: str = ""
    train: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class LRE:
    """A linear relational embedding, LRE(s) = beta W s + b (Equation 4 of the paper).

    Attributes:
        weight: W, mean Jacobian do/ds, `(hidden, hidden)`, float32. Beta is never folded into it.
        bias: b, `(hidden,)`, float32.
        layer: Where s is read: ``"emb"`` or the index of a decoder block.
        origin: The LM, relation and samples that it was estimated from.
        beta: The scalar applied with W.
        rank: Rank of the pseudo-inverse of W used for edits; full if None.

    Raises:
        LREError: If the shapes do not fit, a value is not finite, or beta or rank is out of range.

    Example:
        >>> import torch
        >>> lre = LRE(torch.eye(2), torch.ones(2), layer=0, origin=Origin("toy", "", "doubling"), beta=2.0)
        >>> lre(torch.tensor([1.0, 3.0])).tolist()
        [3.0, 7.0]
        >>> lre.edit(torch.tensor([0.0, 0.0]), torch.tensor([5.0, 1.0])).tolist()
        [5.0, 1.0]
    """

    weight: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    layer: Layer
    origin: Origin
    beta: float = 1.0
    rank: int | None = None

    def __post_init__(self) -> None:
        """Check what is given."""
        _check_shapes(self.weight.shape, self.bias.shape)
        if not (torch.isfinite(self.weight).all() and torch.isfinite(self.bias).all()):
            raise LREError(f"the LRE of {self.origin.relation!r} holds values that are not finite")
        if self.rank is not None:
            check_ranks([self.rank], len(self.bias))

    def __call__(self, subject: Tensor, beta: float | Tensor | None = None) -> Tensor:
        """Predict o from s.

        Args:
            subject: s at `layer`, `(..., hidden)`, any floating dtype.
            beta: Used in place of the LRE's own; a tensor must broadcast with `subject`.

        Returns:
            beta W s + b, `(..., hidden)`, in the dtype of W, on the device of `subject`.
        """
        weight, bias = self.weight.to(subject.device), self.bias.to(subject.device)
        slope = self.beta if beta is None else beta
        return slope * (subject.to(weight.dtype) @ weight.T) + bias

    def inverse(self, max_rank: int | None = None) -> LowRankInverse:
        """The low-rank pseudo-inverse of W for ranks up to `max_rank`, all if None, where W lies.

        It is kept, and factorized again only for a larger rank.

        Raises:
            LREError: If the rank is out of range.
        """
        wanted = self.bias.shape[0] if max_rank is None else max_rank
        check_ranks([wanted], self.bias.shape[0])
        kept: LowRankInverse | None = self.__dict__.get("_inverse")
        if kept is None or kept.max_rank < wanted:
            kept = self.__dict__["_inverse"] = LowRankInverse(self.weight, wanted)
        return kept

    def to(self, device: torch.device | str) -> Self:
        """The LRE with its tensors on another device."""
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    def edit(self, object: Tensor, target: Tensor, rank: int | None = None) -> Tensor:
        """The edit direction that turns o into o': delta s = W^+ (o' - o), at beta = 1 (Equation 6).

        Args:
            object: o, `(..., hidden)`.
            target: o', `(..., hidden)`.
            rank: Rank of the pseudo-inverse in place of the LRE's own.

        Returns:
            What to add to s, `(..., hidden)`, in the dtype of W.

        Raises:
            LREError: If the rank is out of range.
        """
        chosen = self.rank or self.bias.shape[0] if rank is None else rank
        delta = (target - object).to(self.weight)
        return self.inverse(chosen).apply(delta, [chosen]).squeeze(-2).to(object.device)

    def decode(self, lm: LanguageModel, subject: Tensor) -> Tensor:
        """D(LRE(s)): logits `(..., vocab)` in the LM's dtype.

        Raises:
            LREError: If the LRE was estimated from another LM.
        """
        self.check_model(lm)
        return lm.decode(self(subject))

    def check_model(self, lm: LanguageModel) -> None:
        """Refuse an LM other than the one that the LRE was estimated from.

        Raises:
            LREError: If the fingerprint of the unembedding differs, or the LM has another width or no such layer.
        """
        check_origin(asdict(self.origin), lm)
        lm.check_layers([self.layer])
        if len(self.bias) != lm.hidden_size:
            raise LREError(
                f"the LRE of {self.origin.relation!r} has the width {len(self.bias)}, and {lm.name!r} {lm.hidden_size}"
            )

    def metadata(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data."""
        return {"layer": self.layer, "beta": self.beta, "rank": self.rank, "origin": asdict(self.origin)}

    @classmethod
    def from_tensors(cls, weight: Tensor, bias: Tensor, metadata: dict[str, Any]) -> Self:
        """Rebuild an LRE from its tensors and `metadata`.

        Args:
            weight: W, `(hidden, hidden)`, float32 or float64.
            bias: b, `(hidden,)`, likewise.
            metadata: What `metadata` gave, also where its tuples have become lists.

        Raises:
            LREError: If the metadata is not that of an LRE, or a tensor is of another kind.
        """
        for name, tensor in (("W", weight), ("b", bias)):
            _check_tensor(tensor, name)
        found = checked_metadata(metadata)
        origin = Origin(**found.pop("origin"))
        return cls(weight.detach(), bias.detach(), origin=origin, **found)

    def save(self, path: str | Path) -> None:
        """Write W, b and the origin to one safetensors file, under its name only once it is whole.

        Raises:
            LREError: If the file cannot be written.
        """
        from safetensors.torch import save

        tensors = {"weight": self.weight.contiguous().cpu(), "bias": self.bias.contiguous().cpu()}
        write_whole(Path(path), save(tensors, {"lre": json.dumps(self.metadata())}))

    @staticmethod
    def read_metadata(path: str | Path) -> dict[str, Any]:
        """The `metadata` of an LRE in a file, without its tensors.

        Raises:
            LREError: If the file is not a whole LRE file.
        """
        return _read(path)[0]

    @classmethod
    def load(cls, path: str | Path, lm: LanguageModel | None = None) -> Self:
        """Read an LRE that `save` wrote.

        Args:
            path: The safetensors file.
            lm: The LM that it is to be used with, checked where given.

        Raises:
            LREError: If the file is not a whole LRE file, or it belongs to another LM.
        """
        metadata, (weight, bias) = _read(path, "weight", "bias")
        lre = cls.from_tensors(weight, bias, metadata)
        if lm is not None:
            lre.check_model(lm)
        return lre


def check_origin(origin: Mapping[str, Any], lm: LanguageModel) -> None:
    """Refuse an LM other than the one that an LRE was estimated from.

    Args:
        origin: The LRE's `Origin` as plain data.
        lm: The LM.

    Raises:
        LREError: If the fingerprint of the unembedding differs.
    """
    if origin["fingerprint"] != lm.fingerprint:
        raise LREError(
            f"the LRE of {origin['relation']!r} was estimated from {origin['model']!r} "
            f"(fingerprint {origin['fingerprint'][:12]}), not from {lm.name!r} "
            f"({lm.fingerprint[:12]}): load the LM it was estimated from, in the same dtype"
        )


def _check_shapes(weight: Sequence[int], bias: Sequence[int]) -> None:
    if len(bias) != 1 or not 1 <= bias[0] <= WIDEST or tuple(weight) != (bias[0], bias[0]):
        raise LREError(
            f"an LRE needs W of shape (hidden, hidden) and b of shape (hidden,), not {tuple(weight)} and {tuple(bias)}"
        )


def checked_metadata(metadata: Any) -> dict[str, Any]:
    """What `LRE.metadata` gave, each entry of its kind and lists as tuples; keys of no field are left out.

    Raises:
        LREError: If an entry is missing or of another kind.
    """
    try:
        given = mapping(metadata, "it")
        origin = mapping(given["origin"], "origin")
        train = [listing(pair, "a sample of train", 2) for pair in listing(origin["train"], "train")]
        if any(len(pair) != 2 for pair in train):
            raise LREError("a sample of train must be a subject and an object")
        return {
            "layer": layer_of(given["layer"], "layer"),
            "beta": number(given["beta"], "beta"),
            "rank": None if given["rank"] is None else rank_of(given["rank"], "rank"),
            "origin": {
                "model": text(origin["model"], "model"),
                "fingerprint": text(origin["fingerprint"], "fingerprint", LONGEST_NAME),
                "relation": text(origin["relation"], "relation", LONGEST_NAME),
                "revision": None if origin["revision"] is None else text(origin["revision"], "revision", LONGEST_NAME),
                "category": text(origin["category"], "category", LONGEST_NAME),
                "trial": whole(origin["trial"], "trial"),
                "template": text(origin["template"], "template"),
                "train": tuple((text(one, "a subject"), text(other, "an object")) for one, other in train),
            },
        }
    except KeyError as error:
        raise LREError(f"this is not the metadata of an LRE: it lacks {error}") from error
    except LREError as error:
        raise LREError(f"this is not the metadata of an LRE: {error}") from error


def _check_tensor(tensor: Any, name: str) -> None:
    """Refuse what is no plain tensor of floats, or claims more numbers than it has, before anything is computed."""
    if type(tensor) is not Tensor or tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
        raise LREError(f"{name} of an LRE must be a plain tensor, not {shown(tensor)} of another kind")
    if tensor.dtype not in DTYPES:
        raise LREError(f"{name} of an LRE must be float32 or float64, not {tensor.dtype}")
    if not 1 <= tensor.shape.numel() <= tensor.untyped_storage().nbytes() // tensor.element_size():
        raise LREError(f"{name} of an LRE is said to be {tuple(tensor.shape)}, and its memory has not so many numbers")


def _read(path: str | Path, *names: str) -> tuple[dict[str, Any], list[Tensor]]:
    """The metadata and some tensors of an LRE file."""
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise LREError(f"{str(path)!r} is not an LRE file that can be read: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            _check_tensors({name: file.get_slice(name) for name in file.keys()})  # noqa: SIM118
            found = checked_metadata(json.loads((file.metadata() or {})["lre"]))
            return found, [file.get_tensor(name) for name in names]
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, MemoryError) as error:
        reason = printable(first_line(error))
        raise LREError(f"{str(path)!r} is not an LRE file that can be read: {reason}") from error


def _check_tensors(slices: Mapping[str, Any]) -> None:
    """Check names, dtypes and shapes of the tensors in a file before they are read."""
    if set(slices) != {"weight", "bias"}:
        raise LREError(f"it has {len(slices)} tensors, and they should be weight and bias")
    for name, part in slices.items():
        if part.get_dtype() not in ("F32", "F64"):
            raise LREError(f"{name} must be F32 or F64, not {part.get_dtype()}")
    shapes = [tuple(slices[name].get_shape()) for name in ("weight", "bias")]
    _check_shapes(*shapes)
