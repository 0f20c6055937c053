"""The frozen result: a Jacobian lens that is applied, decoded, merged, saved and loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, place_of
from lre_lightning.html import html_table
from lre_lightning.jlens.files import (
    NAME,
    LensOrigin,
    check_jacobians,
    find_lens,
    is_own,
    layer_named,
    read_lens,
    read_others,
    read_published,
    write_published,
)
from lre_lightning.lre.lens import JACOBIAN_LENS, Lens
from lre_lightning.lre.moving import Coordinates
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.storage.tensors import write_tensors


@dataclass(frozen=True, eq=False)
class JacobianLens(Lens):
    """The mean Jacobians of an LM over ordinary text: lens_l(h) = D(J_l h), J_l = E[do/dh_l] (Gurnee et al., 2026).

    It is an LRE without a relation and without a bias, at every layer.

    Attributes:
        jacobians: J by layer, each `(hidden, hidden)`, float32 or float64.
        n_prompts: The number of token sequences in the means.
        squares: The sum over the sequences of the squared Frobenius norms of their Jacobians, by layer: with it the
            lens knows its standard error. Empty if unknown, as in published files.
        origin: The LM and texts that it was estimated from; None if unknown, as in published files.
        lm: The LM that it belongs to; see `bind`. It is not part of the file.

    Raises:
        LREError: If there is no layer, shapes differ, a value is not finite, or `n_prompts` is not positive.

    Example:
        >>> import torch
        >>> lens = JacobianLens({0: 2 * torch.eye(2)}, n_prompts=3)
        >>> lens(torch.tensor([1.0, 3.0]), 0).tolist()
        [2.0, 6.0]
    """

    jacobians: Mapping[Layer, Tensor] = field(repr=False)
    n_prompts: int
    squares: Mapping[Layer, float] = field(default_factory=dict, repr=False)
    origin: LensOrigin | None = None
    lm: LanguageModel | None = field(default=None, repr=False)

    name = title = JACOBIAN_LENS

    def __post_init__(self) -> None:
        check_jacobians([jacobian.shape for jacobian in self.jacobians.values()])
        self._check_finite(self.jacobians.values())
        if self.n_prompts < 1:
            raise LREError(f"a Jacobian lens needs at least one text, not {self.n_prompts}")

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """The layers, from the embedding up."""
        return tuple(sorted(self.jacobians, key=place_of))

    @property
    def width(self) -> int:  # type: ignore[override]
        """Width of the hidden states."""
        return len(next(iter(self.jacobians.values()), ()))

    def __call__(self, hidden: Tensor, layer: Layer) -> Tensor:
        """Return J h for hidden states at a layer, `(..., hidden)`, in the dtype of J, on their device; see `at`."""
        jacobian = self.at(layer).to(hidden.device)
        return hidden.to(jacobian.dtype) @ jacobian.T

    def reads(self, layer: Layer) -> bool:
        """Return whether it has J at a layer."""
        return layer in self.jacobians

    def read(self, states: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Return J h for hidden states at layers of the lens; errors are those of `at`."""
        return torch.stack([self(hidden, layer) for hidden, layer in zip(states, layers, strict=True)])

    def coordinates(self, lm: LanguageModel, *tokens: str, layers: Sequence[Layer]) -> Coordinates:
        """Return what the lens reads for tokens as coordinates at layers: h along J^T u, u of the unembedding.

        Raises:
            LREError: If a text is not a single token, or a layer is none of the lens.
        """
        ids = [lm.tokenizer.encode(token, add_special_tokens=False) for token in tokens]
        for token, found in zip(tokens, ids, strict=True):
            if len(found) != 1:
                raise LREError(f"{token!r} is {len(found)} tokens, and a coordinate is one: begin it with its space")
        chosen = torch.tensor([found[0] for found in ids])
        return Coordinates(tokens, {layer: self.directions(lm, chosen, layer) for layer in layers})

    def directions(self, lm: LanguageModel, token_ids: Tensor, layer: Layer) -> Tensor:
        """Return J^T u at a layer for token ids `(...)`, with u of the unembedding, `(..., hidden)`, in J's dtype."""
        jacobian = self.at(layer)
        return lm.unembedding(token_ids).to(jacobian) @ jacobian

    def at(self, layer: Layer) -> Tensor:
        """Return J at a layer, `(hidden, hidden)`."""
        if layer not in self.jacobians:
            raise LREError(f"the Jacobian lens has no layer {layer!r}: it has {list(self.layers)}")
        return self.jacobians[layer]

    def decode(self, lm: LanguageModel, hidden: Tensor, layer: Layer) -> Tensor:
        """Decode D(J h) into logits `(..., vocab)` in the LM's dtype; errors are those of `check_model` and `at`."""
        self.check_model(lm)
        return lm.decode(self(hidden, layer))

    def standard_error(self, layer: Layer) -> float | None:
        """Return the relative standard error of J over the texts, sqrt(E|J_i - J|^2 / (n - 1)) / |J|, Frobenius norms.

        It falls with the square root of the number of texts. None for a single text, and if it is unknown.
        """
        if layer not in self.squares:
            return None
        norm = float(torch.linalg.vector_norm(self.jacobians[layer].double()))
        return standard_error(self.n_prompts, self.squares[layer], norm)

    @classmethod
    def merge(cls, lenses: Sequence[Self]) -> Self:
        """Merge lenses of different texts: means weighted by the number of texts, in float64, as if estimated at once.

        Raises:
            LREError: If there is none, they differ in LM, options, layers or shapes, or have texts in common.
        """
        if not lenses:
            raise LREError("there is no Jacobian lens to merge")
        first, total = lenses[0], sum(lens.n_prompts for lens in lenses)
        origins = [lens.origin for lens in lenses if lens.origin is not None]
        texts = [digest for origin in origins for digest in origin.texts]
        if len({(lens.layers, lens.width) for lens in lenses}) > 1:
            raise LREError("Jacobian lenses of different layers or widths cannot be merged")
        if any(o.averaging != origins[0].averaging or not o.identity.fits(origins[0].identity) for o in origins):
            raise LREError("Jacobian lenses of different LMs, or estimated with different options, cannot be merged")
        if len(set(texts)) < len(texts):
            raise LREError("Jacobian lenses of the same texts cannot be merged: those would count twice")
        jacobians, squares = {}, {}
        for layer in first.layers:
            parts = [lens.jacobians[layer].double() * (lens.n_prompts / total) for lens in lenses]
            jacobians[layer] = torch.stack(parts).sum(0).to(first.jacobians[layer].dtype)
            if all(lens.squares for lens in lenses):
                squares[layer] = sum(lens.squares[layer] for lens in lenses)
        known = len(origins) == len(lenses)
        return cls(jacobians, total, squares, replace(origins[0], texts=tuple(sorted(texts))) if known else None)

    def save(self, path: str | Path) -> None:
        """Write the lens with its origin to one safetensors file, atomically."""
        origin = None if self.origin is None else asdict(self.origin)
        squares = {str(layer): value for layer, value in self.squares.items()}
        tensors = {str(layer): jacobian for layer, jacobian in self.jacobians.items()}
        metadata = {"n_prompts": self.n_prompts, "squares": squares, "origin": origin}
        write_tensors(path, tensors, NAME, metadata)

    def save_published(self, path: str | Path) -> None:
        """Write a file for others, atomically: Jacobians of blocks in float16, without their standard errors.

        Args:
            path: A file ``.pt``, in the published format, or ``.safetensors``, with a tensor ``J_0`` for block 0 and so
                on, and in the header ``n_prompts``, ``source_layers``, ``d_model``, ``target_layer`` and ``model``.

        Raises:
            LREError: If the lens has no block, or the file cannot be written.
        """
        write_published(Path(path), self.jacobians, self.n_prompts, self.origin)

    @classmethod
    def load(cls, source: str | Path, lm: LanguageModel | None = None, revision: str | None = None) -> Self:
        """Read a lens from a file that `save` wrote, or from one of others, `save_published` among them.

        In safetensors files of others J of block 12 is a tensor ``J_12``, ``layer_12`` or ``12``, or row 12 of a single
        tensor. `n_prompts` is 1 where such a file does not say it.

        Args:
            source: A file; a folder with ``jacobian_lens.safetensors``, ``lens.pt`` or another usual name; or a hub
                name, with the path in that repository unless it is ``lens.pt``, such as
                ``neuronpedia/jacobian-lens/gpt2-small/jlens/Salesforce-wikitext/gpt2_jacobian_lens.pt``.
            lm: The LM to check it against, if any.
            revision: Branch, tag or commit on the hub.

        Raises:
            LREError: If it is not a complete file of a Jacobian lens, or the lens does not fit the LM.
        """
        path = find_lens(str(source), revision)
        if path.suffix == ".safetensors" and is_own(path):
            metadata, jacobians = read_lens(path)
            squares = {layer_named(name): value for name, value in metadata["squares"].items()}
            lens = cls(jacobians, metadata["n_prompts"], squares, metadata["origin"])
        else:
            lens = cls(*(read_others if path.suffix == ".safetensors" else read_published)(path))
        if lm is not None:
            lens.check_model(lm)
        return lens

    def _repr_html_(self) -> str:
        errors = {layer: self.standard_error(layer) for layer in self.layers}
        rows = [(layer, "" if error is None else f"{error:.3f}") for layer, error in errors.items()]
        name = "unknown LM" if self.origin is None else self.origin.model
        caption = f"Jacobian lens: {name}, {self.n_prompts} texts, width {self.width}"
        return html_table(rows, ["layer", "standard error"], caption)


def error_text(errors: Sequence[float]) -> str:
    """Return the relative standard errors of J at its layers, at least one, in words: their mean and the largest."""
    mean = math.fsum(errors) / len(errors)
    return f"relative standard error {mean:.1%} on average over layers, at most {max(errors):.1%}"


def standard_error(count: int, squares: float, norm: float) -> float | None:
    """Return the relative standard error of a mean of matrices, in the Frobenius norm; None for a single one.

    `squares` is the sum of their squared norms, and `norm` the norm of their mean.
    """
    if count < 2:
        return None
    spread = max(0.0, squares / count - norm**2) / (count - 1)
    return math.sqrt(spread) / norm if norm else 0.0
