"""Prompts as conversations in the chat templates of instruction-tuned LMs."""

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache

import pytest

from lre_lightning.errors import LREError
from lre_lightning.models.tokenizer import start_tokens
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import make_prompt, make_prompts
from lre_lightning.relations.relation import Sample
from tests.helpers import tokenizers_fixtures as tokenizers

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
WITH_DEFAULT_SYSTEM = (
    "{%- if messages[0].role != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful user and assistant.<|im_end|>\n' }}{% endif %}"
) + CHATML
# As Qwen 3: the last answer begins with thoughts, which the prompt does not open.
THINKING = CHATML.replace(
    "message.content +",
    "('<think>\n\n</think>\n\n' if loop.last and message.role == 'assistant' else '') + message.content +",
)
LLAMA2 = """\
{%- set before = '' %}
{%- if messages[0].role == 'system' %}
{%- set before = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- set content = (before if loop.first else '') + message.content %}
{%- if message.role == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""
LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
GEMMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}
{{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}"""
# As Mistral: the system message is in the user's last message.
MISTRAL = """\
{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}{% endif %}
{%- endfor %}"""
# As Vicuna: no control token in front, and words for roles.
VICUNA = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content + ' ' }}
{%- elif message.role == 'user' %}{{ 'USER: ' + message.content + ' ' }}
{%- else %}{{ 'ASSISTANT: ' + message.content + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""


@dataclass(frozen=True)
class Kind:
    """A chat template, and the control tokens that it wants."""

    base: str  # the tokenizer to give it to
    template: str
    controls: tuple[str, ...]
    after: str  # what follows the user's last message in a prompt
    ends: str  # what follows an answer
    system: bool = True  # whether it accepts a system message
    start: bool = True  # whether a conversation begins with a control token


IM, IM_AFTER = ("<|im_start|>", "<|im_end|>"), "<|im_end|>\n<|im_start|>assistant\n"
HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
HEADERS_AFTER = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
TURNS, TURNS_AFTER = ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>\n<start_of_turn>model\n"
KINDS = {
    "chatml": Kind("qwen", CHATML, IM, IM_AFTER, "<|im_end|>"),
    "chatml, default system message": Kind("qwen", WITH_DEFAULT_SYSTEM, IM, IM_AFTER, "<|im_end|>"),
    "chatml, thinking": Kind("byte-level", THINKING, IM, IM_AFTER, "<|im_end|>"),
    "llama 2": Kind("sentencepiece, legacy", LLAMA2, (), " [/INST]", " </s>"),
    "llama 2, prepend first": Kind("sentencepiece, prepend first", LLAMA2, (), " [/INST]", " </s>"),
    "llama 3": Kind("tiktoken, bos added", LLAMA3, HEADERS, HEADERS_AFTER, "<|eot_id|>"),
    "gemma": Kind("sentencepiece, one piece", GEMMA, TURNS, TURNS_AFTER, "<end_of_turn>", False),
    "mistral": Kind("sentencepiece, prepend never", MISTRAL, (), "[/INST]", "</s>"),
    "vicuna": Kind("byte-level, bos added", VICUNA, (), " ASSISTANT:", "<|end|>", start=False),
    "vicuna, unigram": Kind("unigram, dummy prefix", VICUNA, (), " ASSISTANT:", "</s>", start=False),
    "vicuna, sentencepiece": Kind("sentencepiece, not split", VICUNA, (), " ASSISTANT:", "</s>", start=False),
}
TEMPLATES = ["{} is in the country of", "The capital city of {} is", "Say {}", "Q: “{}”?\nA:"]
SUBJECTS = ["Paris", "assistant", "user", "model", "New York City", "北京", "ж", "😀", "Cafe\u0301", "[INST]", "Say it"]
CONTEXT = [Sample("Rome", "Italy"), Sample("the user", "an assistant"), Sample("Paris", "ж in Paris"), Sample("ж", "x")]
CHAT = Prompts(chat=True)
SYSTEM = "The assistant tells the user where Paris and 北京 are. Say ж."


def tokenizer_of(kind):
    """Return a new tokenizer with the chat template."""
    fast = (tokenizers.LOSSLESS | tokenizers.OTHERS)[kind.base]()
    fast.add_tokens(list(kind.controls), special_tokens=True)
    fast.chat_template = kind.template
    return fast


@cache
def make(name):
    return tokenizer_of(KINDS[name])


def conversation(template, context, subject, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for sample in context:
        messages.append({"role": "user", "content": template.replace("{}", sample.subject)})
        messages.append({"role": "assistant", "content": sample.object})
    return [*messages, {"role": "user", "content": template.replace("{}", subject)}]


def rendered_ids(tokenizer, messages, ask=True):
    return tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=ask, return_dict=False)


def letters(text):
    """Return a text in NFC, without white space and without the sign for a part of a character."""
    return unicodedata.normalize("NFC", "".join(text.split())).rstrip("\ufffd")


def tokens_read(tokenizer, ids, text):
    """Return the number of tokens after which a text has been read."""
    wanted, decode = letters(text), tokenizer.backend_tokenizer.decode  # a third of the time of its own `decode`

    def read(count):
        return letters(decode(ids[:count], skip_special_tokens=False))

    counts = range(len(ids) + 1)
    nearly = bisect_left(counts, len(wanted) - 9, key=lambda count: len(read(count)))  # marks join letters before them
    return next(n for n in counts[nearly:] if read(n).startswith(wanted))


def check(name, prompt, template, system, context):
    """Compare a prompt with its tokens, read one after another."""
    kind, tokenizer = KINDS[name], make(name)
    messages = conversation(template, context, prompt.subject, system)
    ids, lead = list(prompt.input_ids), 0 if kind.start else 1
    assert ids[lead:] == rendered_ids(tokenizer, messages)
    assert ids[:lead] == [*start_tokens(tokenizer)][:lead]
    # The last message and what comes after it end the conversation.
    said = messages[-1]["content"]
    assert prompt.text.endswith(said + kind.after)
    begins = len(prompt.text) - len(kind.after) - len(said) + said.index(prompt.subject)
    assert prompt.subject_chars == (begins, begins + len(prompt.subject))
    first, last = prompt.subject_span
    assert last == lead + tokens_read(tokenizer, ids[lead:], prompt.text[: begins + len(prompt.subject)])
    before = lead + tokens_read(tokenizer, ids[lead:], prompt.text[:begins])
    assert letters(tokenizer.decode(ids[before:first])) == ""
    assert letters(tokenizer.decode(ids[first + 1 : last])) != letters(prompt.subject)
    assert prompt.last_position == len(ids) - 1


@pytest.mark.parametrize("name", KINDS)
def test_a_prompt_is_what_the_chat_template_makes_and_the_subject_is_in_its_last_message(name):
    for system, shots, templates in [(None, 0, TEMPLATES), (SYSTEM if KINDS[name].system else None, 4, TEMPLATES[2:])]:
        options = Prompts(shots=shots, chat=True, system=system)
        for template in templates:
            samples = [Sample(subject, "France") for subject in SUBJECTS]
            for prompt in make_prompts(make(name), template, samples, CONTEXT, options):
                check(name, prompt, template, system, CONTEXT[:shots])


@pytest.mark.parametrize("name", KINDS)
def test_the_objects_tokens_are_those_that_follow_in_the_conversation(name):
    tokenizer, kind = make(name), KINDS[name]
    for answer in ("France", "New York City", "北京", "ж", "an assistant", "1924", "\"'x"):
        for context in ((), CONTEXT):
            prompt = make_prompt(tokenizer, "{} is in", Sample("Paris", answer), context, CHAT)
            assert letters(tokenizer.decode(prompt.object_tokens)) == letters(answer)
            messages = conversation("{} is in", context, "Paris")
            if name == "chatml, thinking":  # the prompt is followed by the answer and not by thoughts
                continue
            whole = rendered_ids(tokenizer, [*messages, {"role": "assistant", "content": answer}], ask=False)
            follows = whole[len(prompt.input_ids) - (not kind.start) :]
            assert tuple(follows[: len(prompt.object_tokens)]) == prompt.object_tokens
            rest = tokenizer.decode(follows[len(prompt.object_tokens) :])
            assert rest.strip() == kind.ends.strip()


LINES = """\
{%- for message in messages %}
{%- if message.role == 'user' %}{{ message.content }}
{%- else %}{{ (' ' if message.role == 'assistant' else '') + message.content + '\n' }}{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize("base", [*tokenizers.LOSSLESS, *tokenizers.OTHERS])
def test_a_chat_template_that_writes_lines_gives_the_prompts_of_lines(base):
    tokenizer = tokenizer_of(Kind(base, LINES, (), "", "\n"))
    subjects = [subject for subject in SUBJECTS if base != "characters" or max(subject) < "\u0250"]
    for template in (TEMPLATES[0], TEMPLATES[2]):
        samples = [Sample(subject, answer) for subject in subjects for answer in (subject, f" {subject}")]
        for context in ((), CONTEXT):
            expected = make_prompts(tokenizer, template, samples, context)
            assert make_prompts(tokenizer, template, samples, context, CHAT) == expected


@pytest.mark.parametrize(
    ("name", "front", "strips"),
    [("chatml", "<|im_start|>user\n", False), ("llama 2", "[INST] ", True), ("llama 3", "<|end_header_id|>\n\n", True)],
)
@pytest.mark.parametrize(("template", "subject"), [("{} is", " Bonn"), ("Say {}", "Bonn \n"), ("\n{}?", " Bonn ")])
def test_white_space_around_messages_is_kept_or_not_as_the_chat_template_has_it(name, front, strips, template, subject):
    tokenizer = make(name)
    prompt = make_prompt(tokenizer, template, Sample(subject, " Paris"), (), CHAT)
    said = template.replace("{}", subject)
    assert prompt.text.endswith(front + (said.strip() if strips else said) + KINDS[name].after)
    assert prompt.subject == subject
    assert prompt.text[slice(*prompt.subject_chars)] == "Bonn"
    first, last = prompt.subject_span
    assert "Bonn" in tokenizer.decode(prompt.input_ids[first:last])
    assert "Bonn" not in tokenizer.decode(prompt.input_ids[first + 1 : last])
    assert "Bonn" not in tokenizer.decode(prompt.input_ids[first : last - 1])
    assert tokenizer.decode(prompt.object_tokens).strip() == "Paris"
    assert list(prompt.input_ids) == rendered_ids(tokenizer, conversation(template, (), subject))


def test_the_templates_own_later_mention_counts_and_no_later_one():
    """Words after the user's message, such as the name of the next role, are not the subject."""
    tokenizer = make("chatml")
    prompt = make_prompt(tokenizer, "Does {} begin with assistant or assist?", Sample("assistant", "x"), (), CHAT)
    assert prompt.text[: prompt.subject_chars[1]].endswith("begin with assistant")
    assert prompt.text[prompt.subject_chars[1] :].startswith(" or assist?")


# Mistakes.


def with_content(expression):
    """Return ChatML with something else in place of messages."""
    return CHATML.replace("message.content", f"({expression})")


def shouting(role):
    """Return ChatML with the messages of one role in capitals."""
    return with_content(f"message.content | upper if message.role == '{role}' else message.content")


LEFT_OUT = CHATML.replace("in messages %", "in messages[-1:] %")
TURNED_ROUND = CHATML.replace("in messages %", "in (messages[:-1] | reverse | list) + messages[-1:] %")
SYSTEM_CHANGED = "changes the message 'Be “brief” & <co>', or leaves it out"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        *((with_content(f"message.content | {change}"), SYSTEM_CHANGED) for change in ("title", "truncate(5)", "e")),
        (shouting("system"), SYSTEM_CHANGED),
        (shouting("user"), "changes the message 'Rome is', or leaves it out"),
        (shouting("assistant"), "changes the message 'Italy', or leaves it out"),
        (TURNED_ROUND, "changes the message"),
        (LEFT_OUT, SYSTEM_CHANGED),
        ("Hello", "does not show the user's messages"),
        ("{{ raise_exception('no\nsuch\nroles') }}", "does not accept such a conversation: no$"),
        ("{% if %}", "does not accept such a conversation: "),
        (GEMMA, "does not accept such a conversation: System role not supported"),
        (None, "has no chat template: leave chat out"),
    ],
)
def test_a_chat_template_that_changes_or_rejects_messages_is_refused(template, message):
    tokenizer = tokenizer_of(replace(KINDS["chatml"], template=template))
    options = Prompts(chat=True, system="Be “brief” & <co>")
    with pytest.raises(LREError, match=message) as caught:
        make_prompt(tokenizer, "{} is", Sample("Paris", "x"), [Sample("Rome", "Italy")], options)
    assert "\n" not in str(caught.value)


def test_only_the_messages_that_are_needed_must_be_shown():
    tokenizer = tokenizer_of(replace(KINDS["chatml"], template=LEFT_OUT))
    prompt = make_prompt(tokenizer, "{} is", Sample("Paris", "x"), (), CHAT)
    assert prompt.text.startswith("<|im_start|>user\nParis")
    tokenizer.chat_template = shouting("user")
    with pytest.raises(LREError, match="changes the message 'Paris is', or leaves it out"):
        make_prompt(tokenizer, "{} is", Sample("Paris", "x"), (), CHAT)


WHERE = ["subject", "object", "template", "example's subject", "example's object", "system"]
CONTROLS = {"chatml": "<|im_end|>", "llama 2": "</s>", "gemma": "<end_of_turn>"}


@pytest.mark.parametrize(
    ("name", "where"),
    [(name, where) for name in CONTROLS for where in WHERE if where != "system" or KINDS[name].system],
)
def test_a_control_token_in_a_message_is_refused(name, where):
    token = CONTROLS[name]
    texts = dict.fromkeys(("subject", "object", "example's subject", "example's object", "system"), "word")
    if where in texts:
        texts[where] = f"a {token} b"
    template = f"{token} {{}} is" if where == "template" else "{} is"
    sample, example = (Sample(texts[f"{of}subject"], texts[f"{of}object"]) for of in ("", "example's "))
    options = Prompts(chat=True, system=texts["system"] if KINDS[name].system else None)
    with pytest.raises(LREError, match=f"a message has '{re.escape(token)}' in it, which is a control token"):
        make_prompt(make(name), template, sample, [example], options)
