"""The options of prompts, and the choice of templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from typing_extensions import TypedDict

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.models.tokenizer import StartToken
from lre_lightning.options import option
from lre_lightning.relations.relation import SLOT, Relation, check_template
from lre_lightning.storage.typed import Count, Text, Truth

if TYPE_CHECKING:
    from typing_extensions import Self

    from lre_lightning.models.language_model import LanguageModel

Sampling: TypeAlias = Literal["random", "balanced"]
"""Ways to draw training samples: each with the same chance, or as evenly as possible over the objects."""

TrainSample: TypeAlias = str | list[str]
"""A training sample named by its subject, or by its subject and object."""

TEMPLATES = ("few-shot", "zero-shot", "all", "bare")
"""Names for choices of templates: all of a relation's templates of one kind, or ``"{}"`` alone."""

BETWEEN_TEMPLATES = " | "
"""What joins the templates of a trial where there are several."""


class PromptForm(TypedDict):
    """The options of `Prompts` that the form of a prompt depends on."""

    shots: Count | None
    separator: Text
    chat: Truth
    system: Text | None
    start_token: StartToken


@dataclass(frozen=True)
class Prompts:
    r"""Options of drawing training samples and of making prompts.

    Attributes:
        template: An index into each relation's own distinct templates, few-shot ones first (relations with fewer
            templates are left out); one template for all relations; a dictionary of templates by relation; ``"bare"``
            for ``"{}"``, a prompt without relation-specific text; or ``"few-shot"``, ``"zero-shot"`` or ``"all"`` to
            ask for each sample with each of these templates.
        shots: The number of examples before the question, taken from the first training samples; None for all of
            them: n - 1 in training and n in validation.
        separator: The text between two lines of a prompt.
        chat: Whether prompts are conversations in the tokenizer's chat template, for instruction-tuned LMs: the user
            says each line without its object, and the assistant answers with the object.
        system: The system message of conversations.
        start_token: What each prompt starts with: the ``"bos"`` or ``"eos"`` token; ``"own"``, what the tokenizer puts
            in front of a text itself; ``"none"``; or ``"auto"``, what suits the LM, see `LanguageModel.start_token`.
        sampling: ``"random"``, or ``"balanced"`` to draw training samples as evenly as possible over the objects.
        train_samples: The training samples by relation, instead of drawing them: n subjects each, or [subject, object]
            where a subject has several objects.
        choosing_trials: The number of first trials that test on subjects of their own: half of a relation's subjects,
            drawn by a hash, while the other trials test on the other half. With as many
            ``model.fitting.selection_trials``, layer and rank are chosen on other subjects than those that are scored.
            Training samples are the same as without. With 0 all trials test on all subjects.

    >>> Prompts(template="{} is in", shots=3).separator
    '\n'
    """

    template: int | str | dict[str, str] = option(0, recorded=True)
    shots: int | None = option(None, recorded=True)
    separator: str = option("\n", recorded=True)
    chat: bool = option(False, recorded=True)
    system: str | None = option(None, recorded=True)
    start_token: StartToken = option("auto", recorded=True)
    sampling: Sampling = option("random", recorded=True)
    train_samples: dict[str, list[TrainSample]] | None = option(None)
    choosing_trials: int = option(0, recorded=True)

    def __post_init__(self) -> None:
        if self.template == {}:  # what a command line makes of the bare template
            object.__setattr__(self, "template", SLOT)
        if isinstance(self.template, Mapping):
            for given in self.template.values():
                check_template(given)
        elif not isinstance(self.template, str):
            check_number("template", self.template, 0)
        elif self.template not in TEMPLATES:
            check_template(self.template)
        if self.shots is not None:
            check_number("shots", self.shots, 0)
        if not isinstance(self.separator, str) or not self.separator:
            raise LREError(f"separator is {self.separator!r}: lines must be kept apart, by '\\n' for example")
        if not isinstance(self.system, str | None):
            raise LREError(f"system must be a text, got {self.system!r}")
        if self.system is not None and not self.chat:
            raise LREError("system is a message of conversations: set chat, or leave system out")
        check_choice("start_token", self.start_token, get_args(StartToken))
        check_choice("sampling", self.sampling, get_args(Sampling))
        check_number("choosing_trials", self.choosing_trials, 0)
        samples = {} if self.train_samples is None else self.train_samples
        if not isinstance(samples, Mapping) or not all(isinstance(some, list | tuple) for some in samples.values()):
            raise LREError(f"train_samples must be lists by relation, got {samples!r}")

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that the record of a trial keeps, as plain data."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.metadata["recorded"]}

    @property
    def form(self) -> PromptForm:
        """The options that the form of a prompt depends on, as plain data."""
        names = ("shots", "separator", "chat", "system", "start_token")
        return {name: getattr(self, name) for name in names}  # type: ignore[return-value]

    def of(self, lm: LanguageModel) -> Self:
        """Return the options with the start token that suits an LM, unless they name one."""
        return replace(self, start_token=lm.start_token) if self.start_token == "auto" else self


LINES = Prompts()
"""The paper's prompts: all examples, one per line."""


def choose_templates(
    relations: Sequence[Relation], template: int | str | Mapping[str, str]
) -> list[tuple[Relation, tuple[str, ...]]]:
    """Choose the templates of prompts, as `Prompts.template` says.

    Returns:
        The relations that have such templates, with the first one chosen as their own first one, each with all chosen.
    """
    if isinstance(template, Mapping):
        for name in template.keys() - {relation.name for relation in relations}:
            raise LREError(f"a template is given for {name!r}, which is not among the relations")
    templates = [(relation, _templates_of(relation, template)) for relation in relations]
    chosen = [(relation, texts) for relation, texts in templates if texts]
    if not chosen:
        if isinstance(template, int):
            most = max(len(relation.templates) for relation in relations)
            raise LREError(f"no relation has a template {template}: the relations have at most {most}, counted from 0")
        raise LREError(f"no relation has a template for {template!r}: give one yourself")
    return [(replace(r, prompt_templates=texts) if r.templates[:1] != texts else r, texts) for r, texts in chosen]


def _templates_of(relation: Relation, template: int | str | Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(template, Mapping):
        return (template.get(relation.name) or relation.template,)
    if isinstance(template, int):  # the first one raises an error where a relation has none
        return relation.templates[template : template + 1] if template else (relation.template,)
    named = {
        "few-shot": relation.prompt_templates,
        "zero-shot": relation.zero_shot_templates,
        "all": relation.templates,
        "bare": (SLOT,),
    }
    return tuple(dict.fromkeys(named.get(template, (template,))))
