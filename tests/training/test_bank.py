"""LREs in memory and in files, and what a checkpoint needs to find them again."""

import shutil
from dataclasses import replace

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.training.bank import LREBank, file_of
from tests.helpers.identities import SOME
from tests.helpers.records import unscored_record


def lre_of(trial=0):
    origin = Origin("toy", SOME, "thing colour", trial=trial, train=(("sky", "blue"),))
    return LRE(torch.eye(3), torch.ones(3), 1, origin, rank=2)


def bank_of(folder, *lres):
    bank = LREBank()
    bank.lres.folder = folder
    for lre in lres:
        bank.lres[lre.origin.relation, lre.origin.trial] = lre
    return bank


def reloaded(bank, tmp_path, searched=()):
    torch.save(bank.state_dict(), tmp_path / "state.ckpt")
    again = LREBank()
    again.searched = list(searched)
    again.load_state_dict(torch.load(tmp_path / "state.ckpt", weights_only=True))
    return again


def check_same(found, expected):
    assert found.metadata() == expected.metadata()
    assert torch.equal(found.weight, expected.weight)
    assert torch.equal(found.bias, expected.bias)


def test_lres_are_in_files_if_there_is_a_folder_and_else_travel_in_the_state(tmp_path):
    lre, key = lre_of(), ("thing colour", 0)
    for folder in (tmp_path / "lres", None):
        bank = bank_of(folder, lre)
        assert (tmp_path / "lres" / "thing_colour" / "trial0.safetensors").is_file()
        assert isinstance(bank.lres._kept[key], LRE) == (folder is None)
        (entry,) = bank.get_extra_state()["lres"]
        assert set(entry) == {"metadata", "tensors" if folder is None else "folder"}
        again = reloaded(bank, tmp_path).lres
        assert list(again) == [key]
        for found in (bank.lres[key], again[key]):
            check_same(found, lre)


def test_a_run_that_was_moved_is_found_where_it_is_searched_first(tmp_path):
    """A file of another run in the first folder does not stand in the way, and in the run's own is refused."""
    bank = bank_of(tmp_path / "run" / "lres", lre_of())
    shutil.move(tmp_path / "run", tmp_path / "moved")
    with pytest.raises(LREError, match=r"the LRE of 'thing colour', trial 0, is missing: .*lre_dir="):
        reloaded(bank, tmp_path)
    other = replace(lre_of(), layer=2)
    bank_of(tmp_path / "other", other, lre_of(trial=1))
    again = reloaded(bank, tmp_path, [tmp_path / "nowhere", tmp_path / "other", tmp_path / "moved" / "lres"])
    check_same(again.lres["thing colour", 0], lre_of())
    other.save(tmp_path / "moved" / "lres" / file_of(("thing colour", 0)))
    with pytest.raises(LREError, match="is not the LRE that this run kept"):
        again.lres["thing colour", 0]


def test_a_run_that_resumes_in_another_folder_keeps_both(tmp_path):
    first = reloaded(bank_of(tmp_path / "a", lre_of()), tmp_path)
    first.lres.folder = tmp_path / "b"
    first.lres["thing colour", 1] = lre_of(trial=1)
    again = reloaded(first, tmp_path, [tmp_path / "b"])
    for trial in (0, 1):
        check_same(again.lres["thing colour", trial], lre_of(trial=trial))


def test_beta_is_tuned_where_files_are_on_another_node(tmp_path):
    """Only the first process reads and writes them."""
    for writes in (False, True):
        bank = bank_of(tmp_path / f"{writes}", lre_of())
        bank.records["thing colour", 0] = unscored_record()
        bank.lres.writes = writes
        if not writes:
            shutil.rmtree(tmp_path / f"{writes}")
        bank.tune(1.0, 2.5)
        assert bank.lres.metadata["thing colour", 0]["beta"] == 2.5
        assert (tmp_path / f"{writes}").exists() == writes
    assert LRE.load(tmp_path / "True" / file_of(("thing colour", 0))).beta == 2.5


def test_a_fit_does_not_replace_the_lres_of_another_lm(random_toy, tmp_path):
    bank = bank_of(tmp_path / "lres", lre_of())
    with pytest.raises(LREError, match="already holds LREs of another LM, which the fit would replace"):
        bank.lres.refuse_others(random_toy)
    own = replace(lre_of(), origin=replace(lre_of().origin, identity=random_toy.identity))
    bank_of(tmp_path / "own", own).lres.refuse_others(random_toy)
