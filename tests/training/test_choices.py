"""Layers and ranks of a fit: which trials choose them, and choices that are given."""

import json
from dataclasses import replace

import pytest
import torch

from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import estimate, identity_layers
from lre_lightning.measures import Baselines, Specificity
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import make_prompt
from lre_lightning.records.analysis import says_more
from lre_lightning.records.choices import as_good_layers
from lre_lightning.records.files import Records, read_records
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import choose, reselect
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.sources import load_relations
from lre_lightning.scoring.scores import with_grid
from lre_lightning.training import trial
from lre_lightning.training.module import LREModule
from lre_lightning.training.options import Fitting
from tests.helpers import toy
from tests.helpers.toy import SUBJECTS, WIDTH
from tests.training.test_module import trainer_of

LAYERS, RANKS = ("emb", 0, 1), (2, 5, WIDTH)
GRID = {"betas": [0.0, 0.8], "ranks": list(RANKS), "beta": 0.8}
NAMES = ("half colour", "thing colour", "wrong colour")
GIVEN = {"thing colour": {"layer": 1, "rank": 3}}


@pytest.fixture
def fit(random_toy, toy_relations, tmp_path):
    """Fit trials of some relations and return the module and its trainer."""

    def run(fitting, trials=1, names="thing colour", ckpt_path=None, max_epochs=-1, prompts=Prompts(), **options):
        module = LREModule(random_toy, **{**GRID, **options}, fitting=fitting)
        data = RelationDataModule(toy.toy_tokenizer(), names, toy_relations, n_shot=4, trials=trials, prompts=prompts)
        trainer = trainer_of(tmp_path, [ResultsTable()], max_epochs=max_epochs)
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
        return module, trainer, data

    return run


def count_edits(monkeypatch, best):
    """Replace the counts of edits in a fit: the best points by trial, or by relation and trial."""

    def counted(*arguments):
        record, said, edited = with_grid(*arguments)
        counts = [[0] * len(record.ranks) for _ in record.layers]
        if edited.shape[1:] != (1, 1):  # not in validation, at the point that was chosen
            layer, rank = best.get((record.relation, record.trial), best.get(record.trial))
            counts[LAYERS.index(layer)][RANKS.index(rank)] = record.edited
        return replace(record, causal=tuple(map(tuple, counts))), said, edited

    monkeypatch.setattr(trial, "with_grid", counted)


def choices_of(module, relation="thing colour"):
    return {trial: (r.layer, r.rank) for (name, trial), r in module.records.items() if name == relation}


def test_selection_trials_choose_and_are_not_reported(random_toy, fit, tmp_path, monkeypatch):
    count_edits(monkeypatch, {("half colour", 0): (0, 2), 0: (0, 5), 1: ("emb", 2), 2: (0, WIDTH)})
    module, trainer, data = fit({"selection_trials": 1}, trials=3, names=None)
    assert choices_of(module, "half colour") == dict.fromkeys((0, 1, 2), (0, 2))
    assert choices_of(module, "thing colour") == dict.fromkeys((0, 1, 2), (0, 5))
    keys = [(name, trial) for name in NAMES for trial in (0, 1, 2)]
    assert {key: record.reported for key, record in module.records.items()} == {key: key[1] > 0 for key in keys}
    assert [record.reported for record in read_records([tmp_path])] == [False, True, True] * 3
    kept = {(name, trial): point for name, point in zip(NAMES, [(0, 2), (0, 5)], strict=False) for trial in (1, 2)}
    assert {key: (lre.layer, lre.rank) for key, lre in module.bank.lres.items()} == kept
    files = sorted(str(path.relative_to(tmp_path / "lres")) for path in (tmp_path / "lres").rglob("*.safetensors"))
    assert files == [f"{name}_colour/trial{trial}.safetensors" for name in ("half", "thing") for trial in (1, 2)]
    trainer.save_checkpoint(tmp_path / "fit.ckpt")
    again = LREModule(random_toy, **GRID, fitting={"selection_trials": 1})
    trainer_of(tmp_path / "again").validate(again, data, tmp_path / "fit.ckpt", weights_only=True)
    assert {key: (record.reported, record.scored) for key, record in again.records.items()} == {
        key: (key[1] > 0, key in kept) for key in keys
    }


def test_without_selection_trials_the_first_chooses_and_is_reported(fit, monkeypatch):
    count_edits(monkeypatch, {0: (0, 5), 1: ("emb", 2)})
    module, _, _ = fit({}, trials=2)
    assert choices_of(module) == dict.fromkeys((0, 1), (0, 5))
    assert all(record.reported for record in module.records.values())
    assert len(module.bank.lres) == 2


def test_trials_that_choose_can_test_other_subjects_than_those_that_are_reported(fit, toy_relations):
    module, _, data = fit({"selection_trials": 1}, trials=3, prompts=Prompts(choosing_trials=1))
    choosing, *reported = module.records.values()
    tested = [{sample.subject for sample in data.trial(index).test} for index in range(3)]
    assert not tested[0] & (tested[1] | tested[2])
    assert tested[0] | {s for s, _ in choosing.train} | tested[1] | {s for s, _ in reported[0].train} == set(SUBJECTS)
    assert [record.tested for record in module.records.values()] == list(map(len, tested))
    assert {(record.layer, record.rank) for record in reported} == {(choosing.layer, choosing.rank)}
    plain, _, whole = fit({"selection_trials": 1}, trials=3)
    assert [record.train for record in plain.records.values()] == [record.train for record in module.records.values()]
    assert [record.prompts["choosing_trials"] for record in (*reported, plain.records["thing colour", 0])] == [1, 1, 0]
    again = RelationDataModule.of_record(reported[1], toy.toy_tokenizer(), source=toy_relations)
    assert again.trial(0).test == data.trial(2).test
    shared = {sample.subject for sample in whole.trial(0).test} & {sample.subject for sample in whole.trial(1).test}
    assert len(shared) > 10  # without it, trials test mostly the same
    with pytest.raises(LREError, match=r"the 1 choosing_trials of the prompts, .* selection_trials, which are 2"):
        fit({"selection_trials": 2}, trials=3, prompts=Prompts(choosing_trials=1))


def test_several_selection_trials_choose_by_their_mean_also_when_resumed(fit, tmp_path, monkeypatch):
    count_edits(monkeypatch, {0: (0, 2), 1: (0, 5), 2: (0, 5), 3: ("emb", 2)})
    _, trainer, _ = fit({"selection_trials": 3}, trials=4, max_epochs=2)
    trainer.save_checkpoint(tmp_path / "part.ckpt")
    module, _, _ = fit({"selection_trials": 3}, trials=4, ckpt_path=tmp_path / "part.ckpt")
    assert choices_of(module) == {0: (0, 2), 1: (0, 2), 2: (0, 5), 3: (0, 5)}
    assert list(module.bank.lres) == [("thing colour", 3)]


def test_both_chooses_during_a_fit_as_after_it_also_when_resumed(tmp_path, caplog):
    """Nobody asks about the subjects of the last relation."""
    lm = LanguageModel.from_pretrained("demo")
    options = {"layers": [1], "betas": [1.0], "ranks": [4, 16], "measures": [Specificity([], every_layer=True)]}
    names = ["country capital city", "country language", "name gender"]

    def fitted(select_by, max_epochs=-1, ckpt_path=None):
        module = LREModule(lm, **options, fitting={"select_by": select_by, "max_known": 5})
        data = RelationDataModule("demo", names, n_shot=2, trials=1)
        trainer = trainer_of(tmp_path, max_epochs=max_epochs)
        trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
        return module, trainer

    causal, _ = fitted("causality")
    fitted("both", 1)[1].save_checkpoint(tmp_path / "part.ckpt")
    with caplog.at_level("INFO", "lre_lightning"):
        both, _ = fitted("both", ckpt_path=tmp_path / "part.ckpt")
    wanted = reselect(causal.records.values(), "both")
    assert [*both.records.values()] == wanted != [*causal.records.values()]
    assert wanted[2] == causal.records["name gender", 0]
    said = [line.getMessage() for line in caplog.records if "causality" in line.getMessage()]
    assert said == ["name gender: causality alone chooses, as no other relation asks about its subjects"]


def test_a_given_layer_is_the_only_one_that_is_estimated(random_toy, fit, tmp_path):
    module, trainer, _ = fit({"choices": GIVEN}, names=["half colour", "thing colour"], ranks=None)
    record, lre = module.records["thing colour", 0], module.bank.lres["thing colour", 0]
    assert (record.layers, record.ranks, record.layer, record.rank) == ((1,), (3,), 1, 3)
    assert len(record.faithful) == len(record.causal) == 1
    assert (lre.layer, lre.rank) == (1, 3)
    assert (module.records["half colour", 0].layers, module.records["half colour", 0].ranks) == (LAYERS, (4, 8, 16))
    trainer.save_checkpoint(tmp_path / "fit.ckpt")
    loaded = LREModule.load_from_checkpoint(tmp_path / "fit.ckpt", name_or_path=random_toy)
    assert loaded.hparams == module.hparams


@pytest.mark.parametrize(("rank", "ranks"), [(3, (2, 3, 5, WIDTH)), (5, RANKS)])
def test_given_ranks_join_that_of_the_choice_once(fit, rank, ranks):
    """And selection trials are not reported with given choices either."""
    fitting = {"choices": {"thing colour": {"layer": "emb", "rank": rank}}, "selection_trials": 1}
    module, _, _ = fit(fitting, trials=2)
    assert [record.reported for record in module.records.values()] == [False, True]
    assert list(module.bank.lres) == [("thing colour", 1)]
    for record in module.records.values():
        assert (record.ranks, record.rank, record.layer) == (ranks, rank, "emb")
        assert len(record.causal[0]) == len(ranks)


def test_the_embedding_joins_a_given_layer_for_baselines(fit):
    module, _, _ = fit({"choices": GIVEN}, measures=[Baselines()])
    record = module.records["thing colour", 0]
    assert (record.layers, record.layer, record.rank) == (("emb", 1), 1, 3)
    assert {len(tally.sums) for tally in record.measures["baselines"].tallies.values()} == {2}


@pytest.mark.parametrize(
    ("fitting", "message"),
    [
        ({"selection_trials": 2}, "2 trials that choose leave none to report: there are 2 of each"),
        ({"select_by": "both"}, r"not measured: add --model.measures\+=Specificity --model.measures.every_layer=true"),
        ({"max_known": 3}, "max_known must be a whole number of at least 4, got 3"),
        (
            {"choices": {"of another run": {"layer": 1, "rank": 3}}},
            "for 'of another run', but for no relation of the data, which has 'thing",
        ),
    ],
)
def test_options_that_do_not_fit_the_data(fit, fitting, message):
    with pytest.raises(LREError, match=message):
        fit(fitting, trials=2)


# Layers at which W is the identity


def test_a_layer_at_which_s_is_o_is_left_out_of_choices_now_and_later(random_toy, fit, caplog, capsys):
    """The toy's prompts end with their subjects: at its last layer every edit of full rank succeeds."""
    with caplog.at_level("INFO", "lre_lightning"):
        module, *_ = fit({}, trials=2, betas=[0.0, 1.0])
    assert [line.getMessage() for line in caplog.records if "identity" in line.getMessage()] == [
        "thing colour: layer 1 is left out of the choice, as W is the identity"
    ]
    assert "W is the identity at layer 1 of 1 of 1 relations, whose prompts end" in capsys.readouterr().out
    record = module.records["thing colour", 0]
    assert (record.identity_layers, record.causality(1, WIDTH), record.faithfulness(1, 1.0)) == ((1,), 1, 1)
    assert record.layer != 1
    records = Records(module.records.values())
    for again in ([TrialRecord.from_plain(json.loads(json.dumps(one.plain()))) for one in records], records):
        assert choose(again, "causality", 0.8)[0] != 1 != choose(again, "faithfulness", 0.8)[0]
    alone = replace(record, causal=((0,) * 3, (0,) * 3, record.causal[2]))  # no other layer has a success
    assert choose([alone], "causality", 0.8)[0] == "emb"
    assert choose([replace(alone, identity_layers=())], "causality", 0.8)[0] == 1
    assert all(1 not in layers for layers in as_good_layers(records).values())
    assert says_more(records, 1) is None
    assert says_more([replace(one, identity_layers=()) for one in records], 1) == (1, 1)


def test_w_where_it_is_chosen_all_the_same_is_the_identity_and_named(random_toy, fit, caplog, capsys):
    module, *_ = fit({"choices": GIVEN})
    lre = module.bank.lres["thing colour", 0]
    torch.testing.assert_close(lre.weight, torch.eye(WIDTH, dtype=lre.weight.dtype))
    assert "thing colour: W at layer 1 is the identity" in caplog.text
    assert "1 (W = I)" in capsys.readouterr().out
    caplog.clear()
    fit({}, layers=[1])  # there is no other
    assert "thing colour: W at layer 1 is the identity" in caplog.text


def test_prompts_that_go_on_after_their_subjects_have_no_such_layer(random_toy):
    sample, tokenizer = Sample("thing0", "red"), toy.toy_tokenizer()
    after, at = (make_prompt(tokenizer, template, sample) for template in ("{} colour", "colour {}"))
    assert identity_layers(random_toy, [after, after], LAYERS) == identity_layers(random_toy, [at], LAYERS[:2]) == ()
    assert identity_layers(random_toy, [at], LAYERS) == identity_layers(random_toy, [after, at], LAYERS) == (1,)


def test_an_estimate_at_such_a_layer_warns(random_toy, toy_relations, caplog):
    (relation,) = load_relations(f"{toy_relations}/thing_colour.json")
    random_toy.tokenizer = toy.toy_tokenizer()
    estimate(random_toy, relation, layer=0)
    assert not caplog.records
    estimate(random_toy, relation, layer=1)
    assert "W at layer 1 is the identity: prompts end with their subjects" in caplog.text


def test_relations_that_cannot_be_scored_are_named_if_others_can(toy_relations, caplog):
    def check(names):
        Fitting().check_data(RelationDataModule(toy.toy_tokenizer(), names, toy_relations, n_shot=8, trials=1))

    check(["half colour", "thing colour"])
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("it will not be scored: half colour: 14 samples, 8 of them examples, 6 left to test: 8 that")
    with pytest.raises(LREError, match="no relation can be scored, such as half colour: 14 samples, 8 of them"):
        check("half colour")


# Later trials at the choice alone


@pytest.mark.parametrize("options", [{}, {"select_by": "faithfulness"}, {"selection_trials": 1}])
def test_later_trials_have_the_chosen_point_alone(fit, options):
    whole, *_ = fit(options, trials=3)
    module, *_ = fit({**options, "grid": "choice"}, trials=3)
    first, *others = module.records.values()
    assert first == whole.records["thing colour", 0]
    for record in others:
        full = whole.records[record.relation, record.trial]
        assert (record.layer, record.rank, record.chosen_scores) == (full.layer, full.rank, full.chosen_scores)
        assert (record.layers, record.ranks) == ((record.layer,), (record.rank,))
    reported = [record for record in module.records.values() if record.reported]
    widest = reported if "selection_trials" in options else reported[:1]
    assert reselect(reported, options.get("select_by", "middle")) == widest
    assert [record.chose for record in module.records.values()] == [True, False, False]
    lre, dense = (one.bank.lres["thing colour", 2] for one in (module, whole))
    torch.testing.assert_close(lre.weight, dense.weight)


def test_several_selection_trials_have_the_whole_grid(fit):
    module, _, _ = fit({"grid": "choice", "selection_trials": 2}, trials=3)
    assert [record.layers for record in module.records.values()][:2] == [LAYERS] * 2
    assert len(module.records["thing colour", 2].layers) == 1
