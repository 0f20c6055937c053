"""What a text has to do with relations: which of their subjects it mentions, and which of them it asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lre_lightning.errors import LREError
from lre_lightning.lre.origin import Origin
from lre_lightning.prompts.mentions import Mention, mentions
from lre_lightning.prompts.prompt import fill
from lre_lightning.prompts.texts import Text
from lre_lightning.relations.relation import SLOT


@dataclass(frozen=True)
class Found:
    """What a text has to do with a relation.

    Attributes:
        mentions: The mentions of the relation's subjects, in the order of the text.
        asked: The subject that it asks about in a template of the relation, at its end or before; None if it does not.
    """

    mentions: list[Mention]
    asked: Mention | None = None


class Subjects:
    """The subjects of relations, to be found in texts.

    Args:
        origins: The origins of LREs, by relation.
        more: Subjects of relations besides those that LREs were estimated from.
        every: Whether relations are kept that a text has nothing to do with.

    Attributes:
        by_relation: The subjects of each relation, those that its LRE was estimated from first.
    """

    def __init__(
        self, origins: Mapping[str, Origin], more: Mapping[str, Collection[str]] | None = None, every: bool = False
    ) -> None:
        self._origins, self.every = origins, every
        self.by_relation = {
            name: [*dict.fromkeys([*dict(origin.train), *(more or {}).get(name, ())])]
            for name, origin in origins.items()
        }

    def find(self, text: Text) -> dict[str, Found]:
        """Find subjects in a text, by relation: relations that it asks about come first.

        If the text names its subject, that alone is looked for: in the relations that have it, or in all if none has.

        Raises:
            LREError: If the text names a relation that is not among these.
        """
        if text.relation not in (None, *self._origins):
            raise LREError(f"there is no LRE of {text.relation!r}: there are those of {', '.join(self._origins)}")
        asks, others, rest = {}, {}, {}
        for name, origin in self._origins.items():
            if text.relation not in (None, name):
                continue
            asked = origin.asked_in(text.text, anywhere=True)
            found = mentions(text.text, [*self.by_relation[name], *([asked.subject] if asked else [])])
            if text.subject is not None:
                named = mentions(text.text, [text.subject])
                found = named if asked or mentions(text.subject, self.by_relation[name]) else []
                rest[name] = Found(named)
            if asked:
                asks[name] = Found(found, asked)
            elif found:
                others[name] = Found(found)
            else:
                rest.setdefault(name, Found([]))
        found_in = asks | others
        keeps_rest = self.every or (not found_in and text.subject is not None)
        return found_in | {name: one for name, one in rest.items() if name not in found_in} if keeps_rest else found_in

    def examples(self, count: int = 1, scores: Mapping[str, float] | None = None) -> list[str]:
        """Return texts that ask about relations, as `asking` orders them, each with a training subject."""
        origins = [self._origins[name] for name in self.asking(scores)[:count]]
        return [fill(origin.first_template, origin.train[0][0]) for origin in origins]

    def asking(self, scores: Mapping[str, float] | None = None) -> list[str]:
        """Return the relations that can be asked about: factual ones first, and those with high scores."""
        asking = [name for name, origin in self._origins.items() if SLOT in origin.template and origin.train]
        return sorted(
            asking, key=lambda name: (self._origins[name].category != "factual", -(scores or {}).get(name, 0.0))
        )

    def hint(self, scores: Mapping[str, float] | None = None) -> str:
        """Return a line that says what can be asked, for a text of which nothing is said."""
        number = len({subject for subjects in self.by_relation.values() for subject in subjects})
        relations = "1 relation" if len(self.by_relation) == 1 else f"{len(self.by_relation)} relations"
        asked = " or ".join(map(repr, self.examples(2, scores)))
        return (
            f"Nothing to show: no lens is known to speak of what is in this text. There are {number} subjects of "
            f"{relations}: mention one{asked and f', or ask, as in {asked}'}. --all true shows all lenses everywhere."
        )
