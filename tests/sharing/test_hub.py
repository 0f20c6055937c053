"""Collections on the hub: pushed and pulled through huggingface_hub, from a local server that speaks its protocol."""

import json
import re

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.smaller import Form
from lre_lightning.storage.files import safe_name
from tests.helpers.command import lre

COLOUR = "thing colour"
FILES = {f"lres/{safe_name(name)}/trial{trial}.safetensors" for name in (COLOUR, "half colour") for trial in range(3)}
OTHERS = {"subjects.json", "README.md", "index.json", "fit_results.jsonl", "relations.png"}


def uploads(hub):
    return [path for method, path in hub.requests if method == "PUT"]


def downloads(hub):
    return [path.split("/", 4)[4] for method, path in hub.requests if method == "GET" and "/resolve/" in path]


def test_what_is_pushed_is_what_the_card_names_and_comes_back_one_lre_at_a_time(hub, run, tmp_path):
    saved = run.save(tmp_path / "saved", Form(trials="all", rank=2))
    (tmp_path / "saved" / "private.txt").write_text("not to be shared")
    (tmp_path / "saved" / "lres" / "private.txt").write_text("not to be shared")
    address = saved.push_to_hub("toys/lres", revision="v1", private=True)
    files = hub.files("toys/lres", "v1")
    assert address == f"{hub.address}/toys/lres/commit/{hub.commit_of(files)}"
    assert (set(files), hub.files("toys/lres"), hub.private["toys/lres"]) == (FILES | OTHERS, {}, True)
    assert set(re.findall(r"^\| `([^`]+)` \|", saved.card, re.MULTILINE)) == FILES | OTHERS
    for file, content in files.items():
        assert content == (tmp_path / "saved" / file).read_bytes()
    hub.requests.clear()
    pulled = LRECollection.from_pretrained("toys/lres", revision="v1")
    assert (dict.fromkeys(pulled), downloads(hub)) == (dict.fromkeys(saved), ["index.json"])
    found, expected = pulled[COLOUR, 1], saved[COLOUR, 1]
    assert downloads(hub) == ["index.json", "lres/thing_colour/trial1.safetensors"]
    assert found.metadata() == expected.metadata()
    assert all(torch.equal(tensor, expected.tensors()[name]) for name, tensor in found.tensors().items())
    assert (pulled.records, pulled.card) == (saved.records, saved.card)
    hub.requests.clear()
    again = LRECollection.from_pretrained("toys/lres", revision="v1")
    assert again[COLOUR, 1].metadata() == expected.metadata()
    assert downloads(hub) == []


def test_a_collection_stays_at_the_commit_at_which_it_was_opened(hub, run):
    run.push_to_hub("toys/lres")
    opened = LRECollection.from_pretrained("toys/lres")
    before = opened.card
    hub.branches["toys/lres"]["main"] = {name: b"changed" for name in hub.files("toys/lres")}
    assert opened.card == before
    assert opened[COLOUR].metadata() == run[COLOUR].metadata()
    with pytest.raises(LREError, match="is not the index of a collection"):
        LRECollection.from_pretrained("toys/lres")


def test_an_upload_that_was_stopped_goes_on_and_leaves_nothing_half_done(hub, run):
    hub.refuse = lambda method, path, body: 403 if method == "PUT" and len(hub.large) == 1 else None
    with pytest.raises(LREError, match="'toys/lres' cannot be pushed to"):
        run.push_to_hub("toys/lres")
    assert hub.files("toys/lres") == {}
    sent = set(hub.large)
    hub.refuse, hub.requests[:] = lambda method, path, body: None, []
    run.push_to_hub("toys/lres")
    assert len(sent) == 1
    assert not {path.removeprefix("large/") for path in uploads(hub)} & sent
    assert set(hub.files("toys/lres")) > OTHERS
    hub.requests.clear()
    run.push_to_hub("toys/lres")  # nothing is new
    assert uploads(hub) == []


def test_lres_that_a_collection_no_longer_has_are_removed(hub, run, tmp_path):
    run.save(tmp_path / "all", Form(trials="all")).push_to_hub("toys/lres")
    hub.branches["toys/lres"]["main"]["notes.md"] = b"somebody's own"
    run.save(tmp_path / "first").push_to_hub("toys/lres")
    first = {file for file in FILES if "trial0" in file}
    assert set(hub.files("toys/lres")) == first | OTHERS | {"notes.md"}


def test_what_the_hub_refuses_is_one_clear_error(hub, run, monkeypatch):
    run.push_to_hub("toys/private", private=True)
    for call, message in (
        (lambda: run.push_to_hub("toys/lres", token="hf_wrong"), "'toys/lres' cannot be pushed to: .*401"),
        (lambda: run.push_to_hub("lres"), "'lres' is not a name on the hub: give org/name or user/name"),
        (lambda: LRECollection.from_pretrained("toys/none"), "'index.json' of 'toys/none' cannot be downloaded: .*404"),
        (lambda: LRECollection.from_pretrained("toys/private", revision="v9"), "'index.json' of .*404"),
        (lambda: LRECollection.from_pretrained("toys/private", token=False), "'index.json' of .*404"),
    ):
        with pytest.raises(LREError, match=message):
            call()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LREError, match=r"'index.json' of 'toys/other' cannot be downloaded"):
        LRECollection.from_pretrained("toys/other")


def test_the_command_pushes_and_predicts_from_the_hub(hub, run, fit, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lre_lightning.commands.push.scorer_of", lambda run, device: pytest.fail("nothing to score"))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert lre("push", str(fit[2]), "toys/lres", "--private=true", "--license=mit") == 0
        printed = capsys.readouterr().out
        assert "2 LREs, " in printed
        assert f"Pushed: {hub.address}/toys/lres/commit/" in printed
    assert lre("push", "lre_collection", "toys/again") == 0  # as it is
    index = json.loads(hub.files("toys/again")["index.json"])
    assert (len(index["lres"]), index["made"]["about"]) == (2, {"license": "mit", "repository": "toys/lres"})
    assert lre("push", "nothing", "toys/again") == 2
    assert "there is no collection 'nothing': give a folder" in capsys.readouterr().err
