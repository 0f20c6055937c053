"""`edit`: how the LM continues a prompt before and after an edit."""

import pytest
import torch

from lre_lightning.commands.edit import find_key
from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.training.bank import LREStore
from tests.helpers.command import QUIET, lre
from tests.helpers.identities import SOME


def edit(fitted, *args):
    return lre("edit", *QUIET, f"--trainer.default_root_dir={fitted / 'run'}", *args)


def test_an_edit_is_printed_beside_the_lms_own_continuation(fitted, capsys):
    options = ["--relation=thing colour", "--subject=thing5", "--max_new_tokens=1", "--samples=1"]
    assert edit(fitted, "colour thing5", "--target=thing6", *options) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["greedy", "green", "blue"] in lines
    (likely,) = (words for words in lines if words[:2] == ["next", "token"])
    assert (likely[2], likely[7]) == ("green", "blue")  # with two less likely answers on the line
    assert lines[-1][:4] == ["thing", "colour,", "as", "plain"]


def test_an_edit_without_its_relation_is_one_clear_error(fitted, monkeypatch, capsys):
    assert edit(fitted, "thing5", "--target=thing6", "--relation=colour") == 2
    assert "there is no LRE of 'colour': there are those of half colour, thing colour" in capsys.readouterr().err
    monkeypatch.setattr("lre_lightning.models.frozen.LanguageModel.from_pretrained", None)  # it would be called
    assert lre("edit", *QUIET, "--lres=demo", "--model.name_or_path=demo", "Ask Peru", "--target=Chile") == 2
    assert "the prompt 'Ask Peru' has the form of no LRE: name the relation, as in" in capsys.readouterr().err


def test_the_relation_is_found_by_the_form_of_the_prompt():
    def lre(relation, trial, template):
        return LRE(torch.eye(2), torch.zeros(2), 0, Origin("toy", SOME, relation, trial=trial, template=template))

    templates = {"capital": "The capital of {} is", "city": "The {} is", "language": "People in {} speak"}
    lres = LREStore()
    for name, text in templates.items():
        for trial in (1, 2):
            lres[name, trial] = lre(name, trial, text)
    assert find_key(lres, "People in Peru speak", None) == ("language", 1)
    with pytest.raises(LREError, match="has the form of 'capital', 'city': name the relation"):
        find_key(lres, "The capital of Peru is", None)
    with pytest.raises(LREError, match="has the form of no LRE: name the relation, as in --relation 'capital'"):
        find_key(lres, "Peru", None)
    alone = LREStore()
    alone["city", 1] = lres["city", 1]
    assert find_key(alone, "Peru", None) == ("city", 1)
