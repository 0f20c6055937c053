"""LREs made of those of other relations: the inverse of the converse, and the product of two.

The W of a relation maps s, at a layer, to o, after the last block. The inverse of the converse's W maps o's space to
that of s, and the first factor of a product ends where s of the second relation is not read. All of them are vectors of
the residual stream, but with another scale and another mean. So W is taken over as it is, and only a factor and b are
estimated anew, from the relation's own training examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lre_lightning.grid import Layer, place_of
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.source import PromptSource
from lre_lightning.prompts.trials import Trial, train_prompts
from lre_lightning.relations.relation import Relation, Sample

FEWEST = 3
"""Number of samples that relations must share to count as converses or as composed: fewer agree by chance."""


@dataclass(frozen=True)
class Derivation:
    """How the W of a relation is made of those of others.

    Attributes:
        relation: The relation whose W is replaced.
        sources: A, whose converse it is, or A and B, if it takes a subject to the object of B for the object of A.
        shared: Number of its samples that the others have as well.
    """

    relation: str
    sources: tuple[str, ...]
    shared: int = 0

    @property
    def label(self) -> str:
        """What stands for the LRE in results."""
        return ", then ".join(self.sources) if len(self.sources) > 1 else f"inverse of {self.sources[0]}"

    def controls(self, names: Iterable[str], actual: Sequence[Derivation]) -> list[Derivation]:
        """Return the same with every other relation as the last source, except for what is a derivation itself."""
        others = [replace(self, sources=(*self.sources[:-1], name), shared=0) for name in names]
        own = {(derivation.relation, derivation.sources) for derivation in actual}
        return [
            other
            for other in others
            if self.relation != other.sources[-1] and (other.relation, other.sources) not in own
        ]


def derivations(relations: Sequence[Relation]) -> list[Derivation]:
    """Find converses and compositions by at least `FEWEST` samples that say the same, whatever their case.

    The converse of a relation has its samples with subject and object exchanged; a relation can be its own. A
    composition of A and B is a third relation. Samples whose subject is their object do not count.
    """
    facts = {r.name: {pair for pair in map(_pair, r.samples) if len(set(pair)) > 1} for r in relations}
    derived = []
    for b, pairs in facts.items():
        objects: dict[str, list[str]] = defaultdict(list)
        for subject, object_ in pairs:
            objects[subject].append(object_)
        turned = {(object_, subject) for subject, object_ in pairs}
        derived += [Derivation(name, (b,), len(turned & facts[name])) for name in facts]
        for a in facts:
            composed = {(subject, end) for subject, middle in facts[a] for end in objects.get(middle, ())}
            derived += [Derivation(c, (a, b), len(composed & facts[c])) for c in facts if composed and c not in (a, b)]
    return [derivation for derivation in derived if derivation.shared >= FEWEST]


def _pair(sample: Sample) -> tuple[str, str]:
    return sample.name.casefold(), Sample(sample.object, "").name.casefold()


def derived_lres(
    lm: LanguageModel, data: PromptSource, trial: Trial, lres: Mapping[str, LRE], all_derivations: Sequence[Derivation]
) -> Iterator[tuple[str, LRE]]:
    """Yield the LREs that stand for that of a trial's relation, its derivations and their controls, with their labels.

    `lres` are those of the trial by relation, on the LM's device, and `all_derivations` those of all relations.
    """
    name = trial.relation.name
    own = [
        derivation
        for derivation in all_derivations
        if derivation.relation == name and all(source in lres for source in derivation.sources)
    ]
    if not own:
        return
    layers = sorted({lre.layer for lre in lres.values()}, key=place_of)
    runs = prompts_to_run(lm, train_prompts(trial, data.tokenizer, options=data.prompts))
    subject, output = runs.hidden_states(layers)
    examples = dict(zip(layers, subject.unbind(1), strict=True))
    every = {derivation.label: derivation for actual in own for derivation in (actual, *actual.controls(lres, own))}
    yield from ((label, derive(derivation, lres, examples, output)) for label, derivation in every.items())


def derive(derivation: Derivation, lres: Mapping[str, LRE], subjects: Mapping[Layer, Tensor], objects: Tensor) -> LRE:
    """Make the LRE, o = f W s + b, with f and b by least squares over the relation's training examples.

    An inverse, W_A^+ at the rank of A's LRE, reads s at the layer of the relation's own LRE, and its edits are those of
    W_A. A product, W_B W_A, reads s where A's LRE does, and its edits have the rank of the relation's own LRE.

    `lres` are LREs by relation, and `subjects` and `objects` s by layer and o of the training examples,
    `(examples, hidden)` each. The LRE has f W as its W, and beta 1.
    """
    own, first, last = (lres[name] for name in (derivation.relation, derivation.sources[0], derivation.sources[-1]))
    if len(derivation.sources) > 1:
        product, layer, rank = last.operator @ first.operator, first.layer, own.edit_rank
    else:
        layer, rank = own.layer, first.edit_rank
        product = first.operator.inverse(rank)
    mapped, wanted = product.apply(subjects[layer]), objects.to(product.dtype)
    varied = mapped - mapped.mean(0)
    factor = float((varied * wanted).sum() / varied.square().sum().clamp(min=torch.finfo(product.dtype).tiny))
    bias = (wanted - factor * mapped).mean(0)
    return replace(own, weight=factor * product, bias=bias, layer=layer, beta=1.0, rank=rank)
