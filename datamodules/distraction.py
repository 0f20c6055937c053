"""Prompts that bait an LM into a false answer (Section 5 of the paper, table "attribute-lens")."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args

from torch import Tensor
from torch.utils.data import DataLoader

from lre_lightning.datamodules.loaders import Portion
from lre_lightning.datamodules.relations import RelationDataModule
from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.prompts.batch import RelationBatch
from lre_lightning.prompts.prompt import Prompt, fill, make_prompts, make_prompts_after
from lre_lightning.prompts.trials import Trial
from lre_lightning.relations.relation import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Distraction = Literal["repetition", "instruction"]
"""How a prompt distracts: by repeating a falsehood, or by the instruction to repeat it."""

Undistracted = Literal["zero-shot", "few-shot"]
"""What is asked without the distraction: the last statement alone, or after the trial's training examples."""

INSTRUCTION = "Repeat exactly: "


@dataclass(frozen=True)
class DistractedPrompt:
    """One fact that is asked for with and without a distraction.

    Attributes:
        sample: Index into the trial's test samples.
        distracted: The prompt with the falsehood; its `object` and `object_token` are the true object's.
        undistracted: The prompt without.
        false_object: The object that the falsehood states.
        false_token: Its first token, read off the tokenization of the distracted prompt, a space and the false object.
    """

    sample: int
    distracted: Prompt
    undistracted: Prompt
    false_object: str
    false_token: int


@dataclass(frozen=True, eq=False)
class DistractionBatch(RelationBatch):
    """Distracted prompts of one relation and trial, and the same questions undistracted.

    What it has in common with a `RelationBatch` is that of the distracted prompts.

    Attributes:
        false_token: First token of the false object, `(batch,)`, int64.
        false_objects: The false objects, in the same order.
        undistracted: The undistracted prompts, in the same order.
    """

    false_token: Tensor
    false_objects: tuple[str, ...]
    undistracted: RelationBatch

    def _map(self, function: Callable[[Tensor], Tensor]) -> "DistractionBatch":
        moved = cast(DistractionBatch, super()._map(function))
        return replace(moved, undistracted=self.undistracted._map(function))


class DistractionDataModule(RelationDataModule):
    """Facts that are asked for after a falsehood about them (Hernandez et al., ICLR 2024, section 5).

    For every relation and trial it serves the test samples of the same draw as `RelationDataModule`, that is those
    from which an LRE of that trial was not estimated, as `DistractionBatch`. With the template "The capital city of {}
    is" the fact *England, London*, the false object *Oslo* and the default options, the distracted prompts are

    - ``"repetition"``: ``The capital city of England is Oslo. The capital city of England is Oslo. The capital city of
      England is``, without a line break,
    - ``"instruction"``: ``The capital city of England is Oslo. Repeat exactly: The capital city of England is``,

    both after one start token and without examples, as the paper's authors made theirs (they call them "poetry" and
    "repeat" in their code). The undistracted prompt, on which it is decided whether the LM knows the fact, is
    ``The capital city of England is``: it is what is left without the distraction. It can have the `n_shot` training
    examples before it instead (``undistracted="few-shot"``), as everywhere else in this project.

    The false object is drawn from the distinct objects of the relation. It is no object of that subject, and has
    another first token than the true one. The draw is a hash of seed, relation, trial, subject, true and false object:
    it depends neither on the order of the file nor on batches. Test samples for which there is no such object are left
    out; `draws` tells the test samples that are served.

    Nothing is estimated from distracted prompts: there is no training data.

    Args:
        tokenizer: As in `RelationDataModule`.
        distraction: ``"repetition"`` or ``"instruction"``.
        repetitions: How often a repetition-distracted prompt states the falsehood. The other kind states it once.
        falsehood_separator: What follows the falsehood each time, with the white space before what comes next.
        undistracted: Whether the LM's knowledge is decided without examples or with `n_shot`.
        kwargs: The other arguments of `RelationDataModule`. To test LREs, `source`, `template`, `n_shot`,
            `trials` and `seed` are those of the fit that estimated them.

    Raises:
        LREError: An argument is out of range; in `setup`, the data or the tokenizer can't be used, or a relation has
            one object alone, so that nothing false can be stated.

    >>> data = DistractionDataModule(distraction="instruction", n_shot=5, trials=1)
    >>> data.hparams["distraction"], data.hparams["repetitions"]
    ('instruction', 2)
    """

    def __init__(
        self,
        tokenizer: Union[str, "PreTrainedTokenizerBase"] = "demo",
        distraction: Distraction = "repetition",
        repetitions: int = 2,
        falsehood_separator: str = ". ",
        undistracted: Undistracted = "zero-shot",
        **kwargs: Any,
    ) -> None:
        check_choice("distraction", distraction, get_args(Distraction))
        check_choice("undistracted", undistracted, get_args(Undistracted))
        check_number("repetitions", repetitions, 1)
        if not falsehood_separator:
            raise LREError(
                "falsehood_separator is '': the falsehood and what comes next must be kept apart, by '. ' for example"
            )
        self.distraction, self.repetitions = distraction, repetitions
        self.falsehood_separator, self.undistracted = falsehood_separator, undistracted
        self._facts: tuple[int, list[DistractedPrompt]] | None = None
        super().__init__(tokenizer, **kwargs)
        if self.prompts.chat:
            raise LREError("prompts that distract are plain texts: leave chat out")

    def setup(self, stage: str | None = None) -> None:
        """Load the tokenizer and the relations, and check that every relation has samples and objects enough."""
        super().setup(stage)
        for relation in self._relations or ():
            if len(self._templates[relation.name]) > 1:
                template = self.prompts.template
                raise LREError(f"prompts that distract have one template, and template {template!r} is several")
            if len(relation.objects) == 1:
                raise LREError(
                    f"the relation {relation.name!r} has the one object {relation.objects[0]!r}, so nothing false can "
                    "be stated of its subjects: leave it out by --data.selection.exclude"
                )

    def trial(self, index: int) -> Trial:
        """Return a trial with those of its test samples for which there is a false object.

        Raises:
            LREError: There is no such trial.
        """
        trial = super().trial(index)
        return replace(trial, test=tuple(trial.test[made.sample] for made in self._prompts_of(index)))

    def train_dataloader(self, index: int | None = None) -> DataLoader[RelationBatch]:
        """There is no training data.

        Raises:
            LREError: Always.
        """
        raise LREError("nothing is estimated from distracted prompts: estimate LREs with RelationDataModule")

    def val_dataloader(self, indices: list[int] | None = None) -> DataLoader[DistractionBatch]:
        """Serve test samples as `DistractionBatch`: those of all trials one after another, or of some.

        Args:
            indices: The trials' indices in `schedule`.
        """
        return cast("DataLoader[DistractionBatch]", super().val_dataloader(indices))

    def _batch(self, split: str, portion: Portion) -> DistractionBatch:
        made = self._prompts_of(portion.index)
        chosen = [made[i] for i in portion.samples]
        distracted = self._collate(portion, [one.distracted for one in chosen])
        undistracted = self._collate(portion, [one.undistracted for one in chosen])
        return DistractionBatch(
            **vars(distracted),
            false_token=distracted.object_token.new_tensor([one.false_token for one in chosen]),
            false_objects=tuple(one.false_object for one in chosen),
            undistracted=undistracted,
        )

    def _prompts_of(self, index: int) -> list[DistractedPrompt]:
        """Return the facts of a trial; those of the last one are kept."""
        if self._facts is None or self._facts[0] != index:
            draw = super().trial(index)
            context = draw.train if self.undistracted == "few-shot" else ()
            undistracted = make_prompts(self.tokenizer, draw.relation.template, draw.test, context, self.prompts)
            made = [
                DistractedPrompt(i, distracted, undistracted[i], false.object, false.object_token)
                for i, (distracted, false) in self._distracted(draw).items()
            ]
            self._facts = index, made
        return self._facts[1]

    def _distracted(self, draw: Trial) -> dict[int, tuple[Prompt, Prompt]]:
        """The distracted prompt of each test sample as one that asks for the true, and for the false object.

        False objects are tried in the order of their draw until one has a first token of its own.
        """
        template = draw.relation.template
        candidates = [false_objects(draw, sample, self.seed) for sample in draw.test]
        found: dict[int, tuple[Prompt, Prompt]] = {}
        for attempt in range(max(map(len, candidates))):
            tried = [i for i, objects in enumerate(candidates) if i not in found and attempt < len(objects)]
            false = [Sample(draw.test[i].subject, candidates[i][attempt]) for i in tried]
            heads = [self._head(f"{fill(template, sample.subject)} {sample.object}") for sample in false]
            asked = (
                make_prompts_after(self.tokenizer, template, samples, heads)
                for samples in ([draw.test[i] for i in tried], false)
            )
            for i, pair in zip(tried, zip(*asked, strict=True), strict=True):
                if pair[0].object_token != pair[1].object_token:
                    found[i] = pair
        return dict(sorted(found.items()))

    def _head(self, falsehood: str) -> str:
        """What a distracted prompt says before it asks."""
        stated = falsehood + self.falsehood_separator
        return stated * self.repetitions if self.distraction == "repetition" else stated + INSTRUCTION

    def _plain_arguments(self) -> dict[str, Any]:
        return {
            **super()._plain_arguments(),
            "distraction": self.distraction,
            "repetitions": self.repetitions,
            "falsehood_separator": self.falsehood_separator,
            "undistracted": self.undistracted,
        }


def false_objects(draw: Trial, sample: Sample, seed: int) -> list[str]:
    """All objects of the relation's range that the subject does not have, in an order that is drawn.

    They are ordered by the SHA-256 digest of seed, relation name, trial, subject, object and the false object.

    Args:
        draw: The relation and the number of the trial.
        sample: The fact that the false objects are for.
        seed: Seeds the draw.
    """
    relation = draw.relation
    true = {other.object for other in relation.samples if other.name == sample.name}
    key = "\x1f".join(["false object", str(seed), relation.name, str(draw.number), sample.subject, sample.object])
    others = [candidate for candidate in relation.objects if candidate not in true]
    return sorted(others, key=lambda candidate: hashlib.sha256(f"{key}\x1f{candidate}".encode()).digest())
