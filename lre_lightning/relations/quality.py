"""What is doubtful in the texts and samples of a relation, and the repair of what is certain.

A valid relation may still hold the six characters of a literal escape where a letter was meant, one name in two Unicode
forms, or a subject with two objects. `find_problems` tells of all that; `repair` mends the kinds in `REPAIRS`.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from html.entities import html5
from typing import Literal, NamedTuple, TypeAlias

from lre_lightning.errors import LREError
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

REPAIRS: tuple[Kind, ...] = ("escape", "mojibake", "white space", "unicode form", "duplicate")
"""The kinds that `repair` mends, in its order."""


@dataclass(frozen=True)
class Problem:
    """Something doubtful in a relation.

    Attributes:
        relation: The relation's name.
        kind: One of `REPAIRS`, or one that somebody has to judge.
        part: In which list it is, by its name in files.
        where: The index in that list.
        what: A sentence with the values.
        repairable: Whether `repair` mends it. A literal escape of a control character, say, is not mended.

    >>> Problem("capital", "case", "samples", 3, "the subjects 'UK' and 'uk' differ in case only", False).where
    3
    """

    relation: str
    kind: Kind
    part: Part
    where: int
    what: str
    repairable: bool


def find_problems(relation: Relation) -> list[Problem]:
    r"""Find what is doubtful in a relation: in its texts first, one by one, then in its samples.

    These kinds are in `REPAIRS`:

    - ``"escape"``: literal escapes such as ``\u00e9``, ``\xe9`` or ``&eacute;`` where a character was meant. Those of
      control characters (also ``\n``, ``\r`` and ``\t``), braces and halves of surrogate pairs are not repairable, and
      neither is one that would leave a blank text.
    - ``"mojibake"``: UTF-8 read as Latin-1 or Windows-1252, as in ``BogotÃ¡``, where it can be nothing else.
    - ``"white space"``: at the ends, or two and more in a row. In templates line breaks are meant.
    - ``"unicode form"``: a text that is not in the Unicode form NFC.
    - ``"duplicate"``: a sample that occurs before.

    The others are for somebody to judge:

    - ``"several objects"``: a subject with several objects.
    - ``"case"``: subjects that differ in case only.
    - ``"slot in text"``: ``{}`` in a subject or an object.
    - ``"template in subject"``: a subject that has a template's text in it, two words of it at least.
    - ``"object in prompt"``: a subject that has its object in it, or a template that has some, which gives them away.

    Returns:
        The problems; there may be none.

    >>> samples = (Sample("Colombia", "Bogot\\u00e1"), Sample("Peru", "Lima"))
    >>> capitals = Relation("capital", "factual", ("The capital of {} is",), (), "", "", False, samples)
    >>> for problem in find_problems(capitals):
    ...     print(problem.what)
    samples[0].object is 'Bogot\\u00e1', with a literal escape in it; repaired it is 'Bogotá'
    """
    return [*_of_texts(relation), *_of_samples(relation), *_of_prompts(relation)]


def repair(relation: Relation, kinds: Iterable[Kind] | None = None) -> Relation:
    """Mend what is certainly wrong in the templates and samples of a relation.

    Args:
        relation: It stays as it is.
        kinds: Some of `REPAIRS`, in any order; all by default.

    Returns:
        A relation in which `find_problems` finds nothing repairable of these kinds, and to which a second repair does
        nothing. One repair may uncover another, as where ``&amp;eacute;`` becomes ``&eacute;``: both are made.

    Raises:
        LREError: There is no repair of a kind.

    >>> capitals = Relation("capital", "factual", ("{} is",), (), "", "", False, (Sample("Colombia ", "BogotÃ¡"),))
    >>> repair(capitals).samples
    (Sample(subject='Colombia', object='Bogotá'),)
    """
    chosen = list(REPAIRS if kinds is None else kinds)
    for kind in chosen:
        if kind not in REPAIRS:
            raise LREError(f"there is no repair of {kind!r}, only of {', '.join(REPAIRS)}")
    steps = [step for kind, step in _STEPS.items() if kind in chosen]
    of_templates = [step for kind, step in _TEMPLATE_STEPS.items() if kind in chosen]
    samples = tuple(Sample(_mended(s.subject, steps), _mended(s.object, steps)) for s in relation.samples)
    return replace(
        relation,
        prompt_templates=tuple(_mended(template, of_templates) for template in relation.prompt_templates),
        zero_shot_templates=tuple(_mended(template, of_templates) for template in relation.zero_shot_templates),
        samples=tuple(dict.fromkeys(samples)) if "duplicate" in chosen else samples,
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
_CODES = re.compile(r"[uUx]([0-9a-fA-F]+)")
_LINE_BREAKS = re.compile(r"\\[nrt]")

# In bytes of UTF-8. Read as Windows-1252, 80 to bf are signs and the letters ŠŒŽšœžŸ, c2 to df capitals, e0 to ef small
# letters. A word may end in a capital and have a sign after it, as in CAFÉ®, so that alone proves nothing; a sign of
# _NEVER does not come after a letter.
_NEVER = rb"\x82-\x84\x87-\x89\x8b\x98\xa1-\xa8\xaa\xac\xaf\xb5\xb6\xb8\xba\xbc-\xbf"
_MOJIBAKE = re.compile(
    rb"(?<=[a-z])[\xc2\xc3][\x80-\xbf]"  # a capital within a word: JosÃ©
    rb"|[\xc2\xc3][\x80-\x84\x86-\x90\x95\x98-\x9f\xa1-\xac\xae-\xb3\xb5\xb6\xb8-\xbf](?=[a-z])"  # a sign: PÃ©rez
    rb"|[\xc2\xc3]\xb4(?=[a-z]{2})"  # an acute accent, which may be an apostrophe
    rb"|(?<![A-Za-z\x80-\xff])[\xc2\xc3][\x85\x93\x94\x96\x97](?=[a-z])"  # Ã…land
    rb"|[\xc2-\xc5][" + _NEVER + rb"]|[\xc2-\xc4][\xb0\xb1]|\xc3[\x9a\x9c\x9e]"
    rb"|\xe2[\x80\x82-\x84\x88\x89][\x80-\xbf]"  # quotation marks, dashes, the sign of the euro
    rb"|\xf0\x9f[\x80-\xbf]{2}"  # emoji
    rb"|(?:[\xc4-\xdf][\x80-\x89\x8b\x8d\x8f-\x99\x9b\x9d\xa0-\xbf]|[\xe0-\xef][\x80-\xbf]{2}){2}"  # other scripts
)

_BETWEEN = r"[^\S\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
"""White space that breaks no line."""
_WIDE = re.compile(r"\s{2,}")
_AT_AN_END = re.compile(rf"\A{_BETWEEN}+|{_BETWEEN}+\Z")
_WIDE_IN_A_LINE = re.compile(rf"(?<!\s){_BETWEEN}{{2,}}(?!\s)")


def _mended(text: str, steps: Iterable[_Step]) -> str:
    """A text after all steps, again and again until none changes it; a step that would leave it blank is left out."""
    before = None
    while before != text:
        before = text
        for step in steps:
            text = _unless_blank(text, step)
    return text


def _unless_blank(text: str, step: _Step) -> str:
    changed = step(text)
    return text if not changed.strip() else changed


def _without_escapes(text: str) -> str:
    return _ESCAPES.sub(_unescaped, text) if "\\" in text or "&" in text else text


def _unescaped(found: re.Match[str]) -> str:
    """What an escape stands for, or the escape where that must not be in a text."""
    character = _character(found[0])
    return found[0] if character is None or not _allowed(character) else character


def _character(escape: str) -> str | None:
    """What an escape stands for; None if it is none."""
    if escape.startswith("&#"):
        return html.unescape(escape)
    if escape.startswith("&"):
        return html5.get(escape[1:])
    codes = [int(code, 16) for code in _CODES.findall(escape)]
    if "x" not in escape:
        return "".join(map(chr, codes)).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    try:
        return bytes(codes).decode()
    except UnicodeDecodeError:
        return bytes(codes).decode("latin-1")


def _allowed(characters: str) -> bool:
    """Whether there are characters, none of them a control, half a surrogate pair, a brace or a replacement."""
    return bool(characters) and not any(c in "{}\ufffd" or unicodedata.category(c) in ("Cc", "Cs") for c in characters)


def _escape_left(text: str) -> bool:
    """Whether there is a literal escape that is not to be mended."""
    if "\\" not in text and "&" not in text:
        return False
    return bool(_LINE_BREAKS.search(text)) or any(_character(e) is not None for e in _ESCAPES.findall(text))


def _without_mojibake(text: str) -> str:
    if text.isascii():
        return text
    for encoding in ("cp1252", "latin-1"):
        try:
            data = text.encode(encoding)
            decoded = data.decode()
        except UnicodeError:
            continue
        if _MOJIBAKE.search(data) and _allowed("".join(c for c in decoded if not c.isascii())):
            return decoded
    return text


def _without_stray_space(text: str) -> str:
    return _WIDE.sub(" ", text.strip())


def _template_without_stray_space(template: str) -> str:
    return _WIDE_IN_A_LINE.sub(" ", _AT_AN_END.sub("", template))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


_STEPS: dict[Kind, _Step] = {
    "escape": _without_escapes,
    "mojibake": _without_mojibake,
    "white space": _without_stray_space,
    "unicode form": _composed,
}
_TEMPLATE_STEPS: dict[Kind, _Step] = _STEPS | {"white space": _template_without_stray_space}
_DESCRIPTIONS: dict[Kind, str] = {
    "escape": "with a literal escape in it",
    "mojibake": "UTF-8 that was read in another encoding",
    "white space": "with stray white space",
    "unicode form": "not in the Unicode form NFC",
}


# Problems of texts.


class _Text(NamedTuple):
    part: Part
    where: int
    key: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.part}[{self.where}]{self.key}"


def _of_texts(relation: Relation) -> Iterator[Problem]:
    others: dict[str, str] | None = None
    for place in _texts(relation):
        steps = _STEPS if place.part == "samples" else _TEMPLATE_STEPS
        mended = _mended(place.text, steps.values())
        for kind, step in steps.items() if mended != place.text else ():
            if _unless_blank(place.text, step) != place.text:
                if kind == "unicode form" and others is None:
                    others = {other.text: other.name for other in reversed(list(_texts(relation)))}
                what = _description(place, kind, mended, others or {})
                yield Problem(relation.name, kind, place.part, place.where, what, repairable=True)
        if _escape_left(mended):
            what = f"{place.name} is {shown(place.text)}, with a literal escape in it that has no certain meaning"
            yield Problem(relation.name, "escape", place.part, place.where, what, repairable=False)
        if place.part == "samples" and SLOT in place.text:
            what = f"{place.name} is {shown(place.text)}, with {SLOT} in it as a template has"
            yield Problem(relation.name, "slot in text", place.part, place.where, what, repairable=False)


def _templates(relation: Relation) -> Iterator[_Text]:
    for number, template in enumerate(relation.prompt_templates):
        yield _Text("prompt_templates", number, "", template)
    for number, template in enumerate(relation.zero_shot_templates):
        yield _Text("prompt_templates_zs", number, "", template)


def _texts(relation: Relation) -> Iterator[_Text]:
    yield from _templates(relation)
    for number, sample in enumerate(relation.samples):
        yield _Text("samples", number, ".subject", sample.subject)
        yield _Text("samples", number, ".object", sample.object)


def _description(place: _Text, kind: Kind, mended: str, others: dict[str, str]) -> str:
    given, right = shown(place.text), shown(mended)
    if kind == "unicode form":  # which looks the same in letters
        given, right = (text.encode("ascii", "backslashreplace").decode() for text in (given, right))
    what = f"{place.name} is {given}, {_DESCRIPTIONS[kind]}"
    other = others.get(_composed(place.text)) if kind == "unicode form" else None
    return what + (f" as {other} is" if other else "") + f"; repaired it is {right}"


# Problems of samples.


def _of_samples(relation: Relation) -> Iterator[Problem]:
    first: dict[Sample, int] = {}
    objects: dict[str, dict[str, int]] = defaultdict(dict)
    names: dict[str, dict[str, int]] = defaultdict(dict)
    for number, sample in enumerate(relation.samples):
        if first.setdefault(sample, number) != number:
            what = f"samples[{number}] is samples[{first[sample]}] again: {_pair(sample)}"
            yield Problem(relation.name, "duplicate", "samples", number, what, repairable=True)
        objects[sample.subject].setdefault(sample.object, number)
        names[sample.subject.casefold()].setdefault(sample.subject, number)
    for subject, found in objects.items():
        if len(found) > 1:
            what = f"the subject {shown(subject)} has {len(found)} objects: {_some(found)}"
            yield Problem(relation.name, "several objects", "samples", min(found.values()), what, repairable=False)
    for found in names.values():
        if len(found) > 1:
            what = f"the subjects {_some(found)} differ in case only"
            yield Problem(relation.name, "case", "samples", min(found.values()), what, repairable=False)


def _of_prompts(relation: Relation) -> Iterator[Problem]:
    for place in _templates(relation):
        text = place.text.casefold().replace(SLOT, "\0")
        found = [answer for answer in relation.objects if _has(text, answer.casefold())]
        if found:
            what = f"{place.name} is {shown(place.text)}, which has {_count(found, 'object')} in it: {_some(found)}"
            yield Problem(relation.name, "object in prompt", place.part, place.where, what, repairable=False)
    phrases = _phrases(relation.templates)
    for number, sample in enumerate(relation.samples):
        subject = sample.subject.casefold()
        if phrases and phrases.search(subject):
            what = f"samples[{number}].subject is {shown(sample.subject)}, with a template's text in it"
            yield Problem(relation.name, "template in subject", "samples", number, what, repairable=False)
        if _has(subject, sample.object.casefold()):
            what = f"samples[{number}] has its object in its subject: {_pair(sample)}"
            yield Problem(relation.name, "object in prompt", "samples", number, what, repairable=False)


def _phrases(templates: Iterable[str]) -> re.Pattern[str] | None:
    """The texts of templates before and after the subject, those of several words, and whole templates, to search."""
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
    """The expression for a phrase that is no part of a longer word, in scripts that have spaces between words."""
    before = r"(?<!\w)" if _in_words(phrase[0]) else ""
    after = r"(?!\w)" if _in_words(phrase[-1]) else ""
    return f"{before}{re.escape(phrase)}{after}"


def _in_words(character: str) -> bool:
    return character.isdecimal() or character.lower() != character.upper()


def _pair(sample: Sample) -> str:
    return f"{shown(sample.subject)} and {shown(sample.object)}"


def _count(values: Sized, noun: str) -> str:
    return f"{len(values)} {noun}" + ("s" if len(values) > 1 else "")


def _some(values: Iterable[str]) -> str:
    listed = [shown(value) for value in values]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
