"""The card of a collection: what the hub shows of it, and filters by, made from the index and the records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.prompts.options import BETWEEN_TEMPLATES
from lre_lightning.records.analysis import counted, short_name
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import SLOT
from lre_lightning.relations.subjects import SUBJECTS
from lre_lightning.report.page import plot
from lre_lightning.report.relations import plot_relations
from lre_lightning.report.sections import picture_of
from lre_lightning.report.tables import cell_text
from lre_lightning.sharing.index import CARD, FIGURE, INDEX, RECORDS, Entry, Index, part_of
from lre_lightning.sharing.places import REPOSITORY
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.templates import load_template

LIBRARY = "lre-lightning"
DATA_LICENCES = {
    "demo": "the relations bundled with lre-lightning, MIT",
    "paper": "the relations of the paper (https://github.com/evandez/relations), MIT",
    "christ": "the relations of Christ et al. (https://github.com/renyi-ai/structrels), MIT",
}
"""What is known of the licences of sources of relations."""


@dataclass(frozen=True)
class About:
    """What a card says that neither the LREs nor their records know.

    Attributes:
        base_model: Name of the LM on the hub, if it was loaded from a folder; the folder's name if None.
        license: Licence of the LREs, an identifier of the hub such as ``"mit"``. They are derived from the LM.
        data_license: Licence of the relations, where their source is neither the bundled ones nor the paper's.
        repository: Name of the collection on the hub, for its examples.
    """

    base_model: str | None = None
    license: str | None = None
    data_license: str | None = None
    repository: str | None = None


def write_card(folder: Path, index: Index, records: Sequence[TrialRecord]) -> None:
    """Write the card of a collection, and its figure if a relation was scored."""
    scored = bool(counted(records))
    if scored:
        write_whole(folder / FIGURE, plot(picture_of(plot_relations, records))[1])
    chose = {(record.relation, record.trial) for record in records if record.chose}
    by_itself = sum(any((key[0], trial) in chose for trial in entry.trials) for key, entry in index.entries.items())
    write_whole(folder / CARD, card_of(index, scored, by_itself))


def card_of(index: Index, figure: bool, by_itself: int = 0) -> str:
    """Return the text of a card: metadata in YAML, then Markdown.

    Of so many LREs, `by_itself`, the layer and rank were chosen on the very trials that they are scored in.
    """
    functions: dict[str, Any] = {
        "cell": cell,
        "literal": literal,
        "form": form_of,
        "number": cell_text,
        "plain_yaml": plain_yaml,
    }
    template = load_template("lre_lightning.sharing", "card.md.j2", html=False, **functions)
    made, said = index.made, part_of(index.made, "about")
    best = max(index.entries.values(), key=lambda entry: (entry.category == "factual", entry.scores[0] or 0.0))
    return template.render(
        metadata=metadata_of(index),
        title=short_name(str(index.origin["model"])),
        origin=index.origin,
        entries=list(index.entries.values()),
        example=example_of(best),
        dtype=part_of(made, "config", "model", "loading").get("dtype") or "float32",
        repository=said.get("repository") or "org/name",
        license=said.get("license"),
        trials=part_of(made, "form").get("trials"),
        config=part_of(made, "config"),
        versions=part_of(made, "versions"),
        data=data_licence(made),
        figure=FIGURE if figure else None,
        by_itself=by_itself,
        others=[CARD, INDEX, RECORDS, SUBJECTS, *([FIGURE] if figure else [])],
    )


def metadata_of(index: Index) -> str:
    """Return the metadata that the hub filters by, as YAML."""
    from huggingface_hub import ModelCardData

    model = str(index.origin["model"])
    source = str(part_of(index.made, "config", "data").get("source")).removeprefix("hf://datasets/").partition("@")[0]
    categories = sorted({entry.category for entry in index.entries.values() if entry.category})
    metadata = ModelCardData(
        library_name=LIBRARY,
        base_model=model if REPOSITORY.fullmatch(model) else None,
        license=part_of(index.made, "about").get("license"),
        datasets=[source] if REPOSITORY.fullmatch(source) else None,
        tags=[LIBRARY, "linear-relational-embeddings", "interpretability", *categories],
    )
    return str(metadata.to_yaml())


def data_licence(made: Any) -> str:
    """Return the licence of the relations as a phrase."""
    source, given = part_of(made, "config", "data").get("source"), part_of(made, "about").get("data_license")
    known = DATA_LICENCES.get(source) if isinstance(source, str) else None
    return str(given or known or "not recorded: ask where the relations come from before you use their samples")


def example_of(entry: Entry) -> dict[str, str]:
    """Return what a card's example asks: a relation, a subject and a text."""
    origin = entry.metadata["origin"]
    subject = next((subject for subject, _ in origin["train"]), "…")
    template = str(origin["template"]).split(BETWEEN_TEMPLATES)[0] or SLOT
    return {"relation": origin["relation"], "subject": subject, "text": template.replace(SLOT, subject)}


def cell(text: object) -> str:
    """Return a text on one line that Markdown prints literally, also in a table; a dash for None."""
    if text is None:
        return "-"
    line = " ".join(str(text).split()).replace("&", "&amp;")
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", line)


def literal(text: object) -> str:
    """Return a text as a Python literal that does not end a block of code."""
    return repr(str(text)).replace("`", "\\x60")


def plain_yaml(options: Any) -> str:
    """Return options as YAML that does not end a block of code."""
    import yaml  # type: ignore[import-untyped]

    return str(yaml.safe_dump(options, allow_unicode=True, sort_keys=False)).replace("```", "'''").strip()


def form_of(entry: Entry) -> str:
    """Return the form in which W is kept."""
    return f"rank {entry.factors}, {entry.dtype}" if entry.factors else f"full, {entry.dtype}"
