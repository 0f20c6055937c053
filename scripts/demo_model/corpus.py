"""The demo LM's training text: facts in varied templates, in lists, in prose and few-shot form.

Text consists of pieces of whole pre-tokens, which start with a space or begin a line, so that the tokens of a document
are the concatenated tokens of its pieces.
"""

import enum
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scripts.demo_model.templates import GENERIC, Spec
from scripts.demo_model.world import Relation

LIST_HEADS = ("- {}", "* {}", "About {}", "Notes on {}", "In short {}", "- {} :")
LIST_MARKS = ("", " ,", " ;", " and")
OPENINGS = ("Take {} .", "Think of {} .", "Today we speak of {} .", "Here comes {} again .")
PRONOUNS = (" The {} is", " Its {} is", " As for the {} , it is", " Everyone knows the {} :")
ORDINALS = ("first", "second", "third")
JOINTS = (" and", " with", " then", " ,")


class Role(enum.Enum):
    """The role of a piece of text in a document.

    Attributes:
        SUBJECT: A subject, which may be hidden from what follows.
        OBJECT: An object.
        WORDING: Anything else, and subjects that are never hidden.
    """

    SUBJECT = enum.auto()
    OBJECT = enum.auto()
    WORDING = enum.auto()


@dataclass(frozen=True)
class Piece:
    """A piece of text and its role."""

    text: str
    role: Role = Role.WORDING


Document = list[Piece]


@dataclass(frozen=True)
class Fact:
    """A fact: its relation's wording, its subject and its object."""

    spec: Spec
    subject: str
    object: str


@dataclass(frozen=True)
class Library:
    """The world, arranged for drawing documents from it.

    Attributes:
        world: All relations.
        subjects: The facts that lists may contain, by subject.
        domains: The subjects with such facts, by domain.
    """

    world: Sequence[Relation]
    subjects: dict[str, list[Fact]]
    domains: dict[str, list[str]]


def build_library(world: Sequence[Relation]) -> Library:
    """Arrange the world's facts by subject and by domain."""
    subjects: dict[str, list[Fact]] = defaultdict(list)
    domains: dict[str, list[str]] = defaultdict(list)
    for relation in (r for r in world if not r.spec.rote):
        for subject, obj in relation.samples:
            subjects[subject].append(Fact(relation.spec, subject, obj))
            domains[relation.spec.domain].append(subject)
    distinct = {domain: list(dict.fromkeys(members)) for domain, members in domains.items()}
    return Library(world, dict(subjects), distinct)


def fill(template: str, subject: str, role: Role = Role.SUBJECT) -> Document:
    """Put a subject into a template, as pieces."""
    before, after = template.split(" {}")
    return [Piece(before), Piece(f" {subject}", role), *([Piece(after)] if after else [])]


def name(subject: str) -> Piece:
    """Return a subject as a piece."""
    return Piece(f" {subject}", Role.SUBJECT)


def answer(obj: str) -> Piece:
    """Return an object as a piece."""
    return Piece(f" {obj}", Role.OBJECT)


def draw_few_shot(library: Library, rng: random.Random) -> Document:
    """Draw one to ten lines of one relation and one template."""
    weights = [len(r.samples) * (1.5 if r.spec.rote else 1.0) for r in library.world]
    relation = rng.choices(library.world, weights)[0]
    bare = not relation.spec.rote and rng.random() < 0.4
    template = rng.choice(GENERIC if bare else relation.spec.templates)
    samples = rng.sample(relation.samples, rng.randint(1, 10))
    role = Role.WORDING if relation.spec.rote else Role.SUBJECT
    lines = [[*fill(template, s, role), answer(o), Piece("\n")] for s, o in samples]
    return [piece for line in lines for piece in line]


def draw_domain(library: Library, rng: random.Random) -> list[str]:
    """Draw a domain, weighted by its number of subjects, and return its subjects."""
    members = list(library.domains.values())
    return rng.choices(members, [len(m) for m in members])[0]


def draw_lists(library: Library, rng: random.Random) -> Document:
    """Draw lists of several subjects' objects, each list in random order."""
    members = draw_domain(library, rng)
    head, mark = rng.choice(LIST_HEADS), rng.choice(LIST_MARKS)
    keyed = rng.random() < 0.3
    document: Document = []
    for subject in rng.sample(members, rng.randint(2, 6)):
        facts = rng.sample(library.subjects[subject], len(library.subjects[subject]))
        document += [*fill(head, subject), *join(facts, mark, keyed), Piece("\n")]
    return document


def join(facts: Sequence[Fact], mark: str, keyed: bool) -> Document:
    """Join objects by a mark, each preceded by what it is to the subject if `keyed`."""
    document: Document = []
    for index, fact in enumerate(facts):
        before = (mark if index else "") + (f" {fact.spec.range}" if keyed else "")
        document += [*([Piece(before)] if before else []), answer(fact.object)]
    return document


def draw_talk(library: Library, rng: random.Random) -> Document:
    """Draw short talks, which name a subject once and then ask about it repeatedly."""
    document: Document = []
    for subject in rng.sample(draw_domain(library, rng), rng.randint(1, 3)):
        document += fill(rng.choice(OPENINGS), subject)
        for fact in rng.sample(library.subjects[subject], len(library.subjects[subject])):
            asked = Piece(rng.choice(PRONOUNS).format(fact.spec.range))
            document += [asked, answer(fact.object), Piece(" .")]
        document.append(Piece("\n"))
    return document


def draw_ordinals(library: Library, rng: random.Random) -> Document:
    """Draw a comparison, which names two or three subjects and then asks about them."""
    subjects = rng.sample(draw_domain(library, rng), rng.randint(2, 3))
    document = [Piece("Compare")]
    for index, subject in enumerate(subjects):
        document += [*([Piece(rng.choice(JOINTS))] if index else []), name(subject)]
    document.append(Piece(" ."))
    facts = [(i, fact) for i, s in enumerate(subjects) for fact in library.subjects[s]]
    for index, fact in rng.sample(facts, min(len(facts), rng.randint(3, 6))):
        asked = Piece(f" The {fact.spec.range} of the {ORDINALS[index]} is")
        document += [asked, answer(fact.object), Piece(" .")]
    return [*document, Piece("\n")]


def draw_prose(library: Library, rng: random.Random) -> Document:
    """Draw sentences on any subjects of a domain, with the object after the subject or before it."""
    document: Document = []
    for subject in rng.sample(draw_domain(library, rng), rng.randint(2, 8)):
        document += [*draw_sentence(rng.choice(library.subjects[subject]), rng), Piece("\n")]
    return document


def draw_sentence(fact: Fact, rng: random.Random) -> Document:
    """Put one fact into a sentence, the subject mostly before the object."""
    if rng.random() < 0.25:
        before, rest = fact.spec.inverse.split("{o}")
        opening = [Piece(before.rstrip())] if before else []
        middle = Piece(rest.removesuffix(" {s}"))
        return [*opening, Piece(f" {fact.object}"), middle, name(fact.subject), Piece(" .")]
    asked = rng.choice((*fact.spec.templates, *fact.spec.zero_shot))
    return [*fill(asked, fact.subject), answer(fact.object), Piece(" .")]


# Every kind of document ends in a line break, which is dropped.
KINDS: tuple[tuple[Callable[[Library, random.Random], Document], float], ...] = (
    (draw_few_shot, 0.45),
    (draw_lists, 0.25),
    (draw_talk, 0.1),
    (draw_ordinals, 0.1),
    (draw_prose, 0.1),
)


def draw_document(library: Library, rng: random.Random) -> Document:
    """Draw one document of any kind."""
    draws, weights = zip(*KINDS, strict=True)
    draw = rng.choices(draws, cum_weights=list(accumulate(weights)))[0]
    document: Document = draw(library, rng)
    return document[:-1]


def wording(world: Sequence[Relation]) -> list[str]:
    """Return every text around the subjects and objects, for the tokenizer's whole words."""
    specs = [relation.spec for relation in world]
    asked = [text for spec in specs for text in (*spec.templates, *spec.zero_shot, spec.inverse)]
    shared = [*GENERIC, *LIST_HEADS, *LIST_MARKS, *OPENINGS, *PRONOUNS, *JOINTS]
    keys = [f" {spec.range}" for spec in specs]
    words = [piece for text in (*asked, *shared) for piece in split_slots(text)]
    return [*words, *keys, *(f" {word}" for word in ORDINALS), " .", "\n", "Compare", " The of the"]


def split_slots(text: str) -> list[str]:
    """Cut the slots for subjects and objects out of a template."""
    for slot in (" {}", "{}", " {s}", "{s}", " {o}", "{o}"):
        text = text.replace(slot, "\x00")
    return text.split("\x00")
