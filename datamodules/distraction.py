"""Prompts that bait an LM into a false answer (section 5 of the paper, table "attribute-lens")."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args

from torch import Tensor
from torch.utils.data import DataLoader

from lre_lightning.datamodules.loaders import Portion
from lre_lightning.datamodules.relations import RelationDataModule
from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import RelationBatch
from lre_lightning.prompts.prompt import Prompt, fill, make_prompts, make_prompts_after, pass_over_blanks
from lre_lightning.prompts.trials import Trial
from lre_lightning.relations.relation import Sample, draw_order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Distraction = Literal["repetition", "instruction"]
"""The kind of distraction: repeating a falsehood, or the instruction to repeat it."""

Undistracted = Literal["zero-shot", "few-shot"]
"""The prompt without the distraction: the last statement alone, or after the trial's training samples."""

INSTRUCTION = "Repeat exactly: "


@dataclass(frozen=True)
class DistractedPrompt:
    """One test sample, an index into those of its trial, asked for with and without a distraction.

    `false_token` is the first token of the false object after the distracted prompt and a space.
    """

    sample: int
    distracted: Prompt
    undistracted: Prompt
    false_object: str
    false_token: int


@dataclass(frozen=True, eq=False)
class DistractionBatch(RelationBatch):
    """Distracted prompts of one relation and trial, and the same questions undistracted.

    The fields of `RelationBatch` are those of the distracted prompts.

    Attributes:
        false_token: The first token of the false object, ``(batch,)``, int64.
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
    """Samples asked for after a falsehood about them (Hernandez et al., ICLR 2024, section 5).

    For every relation and trial it serves, as `DistractionBatch`, the test samples of the same trial of
    `RelationDataModule`: those from which an LRE of that trial was not estimated. With the template "The capital city
    of {} is" the sample *England, London*, the false object *Oslo* and the default options, the distracted prompts are

    - ``"repetition"``: ``The capital city of England is Oslo. The capital city of England is Oslo. The capital city of
      England is``, without a line break,
    - ``"instruction"``: ``The capital city of England is Oslo. Repeat exactly: The capital city of England is``,

    both after one start token and without examples, like those of the paper's authors (who call them "poetry" and
    "repeat" in their code). The undistracted prompt, which decides whether the LM knows the object, is ``The capital
    city of England is``: the rest without the distraction. With ``undistracted="few-shot"`` it follows the `n_shot`
    training samples instead, as everywhere else in this project.

    The false object is drawn from the distinct objects of the relation. It is no object of that subject and has another
    first token than the true one. The draw is a hash of seed, relation, trial, subject, true and false object, so it
    depends neither on the order of the file nor on batches. Test samples without such an object are left out; `trial`
    returns those that are served. There is no training data: nothing is estimated from distracted prompts.

    Args:
        tokenizer: As in `RelationDataModule`.
        distraction: ``"repetition"`` or ``"instruction"``.
        repetitions: How often a prompt with ``"repetition"`` states the falsehood. The other kind states it once.
        falsehood_separator: The text after each falsehood, with the white space before the text that follows.
        undistracted: Whether the LM's knowledge is decided without examples or with `n_shot`.
        kwargs: The other arguments of `RelationDataModule`. To test LREs, give the `source`, `prompts`, `n_shot`,
            `trials` and `seed` of the fit that estimated them.

    Raises:
        LREError: An argument is invalid; in `setup`, the data or the tokenizer cannot be used, or a relation has only
            one object, so that nothing false can be stated.

    >>> data = DistractionDataModule(distraction="instruction", n_shot=5, trials=1)
    >>> data.hparams["distraction"], data.hparams["repetitions"]
    ('instruction', 2)
    """

    def __init__(
        self,
        tokenizer: Union[str, "PreTrainedTokenizerBase", None] = None,
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
            raise LREError("falsehood_separator is '': separate the falsehood from what follows, by '. ' for example")
        self.distraction, self.repetitions = distraction, repetitions
        self.falsehood_separator, self.undistracted = falsehood_separator, undistracted
        self._served: tuple[int, list[DistractedPrompt]] | None = None
        super().__init__(tokenizer, **kwargs)
        if self.prompts.chat:
            raise LREError("prompts that distract are plain texts: leave chat out")

    def setup(self, stage: str | None = None) -> None:
        """Load the tokenizer and the relations, and check that every relation has samples and objects enough."""
        super().setup(stage)
        for relation, templates in self._chosen.values():
            if len(templates) > 1:
                template = self.prompts.template
                raise LREError(f"prompts that distract need one template, and {template!r} may be several")
            if len(relation.objects) == 1:
                raise LREError(
                    f"the relation {relation.name!r} has only the object {relation.objects[0]!r}, so nothing false can "
                    "be stated about its subjects: leave it out by --data.selection.exclude"
                )

    def use(self, lm: LanguageModel) -> None:
        """Make prompts for an LM; see `RelationDataModule.use`."""
        super().use(lm)
        self._served = None

    def trial(self, index: int) -> Trial:
        """Return a trial with those of its test samples that have a false object."""
        trial = super().trial(index)
        return replace(trial, test=tuple(trial.test[made.sample] for made in self._prompts_of(index)))

    def train_dataloader(self, index: int | None = None) -> DataLoader[RelationBatch]:
        """Raise an error: there is no training data."""
        raise LREError("nothing is estimated from distracted prompts: estimate LREs with RelationDataModule")

    def _batch(self, split: str, portion: Portion) -> DistractionBatch:
        prompts = self._prompts_of(portion.index)
        chosen = [prompts[i] for i in portion.samples]
        distracted = self._collate(portion, [prompt.distracted for prompt in chosen])
        return DistractionBatch(
            **vars(distracted),
            false_token=distracted.object_token.new_tensor([prompt.false_token for prompt in chosen]),
            false_objects=tuple(prompt.false_object for prompt in chosen),
            undistracted=self._collate(portion, [prompt.undistracted for prompt in chosen]),
        )

    def _prompts_of(self, index: int) -> list[DistractedPrompt]:
        """Make the prompts of a trial, for the test samples that have a false object; the last trial's are kept.

        False objects are tried in their order until one has another first token than the true object.
        """
        if self._served is not None and self._served[0] == index:
            return self._served[1]
        trial = super().trial(index)
        template = trial.relation.template
        candidates = [false_objects(trial, sample, self.seed) for sample in trial.test]
        context = trial.train if self.undistracted == "few-shot" else ()
        read = partial(pass_over_blanks, self.tokenizer, trial.relation)
        undistracted = read(make_prompts(self.tokenizer, template, trial.test, context, self.prompts))
        distracted: dict[int, DistractedPrompt] = {}
        for attempt in range(max(map(len, candidates))):
            tried = [i for i, objects in enumerate(candidates) if i not in distracted and attempt < len(objects)]
            true = [trial.test[i] for i in tried]
            false = [Sample(trial.test[i].subject, candidates[i][attempt]) for i in tried]
            heads = []
            for sample in false:
                stated = f"{fill(template, sample.subject)} {sample.object}{self.falsehood_separator}"
                heads.append(stated * self.repetitions if self.distraction == "repetition" else stated + INSTRUCTION)
            make = partial(make_prompts_after, self.tokenizer, template, heads=heads, options=self.prompts)
            asked = (read(make(samples)) for samples in (true, false))
            for i, prompt, other in zip(tried, *asked, strict=True):
                if prompt.object_token != other.object_token:
                    distracted[i] = DistractedPrompt(i, prompt, undistracted[i], other.object, other.object_token)
        self._served = index, [distracted[i] for i in sorted(distracted)]
        return self._served[1]

    def _plain_arguments(self) -> dict[str, Any]:
        names = ("distraction", "repetitions", "falsehood_separator", "undistracted")
        return {**super()._plain_arguments(), **{name: getattr(self, name) for name in names}}


def false_objects(trial: Trial, sample: Sample, seed: int) -> list[str]:
    """Return the objects of the relation that the subject does not have, in a random order.

    They are ordered by the SHA-256 digest of seed, relation name, trial, subject, object and the false object.
    """
    relation = trial.relation
    true = {other.object for other in relation.samples if other.name == sample.name}
    key = "false object", seed, relation.name, trial.number, sample.subject, sample.object
    others = [candidate for candidate in relation.objects if candidate not in true]
    return sorted(others, key=partial(draw_order, *key))
