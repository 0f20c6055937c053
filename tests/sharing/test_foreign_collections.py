"""Collections from strangers: damaged, incomplete, of another LM or made to harm, each is used or one clear error."""

import json
import os
import shutil
from dataclasses import asdict, replace

import pytest
from hypothesis import given

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.sharing.card import card_of
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.index import Index, digest_of_file
from lre_lightning.sharing.smaller import Form
from lre_lightning.storage.tensors import write_tensors
from tests.helpers.hostile import PLAIN, changed, little_memory, nested, outcome, recipes, tried
from tests.helpers.identities import ANOTHER

COLOUR = "thing colour"


@pytest.fixture
def saved(run, tmp_path):
    """The folder of a collection, the file of one of its LREs, and its index as plain data."""
    run.save(tmp_path / "c", Form(trials="all"))
    index = json.loads((tmp_path / "c" / "index.json").read_text())
    return tmp_path / "c", tmp_path / "c" / "lres" / "thing_colour" / "trial0.safetensors", index


def entry_of(index):
    return next(one for one in index["lres"] if one["file"] == "lres/thing_colour/trial0.safetensors")


def flip(file, index):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def swap(file, index):
    file.write_bytes(file.with_name("trial1.safetensors").read_bytes())


def fits_the_index(file, index):
    entry_of(index).update(size=file.stat().st_size, sha256=digest_of_file(file))


def swap_as_the_index_says(file, index):
    swap(file, index)
    fits_the_index(file, index)


def not_finite(file, index):
    lre = LRE.load(file)
    write_tensors(file, lre.tensors() | {"bias": lre.bias / 0}, "lre", lre.metadata())
    fits_the_index(file, index)


def link_out(file, index):
    file.rename(file.parents[3] / "secret")
    file.symlink_to(file.parents[3] / "secret")


def link_to_itself(file, index):
    file.unlink()
    file.symlink_to(file)


def pipe(file, index):
    file.unlink()
    os.mkfifo(file)


def set_entry(**values):
    return lambda file, index: entry_of(index).update(values)


def set_origin(**values):
    return lambda file, index: entry_of(index)["metadata"]["origin"].update(values)


def set_index(**values):
    return lambda file, index: index.update(values)


def text(content):
    return lambda file, index: content


DAMAGED, NO_INDEX = "is damaged, incomplete or of another collection", "is not the index of a collection"
HARMED = {
    "truncated": (lambda file, index: os.truncate(file, file.stat().st_size - 1), DAMAGED),
    "one bit": (flip, DAMAGED),
    "a file is missing": (lambda file, index: file.unlink(), DAMAGED),
    "another LRE's file": (swap, DAMAGED),
    "another LRE's file and digest": (swap_as_the_index_says, "is not the LRE that index.json says"),
    "a link to a secret": (link_out, "is a link that leads out of the collection"),
    "a link to itself": (link_to_itself, "is a link that leads out of the collection"),
    "a pipe": (pipe, DAMAGED),
    "infinity": (not_finite, "holds values that are not finite"),
    "a path out of the folder": (set_entry(file="../../etc/passwd"), "must be 'lres/thing_colour/trial0.safetensors'"),
    "a name that is a path": (set_origin(relation="../../x"), "must be 'lres/x"),
    "no digest": (set_entry(sha256=""), "with its SHA-256, and must be"),
    "a digest of another kind": (set_entry(sha256=[]), "sha256 must be a string"),
    "scores above 1": (set_entry(scores=[2, 0]), "scores.0. must be a number of -1 to 1, not 2"),
    "scores below 0": (set_entry(scores=[-1, 0]), "scores.0. must be a number of 0 to 1, not -1"),
    "one score": (set_entry(scores=[1]), "scores has 1 entries, too few"),
    "two LMs": (set_origin(identity=asdict(ANOTHER)), "its LREs must be of one LM"),
    "no identity": (set_origin(identity={**asdict(ANOTHER), "numbers": "AAAA"}), "must be 72 finite numbers"),
    "a large identity": (set_origin(identity={**asdict(ANOTHER), "blocks": -1}), "identity.blocks"),
    "an unknown dtype": (set_origin(identity={**asdict(ANOTHER), "dtype": "int8"}), "identity.dtype must be"),
    "a later format": (set_index(format="lre-lightning collection 2"), "its format is 'lre-lightning collection 2'"),
    "no LRE": (set_index(lres=[]), "there is no LRE in it"),
    "deep data in how it was made": (set_index(made={"a": nested(1, 8, 1)}), "more than 8 deep"),
    "no JSON": (text("{"), NO_INDEX),
    "deep JSON": (text("[" * 10**5), NO_INDEX),
    "large numbers": (text('{"format": ' + "9" * 5000 + "}"), NO_INDEX),
    "not UTF-8": (text("\udcff"), NO_INDEX),
}


@pytest.mark.parametrize("kind", HARMED)
def test_a_harmed_collection_is_one_clear_error(saved, kind):
    change, message = HARMED[kind]
    folder, file, index = saved
    content = change(file, index) or json.dumps(index)
    (folder / "index.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with little_memory(), pytest.raises(LREError, match=message) as caught:
        LRECollection.from_pretrained(folder)[COLOUR]
    assert len(str(caught.value)) < 1000
    if "index" not in str(caught.value):  # the others are as they were
        assert LRECollection.from_pretrained(folder)[COLOUR, 1].origin.trial == 1


def test_a_collection_is_refused_by_another_lm(run):
    entries = [
        replace(one, metadata=one.metadata | {"origin": one.metadata["origin"] | {"identity": asdict(ANOTHER)}})
        for one in run.index.entries.values()
    ]
    lm, other = LanguageModel.from_pretrained("demo"), LRECollection(run.place, Index.of(entries, {}))
    for call in (lambda: other.for_text(lm, "x"), lambda: run[COLOUR].bind(lm)):
        with pytest.raises(LREError, match="was estimated from 'toys/affine'"):
            call()


def test_a_run_that_another_run_wrote_to_is_refused(fit, tmp_path):
    shutil.copytree(fit[2], tmp_path / "run")
    lres = tmp_path / "run" / "lres" / "thing_colour"
    shutil.copy(lres / "trial1.safetensors", lres / "trial0.safetensors")
    with pytest.raises(LREError, match=r"is not the LRE of the record in fit_results\.jsonl: another run wrote"):
        LRECollection.from_pretrained(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "lres")
    with pytest.raises(LREError, match=r"is neither a collection of LREs nor one fit: .* no lres\Z"):
        LRECollection.from_pretrained(tmp_path / "run")
    (tmp_path / "run" / "main" / "lres").mkdir(parents=True)
    with pytest.raises(LREError, match=r"the main fit of this evaluation is '.*/run/main'"):
        LRECollection.from_pretrained(tmp_path / "run")


@given(recipe=recipes(PLAIN))
@tried(60)
def test_any_index_is_a_collection_or_an_error(any_index, tmp_path_factory, recipe):
    folder, index = any_index
    (folder / "index.json").write_text(json.dumps(changed(index, recipe)))
    found = outcome(LRECollection.from_pretrained, folder)
    if found is not None:
        assert card_of(found.index, figure=False)
        assert [outcome(found.__getitem__, key) for key in found]


@pytest.fixture(scope="module")
def any_index(fit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("lre_lightning.sharing.card.plot", lambda picture: ("", b""))
        LRECollection.from_pretrained(fit[2]).save(folder)
    return folder, json.loads((folder / "index.json").read_text())
