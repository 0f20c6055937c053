"""Likely mistakes in the texts and samples of a relation, and the repair of those that are certain.

A valid relation may still have a literal escape where a letter was meant, a name in two Unicode forms, or a subject
with two objects. `find_problems` reports all of these, and `repair` repairs the certain ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import SLOT, Relation, Sample, check_template
from lre_lightning.relations.schema import filled
from lre_lightning.storage.plain import shown

Kind: TypeAlias = Literal["stray characters", "duplicate", "several objects", "template in subject", "object in prompt"]

_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_SPACES = r"[^\S\r\n]+"
_GUESSES = ("restore_byte_a0", "replace_lossy_sequences", "decode_inconsistent_utf8", "fix_c1_controls")
"""Steps of ftfy that are not certain."""


@dataclass(frozen=True)
class Problem:
    """A likely mistake in a relation.

    Attributes:
        relation: The relation's name.
        kind: The kind of the mistake.
        what: A sentence with the values.

    >>> Problem("capital", "duplicate", "samples[3] repeats samples[0] of the subject 'Peru'").repairable
    True
    """

    relation: str
    kind: Kind
    what: str

    @property
    def repairable(self) -> bool:
        """Whether `repair` repairs it."""
        return self.kind in ("stray characters", "duplicate")


def find_problems(relation: Relation) -> list[Problem]:
    r"""Find likely mistakes in a relation.

    These kinds can be repaired:

    - ``"stray characters"``: a literal escape such as ``\u00e9`` or ``&eacute;``; UTF-8 decoded as another encoding, as
      in ``BogotÃ¡``, as ftfy detects it; a text that is not in the Unicode form NFC; white space other than single
      spaces. In templates, line breaks are intended.
    - ``"duplicate"``: a repeated sample.

    The others need a human decision:

    - ``"several objects"``: a subject with several objects.
    - ``"template in subject"``: a subject that contains at least two words of a template.
    - ``"object in prompt"``: a subject that contains its object, or a template that contains objects.

    >>> samples = (Sample("Colombia", "Bogot\\u00e1"), Sample("Peru", "Lima"))
    >>> capitals = Relation("capital", "factual", ("The capital of {} is",), (), "", "", False, samples)
    >>> for problem in find_problems(capitals):
    ...     print(problem.what)
    samples[0].object is 'Bogot\\u00e1'; repaired it is 'Bogotá'
    """
    finders: dict[Kind, Callable[[Relation], Iterator[str]]] = {
        "stray characters": _texts,
        "duplicate": _duplicates,
        "several objects": _several_objects,
        "template in subject": _templates_in_subjects,
        "object in prompt": _objects_in_prompts,
    }
    return [Problem(relation.name, kind, what) for kind, find in finders.items() for what in find(relation)]


def repair(relation: Relation) -> Relation:
    """Repair the certain mistakes in the templates and samples of a relation.

    Args:
        relation: The relation, which is not changed.

    Returns:
        A valid relation in which `find_problems` finds nothing repairable.

    >>> capitals = Relation("capital", "factual", ("{} is",), (), "", "", False, (Sample("Colombia ", "BogotÃ¡"),))
    >>> repair(capitals).samples
    (Sample(subject='Colombia', object='Bogotá'),)
    """
    samples = [Sample(_mended(sample.subject), _mended(sample.object)) for sample in relation.samples]
    return replace(
        relation,
        prompt_templates=tuple(_mended(template, check_template) for template in relation.prompt_templates),
        zero_shot_templates=tuple(_mended(template, check_template) for template in relation.zero_shot_templates),
        samples=tuple(dict.fromkeys(samples)),
    )


def _mended(text: str, check: Callable[[str, str], str] = filled) -> str:
    """Repair a text until nothing changes; a repair that leaves an invalid text is not made."""
    before = None
    while before != text:
        before = text
        for mend in (_decoded, _spaced_template if check is check_template else _spaced):
            try:
                text = check(mend(text), "it")
            except LREError:
                continue
    return text


def _decoded(text: str) -> str:
    if text.isascii() and "\\" not in text and "&" not in text:
        return text
    import ftfy

    unescaped = ftfy.fixes.unescape_html(_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))
    joined = unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    fixed = ftfy.fix_encoding(joined, None, **dict.fromkeys(_GUESSES, False))
    return unicodedata.normalize("NFC", fixed)


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _spaced_template(text: str) -> str:
    return re.sub(rf"\A{_SPACES}|{_SPACES}\Z", "", re.sub(rf"(?<=\S){_SPACES}(?=\S)", " ", text))


def _texts(relation: Relation) -> Iterator[str]:
    texts: list[tuple[str, str, Callable[[str, str], str]]] = []
    lists = {"prompt_templates": relation.prompt_templates, "prompt_templates_zs": relation.zero_shot_templates}
    for name, templates in lists.items():
        texts += [(f"{name}[{i}]", template, check_template) for i, template in enumerate(templates)]
    for i, sample in enumerate(relation.samples):
        texts += [(f"samples[{i}].subject", sample.subject, filled), (f"samples[{i}].object", sample.object, filled)]
    for name, text, check in texts:
        mended = _mended(text, check)
        if mended != text:
            alike = unicodedata.normalize("NFC", text) == mended
            given, right = (ascii(text), ascii(mended)) if alike else (shown(text), shown(mended))
            yield f"{name} is {given}; repaired it is {right}"


def _duplicates(relation: Relation) -> Iterator[str]:
    first: dict[Sample, int] = {}
    for i, sample in enumerate(relation.samples):
        if first.setdefault(sample, i) != i:
            yield f"samples[{i}] repeats samples[{first[sample]}] of the subject {shown(sample.subject)}"


def _several_objects(relation: Relation) -> Iterator[str]:
    objects: dict[str, dict[str, None]] = defaultdict(dict)
    for sample in relation.samples:
        objects[sample.subject][sample.object] = None
    for subject, several in objects.items():
        if len(several) > 1:
            yield f"the subject {shown(subject)} has {len(several)} objects: {_some(several)}"


def _templates_in_subjects(relation: Relation) -> Iterator[str]:
    parts = [part.strip() for template in relation.templates for part in template.split(SLOT)]
    phrases = [part for part in parts if len(part.split()) > 1]
    for i, sample in enumerate(relation.samples):
        if any(_has(sample.subject, phrase) for phrase in phrases):
            yield f"samples[{i}].subject is {shown(sample.subject)}, which contains words of a template"


def _objects_in_prompts(relation: Relation) -> Iterator[str]:
    for template in relation.templates:
        contained = [answer for answer in relation.objects if _has(template, answer)]
        if contained:
            yield f"the template {shown(template)} contains objects: {_some(contained)}"
    for i, sample in enumerate(relation.samples):
        if _has(sample.subject, sample.object):
            yield f"samples[{i}].subject is {shown(sample.subject)}, which contains its object {shown(sample.object)}"


def _has(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as whole words, in upper or lower case."""
    text, phrase = text.casefold(), phrase.casefold()
    return phrase in text and bool(re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text))


def _some(values: Iterable[str]) -> str:
    listed = [shown(value) for value in values]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
