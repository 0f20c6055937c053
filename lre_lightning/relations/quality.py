"""Likely mistakes in the texts and samples of a relation, and the repair of those that are certain.

A valid relation may still have a literal escape where a letter was meant, a name in two Unicode forms, or a subject
with two objects. `find_problems` reports all of these, and `repair` repairs the certain ones.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html.entities import html5
from typing import Literal, NamedTuple, TypeAlias

from lre_lightning.relations.relation import SLOT, Relation, Sample
from lre_lightning.storage.plain import shown

Kind: TypeAlias = Literal[
    "escape",
    "mojibake",
    "white space",
    "unicode form",
    "duplicate",
    "several objects",
    "case",
    "slot in text",
    "template in subject",
    "object in prompt",
]
Part: TypeAlias = Literal["prompt_templates", "prompt_templates_zs", "samples"]


@dataclass(frozen=True)
class Problem:
    """A likely mistake in a relation.

    Attributes:
        relation: The relation's name.
        kind: The kind of the mistake.
        part: The list that it is in, by its name in files.
        where: The index in that list.
        what: A sentence with the values.
        repairable: Whether `repair` repairs it. A literal escape of a control character, for example, stays.

    >>> Problem("capital", "case", "samples", 3, "the subjects 'UK' and 'uk' differ only in case", False).where
    3
    """

    relation: str
    kind: Kind
    part: Part
    where: int
    what: str
    repairable: bool


def find_problems(relation: Relation) -> list[Problem]:
    r"""Find likely mistakes in a relation: first those in each text, then those of samples.

    These kinds can be repaired:

    - ``"escape"``: a literal escape such as ``\u00e9``, ``\xe9`` or ``&eacute;`` instead of a character. Escapes of
      control characters (also ``\n``, ``\r`` and ``\t``), braces and unpaired surrogates are not repairable, and
      neither is one that would leave a blank text.
    - ``"mojibake"``: UTF-8 decoded as Latin-1 or Windows-1252, as in ``BogotÃ¡``, as ftfy detects it.
    - ``"white space"``: white space at the ends, or repeated. In templates, line breaks are intended.
    - ``"unicode form"``: a text that is not in the Unicode form NFC.
    - ``"duplicate"``: a repeated sample.

    The others need a human decision:

    - ``"several objects"``: a subject with several objects.
    - ``"case"``: subjects that differ only in case.
    - ``"slot in text"``: ``{}`` in a subject or an object.
    - ``"template in subject"``: a subject that contains at least two words of a template.
    - ``"object in prompt"``: a subject that contains its object, or a template that contains objects.

    >>> samples = (Sample("Colombia", "Bogot\\u00e1"), Sample("Peru", "Lima"))
    >>> capitals = Relation("capital", "factual", ("The capital of {} is",), (), "", "", False, samples)
    >>> for problem in find_problems(capitals):
    ...     print(problem.what)
    samples[0].object is 'Bogot\\u00e1', with a literal escape in it; repaired it is 'Bogotá'
    """
    return [*_of_texts(relation), *_of_samples(relation), *_of_prompts(relation)]


def repair(relation: Relation) -> Relation:
    """Repair the certain mistakes in the templates and samples of a relation.

    Args:
        relation: The relation, which is not changed.

    Returns:
        A relation in which `find_problems` finds nothing repairable. If a repair uncovers another mistake, as when
        ``&amp;eacute;`` becomes ``&eacute;``, that is repaired too.

    >>> capitals = Relation("capital", "factual", ("{} is",), (), "", "", False, (Sample("Colombia ", "BogotÃ¡"),))
    >>> repair(capitals).samples
    (Sample(subject='Colombia', object='Bogotá'),)
    """
    steps, of_templates = _STEPS.values(), _TEMPLATE_STEPS.values()
    samples = [Sample(_mended(s.subject, steps), _mended(s.object, steps)) for s in relation.samples]
    return replace(
        relation,
        prompt_templates=tuple(_mended(template, of_templates) for template in relation.prompt_templates),
        zero_shot_templates=tuple(_mended(template, of_templates) for template in relation.zero_shot_templates),
        samples=tuple(dict.fromkeys(samples)),
    )


# Repairs of one text.

_Step: TypeAlias = Callable[[str], str]

_ESCAPES = re.compile(
    r"(?:\\+x[0-9a-fA-F]{2})+"
    r"|\\+u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}"  # a surrogate pair
    r"|\\+u[0-9a-fA-F]{4}"
    r"|\\+U(?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4}"
    r"|&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});"
)
_LINE_BREAKS = re.compile(r"\\[nrt]")
_BETWEEN = r"[^\S\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
"""White space that does not break a line."""
_WIDE_IN_A_LINE = re.compile(rf"(?<!\s){_BETWEEN}{{2,}}(?!\s)")
_AT_AN_END = re.compile(rf"\A{_BETWEEN}+|{_BETWEEN}+\Z")


def _mended(text: str, steps: Iterable[_Step]) -> str:
    """Apply all steps again and again until none changes the text."""
    before = None
    while before != text:
        before = text
        for step in steps:
            text = _unless_blank(text, step)
    return text


def _unless_blank(text: str, step: _Step) -> str:
    """Apply a step unless it would leave a blank text."""
    changed = step(text)
    return changed if changed.strip() else text


def _unescape(text: str) -> str:
    def unescape(found: re.Match[str]) -> str:
        character = _character(found[0])
        return character if character and _is_allowed(character) else found[0]

    return _ESCAPES.sub(unescape, text)


def _character(escape: str) -> str | None:
    """Return the characters that an escape stands for; None if it is not an escape."""
    if escape.startswith("&#"):
        return html.unescape(escape)
    if escape.startswith("&"):
        return html5.get(escape[1:])
    codes = [int(code, 16) for code in re.findall(r"[uUx]([0-9a-fA-F]+)", escape)]
    if "x" not in escape:
        return "".join(map(chr, codes)).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    try:
        return bytes(codes).decode()
    except UnicodeDecodeError:
        return bytes(codes).decode("latin-1")


def _is_allowed(characters: str) -> bool:
    """Return whether no character is a control, a surrogate, a brace or the replacement character."""
    return not any(c in "{}\ufffd" or unicodedata.category(c) in ("Cc", "Cs") for c in characters)


def _decode_mojibake(text: str) -> str:
    if text.isascii():
        return text
    import ftfy

    steps = ("restore_byte_a0", "replace_lossy_sequences", "decode_inconsistent_utf8", "fix_c1_controls")
    fixed = ftfy.fix_encoding(text, None, **dict.fromkeys(steps, False))  # these steps would guess
    return fixed if _is_allowed("".join(set(fixed) - set(text))) else text


_STEPS: dict[Kind, _Step] = {
    "escape": _unescape,
    "mojibake": _decode_mojibake,
    "white space": lambda text: re.sub(r"\s{2,}", " ", text.strip()),
    "unicode form": lambda text: unicodedata.normalize("NFC", text),
}
_TEMPLATE_STEPS = _STEPS | {"white space": lambda text: _WIDE_IN_A_LINE.sub(" ", _AT_AN_END.sub("", text))}
_DESCRIPTIONS: dict[Kind, str] = {
    "escape": "with a literal escape in it",
    "mojibake": "UTF-8 decoded with another encoding",
    "white space": "with stray white space",
    "unicode form": "not in the Unicode form NFC",
}


# Problems of texts.


class _Text(NamedTuple):
    part: Part
    where: int
    name: str
    text: str


def _templates(relation: Relation) -> Iterator[_Text]:
    lists: dict[Part, tuple[str, ...]] = {
        "prompt_templates": relation.prompt_templates,
        "prompt_templates_zs": relation.zero_shot_templates,
    }
    for part, templates in lists.items():
        for number, template in enumerate(templates):
            yield _Text(part, number, f"{part}[{number}]", template)


def _texts(relation: Relation) -> Iterator[_Text]:
    yield from _templates(relation)
    for number, sample in enumerate(relation.samples):
        yield _Text("samples", number, f"samples[{number}].subject", sample.subject)
        yield _Text("samples", number, f"samples[{number}].object", sample.object)


def _of_texts(relation: Relation) -> Iterator[Problem]:
    for place in _texts(relation):
        steps = _STEPS if place.part == "samples" else _TEMPLATE_STEPS
        mended = _mended(place.text, steps.values())
        for kind, step in steps.items() if mended != place.text else ():
            if _unless_blank(place.text, step) != place.text:
                given, right = shown(place.text), shown(mended)
                if kind == "unicode form":  # the two look the same as letters
                    given, right = ascii(place.text), ascii(mended)
                what = f"{place.name} is {given}, {_DESCRIPTIONS[kind]}; repaired it is {right}"
                yield Problem(relation.name, kind, place.part, place.where, what, repairable=True)
        if _LINE_BREAKS.search(mended) or any(_character(escape) is not None for escape in _ESCAPES.findall(mended)):
            what = f"{place.name} is {shown(place.text)}, with a literal escape in it that has no certain meaning"
            yield Problem(relation.name, "escape", place.part, place.where, what, repairable=False)
        if place.part == "samples" and SLOT in place.text:
            what = f"{place.name} is {shown(place.text)}, with {SLOT} in it, as a template has"
            yield Problem(relation.name, "slot in text", place.part, place.where, what, repairable=False)


# Problems of samples.


def _of_samples(relation: Relation) -> Iterator[Problem]:
    first: dict[Sample, int] = {}
    objects: dict[str, dict[str, int]] = defaultdict(dict)
    names: dict[str, dict[str, int]] = defaultdict(dict)
    for number, sample in enumerate(relation.samples):
        if first.setdefault(sample, number) != number:
            what = f"samples[{number}] repeats samples[{first[sample]}] of the subject {shown(sample.subject)}"
            yield Problem(relation.name, "duplicate", "samples", number, what, repairable=True)
        objects[sample.subject].setdefault(sample.object, number)
        names[sample.subject.casefold()].setdefault(sample.subject, number)
    for subject, found in objects.items():
        if len(found) > 1:
            what = f"the subject {shown(subject)} has {len(found)} objects: {_some(found)}"
            yield Problem(relation.name, "several objects", "samples", min(found.values()), what, repairable=False)
    for found in names.values():
        if len(found) > 1:
            what = f"the subjects {_some(found)} differ only in case"
            yield Problem(relation.name, "case", "samples", min(found.values()), what, repairable=False)


def _of_prompts(relation: Relation) -> Iterator[Problem]:
    for place in _templates(relation):
        text = place.text.casefold().replace(SLOT, "\0")
        found = [answer for answer in relation.objects if _has(text, answer.casefold())]
        if found:
            objects = "an object" if len(found) == 1 else f"{len(found)} objects"
            what = f"{place.name} is {shown(place.text)}, which contains {objects}: {_some(found)}"
            yield Problem(relation.name, "object in prompt", place.part, place.where, what, repairable=False)
    phrases = _phrases(relation.templates)
    for number, sample in enumerate(relation.samples):
        subject, given = sample.subject.casefold(), shown(sample.subject)
        if phrases and phrases.search(subject):
            what = f"samples[{number}].subject is {given}, which contains words of a template"
            yield Problem(relation.name, "template in subject", "samples", number, what, repairable=False)
        if _has(subject, sample.object.casefold()):
            what = f"samples[{number}].subject is {given}, which contains its object {shown(sample.object)}"
            yield Problem(relation.name, "object in prompt", "samples", number, what, repairable=False)


def _phrases(templates: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for whole templates, and for their texts of several words before and after the subject."""
    found: dict[str, None] = {}
    for template in templates:
        parts = [part.strip().casefold() for part in template.split(SLOT)]
        found.update(dict.fromkeys(_whole(part) for part in parts if len(re.findall(r"\w+", part)) > 1))
        whole = " ".join(filter(None, parts))
        if whole:
            found[rf"\A{re.escape(whole)}\Z"] = None
    return re.compile("|".join(found)) if found else None


def _has(text: str, phrase: str) -> bool:
    return bool(phrase) and phrase in text and bool(re.search(_whole(phrase), text))


def _whole(phrase: str) -> str:
    """Return a pattern for a phrase that is not part of a longer word, in scripts with spaces between words."""
    first, last = (c.isdecimal() or c.lower() != c.upper() for c in (phrase[0], phrase[-1]))
    return (r"(?<!\w)" if first else "") + re.escape(phrase) + (r"(?!\w)" if last else "")


def _some(values: Iterable[str]) -> str:
    listed = [shown(value) for value in values]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
