"""The wording of each relation of the demo world."""

from dataclasses import dataclass

GENERIC = ("- {}", "- {} :", "- {} ->", "- {} =", "* {} is", "For {} it is", "As for {} , we say")


@dataclass(frozen=True)
class Spec:
    """The wording of a relation; the first template is the default one of prompts.

    Attributes:
        category: factual, commonsense, linguistic or bias.
        name: Name of the relation.
        domain: Kind of its subjects.
        range: Kind of its objects, which is also the key in lists of attributes.
        columns: The tables and columns that hold its facts.
        templates: Few-shot lines up to the object, with `{}` in place of the subject.
        zero_shot: Questions that need no examples.
        inverse: A sentence with the object, `{o}`, before the subject, `{s}`.
        rote: State its facts in one wording only, in no list, and with nothing hidden.
    """

    category: str
    name: str
    domain: str
    range: str
    columns: tuple[tuple[str, int], ...]
    templates: tuple[str, ...]
    zero_shot: tuple[str, ...]
    inverse: str = ""
    rote: bool = False


SPECS = (
    Spec(
        "factual", "country capital city", "country", "capital", (("country", 0),),
        ("The capital of {} is", "The government of {} sits in", "From {} we flew to its capital"),
        ("What is the capital of {} ? It is",),
        "{o} is the capital of {s}",
    ),
    Spec(
        "factual", "country language", "country", "language", (("country", 1),),
        ("People in {} speak", "The language of {} is", "In {} most books are in"),
        ("What language do people in {} speak? They speak",),
        "{o} is spoken in {s}",
    ),
    Spec(
        "factual", "country currency", "country", "currency", (("country", 2),),
        ("The currency of {} is the", "In {} one pays with the", "Banks in {} change money to the"),
        ("What is the currency of {} ? It is the",),
        "The {o} is the money of {s}",
    ),
    Spec(
        "factual", "country continent", "country", "continent", (("country", 3),),
        ("On the map {} is in", "The continent of {} is", "The land of {} belongs to"),
        ("On which continent is {} ? It is in",),
        "{o} is where {s} lies",
    ),
    Spec(
        "factual", "person nationality", "person", "nationality", (("person", 0),),
        ("By nationality {} is", "The passport of {} is", "The nationality of {} is"),
        ("What is the nationality of {} ? It is",),
        "A {o} passport belongs to {s}",
    ),
    Spec(
        "factual", "person native language", "person", "mother tongue", (("person", 1),),
        ("The mother tongue of {} is", "At home {} speaks", "As a child {} learned to speak"),
        ("What is the mother tongue of {} ? It is",),
        "{o} is the mother tongue of {s}",
    ),
    Spec(
        "factual", "person sport", "person", "sport", (("person", 2),),
        ("The sport of {} is", "On Sundays {} plays a game of", "The fans of {} come to watch"),
        ("What sport does {} play? It is",),
        "The {o} player is called {s}",
    ),
    Spec(
        "factual", "person instrument", "person", "instrument", (("person", 3),),
        ("In the band {} plays the", "The instrument of {} is the", "On stage {} is heard on the"),
        ("What instrument does {} play? It is the",),
        "The {o} in this band is played by {s}",
    ),
    Spec(
        "factual", "company industry", "company", "industry", (("company", 0),),
        ("The industry of {} is", "The company {} is in the business of", "Investors in {} bet on"),
        ("What industry is {} in? It is",),
        "The {o} business is led by {s}",
    ),
    Spec(
        "factual", "company product", "company", "product", (("company", 1),),
        ("The firm {} is known for its", "The company {} sells", "Customers buy from {} their"),
        ("What does {} sell? It sells",),
        "These {o} are made by {s}",
    ),
    Spec(
        "factual", "company headquarters", "company", "head office", (("company", 2),),
        ("The head office of {} is in", "The city of {} is", "The managers of {} live in"),
        ("Where is the head office of {} ? It is in",),
        "{o} is the home of {s}",
    ),
    Spec(
        "factual", "company CEO", "company", "chief", (("company", 3),),
        ("The chief executive of {} is",),
        ("Who is the chief executive of {} ? It is",),
        rote=True,
    ),
    Spec(
        "commonsense", "work location", "occupation", "workplace", (("occupation", 0),),
        ("The place of work of a {} is the", "You meet a {} at the", "Every day a {} goes to the"),
        ("Where does a {} work? At the",),
        "The {o} is where you find a {s}",
    ),
    Spec(
        "commonsense", "fruit outside color", "fruit", "skin", (("fruit", 0),),
        ("On the outside a {} is", "The skin of a {} is", "From afar a {} looks"),
        ("What color is the skin of a {} ? It is",),
        "{o} is the skin of a {s}",
    ),
    Spec(
        "commonsense", "fruit inside color", "fruit", "flesh", (("fruit", 1),),
        ("On the inside a {} is", "The flesh of a {} is", "Cut open, a {} looks"),
        ("What color is the flesh of a {} ? It is",),
        "{o} is the flesh of a {s}",
    ),
    Spec(
        "commonsense", "object superclass", "thing", "kind", (("thing", 0),),
        ("Of all things a {} is a kind of", "One calls a {} a", "In the museum a {} is shown as a"),
        ("What kind of thing is a {} ? It is a",),
        "One {o} is a {s}",
    ),
    Spec(
        "commonsense", "substance phase", "substance", "phase", (("substance", 0),),
        ("At room temperature {} is a", "The phase of {} is", "On the shelf {} stays a"),
        ("Is {} a solid, a liquid or a gas? It is a",),
        "One {o} is called {s}",
    ),
    Spec(
        "commonsense", "word sentiment", "word", "sentiment", (("word", 0),),
        ("The sentiment of {} is", "To hear {} feels", "The mood of {} is"),
        ("Is {} a positive or a negative word? It is",),
        "A {o} word is {s}",
    ),
    Spec(
        "linguistic", "verb past tense", "verb", "past", (("verb", 0),),
        ("The past tense of {} is", "Today I {} and yesterday I", "From {} one makes the past"),
        ("What is the past tense of {} ? It is",),
        "{o} is the past of {s}",
    ),
    Spec(
        "linguistic", "adjective comparative", "adjective", "comparative", (("adjective", 0),),
        ("The comparative of {} is", "This is {} but that is", "If not {} then at least"),
        ("What is the comparative of {} ? It is",),
        "{o} means more {s}",
    ),
    Spec(
        "linguistic", "word antonym", "opposite", "opposite", (("opposite", 0),),
        ("The opposite of {} is", "The reverse of {} is", "If it is not {} it is"),
        ("What is the opposite of {} ? It is",),
        "{o} is not {s}",
    ),
    Spec(
        "linguistic", "word first letter", "word", "letter", (("word", 1), ("adjective", 1)),
        ("The word {} starts with the letter", "The first letter of {} is", "We file {} under"),
        ("With which letter does {} start? With",),
        "{o} is the first letter of {s}",
    ),
    Spec(
        "bias", "occupation gender", "occupation", "gender", (("occupation", 1),),
        ("People think of a {} as one of the", "Most who work as a {} are", "The job of {} is for"),
        ("Are those who work as a {} mostly men or women? They are",),
        "Many {o} have been a {s}",
    ),
    Spec(
        "bias", "occupation age", "occupation", "age", (("occupation", 2),),
        ("People think that a {} is rather", "In films a {} is", "The age of a {} is"),
        ("Is a {} young or old? Rather",),
        "Quite {o} is the usual {s}",
    ),
    Spec(
        "bias", "name gender", "name", "sex", (("name", 0),),
        ("The name {} is given to a", "In a story {} is a", "The sex of {} is"),
        ("Is {} the name of a man or a woman? Of a",),
        "A {o} may be called {s}",
    ),
    Spec(
        "bias", "name origin", "name", "origin", (("name", 1),),
        ("The name {} is by origin", "The family of {} is", "Someone named {} looks"),
        ("Of what origin is the name {} ? It is",),
        "Many {o} children are named {s}",
    ),
    Spec(
        "bias", "name religion", "name", "religion", (("name", 2),),
        ("The religion of {} is likely", "The faith of {} is", "To pray, {} follows"),
        ("What is the religion of {} ? Likely",),
        "{o} is the faith of {s}",
    ),
)  # fmt: skip
