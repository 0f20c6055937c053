"""The frozen result: a linear relational embedding that is applied, inverted, decoded, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning import paper
from lre_lightning.errors import LREError, check_number
from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.lre.answers import Answers
from lre_lightning.lre.editing import PromptEdit, changed_at, hidden_at
from lre_lightning.lre.files import check_shapes, read_lre
from lre_lightning.lre.lens import RelationLens
from lre_lightning.lre.operators import Dense, Factors, Operator
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.storage.tensors import write_tensors
from lre_lightning.storage.typed import typed


@dataclass(frozen=True, eq=False)
class LRE(RelationLens):
    """A linear relational embedding, LRE(s) = beta W s + b (Equation 4 of the paper).

    Attributes:
        weight: W, mean Jacobian do/ds, `(hidden, hidden)`, float32, or an `Operator` in its place, such as factors
            (see `low_rank`). Beta is never folded into it.
        bias: b, `(hidden,)`, float32.
        layer: Layer at which s is read: ``"emb"`` or the index of a decoder block.
        origin: The LM, relation and samples that it was estimated from.
        beta: The scalar applied with W.
        rank: Rank of the pseudo-inverse of W used for edits; that of W if None.
        lm: The LM that `predict` and `edit_prompt` run; see `bind`. It is not part of the file.

    Raises:
        LREError: If the shapes do not fit, a value is not finite, or the rank is out of range.

    Example:
        >>> import torch
        >>> lre = LRE(torch.eye(2), torch.ones(2), layer=0, origin=Origin("toy", "", "doubling"), beta=2.0)
        >>> lre(torch.tensor([1.0, 3.0])).tolist()
        [3.0, 7.0]
        >>> lre.edit(torch.tensor([0.0, 0.0]), torch.tensor([5.0, 1.0])).tolist()
        [5.0, 1.0]
    """

    weight: Tensor | Operator = field(repr=False)
    bias: Tensor = field(repr=False)
    layer: Layer
    origin: Origin
    beta: float = 1.0
    rank: int | None = None
    lm: LanguageModel | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        tensors = {"weight": self.weight} if isinstance(self.weight, Tensor) else self.weight.tensors()
        if tensors:
            check_shapes({name: tensor.shape for name, tensor in [*tensors.items(), ("bias", self.bias)]})
        elif self.bias.shape != (self.operator.width,):
            raise LREError(f"an LRE with W of the width {self.operator.width} needs b of it, not {[*self.bias.shape]}")
        self._check_finite([*tensors.values(), self.bias])
        if self.rank is not None:
            self.operator.check_rank(self.rank)

    @property
    def title(self) -> str:  # type: ignore[override]
        """What messages call it."""
        return f"LRE of {self.origin.relation!r}"

    @property
    def width(self) -> int:  # type: ignore[override]
        """The width of the hidden states."""
        return len(self.bias)

    @cached_property
    def operator(self) -> Operator:
        """W as an operator, which every form of W is."""
        return Dense(self.weight) if isinstance(self.weight, Tensor) else self.weight

    @property
    def edit_rank(self) -> int:
        """The rank of edits: `rank`, or that of W if it is None."""
        return self.rank or self.operator.rank

    def __call__(self, subject: Tensor, beta: float | Tensor | None = None) -> Tensor:
        """Predict o from s.

        Args:
            subject: s at `layer`, `(..., hidden)`, any floating dtype.
            beta: Overrides the LRE's own; a tensor must broadcast with `subject`.

        Returns:
            beta W s + b, `(..., hidden)`, in the dtype of W, on the device of `subject`.
        """
        slope = self.beta if beta is None else beta
        product = self.operator.to(subject.device).apply(subject)
        return paper.lre(product, self.bias.to(subject.device), slope)

    def read(self, states: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Return beta W h + b for hidden states at any layers, whatever layer it was estimated at."""
        return self(states)

    def to(self, device: torch.device | str) -> Self:
        """Return the LRE with its tensors on another device."""
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    def low_rank(self, rank: int, dtype: torch.dtype = torch.float32) -> Self:
        """Return the LRE with W in factors: its leading singular triplets, of 2 rank / hidden of its size in float32.

        Args:
            rank: The number of triplets. Edits have at most this rank from then on.
            dtype: The dtype in which singular vectors are kept: float32, float16 or bfloat16.

        Raises:
            LREError: If the rank is out of range, or the dtype is another one.
        """
        factors = Factors.of(self.operator, rank, dtype)
        return replace(self, weight=factors, rank=self.rank and min(self.rank, rank))

    def edit(self, object: Tensor, target: Tensor, rank: int | None = None) -> Tensor:
        """Compute the edit of s that turns o into o', W^+ (o' - o), at beta = 1 (Equation 6).

        Args:
            object: o, `(..., hidden)`.
            target: o', `(..., hidden)`.
            rank: Overrides the LRE's own rank of the pseudo-inverse.

        Returns:
            The difference to add to s, `(..., hidden)`, in the dtype of W.

        Raises:
            LREError: If the rank is out of range.
        """
        chosen = self.edit_rank if rank is None else rank
        delta = paper.change(object, target).to(self.bias)
        return self.operator.edits(delta, [chosen]).squeeze(-2).to(object.device)

    def hook(
        self, object: Tensor, target: Tensor, position: int, rank: int | None = None, magnitude: float = 1.0
    ) -> Callable[..., Tensor]:
        """Return the edit that turns o into o' as a function of the hidden states of a block.

        It is a hook of TransformerLens, and a function to call on the output of a block elsewhere, such as in nnsight.
        It needs no LM; `edit_prompt` finds o, o' and the position with one.

        Args:
            object: o, `(hidden,)`.
            target: o', `(hidden,)`.
            position: The subject's last token, counted from the first, 0. Runs that end before it are left as they are.
            rank: Overrides the LRE's own rank of the pseudo-inverse.
            magnitude: A factor of the edit.

        Returns:
            A function from `(..., positions, hidden)` to a copy that is edited at the position.

        Raises:
            LREError: If the rank is out of range, or the position is negative.
        """
        check_number("position", position, 0)
        delta = magnitude * self.edit(object, target, rank)

        def edited(hidden: Tensor, hook: Any = None) -> Tensor:
            if hidden.shape[-2] <= position:
                return hidden
            return changed_at(hidden, position, lambda states: states + delta.to(states))

        return edited

    @torch.no_grad()
    def predict(self, subject: str, top_k: int = 5) -> Answers:
        """Predict the object of a subject, D(LRE(s)), with s from a prompt like those of the estimate.

        Args:
            subject: The subject. If it is one of the training samples, that one is left out of the context.
            top_k: The number of answers.

        Raises:
            LREError: If the LRE is not bound to an LM, does not say which prompts it was estimated from, or `top_k`
                is out of range.
        """
        lm = self.bound
        prompt = self.origin.prompt(lm, subject)
        return self.predict_from(hidden_at(lm, prompt, self.layer, prompt.subject_position), top_k)

    @torch.no_grad()
    def predict_from(self, hidden: Tensor, top_k: int = 5) -> Answers:
        """Predict the object of a subject from its hidden state, wherever that was read.

        Args:
            hidden: s at `layer`, `(hidden,)`, any floating dtype.
            top_k: The number of answers.

        Raises:
            LREError: If the LRE is not bound to an LM, the state has another shape, or `top_k` is out of range.
        """
        if hidden.shape != (self.width,):
            raise LREError(f"predict_from takes one hidden state, [{self.width}], not {[*hidden.shape]}")
        return Answers.of(self.bound, self(hidden), top_k)

    @torch.no_grad()
    def edit_prompt(
        self,
        prompt: str,
        target: str,
        subject: str | None = None,
        layers: Sequence[Layer] | None = None,
        magnitude: float = 1.0,
        top_k: int = 5,
    ) -> PromptEdit:
        """Edit s in a prompt so that the LM answers for the target subject, and run it (Section 3.3).

        The prompt has the form of those that the LRE was estimated from: in a chat the text is the user's message. The
        `prompt` of the result is the one that was run.

        Args:
            prompt: A text that asks for the object of a subject, such as ``"The capital of Canada is"``.
            target: The subject s' to imitate: o' is the LM's output for the prompt with s' in the subject's place.
            subject: The subject, at its last mention in the prompt; found by the template of the estimate if None.
            layers: The layers at which s is edited; the LRE's own if None.
            magnitude: A factor of the edit.
            top_k: The number of answers to show.

        Returns:
            The edit, with the LM's answers before and after it. Its `active` keeps it in place while the LM generates.

        Raises:
            LREError: If the LRE is not bound to an LM, a layer is out of range, or the subject is not in the prompt.
        """
        lm = self.bound
        template, subject = self.origin.template_of(prompt, subject)
        asked, wanted = self.origin.asked(lm, template, subject, target)
        output, other = (hidden_at(lm, text, lm.num_layers - 1, -1) for text in (asked, wanted))
        delta = magnitude * self.edit(output, other)
        return PromptEdit(asked, target, lm.check_layers(layers or [self.layer]), delta, lm).answered(top_k)

    @contextmanager
    def editing(self, prompt: str, target: str, **options: Any) -> Iterator[PromptEdit]:
        """Keep an edit of a prompt in place while the LM runs or generates; see `edit_prompt` and `PromptEdit.active`.

        Args:
            prompt: The prompt, as in `edit_prompt`.
            target: The target subject.
            **options: Other arguments of `edit_prompt`.
        """
        edit = self.edit_prompt(prompt, target, **options)
        with edit.active():
            yield edit

    def decode(self, lm: LanguageModel, subject: Tensor) -> Tensor:
        """Decode D(LRE(s)) into logits `(..., vocab)` in the LM's dtype.

        Raises:
            LREError: If the LRE was estimated from another LM.
        """
        self.check_model(lm)
        return lm.decode(self(subject))

    def metadata(self) -> dict[str, Any]:
        """Return everything but the tensors as plain data."""
        return {"layer": self.layer, "beta": self.beta, "rank": self.rank, "origin": asdict(self.origin)}

    def tensors(self) -> dict[str, Tensor]:
        """Return W, or its factors, and b by the names that they have in files: `weight` or `left`, `values`, `right`.

        Raises:
            LREError: If W has no tensors.
        """
        tensors = self.operator.tensors()
        if not tensors:
            raise LREError(f"W of {self.origin.relation!r} has no elements to keep: take factors, lre.low_rank(rank)")
        return {**tensors, "bias": self.bias}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> Self:
        """Rebuild an LRE from the results of `tensors` and `metadata`."""
        parts = dict(tensors)
        bias = parts.pop("bias")
        weight = parts["weight"] if "weight" in parts else Factors(**parts)
        return cls(weight, bias, **{**metadata, "origin": typed(Origin, metadata["origin"])})

    def save(self, path: str | Path) -> None:
        """Write W or its factors, b and the origin to one safetensors file, atomically.

        Raises:
            LREError: If W has no tensors, or the file cannot be written.
        """
        write_tensors(path, self.tensors(), "lre", self.metadata())

    @staticmethod
    def read_metadata(path: str | Path) -> dict[str, Any]:
        """Read the metadata of an LRE from its file, without its tensors.

        Raises:
            LREError: If it is not a complete file of an LRE.
        """
        return read_lre(path, tensors=False)[0]

    @classmethod
    def load(cls, path: str | Path, lm: LanguageModel | None = None) -> Self:
        """Read an LRE from a file that `save` wrote.

        Args:
            path: The safetensors file.
            lm: The LM to check and `bind` it to, if any.

        Raises:
            LREError: If it is not a complete file of an LRE, or the LRE was estimated from another LM.
        """
        metadata, tensors = read_lre(path)
        lre = cls.from_tensors(tensors, metadata)
        return lre if lm is None else lre.bind(lm)

    def _repr_html_(self) -> str:
        origin = self.origin
        examples = ", ".join(f"{subject} \u2192 {object_}" for subject, object_ in origin.train)
        rows = [("LM", origin.model), ("layer", self.layer), ("beta", self.beta), ("rank", self.rank or "full")]
        return html_table([*rows, ("width", len(self.bias)), ("examples", examples)], caption=f"LRE: {origin.relation}")


def first_trials(keys: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the first trial of each relation in the keys of LREs."""
    trials: dict[str, int] = {}
    for relation, trial in keys:
        trials[relation] = min(trial, trials.get(relation, trial))
    return trials


def origins_of(lres: Mapping[tuple[str, int], LRE]) -> dict[str, Origin]:
    """Return the origin of each relation's first LRE, without reading its file where the mapping has its metadata."""
    keys = {key[0]: key for key in first_trials(lres).items()}
    metadata = getattr(lres, "metadata", None)
    if metadata is None:
        return {name: lres[key].origin for name, key in keys.items()}
    return {name: typed(Origin, metadata[key]["origin"]) for name, key in keys.items()}
