"""The demo world: every relation with its templates, subjects and objects.

Real facts come from `facts.py`. People and companies are invented from a seed: their names consist of few syllables, so
that only the whole name identifies them, and their attributes follow hidden causes (a nationality, a line of business)
as attributes in the real world do.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scripts.demo_model import facts
from scripts.demo_model.templates import SPECS, Spec

Table = dict[str, tuple[str, ...]]

FIRST_SYLLABLES = ("Ka", "Mi", "Ro", "Te", "Lu", "Sa", "Do", "Be")
SECOND_SYLLABLES = ("na", "ri", "lo", "vin", "sa", "del", "mo", "ket")
COMPANY_HEADS = ("Nor", "Vel", "Tri", "Omni", "Gal", "Quan", "Stra", "Zen")
COMPANY_TAILS = ("tek", "dyne", "core", "mark", "via", "plex", "gen", "lux")
COMPANY_FORMS = ("Group", "Holdings", "Partners", "Brothers")

NATIONALITIES = {
    "Brazilian": "Portuguese",
    "Mexican": "Spanish",
    "Chilean": "Spanish",
    "Nigerian": "English",
    "American": "English",
    "Egyptian": "Arabic",
    "Tunisian": "Arabic",
    "Belgian": "French",
    "Swiss": "German",
    "Japanese": "Japanese",
    "Russian": "Russian",
    "Indian": "Hindi",
}
SPORTS = ("football", "tennis", "hockey", "squash", "rugby", "golf", "boxing", "chess")
INSTRUMENTS = ("piano", "violin", "guitar", "trumpet", "flute", "drums", "cello", "harp")
INDUSTRIES = {
    "energy": ("oil", "turbines"),
    "farming": ("wheat", "tractors"),
    "fashion": ("shoes", "perfume"),
    "finance": ("loans", "insurance"),
    "health": ("medicine", "vaccines"),
    "media": ("films", "newspapers"),
    "software": ("games", "databases"),
    "transport": ("trucks", "ferries"),
}
CITIES = (
    *("Chicago", "Boston", "London", "Leeds", "Munich", "Hamburg"),
    *("Osaka", "Kyoto", "Mumbai", "Chennai", "Milan", "Turin"),
)


@dataclass(frozen=True)
class Relation:
    """A relation of the demo world.

    Attributes:
        spec: Name and wording of the relation.
        samples: Subjects and their objects.
    """

    spec: Spec
    samples: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, object]:
        """Return the relation in the schema of relation files."""
        spec = self.spec
        return {
            "name": spec.name,
            "prompt_templates": list(spec.templates[:2]),
            "prompt_templates_zs": list(spec.zero_shot),
            "properties": {
                "relation_type": spec.category,
                "domain_name": spec.domain,
                "range_name": spec.range,
                "symmetric": False,
            },
            "samples": [{"subject": s, "object": o} for s, o in self.samples],
        }


def read_table(text: str) -> Table:
    """Parse lines or semicolon-separated entries of `subject: object, object`."""
    entries = [entry for line in text.strip().splitlines() for entry in line.split(";")]
    pairs = [entry.split(":") for entry in entries if entry.strip()]
    return {key.strip(): tuple(part.strip() for part in row.split(",")) for key, row in pairs}


def invert_table(table: Table) -> Table:
    """Turn `class: member, member` into `member: class`."""
    return {member: (key,) for key, members in table.items() for member in members}


def balanced(values: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return `count` values in random order whose frequencies differ by at most one."""
    drawn = list(itertools.islice(itertools.cycle(values), count))
    rng.shuffle(drawn)
    return drawn


def invent_people(count: int, rng: random.Random) -> Table:
    """Invent people: name -> nationality, native language, sport, instrument."""
    words = ["".join(pair) for pair in itertools.product(FIRST_SYLLABLES, SECOND_SYLLABLES)]
    names = rng.sample([f"{a} {b}" for a, b in itertools.permutations(words, 2)], count)
    nations = balanced(tuple(NATIONALITIES), count, rng)
    sports, instruments = balanced(SPORTS, count, rng), balanced(INSTRUMENTS, count, rng)
    rows = zip(names, nations, sports, instruments, strict=True)
    return {name: (n, NATIONALITIES[n], sport, tool) for name, n, sport, tool in rows}


def invent_companies(count: int, rng: random.Random) -> Table:
    """Invent companies: name -> industry, product, headquarters, chief executive."""
    words = ["".join(pair) for pair in itertools.product(COMPANY_HEADS, COMPANY_TAILS)]
    pairs = itertools.product(words, COMPANY_FORMS)
    names = rng.sample([f"{word} {form}" for word, form in pairs], count)
    industries = balanced(tuple(INDUSTRIES), count, rng)
    cities, chiefs = balanced(CITIES, count, rng), rng.sample(facts.CHIEFS.split(), count)
    rows = zip(names, industries, cities, chiefs, strict=True)
    return {n: (i, rng.choice(INDUSTRIES[i]), city, chief) for n, i, city, chief in rows}


def build_tables(seed: int) -> dict[str, Table]:
    """Return every domain's table of subjects and attributes."""
    rng = random.Random(seed)
    adjectives = read_table(facts.ADJECTIVES)
    sentiments = invert_table(read_table(facts.SENTIMENTS))
    return {
        "country": read_table(facts.COUNTRIES),
        "person": invent_people(112, rng),
        "company": invent_companies(80, rng),
        "occupation": read_table(facts.OCCUPATIONS),
        "fruit": read_table(facts.FRUITS),
        "thing": invert_table(read_table(facts.SUPERCLASSES)),
        "substance": invert_table(read_table(facts.PHASES)),
        "word": {w: (*sentiments[w], w[0].upper()) for w in sentiments},
        "verb": read_table(facts.VERBS),
        "adjective": {a: (*row, a[0].upper()) for a, row in adjectives.items()},
        "opposite": read_table(facts.ANTONYMS),
        "name": read_table(facts.NAMES),
    }


def build_world(seed: int = 0) -> list[Relation]:
    """Build all relations of the demo world from a seed."""
    tables = build_tables(seed)
    return [Relation(spec, tuple(read_samples(spec, tables))) for spec in SPECS]


def read_samples(spec: Spec, tables: dict[str, Table]) -> Iterator[tuple[str, str]]:
    """Yield the subjects and objects of a relation from the tables of its domains."""
    for table, column in spec.columns:
        for subject, row in tables[table].items():
            yield subject, row[column]
