"""Texts from every source as sequences of tokens."""

import datasets
import pytest

from lre_lightning.datamodules import TextDataModule
from lre_lightning.errors import LREError
from tests.helpers.toy import WORDS, toy_tokenizer

TEXTS = ["thing0 red thing1 green", "thing2 blue", "thing3 white thing4 red thing5 green thing6"]


def ids(text):
    return [0, *(WORDS.index(word) for word in text.split())]


def data_of(texts, **options):
    return TextDataModule(texts, toy_tokenizer(), **{"length": 5, "shortest": 3, **options})


def test_every_source_gives_the_same_sequences(tmp_path):
    path, loaded = tmp_path / "texts.txt", datasets.Dataset.from_list([{"text": text, "more": 1} for text in TEXTS])
    path.write_text("\n \n".join(TEXTS) + "\n")
    loaded.to_csv(tmp_path / "texts.csv")
    loaded.to_json(tmp_path / "texts.jsonl")
    loaded.to_parquet(tmp_path / "texts.parquet")
    loaded.save_to_disk(tmp_path / "saved")
    expected = [ids(TEXTS[0]), ids(TEXTS[1]), ids("thing3 white thing4 red"), ids("thing5 green thing6")]
    for source in (*map(str, tmp_path.iterdir()), loaded, [str(path)]):
        assert data_of(source).sequences == expected
        assert data_of(source).digest == data_of(str(path)).digest != data_of(source, limit=1).digest


def test_lengths_limits_and_epochs(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS))
    assert data_of(str(path), shortest=5).sequences == [ids(TEXTS[0]), ids("thing3 white thing4 red")]
    assert data_of(str(path), limit=2).sequences == [ids(TEXTS[0]), ids(TEXTS[1])]
    data = data_of(str(path), batch_size=3)
    assert data.schedule == [(0, 0), (0, 1)]
    ((first, *_),) = list(data.train_dataloader())
    assert first.tolist() == ids(TEXTS[0])
    assert data.hparams["texts"] == str(path)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "thing0", {}, "no text has 3 tokens"),
        ("a.txt", b"\xff\xfe", {}, "line 1 is not in UTF-8"),
        ("a.jsonl", '{"text": 3}', {}, "line 1: 'text' must be a text"),
        ("a.jsonl", '{"body": "a"}', {}, "has the columns body, and no 'text'"),
        ("a.txt", "thing0", {"shortest": 6}, "length must be a whole number of at least 6, got 5"),
        ("a.txt", "thing0", {"limit": 0}, "limit must be a whole number of at least 1"),
        ("a.txt", "thing0", {"reading": {"column": 3, "more": 1}}, "reading has no option 'more'"),
        (None, "", {}, r"cannot be read: .*No such file"),
    ],
)
def test_invalid_texts_are_one_error(tmp_path, name, content, options, message):
    path = tmp_path / (name or "none.txt")
    if name:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LREError, match=message):
        _ = data_of(str(path), **options).sequences
