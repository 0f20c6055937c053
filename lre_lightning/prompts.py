"""Few-shot prompts, and where the subject and the object are in their tokens.

A line is the template with the subject in it, a space and the object; lines are joined by newlines and the
last line stops before the object (Hernandez et al., ICLR 2024, section 4 and appendix). Every prompt begins with
exactly one start token. All positions are token indices that count the start token.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lre_lightning.errors import LREError
from lre_lightning.loading import locate
from lre_lightning.relations import SLOT, Relation, Sample, check_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
_Encoding = tuple[list[int], list[Span]]


@dataclass(frozen=True)
class Prompt:
    """One prompt in tokens.

    Attributes:
        text: The prompt's text; it stops before the object.
        subject: The subject that the last line asks about.
        object: The object that would be the right answer.
        input_ids: The tokens, start token first.
        subject_span: First token and one past the last token of the subject's last mention.
        object_token: The object's first token, read off the tokenization of the text, a space and the object.

    >>> prompt = Prompt("Paris is in", "Paris", "France", (0, 7, 8, 9), (1, 2), 5)
    >>> prompt.subject_position, prompt.last_position
    (1, 3)
    """

    text: str
    subject: str
    object: str
    input_ids: tuple[int, ...]
    subject_span: Span
    object_token: int

    @property
    def subject_position(self) -> int:
        """The last token of the subject's last mention: where s is read."""
        return self.subject_span[1] - 1

    @property
    def last_position(self) -> int:
        """The prompt's last token: where o is read."""
        return len(self.input_ids) - 1


@dataclass(frozen=True)
class FirstTokenCoverage:
    """How many of a relation's objects a tokenizer tells apart by their first token.

    Table "first_token_filter" of the paper. Where the fraction is below 1, a right first token may belong to another
    object, and faithfulness is overestimated.

    >>> FirstTokenCoverage("city in country", range_size=21, unique_first_tokens=20).fraction
    0.9523809523809523
    """

    relation: str
    range_size: int
    unique_first_tokens: int

    @property
    def fraction(self) -> float:
        """Distinct first tokens over distinct objects."""
        return self.unique_first_tokens / self.range_size


def fill(template: str, subject: str) -> str:
    """Put a subject in a template's ``{}``; braces in the subject stay as they are."""
    return template.replace(SLOT, subject, 1)


def make_prompt(
    tokenizer: "PreTrainedTokenizerBase", template: str, sample: Sample, context: Sequence[Sample] = ()
) -> Prompt:
    """Make one prompt: see `make_prompts`."""
    return make_prompts(tokenizer, template, [sample], context)[0]


def make_prompts(
    tokenizer: "PreTrainedTokenizerBase", template: str, samples: Sequence[Sample], context: Sequence[Sample] = ()
) -> list[Prompt]:
    """Make one prompt for each sample, all under the same context.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        template: A template with one ``{}``.
        samples: The facts that are asked for.
        context: The facts that are given as examples, one line each.

    Returns:
        The prompts, in the order of `samples`.

    Raises:
        LREError: The tokenizer is not a fast one or has no token to start with, the template is not one, or a
            subject or object vanishes in the tokenization or becomes a control token.
    """
    head = "".join(f"{fill(template, given.subject)} {given.object}\n" for given in context)
    return make_prompts_after(tokenizer, template, samples, [head] * len(samples))


def make_prompts_after(
    tokenizer: "PreTrainedTokenizerBase", template: str, samples: Sequence[Sample], heads: Sequence[str]
) -> list[Prompt]:
    """Make one prompt for each sample, as `make_prompts` does, but each after a text of its own.

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
    start = start_token(tokenizer)
    texts = [head + fill(template, sample.subject) for head, sample in zip(heads, samples, strict=True)]
    asked = _encode(tokenizer, texts)
    answered = _encode(tokenizer, [f"{text} {sample.object}" for text, sample in zip(texts, samples, strict=True)])
    return [
        Prompt(
            text=text,
            subject=sample.subject,
            object=sample.object,
            input_ids=(start, *encoding[0]),
            subject_span=_subject_span(encoding, text, _last_mention(template, sample.subject, text, len(head))),
            object_token=_object_token(encoding, answer, text, sample.object),
        )
        for head, text, sample, encoding, answer in zip(heads, texts, samples, asked, answered, strict=True)
    ]


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[int, ...]:
    """The tokens of a free text, with the one token in front that every prompt starts with.

    Raises:
        LREError: The tokenizer leaves nothing of the text.
    """
    ((ids, _),) = _encode(tokenizer, [text])
    if not ids:
        raise LREError(f"the text {text!r} has no token: give one with a word in it")
    return (start_token(tokenizer), *ids)


def first_token_coverage(relation: Relation, tokenizer: "PreTrainedTokenizerBase") -> FirstTokenCoverage:
    """Count the first tokens of a relation's objects.

    Args:
        relation: The relation; each distinct object is asked for in a prompt without context.
        tokenizer: A fast Hugging Face tokenizer.

    Returns:
        The number of distinct objects and of their distinct first tokens (paper: table "first_token_filter").
    """
    by_object = {sample.object: sample for sample in reversed(relation.samples)}
    prompts = make_prompts(tokenizer, relation.template, list(by_object.values()))
    return FirstTokenCoverage(relation.name, len(by_object), len({prompt.object_token for prompt in prompts}))


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


def _encode(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[_Encoding]:
    """Tokenize texts whole, with nothing added: token ids and the characters that each stands for.

    What is written like a control token, such as ``</s>``, is text like any other.

    Raises:
        LREError: The tokenizer makes a control token of it nevertheless.
    """
    if not texts:
        return []
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    controls = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for ids in encoded["input_ids"]:
        if not controls.isdisjoint(ids):
            token = tokenizer.convert_ids_to_tokens(next(id_ for id_ in ids if id_ in controls))
            raise LREError(f"a prompt has {token!r} in it, which the tokenizer takes for a control token: leave it out")
    return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))


def _last_mention(template: str, subject: str, text: str, line: int) -> Span:
    """Find the characters of the subject's last mention in the prompt.

    That is the template's slot in the last line, which starts at character `line`, or a later mention as whole
    words in the template's own text ("cat" isn't mentioned in "category"). White space around the subject isn't
    part of a mention: a position on it would say nothing about the subject.
    """
    name = subject.strip() or subject
    start = line + template.index(SLOT) + subject.index(name)
    later = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").finditer(text, start + len(name))
    return max([(start, start + len(name)), *(match.span() for match in later)])


def _subject_span(encoding: _Encoding, text: str, mention: Span) -> Span:
    """Find the tokens that share a character with a mention, counting the start token.

    One character may be split over several tokens (byte-level BPE), and a token may hold the space before a word.
    """
    tokens = [i for i, (start, end) in enumerate(encoding[1], 1) if start < mention[1] and end > mention[0]]
    if not tokens:
        raise LREError(f"the tokenizer leaves nothing of the subject {text[slice(*mention)]!r} in {text!r}")
    return tokens[0], tokens[-1] + 1


def _object_token(asked: _Encoding, answered: _Encoding, text: str, answer: str) -> int:
    """Return the object's first token: the one that the model has to predict after the prompt.

    Where the last word of the prompt and the object's first don't tokenize apart, it is the first token that reaches
    the object's first character.
    """
    ids, offsets = answered
    length = len(asked[0])
    if len(ids) > length and ids[:length] == asked[0]:
        return ids[length]
    first = len(text) + 1 + len(answer) - len(answer.lstrip())
    for token, (_, end) in zip(ids, offsets, strict=True):
        if end > first:
            return token
    raise LREError(f"the tokenizer leaves nothing of the object {answer!r} after {text!r}")
