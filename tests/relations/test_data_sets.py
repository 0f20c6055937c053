"""Data sets of the Hub: real requests to a local HTTP server that answers as the Hub does."""

import gzip
import json
import re

import pytest

from lre_lightning.errors import LREError
from lre_lightning.relations.sources import read_source

CSV = "subject,object\n007,NA\nb,2020-01-01\n"
LINES = '{"subject": "007", "object": "NA"}\n{"subject": "b", "object": "2020-01-01"}\n'
FACTS = [("007", "NA"), ("b", "2020-01-01")]


def put(hub, name, **files):
    """Put a data set on the hub, in two branches."""
    content = {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
    hub.branches[f"toy/{name}"] = {"main": content, "v1": content}
    hub.commits[hub.commit_of(content)] = content


def read(source, **options):
    """Read a data set: returns the name and the samples of its relation, or the error message."""
    try:
        [(_, relation)] = read_source(source, None, options)
    except LREError as error:
        return str(error)
    return relation.name, [(sample.subject, sample.object) for sample in relation.samples]


def card(*configs):
    return "---\nconfigs:\n" + "".join(f"- {config}\n" for config in configs) + "---\n"


RELATION = {"name": "r", "samples": [{"subject": subject, "object": object_} for subject, object_ in FACTS]}
LAYOUTS = {
    "one": {"facts.csv": CSV, "huge.bin": b"0" * 1000, "loader.py": "raise SystemExit(9)"},
    "nested": {"one.json": json.dumps(RELATION, indent=1)},
    "lines": {"facts.json": LINES},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_data_set_is_downloaded_and_then_read_from_the_cache(hub, name, monkeypatch):
    put(hub, name, **LAYOUTS[name])
    expected = ("r" if name == "nested" else name, FACTS)
    assert read(f"hf://datasets/toy/{name}@v1") == expected
    assert read(f"toy/{name}") == expected
    assert not [path for _, path in hub.requests if "huge.bin" in path or "loader.py" in path]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert read(f"toy/{name}") == expected
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert read(f"toy/{name}", revision="main") == expected


def test_splits_of_a_data_set_are_chosen(hub):
    more = {"data/test-0.tsv.gz": gzip.compress(b"subject\tobject\nc\td\n"), "data/dev-0.tsv": '"broken'}
    put(hub, "split", **{"data/train-0.tsv": CSV.replace(",", "\t")}, **more)
    assert read("toy/split", split="train") == ("split", FACTS)
    assert read("toy/split", split="train+test") == ("split", [*FACTS, ("c", "d")])
    assert read("toy/split") == (
        "'toy/split' has the splits 'train', 'validation', 'test': give split, such as 'train', or 'train+validation' "
        "for both"
    )
    assert read("toy/split", split="tran").startswith("'toy/split' has no split 'tran': it has ")


def test_configurations_and_files_of_a_data_set_are_chosen(hub):
    configs = card(*(f"{{config_name: {name}, data_files: {name}.jsonl}}" for name in ("big", "small")))
    files = {"README.md": configs, "big.jsonl": LINES, "small.jsonl": '{"subject": "x", "object": "y"}'}
    put(hub, "configs", **files)
    assert read("toy/configs", name="big") == ("configs", FACTS)
    assert read("toy/configs", data_files={"train": "**/small.jsonl"}) == ("configs", [("x", "y")])
    for options in ({}, {"name": "medium"}):
        assert re.search(r"configs?'.*\['big', 'small'\]", read("toy/configs", **options))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("toy/other", {}, "there is no file or folder 'toy/other', and the data set 'toy/other' of the Hub does not"),
        ("hf://datasets/toy/other", {}, "the data set 'toy/other' of the Hub does not exist: check the name"),
        ("hf://datasets/toy/good@v9", {}, "the data set 'toy/good' of the Hub has no revision 'v9'"),
        ("toy/good", {"trust_remote_code": True}, "'toy/good' takes no option 'trust_remote_code': it may"),
        ("toy/good", {"data_files": "none/*.csv"}, "the data set 'toy/good' of the Hub cannot be read"),
        ("toy/absolute", {}, "the data set 'toy/absolute' of the Hub names the file"),
        ("toy/above", {}, "the data set 'toy/above' of the Hub names the file"),
        ("toy/broken", {}, "the relations have 2 problems:"),
        ("hf://datasets/toy/down", {}, "the data set 'toy/down' of the Hub is not in the cache, and the Hub cannot"),
    ],
)
def test_the_error_of_an_unusable_data_set_says_why(hub, tmp_path, source, options, message):
    secret, good = tmp_path / "secret.csv", "subject,object\na,b\n"
    secret.write_text("subject,object\nmine,own\n")
    put(hub, "good", **{"facts.csv": good})
    for name, file in {"absolute": secret, "above": "../../../../secret.csv"}.items():
        put(hub, name, **{"README.md": card(f"{{config_name: default, data_files: '{file}'}}"), "a.csv": good})
    put(hub, "broken", **{"facts.csv": good, "more.csv": "subject,object\nc,\n,d\n"})
    hub.refuse = lambda method, path, body: 503 if "down" in path else None
    assert read(source, **options).startswith(message)
    if "other" in source or "down" in source:  # a mistyped name, or a Hub that is down, costs one request
        assert len(hub.requests) == 1


def test_the_error_of_an_unreachable_hub_says_what_to_do(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for offline, reason in ((False, "Connection refused"), (True, "HF_HUB_OFFLINE")):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        found = read("hf://datasets/toy/one")
        assert found.startswith(
            "the data set 'toy/one' of the Hub is not in the cache, and the Hub cannot be reached ("
        )
        assert found.endswith("): download it once where there is a network, or save it to a folder and give that")
        assert reason in found
