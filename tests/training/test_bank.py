"""LREs in memory and in files, and what a checkpoint needs to find them again."""

import shutil

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.training.bank import LREBank, file_of


def lre_of(relation="thing colour", trial=0, value=1.0):
    origin = Origin("toy", "abc", relation, trial=trial, train=(("sky", "blue"),))
    return LRE(value * torch.eye(3), torch.full((3,), value), 1, origin, rank=2)


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


def test_with_a_folder_neither_memory_nor_a_checkpoint_holds_tensors(tmp_path):
    lre = lre_of()
    bank = bank_of(tmp_path / "lres", lre)
    assert (tmp_path / "lres" / "thing_colour" / "trial0.safetensors").is_file()
    assert not any(isinstance(kept, LRE) for kept in bank.lres._kept.values())
    (entry,) = bank.get_extra_state()["lres"]
    assert set(entry) == {"metadata", "folder"}
    check_same(bank.lres["thing colour", 0], lre)
    check_same(reloaded(bank, tmp_path).lres["thing colour", 0], lre)


def test_without_a_folder_they_travel_in_the_state(tmp_path):
    lre = lre_of()
    again = reloaded(bank_of(None, lre), tmp_path)
    check_same(again.lres["thing colour", 0], lre)
    assert list(again.lres) == [("thing colour", 0)]


def test_a_run_that_was_moved_is_found_where_it_is_searched_first(tmp_path):
    bank = bank_of(tmp_path / "run" / "lres", lre_of())
    shutil.move(tmp_path / "run", tmp_path / "moved")
    with pytest.raises(LREError, match=r"the LRE of 'thing colour', trial 0, is missing: .*lre_dir="):
        reloaded(bank, tmp_path)
    again = reloaded(bank, tmp_path, [tmp_path / "nowhere", tmp_path / "moved" / "lres"])
    check_same(again.lres["thing colour", 0], lre_of())


def test_a_file_that_another_run_wrote_is_refused(tmp_path):
    bank = bank_of(tmp_path, lre_of())
    other = LRE(torch.eye(3), torch.ones(3), 2, Origin("toy", "abc", "thing colour", train=(("sea", "blue"),)))
    other.save(tmp_path / file_of(("thing colour", 0)))
    with pytest.raises(LREError, match="is not the LRE that this run kept"):
        bank.lres["thing colour", 0]


def test_another_run_in_the_first_folder_does_not_stand_in_the_way(tmp_path):
    bank = bank_of(tmp_path / "run" / "lres", lre_of())
    bank_of(tmp_path / "other", lre_of(value=2.0), lre_of(trial=1))
    LRE(torch.eye(3), torch.ones(3), 2, Origin("toy", "abc", "thing colour")).save(
        tmp_path / "other" / file_of(("thing colour", 0))
    )
    check_same(reloaded(bank, tmp_path, [tmp_path / "other"]).lres["thing colour", 0], lre_of())


def test_a_run_that_resumes_in_another_folder_keeps_both(tmp_path):
    first = reloaded(bank_of(tmp_path / "a", lre_of()), tmp_path)
    first.lres.folder = tmp_path / "b"
    first.lres["thing colour", 1] = lre_of(trial=1)
    again = reloaded(first, tmp_path, [tmp_path / "b"])
    check_same(again.lres["thing colour", 0], lre_of())
    check_same(again.lres["thing colour", 1], lre_of(trial=1))
