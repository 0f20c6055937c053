"""The whole evaluation from the command line: its fits, its report, resumed, shared out and merged."""

import json

import pytest
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint

from lre_lightning.commands.dataset import count_known
from lre_lightning.commands.evaluate import evaluate
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.measures import Baselines
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.files import read_records
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUICK, lre
from tests.helpers.options import nested
from tests.helpers.toy import relation_json, write_toy_model
from tests.helpers.trainer import trainer_of

SMALL = ["--data.n_shot=3", "--data.trials=2", "--model.betas=[0, 1, 2]", "--model.ranks=[4, 16]"]
MAIN_ALONE = ["--n_shots=[]", "--templates=false", "--bare=false"]
FITS = ["main", "n1", "n2", "template1", "bare"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The toy, and three relations: two that it knows, of which one has a second template, and one that it does not."""
    root = tmp_path_factory.mktemp("toy")
    relations = [
        relation_json("thing colour")
        | {"prompt_templates": ["colour {}"], "prompt_templates_zs": ["colour colour {}"]},
        relation_json("half colour", count=14, category="bias"),
        relation_json("wrong colour", shift=1),
    ]
    (root / "relations").mkdir()
    for relation in relations:
        (root / "relations" / f"{relation['name']}.json").write_text(json.dumps(relation))
    return write_toy_model(root / "model"), root / "relations"


def places(folders, root):
    model, relations = folders
    return [f"--model.name_or_path={model}", f"--data.source={relations}", f"--trainer.default_root_dir={root}"]


def command(folders, root, *more):
    return ["evaluate", *QUICK, *SMALL, *places(folders, root), *more]


@pytest.fixture(scope="module")
def evaluated(folders, tmp_path_factory):
    """The folder of an evaluation that failed in the second trial of its third fit, and was resumed."""
    root = tmp_path_factory.mktemp("evaluation") / "run"
    start, begun = LREModule.on_validation_start, []

    def failing(module):
        begun.append(module.current_epoch)
        if len(begun) == 12:
            raise LREError("failed here")
        start(module)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(LREModule, "on_validation_start", failing)
        assert lre(*command(folders, root)) == 2
        assert [len(read_records([path])) for path in sorted(root.rglob("fit_results.jsonl"))] == [6, 4, 1]
        begun.clear()
        assert lre(*command(folders, root)) == 0
    assert begun[0] == 1  # what was finished is not run again
    return root


def test_every_fit_has_a_folder_and_records_of_its_kind(evaluated):
    assert sorted(path.parent.name for path in evaluated.rglob("fit_results.jsonl")) == sorted(FITS)
    records = {name: read_records([evaluated / name]) for name in FITS}
    assert {record.n_shot for record in records["n1"]} == {1}
    assert {record.n_shot for record in records["n2"]} == {2}
    assert {record.template for record in records["bare"]} == {"{}"}
    assert {(r.relation, r.template) for r in records["template1"]} == {("thing colour", "colour colour {}")}
    assert {record.relation for record in records["main"]} == {"thing colour", "half colour", "wrong colour"}
    for name in FITS[1:]:
        assert "wrong colour" not in {record.relation for record in records[name]}
    scored = [record for record in records["main"] if record.scored]
    assert len(scored) == 4
    for record in scored:  # everything is measured
        assert {"baselines", "distributions", "generations", "majorities"} < record.measures.keys()
        assert len(record.rows_of("line integrals")) == 10
        assert record.layers == ("emb", 0, 1)
    chosen = {record.relation: (record.layer, record.rank) for record in scored}
    for record in [*records["n1"], *records["n2"], *records["template1"]]:  # at the layer and rank of the main fit
        assert (record.layer, record.rank) == chosen[record.relation]
        assert record.layers == (record.layer,)
        assert record.measures == {}
    page = (evaluated / "report" / "index.html").read_text()
    assert [name for name in ("thing colour", "half colour", "wrong colour") if name not in page] == []
    assert {path.suffix for path in (evaluated / "report" / "tables").iterdir()} == {".csv", ".tex"}


def test_a_second_call_changes_nothing_and_takes_no_other_options(evaluated, folders, capsys):
    before = {path: path.read_bytes() for path in evaluated.rglob("*") if path.suffix in (".jsonl", ".csv", ".tex")}
    assert lre(*command(folders, evaluated)) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert lre(*command(folders, evaluated, "--data.seed=1")) == 2
    assert "is of a fit with data.seed 0, not 1" in capsys.readouterr().err


def test_relations_split_over_jobs_are_one_run(evaluated, folders, tmp_path):
    jobs = [tmp_path / "a", tmp_path / "b"]
    for root, names in zip(jobs, ("[thing colour, wrong colour]", "[half colour]"), strict=True):
        assert lre(*command(folders, root, f"--data.relations={names}", *MAIN_ALONE)) == 0
        assert [path.parent.name for path in root.rglob("fit_results.jsonl")] == ["main"]
    merged, whole = ({r.key: r for r in read_records(roots)} for roots in (jobs, [evaluated / "main"]))
    assert merged == whole


def test_each_fit_can_be_run_again_by_its_own_config(evaluated, tmp_path):
    config = evaluated / "n2" / "lightning_logs" / "version_0" / "config.yaml"
    assert yaml.safe_load(config.read_text())["data"]["n_shot"] == 2
    assert lre("fit", "--config", config, f"--trainer.default_root_dir={tmp_path / 'again'}") == 0
    assert read_records([tmp_path / "again"]) == read_records([evaluated / "n2"])


def test_the_other_fits_leave_out_what_the_main_fit_leaves_out(folders, tmp_path):
    excluded = ["--data.selection.exclude=[half colour]", "--model.fitting.selection_trials=1"]
    options = ["--n_shots=[2]", "--templates=false", "--model.measures=[]", *excluded]
    assert lre(*command(folders, tmp_path, *options)) == 0
    for name in ("main", "n2", "bare"):
        records = read_records([tmp_path / name])
        assert "half colour" not in {record.relation for record in records}
        assert {(record.trial, record.reported) for record in records} == {(0, False), (1, True)}


def test_nothing_is_varied_if_the_lm_knows_nothing(folders, tmp_path):
    assert lre(*command(folders, tmp_path, "--data.relations=[wrong colour]")) == 0
    assert [path.parent.name for path in tmp_path.rglob("fit_results.jsonl")] == ["main"]
    assert "No relation was scored" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--n_shots=[0]", "n must be a whole number of at least 1, got 0"),
        ("--data.prompts.template=1", "an evaluation uses all templates in turn: leave template 1 out"),
        ("--data.prompts.template={}", "an evaluation uses all templates in turn: leave template '{}' out"),
    ],
)
def test_mistakes_are_named(folders, tmp_path, capsys, option, message):
    assert lre(*command(folders, tmp_path, option)) == 2
    assert message in capsys.readouterr().err


def test_from_python(folders, tmp_path):
    def make_trainer(setting):
        checkpoint = ModelCheckpoint(tmp_path / setting.name, filename="last", enable_version_counter=False)
        return trainer_of(tmp_path / setting.name, [checkpoint], enable_checkpointing=True)

    model, relations = map(str, folders)
    module = LREModule(model, betas=[1.0], ranks=[16], measures=[Baselines()])
    data = RelationDataModule(model, source=relations, n_shot=3, trials=1)
    records = evaluate(module, data, make_trainer, n_shots=[1], templates=False)
    assert {(record.n_shot, record.template_index) for record in records} == {(3, 0), (1, 0), (3, None)}
    with pytest.raises(LREError, match="n must be a whole number of at least 1, got 'x'"):
        evaluate(module, data, make_trainer, n_shots=["x"])


def test_dataset_counts_what_fit_counts_and_goes_on(evaluated, folders, tmp_path, monkeypatch, capsys):
    chosen = ["--trainer.accelerator=cpu", "--data.n_shot=3", "--data.trials=2"]
    arguments = ["dataset", *chosen, *places(folders, tmp_path)]
    assert lre(*arguments, "--task", tmp_path / "known") == 0
    results = tmp_path / "dataset_results.jsonl"
    counted = read_records([results])
    fitted = {(r.relation, r.trial): r for r in read_records([evaluated / "main"])}
    assert len(counted) == len(fitted) == 6
    for record in counted:
        other = fitted[record.relation, record.trial]
        assert (record.known, record.tested, record.first_tokens) == (other.known, other.tested, other.first_tokens)
    said = capsys.readouterr().out
    assert "thing colour" in said
    known, asked = (sum(getattr(record, name) for record in counted) for name in ("known", "tested"))
    assert f"task lre_known written to {tmp_path / 'known'}: {asked} prompts; {known} known" in said
    assert {path.suffix for path in (tmp_path / "dataset").iterdir()} == {".csv", ".tex"}
    lines = results.read_text().splitlines()
    results.write_text("\n".join(lines[:2]) + "\n")
    asked, whole = [], RelationDataModule.val_dataloader
    monkeypatch.setattr(
        RelationDataModule, "val_dataloader", lambda self, pairs=None: asked.append(pairs) or whole(self, pairs)
    )
    assert lre(*arguments) == 0
    assert asked == [[2], [3], [4], [5]]
    assert results.read_text().splitlines() == lines


def test_what_is_counted_is_counted_again_with_other_draws_or_prompts(folders, tmp_path):
    model, relations = map(str, folders)
    lm, path = LanguageModel.from_pretrained(model), tmp_path / "known.jsonl"

    def count(**options):
        asked = []
        data = RelationDataModule(model, "thing colour", relations, **nested(**({"n_shot": 3, "trials": 1} | options)))
        data.val_dataloader = lambda pairs: asked.append(pairs) or RelationDataModule.val_dataloader(data, pairs)
        (record,) = count_known(lm, data, path)
        assert record.train == tuple((s.subject, s.object) for s in data.trial(0).train)
        return bool(asked)

    assert count()
    assert not count()
    assert count(seed=1)  # another draw in its place
    assert not count(seed=1)
    assert count(shots=1, seed=1)  # other prompts, beside it
    assert not count(seed=1)
    assert {record.prompts["shots"] for record in read_records([path])} == {None, 1}
