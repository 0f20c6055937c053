"""Prompts, and where the subject and the object are in their tokens.

A line is the template with the subject in it, a space and the object; lines are joined by newlines and the
last line stops before the object (Hernandez et al., ICLR 2024, section 4 and appendix). Every prompt begins with
exactly one start token. All positions are token indices that count the start token.
"""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lre_lightning.errors import LREError
from lre_lightning.models.loading import locate
from lre_lightning.prompts.chat import ChatPrompts
from lre_lightning.prompts.options import LINES, Prompts
from lre_lightning.prompts.tokenization import Encoding, Span, encode, encode_after
from lre_lightning.relations.relation import SLOT, Relation, Sample, check_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """One prompt in tokens.

    Attributes:
        text: The prompt's text; it stops before the object.
        subject: The subject that the last line asks about.
        object: The object that would be the right answer.
        input_ids: The tokens, start token first.
        subject_span: First token and one past the last token of the subject's last mention.
        object_tokens: All tokens of the object, read off the tokenization of the text, a space and the object.
        subject_chars: First character and one past the last character of the subject's last mention in `text`.

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

    @property
    def subject_position(self) -> int:
        """The last token of the subject's last mention: where s is read."""
        return self.subject_span[1] - 1

    @property
    def last_position(self) -> int:
        """The prompt's last token: where o is read."""
        return len(self.input_ids) - 1

    @property
    def object_token(self) -> int:
        """The object's first token: what the LM has to predict."""
        return self.object_tokens[0]


@dataclass(frozen=True)
class FirstTokenCoverage:
    """How many of a relation's objects a tokenizer tells apart by their first token.

    Table "first_token_filter" of the paper. Where the fraction is below 1, a right first token may belong to another
    object, and faithfulness is overestimated.

    Attributes:
        relation: The relation's name.
        range_size: Number of its distinct objects.
        unique_first_tokens: Number of their distinct first tokens.
        collisions: Those objects that share a first token, by groups.

    >>> FirstTokenCoverage("city in country", range_size=21, unique_first_tokens=20).fraction
    0.9523809523809523
    """

    relation: str
    range_size: int
    unique_first_tokens: int
    collisions: tuple[tuple[str, ...], ...] = ()

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
    form: Prompts = LINES,
) -> Prompt:
    """Make one prompt: see `make_prompts`."""
    return make_prompts(tokenizer, template, [sample], context, form)[0]


def make_prompts(
    tokenizer: "PreTrainedTokenizerBase",
    template: str,
    samples: Sequence[Sample],
    context: Sequence[Sample] = (),
    form: Prompts = LINES,
) -> list[Prompt]:
    """Make one prompt for each sample, all under the same context.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        template: A template with one ``{}``.
        samples: The facts that are asked for.
        context: The facts that are given as examples.
        form: How they become one prompt.

    Returns:
        The prompts, in the order of `samples`.

    Raises:
        LREError: The tokenizer is not a fast one, or has no token to start with or no chat template; the template is
            not one; a subject or object vanishes in the tokenization or becomes a control token.
    """
    given = context[: form.shots]
    if not form.chat:
        lines = (f"{fill(template, example.subject)} {example.object}{form.separator}" for example in given)
        return make_prompts_after(tokenizer, template, samples, ["".join(lines)] * len(samples))
    check_tokenizer(tokenizer)
    check_template(template)
    turns = [(fill(template, sample.subject), sample.object) for sample in given]
    chat = ChatPrompts(tokenizer, turns, form.system)
    asked = [chat.ask(fill(template, sample.subject), sample.object) for sample in samples]
    encodings = chat.encode([text for question in asked for text in (question.text, question.answered)])
    prompts = []
    for sample, question, (encoding, answer) in zip(samples, asked, _in_pairs(encodings), strict=True):
        lead = () if chat.begins(question.text, encoding) else (start_token(tokenizer),)
        mention = _last_mention(template, sample.subject, question.text[: question.end], question.start)
        prompts.append(_prompt(lead, question.text, sample, mention, encoding, answer, question.object_start))
    return prompts


def make_prompts_after(
    tokenizer: "PreTrainedTokenizerBase", template: str, samples: Sequence[Sample], heads: Sequence[str]
) -> list[Prompt]:
    """Make one prompt for each sample after a text: the same for all, or one of its own for each.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        template: A template with one ``{}``.
        samples: The facts that are asked for.
        heads: What stands before each of them; white space between it and the template is a part of it.

    Raises:
        LREError: As `make_prompts`.
    """
    check_tokenizer(tokenizer)
    check_template(template)
    lead = (start_token(tokenizer),)
    lines = [fill(template, sample.subject) for sample in samples]
    tails = [text for line, sample in zip(lines, samples, strict=True) for text in (line, f"{line} {sample.object}")]
    if len(set(heads)) == 1:
        encodings = encode_after(tokenizer, heads[0], tails)
    else:
        encodings = encode(tokenizer, [heads[i // 2] + tail for i, tail in enumerate(tails)])
    prompts = []
    for head, line, sample, (encoding, answer) in zip(heads, lines, samples, _in_pairs(encodings), strict=True):
        text = head + line
        mention = _last_mention(template, sample.subject, text, len(head))
        prompts.append(_prompt(lead, text, sample, mention, encoding, answer, len(text) + 1))
    return prompts


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[int, ...]:
    """The tokens of a free text, with the one token in front that every prompt starts with.

    Raises:
        LREError: The tokenizer leaves nothing of the text.
    """
    ((ids, _),) = encode(tokenizer, [text])
    if not ids:
        raise LREError(f"the text {text!r} has no token: give one with a word in it")
    return (start_token(tokenizer), *ids)


def first_token_coverage(
    relation: Relation, tokenizer: "PreTrainedTokenizerBase", form: Prompts = LINES
) -> FirstTokenCoverage:
    """Count the first tokens of a relation's objects.

    Args:
        relation: The relation; each distinct object is asked for in a prompt without context.
        tokenizer: A fast Hugging Face tokenizer.
        form: How the prompts are made.

    Returns:
        The number of distinct objects and of their distinct first tokens (paper: table "first_token_filter"), and
        which objects share one.
    """
    by_object = {sample.object: sample for sample in reversed(relation.samples)}
    by_token: dict[int, list[str]] = defaultdict(list)
    for prompt in make_prompts(tokenizer, relation.template, [by_object[o] for o in relation.objects], (), form):
        by_token[prompt.object_token].append(prompt.object)
    collisions = tuple(tuple(objects) for objects in by_token.values() if len(objects) > 1)
    return FirstTokenCoverage(relation.name, len(by_object), len(by_token), collisions)


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Check that a tokenizer can say which characters each token stands for.

    Raises:
        LREError: It is a slow tokenizer.
    """
    if not getattr(tokenizer, "is_fast", False):
        name = type(tokenizer).__name__
        raise LREError(f"{name} can't say where a token is in a text: use the fast tokenizer (tokenizer.json)")


def start_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the one token that every prompt starts with.

    It is the tokenizer's BOS token, else what it puts in front of a text itself, else its EOS token (Qwen).

    Raises:
        LREError: It has none of these.
    """
    if tokenizer.bos_token_id is not None:
        return _token_id(tokenizer.bos_token_id)
    plain = _ids(tokenizer("a", add_special_tokens=False))
    whole = _ids(tokenizer("a", add_special_tokens=True))
    if whole[: len(plain)] != plain:
        return whole[0]
    if tokenizer.eos_token_id is None:
        raise LREError(
            f"the tokenizer {tokenizer.name_or_path!r} has neither a BOS nor an EOS token to start prompts with"
        )
    return _token_id(tokenizer.eos_token_id)


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the token to pad with: the tokenizer's own, else the start token (it is never attended to)."""
    return start_token(tokenizer) if tokenizer.pad_token_id is None else _token_id(tokenizer.pad_token_id)


def load_tokenizer(
    name_or_path: str, revision: str | None = None, trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase":
    """Load a Hugging Face tokenizer.

    Args:
        name_or_path: A model's name on the Hub, its folder, or ``"demo"`` for the bundled model.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code that the model's repository brings along.

    Raises:
        LREError: It can't be loaded, or isn't a fast tokenizer.
    """
    path = locate(name_or_path)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        where = "the folder" if os.path.isdir(path) else "no such folder here, and from the Hub"
        raise LREError(f"can't load the tokenizer {name_or_path!r} ({where}): {reason}") from error
    check_tokenizer(tokenizer)
    if len(tokenizer) < 2:
        raise LREError(
            f"can't load the tokenizer {name_or_path!r}: its vocabulary is empty (is tokenizer.json missing?)"
        )
    return cast("PreTrainedTokenizerBase", tokenizer)


def _token_id(value: Any) -> int:
    return int(value[0] if isinstance(value, list) else value)


def _ids(encoding: Any) -> list[int]:
    return list(encoding["input_ids"])


def _in_pairs(encodings: list[Encoding]) -> "zip[tuple[Encoding, Encoding]]":
    """The encodings of a prompt, and of the same with its object."""
    return zip(encodings[::2], encodings[1::2], strict=True)


def _prompt(
    lead: tuple[int, ...], text: str, sample: Sample, mention: Span, asked: Encoding, answered: Encoding, first: int
) -> Prompt:
    """Put a prompt together.

    Args:
        lead: What is in front of the text's tokens.
        text: The prompt's text.
        sample: The fact that is asked for.
        mention: The characters of the subject's last mention.
        asked: The tokens of the text.
        answered: Those of the text and the object.
        first: The character after `text` at which the object begins, with white space of its own.
    """
    return Prompt(
        text=text,
        subject=sample.subject,
        object=sample.object,
        input_ids=(*lead, *asked[0]),
        subject_span=_subject_span(asked, text, mention, len(lead)),
        object_tokens=_object_tokens(asked, answered, text, sample.object, first),
        subject_chars=mention,
    )


def _last_mention(template: str, subject: str, text: str, line: int) -> Span:
    """Find the characters of the subject's last mention in the prompt.

    That is the template's slot in the last line, which starts at character `line`, or a later mention as whole
    words in the template's own text ("cat" isn't mentioned in "category"). White space around the subject isn't
    part of a mention: a position on it would say nothing about the subject.
    """
    name = subject.strip() or subject
    start = line + template.index(SLOT) + subject.index(name)
    mention = (start, start + len(name))
    if name not in text[mention[1] :]:  # as nearly always: making a pattern takes longer than all else
        return mention
    later = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").finditer(text, mention[1])
    return max([mention, *(match.span() for match in later)])


def _subject_span(encoding: Encoding, text: str, mention: Span, lead: int) -> Span:
    """Find the tokens that share a character with a mention, counting those in front.

    One character may be split over several tokens (byte-level BPE), and a token may hold the space before a word.
    """
    tokens = [i for i, (start, end) in enumerate(encoding[1], lead) if start < mention[1] and end > mention[0]]
    if not tokens:
        raise LREError(f"the tokenizer leaves nothing of the subject {text[slice(*mention)]!r} in {text!r}")
    return tokens[0], tokens[-1] + 1


def _object_tokens(asked: Encoding, answered: Encoding, text: str, answer: str, first: int) -> tuple[int, ...]:
    """Return the object's tokens, the first of which the model has to predict after the prompt.

    Where the last word of the prompt and the object's first don't tokenize apart, they begin with the first token that
    reaches the object's first character.
    """
    ids, offsets = answered
    length = len(asked[0])
    if len(ids) > length and ids[:length] == asked[0]:
        return tuple(ids[length:])
    first += len(answer) - len(answer.lstrip())
    for i, (_, end) in enumerate(offsets):
        if end > first:
            return tuple(ids[i:])
    raise LREError(f"the tokenizer leaves nothing of the object {answer!r} after {text!r}")
