"""The main fits of several LMs from the command line: a folder for each, one page, resumed and left alone."""

import json

import pytest

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.files import read_records
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUIET, lre
from tests.helpers.toy import relation_json, write_toy_model

STEPS = (10, 20, 300)


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """Checkpoints of a toy, in folders and as revisions in a cache of the hub; and relations."""
    root = tmp_path_factory.mktemp("toys")
    hub = root / "models--toy--lm"
    (hub / "refs").mkdir(parents=True)
    for seed, step in enumerate(STEPS):
        write_toy_model(root / f"step-{step}", seed=seed)
        (hub / "snapshots").mkdir(exist_ok=True)
        (hub / "snapshots" / str(seed)).symlink_to(root / f"step-{step}")
        (hub / "refs" / f"step{step}").write_text(str(seed))
    (root / "relations").mkdir()
    for name, count in (("thing colour", 24), ("half colour", 14)):
        (root / "relations" / f"{name}.json").write_text(json.dumps(relation_json(name, count=count)))
    return root


@pytest.fixture
def loaded(toys, monkeypatch):
    """The LMs that were loaded, each after a check that those before have no weights any more."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(toys))
    found = []
    load = LanguageModel.from_pretrained.__func__

    def watched(kind, *given, **options):
        assert not any(list(lm.parameters()) for lm in found)
        found.append(load(kind, *given, **options))
        return found[-1]

    monkeypatch.setattr(LanguageModel, "from_pretrained", classmethod(watched))
    return found


def run(toys, root, *more):
    small = ["--data.n_shot=3", "--data.trials=1", "--model.betas=[1]", "--model.ranks=[4]", "--model.layers=[0]"]
    places = [f"--data.source={toys / 'relations'}", f"--trainer.default_root_dir={root}"]
    return lre("evaluate", *QUIET, *small, "--model.measures=[]", *places, *more)


def results(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.suffix in (".jsonl", ".csv", ".tex")}


def test_a_folder_for_each_lm_and_one_page(toys, tmp_path, monkeypatch, loaded):
    paths = [str(toys / f"step-{step}") for step in STEPS]
    models = f"--models=[{', '.join(paths)}]"
    fit, fitted = LREModule.on_train_epoch_start, []

    def stopping(module):
        fitted.append(module.lm.name)
        if len(fitted) == 4:  # the second trial of the second LM
            raise LREError("stopped here")
        fit(module)

    monkeypatch.setattr(LREModule, "on_train_epoch_start", stopping)
    assert run(toys, tmp_path, models) == 2
    assert len(read_records([tmp_path / "step-20"])) == 1
    loaded.clear()
    assert run(toys, tmp_path, models) == 0
    assert fitted == [paths[0]] * 2 + [paths[1]] * 2 + [paths[1]] + [paths[2]] * 2  # what was finished is not run again
    records = read_records([tmp_path])
    assert [(r.model, r.relation) for r in records] == [(p, r) for p in paths for r in ("half colour", "thing colour")]
    before = results(tmp_path / "step-20") | results(tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Over training" in page
    loaded.clear()
    assert run(toys, tmp_path, models) == 0
    assert [lm.name for lm in loaded] == paths[:1]
    assert {path: path.read_bytes() for path in before} == before
    loaded.clear()
    alone = [f"--model.name_or_path={paths[1]}", "--n_shots=[]", "--templates=false", "--bare=false"]
    assert run(toys, tmp_path / "alone", *alone) == 0
    assert read_records([tmp_path / "step-20"]) == read_records([tmp_path / "alone" / "main"])


def test_revisions_are_told_apart(toys, tmp_path, loaded, capsys):
    revisions = ["--model.name_or_path=toy/lm", "--revisions=[step10, step300]"]
    assert run(toys, tmp_path, *revisions) == 0
    records = read_records([tmp_path])
    assert {record.model for record in records} == {"toy/lm@step10", "toy/lm@step300"}
    assert [lm.revision for lm in loaded] == ["step10", "step300"]
    assert sorted(path.parent.name for path in tmp_path.rglob("fit_results.jsonl")) == ["step10", "step300"]
    assert run(toys, tmp_path, *revisions, "--data.seed=1") == 2
    assert "is of a fit with data.seed 0, not 1" in capsys.readouterr().err


REVISIONS = "--model.name_or_path=toy/lm", "--revisions=[step10, step30]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models=[a]", "--revisions=[b]"], "give --models or --revisions"),
        (["--model.name_or_path=demo", "--revisions=[b]"], "'demo' is a folder, which has no revisions"),
        (["--models=[{toys}/step-10, toy/none]"], "there is no folder 'toy/none' here"),
        (REVISIONS, "no LM can be loaded from 'toy/lm@step30': "),
    ],
)
def test_mistakes_are_named_before_anything_is_done(toys, tmp_path, loaded, capsys, options, message):
    assert run(toys, tmp_path, *(option.format(toys=toys) for option in options)) == 2
    assert message in capsys.readouterr().err
    assert not loaded
    assert not list(tmp_path.iterdir())
