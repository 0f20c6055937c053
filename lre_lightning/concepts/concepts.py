"""Concepts: directions of a relation's objects among the hidden states of subjects.

A linear relational concept is v_o = W^+ (E[o] - b), normalized: an LRE's way back from the object's hidden state, over
the training samples with that object (Chanin, Hunter and Camburu, "Identifying Linear Relational Concepts in Large
Language Models", NAACL 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypedDict

from lre_lightning.concepts.record import ConceptOptions, ObjectTokens
from lre_lightning.concepts.states import KnownStates, known_states, with_object
from lre_lightning.errors import LREError
from lre_lightning.grid import WIDEST, CheckedLayer, CheckedRank, Layer
from lre_lightning.html import html_table
from lre_lightning.lre.editing import PromptEdit, hidden_at
from lre_lightning.lre.estimator import LREEstimator, draw_one
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lens import RelationLens
from lre_lightning.lre.moving import Coordinates
from lre_lightning.lre.operators import Dense
from lre_lightning.lre.origin import Origin
from lre_lightning.models.accepting import or_model_and_tokenizer
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.options import options_of
from lre_lightning.prompts.options import LINES, Prompts
from lre_lightning.prompts.trials import Trial, by_turns, draw, train_prompts
from lre_lightning.relations.relation import Relation
from lre_lightning.storage.tensors import check_tensor, opened, write_tensors
from lre_lightning.storage.typed import Text, typed

Indices: TypeAlias = int | Sequence[int] | Tensor


class ConceptsMetadata(TypedDict):
    """All of some concepts but their vectors."""

    objects: tuple[Text, ...]
    layer: CheckedLayer
    rank: CheckedRank
    object_layer: CheckedLayer
    object_tokens: ObjectTokens
    origin: Origin


@dataclass(frozen=True, eq=False)
class Concepts(RelationLens):
    """A direction for every object of a relation, which classifies and steers the hidden states of subjects.

    Attributes:
        objects: The objects.
        vectors: Their directions, of length 1, `(objects, hidden)`, float32 or float64.
        layer: The layer of s.
        rank: The rank of the pseudo-inverse of W that they were computed with.
        object_layer: The layer of o.
        object_tokens: The tokens of o, ``"first"`` or ``"mean"``; see `ConceptOptions`.
        origin: The LM, relation and samples that they were estimated from.
        lm: The LM that `predict` and `steer` run; see `bind`. It is not part of the file.

    Raises:
        LREError: If the objects and vectors do not fit, or a value is not finite.

    Example:
        >>> import torch
        >>> origin = Origin("toy", "", "doubling")
        >>> concepts = Concepts(("odd", "even"), torch.eye(2), 0, 1, 1, "first", origin)
        >>> concepts.classify(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
        ['odd', 'even']
    """

    objects: tuple[str, ...]
    vectors: Tensor = field(repr=False)
    layer: Layer
    rank: int
    object_layer: Layer
    object_tokens: ObjectTokens
    origin: Origin = field(repr=False)
    lm: LanguageModel | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        shape = tuple(self.vectors.shape)
        if len(shape) != 2 or shape[0] != len(self.objects) or not 1 <= shape[1] <= WIDEST:
            raise LREError(f"concepts of {len(self.objects)} objects need vectors (objects, hidden), not {shape}")
        self._check_finite([self.vectors])

    @property
    def title(self) -> str:  # type: ignore[override]
        """What messages call what they were made of."""
        return f"LRE behind the concepts of {self.origin.relation!r}"

    @property
    def width(self) -> int:  # type: ignore[override]
        """The width of the hidden states."""
        return self.vectors.shape[1]

    @property
    def scored(self) -> tuple[str, ...]:
        """The objects."""
        return self.objects

    def read(self, states: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Return the scores of hidden states at any layers, `(layers, ..., objects)`."""
        return self(states)

    def __call__(self, states: Tensor) -> Tensor:
        """Return the scores of hidden states at `layer`, `(..., hidden)`: their products with the vectors.

        Returns:
            `(..., objects)`, in the dtype of the vectors, on the device of `states`.
        """
        return states.to(self.vectors.dtype) @ self.vectors.to(states.device).T

    def __getitem__(self, object: str) -> Tensor:
        """Return the vector of an object, `(hidden,)`."""
        return self.vectors[self.index(object)]

    def coordinates(self, *objects: str, layers: Sequence[Layer] | None = None) -> Coordinates:
        """Return the concepts of some objects, all if none is named, as coordinates at layers, its own if None."""
        chosen = objects or self.objects
        directions = self.vectors[[self.index(name) for name in chosen]]
        return Coordinates(tuple(chosen), dict.fromkeys([self.layer] if layers is None else layers, directions))

    def index(self, object: str) -> int:
        """Return the index of an object."""
        if object not in self.objects:
            known = ", ".join(map(repr, self.objects[:20]))
            raise LREError(f"there is no concept of {object!r} in {self.origin.relation!r}; there are those of {known}")
        return self.objects.index(object)

    def classify(self, states: Tensor) -> list[str]:
        """Return the object with the highest score for each of the hidden states at `layer`, `(batch, hidden)`."""
        return [self.objects[index] for index in self(states).argmax(-1).tolist()]

    @torch.no_grad()
    def predict(self, subjects: Sequence[str]) -> list[str]:
        """Classify subjects, with s from prompts like those of the estimate.

        Raises:
            LREError: If the concepts are not bound to an LM, or `subjects` is a single text.
        """
        if isinstance(subjects, str):
            raise LREError(f"subjects must be a list, such as [{subjects!r}]")
        lm = self.bound
        prompts = [self.origin.prompt(lm, subject) for subject in subjects]
        states = [hidden_at(lm, prompt, self.layer, prompt.subject_position) for prompt in prompts]
        return self.classify(torch.stack(states)) if states else []

    @torch.no_grad()
    def steer(
        self,
        prompt: str,
        target: str,
        source: str | None = None,
        *,
        subject: str | None = None,
        layers: Sequence[Layer] | None = None,
        magnitude: float = 0.5,
        top_k: int = 5,
    ) -> PromptEdit:
        """Steer a prompt's subject from one object to another: add their concepts' difference to s.

        Args:
            prompt: A text that asks for the object of a subject.
            target: The object whose concept is added.
            source: The object whose concept is removed; the one that s is classified as if None.
            subject: The subject, at its last mention in the prompt; found by the template of the estimate if None.
            layers: The layers at which s is edited; the concepts' own if None.
            magnitude: The factor of both concepts, by the norm of s.
            top_k: The number of answers to show.

        Returns:
            The edit, with the LM's answers before and after it. Its `active` keeps it in place while the LM generates.

        Raises:
            LREError: If the concepts are not bound to an LM, an object has no concept, a layer is out of range, or the
                subject is not in the prompt.
        """
        lm = self.bound
        template, subject = self.origin.template_of(prompt, subject)
        (asked,) = self.origin.asked(lm, template, subject)
        state = hidden_at(lm, asked, self.layer, asked.subject_position)
        removed = self.classify(state[None])[0] if source is None else source
        delta = steering(self.vectors.to(state.device), state, self.index(removed), self.index(target), magnitude)
        return PromptEdit(asked, target, lm.check_layers(layers or [self.layer]), delta, lm).answered(top_k)

    def save(self, path: str | Path) -> None:
        """Write the vectors, the objects and the origin to one safetensors file, atomically."""
        metadata = {name: getattr(self, name) for name in ConceptsMetadata.__annotations__}
        write_tensors(path, {"vectors": self.vectors}, "concepts", metadata | {"origin": asdict(self.origin)})

    @classmethod
    def load(cls, path: str | Path, lm: LanguageModel | None = None) -> Self:
        """Read concepts from a file that `save` wrote.

        Args:
            path: The safetensors file.
            lm: The LM to check and `bind` them to, if any.

        Raises:
            LREError: If it is not a complete file of concepts, or they were estimated from another LM.
        """
        with opened(path, "a file of concepts", "concepts") as (file, metadata):
            if [*file.keys()] != ["vectors"]:
                raise LREError(f"it has the tensors {', '.join(file.keys())}, and should have vectors alone")
            vectors = check_tensor(file.get_tensor("vectors"), "vectors")
            concepts = cls(vectors=vectors, **typed(ConceptsMetadata, metadata))
        return concepts if lm is None else concepts.bind(lm)

    def _repr_html_(self) -> str:
        names = ("layer", "rank", "object_layer", "object_tokens")
        rows = [("LM", self.origin.model), *((name.replace("_", " "), getattr(self, name)) for name in names)]
        return html_table([*rows, ("objects", ", ".join(self.objects))], caption=f"Concepts: {self.origin.relation}")


def concept_files(folder: Path) -> list[Path]:
    """Return the files of concepts in a folder of relations, as ``lre concepts`` writes them."""
    return sorted(folder.glob("*/trial*.safetensors"))


def steering(vectors: Tensor, states: Tensor, source: Indices, target: Indices, magnitude: float) -> Tensor:
    """Return what replaces one concept by another, magnitude x |s| (v_target - v_source), `(..., hidden)`.

    Args:
        vectors: Vectors of length 1, `(objects, hidden)`.
        states: s, `(..., hidden)`.
        source: Indices of the objects to remove, `(...)`.
        target: Indices of the objects to add, `(...)`.
        magnitude: The factor.
    """
    lengths = states.to(vectors.dtype).norm(dim=-1, keepdim=True)
    change: Tensor = magnitude * lengths * (vectors[target] - vectors[source])
    return change


def make_concepts(lm: LanguageModel, train: KnownStates, origin: Origin, options: ConceptOptions) -> Concepts:
    """Make the concepts of all objects that known training samples have.

    W and b are means over at most `options.jacobians` of the samples, whose objects take turns.
    """
    layer, object_layer, rank = options.places(lm)
    estimator = LREEstimator([layer])
    for prompt in by_turns(train.prompts)[: options.jacobians]:
        ids, count = with_object(prompt, options.object_tokens)
        estimator.update(prompt_jacobian(lm, ids, prompt.subject_position, [layer], object_layer, count))
    change = train.object_means() - estimator.bias(layer)
    vectors = Dense(estimator.weight(layer)).inverse(rank).apply(change)
    vectors = nn.functional.normalize(vectors)
    return Concepts(train.objects, vectors, layer, rank, object_layer, options.object_tokens, origin, lm)


@or_model_and_tokenizer
def estimate_concepts(
    lm: LanguageModel,
    /,
    relation: Relation | str,
    layer: Layer | None = None,
    rank: int | None = None,
    n_shot: int = 8,
    *,
    trial: int = 0,
    seed: int = 0,
    prompts: Prompts = LINES,
    **options: Any,
) -> Concepts:
    """Estimate a concept for every object of a relation, from those training samples that the LM knows.

    Args:
        lm: The LM, or two arguments: a causal LM of transformers and its tokenizer, as in `estimate`.
        relation: The relation, or the name of one that `load_relations` finds.
        layer: The layer of s; the middle block if None.
        rank: The rank of the pseudo-inverse of W; an eighth of the LM's width, but at most 128, if None.
        n_shot: The number of training samples that prompts show as examples.
        trial: Number of the draw of training samples.
        seed: Seed of the draw.
        prompts: How samples are drawn and prompts are made.
        **options: The other fields of `ConceptOptions`, such as ``object_layer=4``.

    Returns:
        The concepts, bound to the LM.

    Raises:
        LREError: If the relation or an option is not valid, or the LM knows the training samples of fewer than two
            objects.

    Example:
        >>> from lre_lightning import LanguageModel, estimate_concepts
        >>> lm = LanguageModel.from_pretrained("demo")
        >>> concepts = estimate_concepts(lm, "object superclass", layer=2, object_layer=4, jacobians=4)
        >>> concepts.predict(["albatross", "butterfly"])
        ['bird', 'insect']
    """
    chosen = options_of(ConceptOptions, {"layer": layer, "rank": rank, **options}, "estimate_concepts")
    chosen.places(lm)
    drawn = widened(draw_one(relation, n_shot, trial, seed, prompts), chosen.train_fraction, seed, prompts)
    prompts = few_shot(prompts.of(lm), n_shot)
    train = known_states(lm, train_prompts(drawn, lm.tokenizer, options=prompts), chosen)
    if len(train.objects) < 2:
        raise LREError(
            f"{lm.name} knows training samples of {len(train.objects)} objects of {drawn.relation.name!r}, and there "
            "must be 2: give it more samples, or another n_shot"
        )
    return make_concepts(lm, train, Origin.of(lm, drawn, prompts), chosen)


def widened(trial: Trial, fraction: float, seed: int, prompts: Prompts) -> Trial:
    """Return a trial with a fraction of the relation's subjects to train on, but at least as many as it has.

    Its own training samples come first. Those that the user has named stay as they are.
    """
    if trial.relation.name in (prompts.train_samples or {}):
        return trial
    count = max(len(trial.train), round(fraction * len({sample.name for sample in trial.relation.samples})))
    return draw(trial.relation, count, trial.number, seed, prompts.sampling, None, trial.templates)


def few_shot(prompts: Prompts, n_shot: int) -> Prompts:
    """Return options of prompts that show `n_shot` of many training samples, unless they say how many."""
    return replace(prompts, shots=n_shot) if prompts.shots is None else prompts
