"""Relations as a data set: written, pushed to a local hub, and read by us and by `datasets`."""

import json
from dataclasses import replace

import pytest
import yaml
from datasets import load_dataset

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.sources import load_relations
from lre_lightning.sharing.data_set import write_data_set
from tests.helpers.command import lre

BORN = Relation(
    *("born | died", "bio*graphy", ("{} was born on",), ("When was {} born? On",), "person", "date", False),
    (Sample("007", "2020-01-01"), Sample("Ö", "1999-12-31"), Sample("007", "NA")),
)
OPPOSITE = replace(BORN, name="opposite", category="", prompt_templates=(), zero_shot_templates=(), symmetric=True)
FILES = {"README.md", "data/train.parquet"}


def test_relations_are_pushed_and_come_back(hub, tmp_path, capsys):
    write_data_set([BORN, OPPOSITE], tmp_path / "facts", license="cc0-1.0")
    (tmp_path / "facts" / "private.txt").write_text("not to be shared")
    assert lre("push", tmp_path / "facts") == 2
    assert "relations are written already: give the name on the hub" in capsys.readouterr().err
    assert lre("push", tmp_path / "facts", "toys/facts", "--revision", "v1", "--private", "true") == 0
    files = hub.files("toys/facts", "v1")
    assert f"Pushed: {hub.address}/toys/facts/commit/{hub.commit_of(files)}" in capsys.readouterr().out
    assert (set(files), hub.files("toys/facts"), hub.private["toys/facts"]) == (FILES, {}, True)
    assert any(path == "api/datasets/toys/facts/commit/v1" for _, path in hub.requests)
    assert load_relations(source="hf://datasets/toys/facts@v1") == (BORN, OPPOSITE)


def test_datasets_reads_the_texts_as_they_are(tmp_path):
    write_data_set([BORN, OPPOSITE], tmp_path)
    rows = load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache")).to_list()
    assert [(row["subject"], row["object"], row["relation"]) for row in rows] == [
        (sample.subject, sample.object, relation.name) for relation in (BORN, OPPOSITE) for sample in relation.samples
    ]
    assert (rows[0]["template"], rows[3]["template"], rows[3]["symmetric"]) == (["{} was born on"], [], True)


def test_the_card_says_what_there_is(tmp_path):
    write_data_set([BORN, OPPOSITE], tmp_path)
    _, metadata, text = (tmp_path / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["tags"] == ["lre-lightning", "relations", "bio*graphy"]
    assert found["configs"] == [{"config_name": "default", "data_files": "data/train.parquet"}]
    row = r"| born \| died | bio\*graphy | person | date | one-to-many | 3 | 3 | {} was born on |"
    assert row in text.splitlines()
    assert "Not stated: ask" in text
    write_data_set([BORN], tmp_path, license="mit")
    assert "\n## Licence\n\nmit.\n" in (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(LREError, match="two relations are named 'opposite'"):
        write_data_set([OPPOSITE, OPPOSITE], tmp_path)


def test_the_command_line_writes_a_data_set(tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps([{"name": "r", "prompt_templates": ["{} is"], "samples": [PAIR]}]))
    assert lre("data", "--data.source", tmp_path / "r.json", "--dataset", tmp_path / "out", "--license", "mit") == 0
    assert f"share it with: lre push {tmp_path / 'out'} org/name" in capsys.readouterr().out
    (relation,) = load_relations(source=tmp_path / "out" / "data" / "train.parquet")
    assert (relation.name, relation.samples) == ("r", (Sample(**PAIR),))


PAIR = {"subject": "a", "object": "b"}
