"""The table of answers about many texts, against the lenses of each text and the LM's own logits."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from datasets import Dataset

from lre_lightning.errors import LREError
from lre_lightning.lens import table as table_file
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import most_certain_token, read_lenses
from lre_lightning.lens.subjects import Subjects
from lre_lightning.lens.table import AnswerTable, read_answers, write_answers
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text
from lre_lightning.prompts.texts import Text, read_text_file
from lre_lightning.sharing.collection import LRECollection
from tests.helpers.tiny_models import tiny_model
from tests.lens.test_reading import random_lre, words

TEXTS = [Text("w40 w7 w7 w93", "w7"), Text("w5"), Text("w9 w12 w30 w31 w32 w33"), Text("w8 w3 w50", relation="second")]
READ = [  # relation, subject, place
    [("first", "w7", 1), ("second", "w7", 1), ("first", "w7", 2), ("second", "w7", 2)],
    [("first", None, None), ("second", None, None)],
    [("second", None, None), ("first", "w12 w30", 2)],  # found by the template
    [("second", None, None)],
]


@pytest.fixture(scope="module")
def lm():
    lm = LanguageModel(tiny_model("gpt2").float())
    lm.tokenizer = words()
    return lm


@pytest.fixture(scope="module")
def lres(lm):
    found = [random_lre(lm, "first", 1, beta=2.25), random_lre(lm, "second", 2, layer="emb")]
    found = [replace(lre, weight=lre.weight.float(), bias=lre.bias.float()) for lre in found]
    asks = replace(found[0].origin, template="w9 {} w31 w32 w33")
    return [replace(found[0], origin=asks), found[1]]


def test_rows_are_the_cells_of_lenses_at_the_subject(lm, lres):
    rows = iter(read_answers(lm, lres, TEXTS, top_k=3))
    for text, read in zip(TEXTS, READ, strict=True):
        grids = read_lenses(lm, lm.tokenizer, text.text, {(lre.origin.relation, 0): lre for lre in lres}, top_k=3)
        ids = torch.tensor([[1, *(int(word[1:]) for word in text.text.split())]])
        logits = lm.model(ids).logits[0, -1].softmax(-1)
        by_name = {grid.name: grid for grid in grids}
        places = [
            most_certain_token(by_name[name], by_name[name].layers.index(by_name[name].layer)) for name, *_ in read
        ]
        found = sorted(
            (
                (place if place is not None else most, name, subject)
                for (name, subject, place), most in zip(read, places, strict=True)
            ),
            key=lambda one: one[0],
        )
        for place, name, subject in found:
            row, grid = next(rows), by_name[name]
            layer = grid.layers.index(grid.layer)
            assert (row["text"], row["subject"]) == (text.text, subject)
            assert (row["relation"], row["layer"]) == (grid.name, grid.layer)
            assert row["token"] == grid.tokens[place]
            assert [row[f"answer_{k}"] for k in (1, 2, 3)] == grid.top[layer][place]
            found = torch.tensor([row[f"probability_{k}"] for k in (1, 2, 3)])
            torch.testing.assert_close(found, torch.tensor(grid.probabilities[layer][place]), rtol=1e-4, atol=2e-6)
            assert row["lm_answer"] == token_text(lm.tokenizer, int(logits.argmax()))
            assert row["lm_probability"] == pytest.approx(float(logits.max()), abs=2e-6)
    assert next(rows, None) is None


def test_in_a_table_too_the_subject_is_read_and_not_the_adjective_and_silent_rows_are_left_out():
    demo, lres = LanguageModel.from_pretrained("demo"), LRECollection.from_pretrained("demo")
    capital, name = lres["country capital city"], "country capital city"
    texts = [Text("Nothing here"), Text("We flew to Peru, as Peruvians do")]
    subjects = Subjects({name: capital.origin}, {name: ["Peru"]})
    likenesses = Likenesses(demo, lres, [capital.layer, "emb"])
    for said in (None, likenesses):
        (row,) = read_answers(demo, [capital], texts, 1, subjects, said)
        assert (row["subject"], row["answer_1"]) == ("Peru", "Lima")
    nowhere = [Text("we saw it, but not what", "but")]
    assert len(read_answers(demo, [capital], nowhere, 1, subjects)) == 1
    assert read_answers(demo, [capital], nowhere, 1, subjects, likenesses) == []


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_table_that_was_stopped_anywhere_ends_with_the_same_bytes(lm, lres, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(table_file, "BATCHES", 1)

    def write(name, texts, batch_size=2):
        table = AnswerTable(tmp_path / f"{name}{suffix}", {"texts": "these"})
        assert write_answers(lm, lres, iter(texts), table, 2, batch_size) == len(texts)
        return table.path

    def killed():
        yield from TEXTS[:3]
        raise KeyboardInterrupt

    whole = write("whole", TEXTS).read_bytes()
    rows = list(csv.DictReader(whole.decode().splitlines())) if suffix == ".csv" else whole.splitlines()
    assert len(rows) == 9
    with pytest.raises(KeyboardInterrupt):
        write("stopped", killed())
    path = tmp_path / f"stopped{suffix}"
    with path.open("ab") as file:
        file.write(b"half a row")  # of a process that was killed while it wrote
    assert write("stopped", TEXTS).read_bytes() == whole
    assert write("stopped", TEXTS).read_bytes() == whole
    with pytest.raises(LREError, match="is not a table of these texts, LREs and options"):
        AnswerTable(path, {"texts": "others"})
    path.with_name(path.name + ".progress.json").write_text("{")
    with pytest.raises(LREError, match="is not a table of these texts, LREs and options"):
        AnswerTable(path, {"texts": "these"})


def test_texts_that_are_read_in_the_order_of_their_lengths_keep_their_own(lm, lres, tmp_path):
    table = AnswerTable(tmp_path / "table.jsonl", {})
    write_answers(lm, lres, iter(TEXTS), table, 2, batch_size=1)
    rows = [json.loads(line) for line in table.path.read_text().splitlines()]
    expected = read_answers(lm, lres, TEXTS, 2)  # in one batch
    assert [list(row) for row in rows] == [list(row) for row in expected]
    for row, right in zip(rows, expected, strict=True):
        for key, value in right.items():
            assert row[key] == (pytest.approx(value, abs=2e-6) if "probability" in key else value)


def test_texts_of_files_and_data_sets(tmp_path):
    rows = [{"text": 'a "b"', "subject": "b", "relation": "r"}, {"text": "c", "subject": None, "relation": None}]
    expected = [Text('a "b"', "b", "r"), Text("c")]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts.csv").write_text('text,subject,relation,other\n"a ""b""",b,r,1 b\nc,,,2\n')
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    Dataset.from_list(rows).to_parquet(tmp_path / "texts.parquet")
    for name in ("texts.jsonl", "texts.csv", "saved", "texts.parquet"):
        assert list(read_text_file(tmp_path / name)) == expected
    assert list(read_text_file(tmp_path / "texts.csv", "other")) == [Text("1 b", "b", "r"), Text("2")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("texts.csv", "prompt\na\n", "has the columns prompt, and no 'text': name the column of texts"),
        ("texts.csv", "text,subject\nabc,b\n", "the text 'abc' does not mention the subject 'b'"),
        ("texts.jsonl", '{"text": 3}\n', "line 1: text must be a string, not 3"),
        ("texts.txt", b"\xff\xfe\xfa", "texts.txt, line 1 is not in UTF-8"),
    ],
)
def test_a_mistake_in_texts_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LREError, match=message):
        list(read_text_file(tmp_path / name))


def test_mistakes_in_what_is_asked(lm, lres, tmp_path):
    with pytest.raises(LREError, match="there is no LRE of 'third': there are those of first, second"):
        read_answers(lm, lres, [Text("w1", relation="third")])
    with pytest.raises(LREError, match=r"must end in \.csv or \.jsonl"):
        AnswerTable(tmp_path / "table.xlsx", {})
