"""Relations as a data set of the Hugging Face hub: a table with one sample per row, and a card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import Relation
from lre_lightning.sharing.card import LIBRARY, cell
from lre_lightning.sharing.index import CARD
from lre_lightning.sharing.places import Folder, upload
from lre_lightning.storage.files import write_whole, written_whole
from lre_lightning.storage.templates import load_template

TABLE = "data/train.parquet"
"""The file of the samples, from which the hub makes the split ``train``."""


def write_data_set(relations: Sequence[Relation], folder: str | Path, license: str | None = None) -> None:
    """Write relations as a data set, from which `load_relations` reads equal ones, and `datasets.load_dataset` rows.

    Args:
        relations: Relations with different names.
        folder: Where ``data/train.parquet`` and the card, ``README.md``, are written.
        license: The licence that the card names, an identifier of the hub such as ``"mit"``.

    Raises:
        LREError: Two relations have the same name, or a file cannot be written.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]
    from huggingface_hub import DatasetCardData

    names = [relation.name for relation in relations]
    for name in names:
        if names.count(name) > 1:
            raise LREError(f"two relations are named {name!r}: rename one of them")
    texts = dict.fromkeys(("subject", "object", "relation", "category", "domain", "range"), pa.string())
    lists = dict.fromkeys(("template", "zero_shot_template"), pa.list_(pa.string()))
    table = pa.Table.from_pylist(list(_rows(relations)), pa.schema({**texts, **lists, "symmetric": pa.bool_()}))
    path = Path(folder) / TABLE
    with written_whole(path) as part:
        pyarrow.parquet.write_table(table, part)
    metadata = DatasetCardData(
        license=license,
        pretty_name=f"Relations: {names[0]}" if len(names) == 1 else f"{len(names)} relations",
        tags=[LIBRARY, "relations", *sorted({relation.category for relation in relations} - {""})],
        configs=[{"config_name": "default", "data_files": TABLE}],
    )
    template = load_template("lre_lightning.sharing", "data_set.md.j2", html=False, cell=cell)
    card = template.render(metadata=metadata.to_yaml(), relations=relations, samples=len(table), license=license)
    write_whole(Path(folder) / CARD, card)


def _rows(relations: Sequence[Relation]) -> Iterator[dict[str, Any]]:
    for relation in relations:
        properties = {
            "relation": relation.name,
            "category": relation.category,
            "domain": relation.domain_name,
            "range": relation.range_name,
            "template": relation.prompt_templates,
            "zero_shot_template": relation.zero_shot_templates,
            "symmetric": relation.symmetric,
        }
        yield from ({"subject": sample.subject, "object": sample.object, **properties} for sample in relation.samples)


def is_data_set(folder: str | Path) -> bool:
    """Return whether a folder was written by `write_data_set`."""
    return (Path(folder).expanduser() / TABLE).is_file()


def push_data_set(
    folder: str | Path,
    name: str,
    revision: str | None = None,
    token: str | bool | None = None,
    private: bool | None = None,
) -> str:
    """Upload a data set that `write_data_set` has written: the table and the card, and nothing else.

    The arguments are those of `LRECollection.push_to_hub`, and so are the errors. Returns the address of the commit.
    """
    place, files = Folder(Path(folder).expanduser()), [CARD, TABLE]
    for file in files:
        place.fetch(file)
    return upload(place.path, files, name, revision, token, private, kind="dataset", message="Relations")
