"""Prompts, and the tokens of subject and object in them.

A line is the template with the subject in it, a space and the object; lines are joined by newlines, and the last line
stops before the object (Hernandez et al., ICLR 2024, section 4 and appendix). A prompt begins with a start token, or
with none where that suits the LM. All positions are token indices that count the start token.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError
from lre_lightning.models.tokenizer import StartToken, check_tokenizer, start_tokens, token_text
from lre_lightning.prompts.chat import Conversation, Question
from lre_lightning.prompts.mentions import Mention, mentions
from lre_lightning.prompts.options import LINES, Prompts
from lre_lightning.prompts.tokenization import Encoding, Span, tokenize
from lre_lightning.relations.relation import SLOT, Relation, Sample, check_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lre_lightning.prompts.source import PromptSource


@dataclass(frozen=True)
class Prompt:
    """One prompt in tokens.

    Attributes:
        text: The prompt's text; it stops before the object.
        subject: The subject that the last line asks about.
        object: The correct answer.
        input_ids: The tokens: a start token if there is one, the text, and the white space added by
            `pass_over_blanks`, if any.
        subject_span: First token and one past the last token of the subject's last mention.
        object_tokens: All tokens of the object, read off the tokenization of the text, a space and the object.
        subject_chars: First character and one past the last character of the subject's last mention in `text`.
        start: The number of start tokens.

    >>> prompt = Prompt("Paris is in", "Paris", "France", (0, 7, 8, 9), (1, 2), (5, 6), (0, 5))
    >>> prompt.subject_position, prompt.last_position, prompt.object_token
    (1, 3, 5)
    """

    text: str
    subject: str
    object: str
    input_ids: tuple[int, ...]
    subject_span: Span
    object_tokens: tuple[int, ...]
    subject_chars: Span = (0, 0)
    start: int = 1

    @property
    def subject_position(self) -> int:
        """The last token of the subject's last mention, at which s is read."""
        return self.subject_span[1] - 1

    @property
    def last_position(self) -> int:
        """The prompt's last token, at which o is read."""
        return len(self.input_ids) - 1

    @property
    def object_token(self) -> int:
        """The object's first token, which the LM has to predict."""
        return self.object_tokens[0]


@dataclass(frozen=True)
class FirstTokenCoverage:
    """The number of a relation's objects that a tokenizer tells apart by their first token.

    Table "first_token_filter" of the paper. Where the fraction is below 1, a correct first token may belong to another
    object, and faithfulness is overestimated.

    Attributes:
        relation: The relation's name.
        range_size: The number of its distinct objects.
        unique_first_tokens: The number of their distinct first tokens.
        collisions: Groups of objects that share a first token.
        tokens: All tokens of each object.

    >>> FirstTokenCoverage("city in country", range_size=21, unique_first_tokens=20).fraction
    0.9523809523809523
    """

    relation: str
    range_size: int
    unique_first_tokens: int
    collisions: tuple[tuple[str, ...], ...] = ()
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def fraction(self) -> float:
        """Distinct first tokens over distinct objects."""
        return self.unique_first_tokens / self.range_size


def fill(template: str, subject: str) -> str:
    """Put a subject in a template's ``{}``; braces in the subject stay as they are."""
    return template.replace(SLOT, subject, 1)


def make_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    template: str,
    sample: Sample,
    context: Sequence[Sample] = (),
    options: Prompts = LINES,
) -> Prompt:
    """Make one prompt: see `make_prompts`."""
    return make_prompts(tokenizer, template, [sample], context, options)[0]


def make_prompts(
    tokenizer: "PreTrainedTokenizerBase",
    template: str,
    samples: Sequence[Sample],
    context: Sequence[Sample] = (),
    options: Prompts = LINES,
) -> list[Prompt]:
    """Make one prompt for each sample, in their order, all with the same context.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        template: A template with one ``{}``.
        samples: The samples to ask for.
        context: The samples to show as examples.
        options: Those of `Prompts.form` are used.
    """
    examples = context[: options.shots]
    if not options.chat:
        lines = [f"{fill(template, sample.subject)} {sample.object}{options.separator}" for sample in examples]
        return make_prompts_after(tokenizer, template, samples, ["".join(lines)] * len(samples), options)
    check_tokenizer(tokenizer)
    check_template(template)
    turns = [(fill(template, sample.subject), sample.object) for sample in examples]
    chat = Conversation(tokenizer, turns, options.system)
    questions = [chat.ask(fill(template, sample.subject), sample.object) for sample in samples]
    encodings = tokenize(tokenizer, _texts(questions), controls=True)
    prompts, start = [], start_tokens(tokenizer, options.start_token)
    for sample, asked, encoding, answered in zip(samples, questions, encodings[::2], encodings[1::2], strict=True):
        first = chat.controls.get(encoding[0][0]) if encoding[0] else None
        started = first is not None and asked.text.lstrip().startswith(first)  # a word may become such a token too
        prompt = _prompt(template, sample, asked, () if started else start, encoding, answered)
        prompts.append(replace(prompt, start=1) if started else prompt)
    return prompts


def make_prompts_after(
    tokenizer: "PreTrainedTokenizerBase",
    template: str,
    samples: Sequence[Sample],
    heads: Sequence[str],
    options: Prompts = LINES,
) -> list[Prompt]:
    """Make one prompt for each sample after a text, which ends in the white space that separates it from the template.

    Of the options `start_token` is used; the errors are those of `make_prompts`.
    """
    check_tokenizer(tokenizer)
    check_template(template)
    lead = start_tokens(tokenizer, options.start_token)
    questions = []
    for head, sample in zip(heads, samples, strict=True):
        text = head + fill(template, sample.subject)
        questions.append(Question(text, len(head), len(text), f"{text} {sample.object}", len(text) + 1))
    encodings = tokenize(tokenizer, _texts(questions))
    return [
        _prompt(template, sample, asked, lead, encoding, answered)
        for sample, asked, encoding, answered in zip(samples, questions, encodings[::2], encodings[1::2], strict=True)
    ]


def _texts(questions: Sequence[Question]) -> list[str]:
    return [text for asked in questions for text in (asked.text, asked.answered)]


def _prompt(
    template: str, sample: Sample, asked: Question, lead: tuple[int, ...], encoding: Encoding, answered: Encoding
) -> Prompt:
    """Put a prompt together from the tokens of its text and those of its text with the answer.

    One character may be split over several tokens (byte-level BPE), and a token may hold the space before a word.
    """
    mention = _last_mention(template, sample.subject, asked.text[: asked.end], asked.start)
    first, end = mention.tokens(encoding[1])
    ids, length = answered[0], len(encoding[0])
    if len(ids) == length or ids[:length] != encoding[0]:
        # The prompt's last word and the object's first are joined: the first token that reaches into the object counts.
        begin = asked.object_start + len(sample.object) - len(sample.object.lstrip())
        length = next((i for i, (_, end) in enumerate(answered[1]) if end > begin), len(ids))
    if length == len(ids):
        raise LREError(f"the tokenizer leaves nothing of the object {sample.object!r} after {asked.text!r}")
    return Prompt(
        text=asked.text,
        subject=sample.subject,
        object=sample.object,
        input_ids=(*lead, *encoding[0]),
        subject_span=(len(lead) + first, len(lead) + end),
        object_tokens=tuple(ids[length:]),
        subject_chars=mention.span,
        start=len(lead),
    )


def _last_mention(template: str, subject: str, text: str, line: int) -> Mention:
    """Find the subject's last mention in a prompt.

    That is the template's slot in the last line, which starts at character `line`, or a later mention in the template's
    own text ("cat" is not mentioned in "category"). White space around the subject is not part of a mention: a position
    on it would say nothing about the subject.
    """
    name = subject.strip() or subject
    start = line + template.index(SLOT) + subject.index(name)
    slot = Mention(text, (start, start + len(name)))
    return [slot, *mentions(text, [name], slot.span[1])][-1]


def start_text(data: "PromptSource") -> str:
    """Return in words what the prompts of a datamodule start with."""
    choice = data.prompts.start_token
    tokens = "".join(token_text(data.tokenizer, token) for token in start_tokens(data.tokenizer, choice))
    return f"start token {tokens!r} ({choice})" if tokens else "no start token"


def tokenize_text(
    tokenizer: "PreTrainedTokenizerBase", text: str, start: StartToken = "auto"
) -> tuple[tuple[int, ...], int]:
    """Return the tokens of a free text after the start token, if any, and the place of the text's first one.

    Raises:
        LREError: If the text has no token, or the tokenizer not that start token.
    """
    ((ids, _),) = tokenize(tokenizer, [text])
    if not ids:
        raise LREError(f"the text {text!r} has no token: give one with a word in it")
    lead = start_tokens(tokenizer, start)
    return (*lead, *ids), len(lead)


def first_token_coverage(
    relation: Relation, tokenizer: "PreTrainedTokenizerBase", options: Prompts = LINES
) -> FirstTokenCoverage:
    """Count the first tokens of a relation's distinct objects, each in a prompt without context."""
    by_token: dict[int, list[str]] = defaultdict(list)
    prompts = pass_over_blanks(tokenizer, relation, _prompt_of_each_object(tokenizer, relation, options), options)
    for prompt in prompts:
        by_token[prompt.object_token].append(prompt.object)
    collisions = tuple(tuple(objects) for objects in by_token.values() if len(objects) > 1)
    tokens = {prompt.object: prompt.object_tokens for prompt in prompts}
    return FirstTokenCoverage(relation.name, len(prompts), len(by_token), collisions, tokens)


def pass_over_blanks(
    tokenizer: "PreTrainedTokenizerBase", relation: Relation, prompts: Sequence[Prompt], options: Prompts = LINES
) -> list[Prompt]:
    """Let prompts of a relation end with the white-space tokens that all of its objects begin with.

    Tokenizers such as Llama's and Qwen's begin every number with a bare space, which says nothing about it: o is read
    after it, and the object's first token is the next one. A blank that only some of the objects begin with stays part
    of them, since a prompt that ends with it would tell which ones are meant.
    """
    if not _blanks(tokenizer, prompts[:1]):  # nearly always
        return list(prompts)
    blanks = _blanks(tokenizer, _prompt_of_each_object(tokenizer, relation, options))
    return [
        replace(prompt, input_ids=prompt.input_ids + blanks, object_tokens=prompt.object_tokens[len(blanks) :])
        if prompt.object_tokens[: len(blanks)] == blanks
        else prompt
        for prompt in prompts
    ]


def _blanks(tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[Prompt]) -> tuple[int, ...]:
    """Return the tokens of nothing but white space that the objects of all prompts begin with, before another one."""
    columns = zip(*(prompt.object_tokens[:-1] for prompt in prompts), strict=False)
    alike = takewhile(lambda column: len(set(column)) == 1 and token_text(tokenizer, column[0]).isspace(), columns)
    return tuple(column[0] for column in alike)


def _prompt_of_each_object(tokenizer: "PreTrainedTokenizerBase", relation: Relation, options: Prompts) -> list[Prompt]:
    """Make a prompt without context for the first sample of each distinct object."""
    by_object = {sample.object: sample for sample in reversed(relation.samples)}
    samples = [by_object[name] for name in relation.objects]
    return make_prompts(tokenizer, relation.template, samples, (), options)
