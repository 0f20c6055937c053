"""The origin of an LRE: the LM, relation, samples and prompts that it was estimated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.models.backward import Backward
from lre_lightning.models.identity import Identity
from lre_lightning.models.language_model import LanguageModel, label_of
from lre_lightning.prompts.mentions import Mention, mentions
from lre_lightning.prompts.options import BETWEEN_TEMPLATES, LINES, PromptForm, Prompts
from lre_lightning.prompts.prompt import Prompt, make_prompt, make_prompts
from lre_lightning.prompts.tokenization import Span
from lre_lightning.relations.relation import SLOT, Sample
from lre_lightning.storage.typed import Count, Name, Text

if TYPE_CHECKING:
    from lre_lightning.prompts.trials import Trial


@dataclass(frozen=True)
class Origin:
    """Provenance of an LRE.

    Attributes:
        model: Name or folder of the LM.
        identity: What the LM computes, `LanguageModel.identity`.
        relation: Name of the relation.
        revision: The LM's revision on the hub; None for a local LM.
        adapter: Folder or hub name of the adapter in the LM, if any.
        category: Category of the relation.
        trial: Number of the trial.
        template: The prompt template; several are joined by `BETWEEN_TEMPLATES`.
        train: The training samples (subject, object), in the order of the draw.
        form: The form of the prompts, `Prompts.form`.
        backward: The rule of the backward pass that W was read off.
    """

    model: Text
    identity: Identity
    relation: Name
    revision: Name | None = None
    adapter: Text | None = None
    category: Name = ""
    trial: Count = 0
    template: Text = ""
    train: tuple[tuple[Text, Text], ...] = ()
    form: PromptForm = field(default_factory=lambda: LINES.form)
    backward: Backward = "exact"

    @classmethod
    def of(cls, lm: LanguageModel, trial: Trial, prompts: Prompts = LINES, backward: Backward = "exact") -> Self:
        """Return the origin of the LREs of a trial."""
        return cls(
            model=lm.name,
            identity=lm.identity,
            relation=trial.relation.name,
            revision=lm.revision,
            adapter=lm.adapter,
            category=trial.relation.category,
            trial=trial.number,
            template=trial.template,
            train=tuple((sample.subject, sample.object) for sample in trial.train),
            form=prompts.of(lm).form,
            backward=backward,
        )

    @property
    def first_template(self) -> str:
        """The template, or the first of several."""
        return self.template.split(BETWEEN_TEMPLATES)[0]

    def prompt(self, lm: LanguageModel, subject: str) -> Prompt:
        """Make the prompt that asks for a subject's object, with the other training samples as its context.

        Raises:
            LREError: If the template or the training samples are not known.
        """
        if not (self.template and self.train):
            raise LREError(f"the LRE of {self.relation!r} does not say which prompts it was estimated from")
        context = [Sample(*sample) for sample in self.train if sample[0] != subject]
        asked = Sample(subject, self.train[0][1])  # a prompt ends before its object, so any will do
        return make_prompt(lm.tokenizer, self.first_template, asked, context, Prompts(**self.form))

    def asked(self, lm: LanguageModel, template: str, *subjects: str) -> list[Prompt]:
        """Make the prompts that edits need: a text about each subject, in the form of the estimate, without examples.

        If the LRE was estimated in chats, the text is the user's message, and o is read where the answer begins.
        """
        samples = [Sample(subject, subject) for subject in subjects]  # a prompt ends before its object
        return make_prompts(lm.tokenizer, template, samples, (), Prompts(**self.form))

    def asked_in(self, text: str, anywhere: bool = False) -> Mention | None:
        """Find the subject that a text asks about at its end, in one of the templates; None if it does not.

        A remark between commas after the subject is not part of it: "The capital of Niger, not Nigeria, is" asks about
        Niger.

        Args:
            text: The text.
            anywhere: Whether a template of at least two words may also be followed by more, as in "Miles Davis plays
                the trumpet"; the last such place counts.
        """
        for template in self.template.split(BETWEEN_TEMPLATES):
            before, slot, after = template.partition(SLOT)
            if not (slot and before + after):
                continue
            ends = [len(text)]
            if anywhere and after.strip() and len((before + after).split()) > 1:
                ends += [mention.span[1] for mention in reversed(mentions(text, [after]))]
            for end in ends:
                found = _filled(text[:end], before, after)
                if found is not None:
                    return Mention(text, found)
        return None

    def template_of(self, prompt: str, subject: str | None = None) -> tuple[str, str]:
        """Return a text with ``{}`` for its subject's last mention, and the subject.

        Raises:
            LREError: If no subject is given and the text does not ask about one in a template, or the text does not
                mention the one that is given.
        """
        if subject is None:
            found = [mention for mention in [self.asked_in(prompt)] if mention]
            if not found:
                raise LREError(
                    f"the subject of {prompt!r} is not found, as it does not end like {self.template!r}: name it, "
                    "subject=..."
                )
        else:
            found = mentions(prompt, [subject])
            if not found:
                raise LREError(f"the subject {subject!r} is not in the prompt {prompt!r}, as a word of its own")
        first, end = found[-1].span
        return f"{prompt[:first]}{SLOT}{prompt[end:]}", found[-1].subject


def _filled(text: str, before: str, after: str) -> Span | None:
    """Return the characters between the two parts of a template at the end of a text, if it ends so."""
    end = len(text) - len(after)
    start = text.rfind(before, 0, end) if before else text.rfind("\n", 0, end) + 1
    said = text[start + len(before) : end]
    name = (said.split(",")[0] if said.rstrip().endswith(",") else said).strip()
    repeated = before and mentions(said, [after])  # it is filled before, and not again: "of Mali is ..., of Chad is"
    if not text.endswith(after) or start < 0 or not name or "\n" in said or repeated:
        return None
    first = text.index(name, start + len(before))
    return first, first + len(name)


def check_origin(origin: Mapping[str, Any], lm: LanguageModel, title: str | None = None) -> None:
    """Check that an LM computes what that of an origin, as plain data, did; the lens is an LRE without a `title`."""
    identity = Identity(**origin["identity"])
    if not identity.fits(lm.identity):
        label = label_of(origin["model"], origin["revision"], origin["adapter"])
        raise LREError(
            f"the {title or 'LRE of ' + repr(origin['relation'])} was estimated from {label!r}, and {lm.label!r} "
            f"computes something else: {identity.comparison(lm.identity)}. Load the LM it was estimated from"
        )
