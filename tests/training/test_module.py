"""fit and validate on the affine toy: what the numbers must be, and what is left behind."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.grid import default_ranks
from lre_lightning.lre.estimator import estimate
from lre_lightning.lre.lre import LRE
from lre_lightning.measures import Baselines
from lre_lightning.relations.sources import load_relations
from lre_lightning.runs.processes import ONE_PROCESS
from lre_lightning.training import trial as engine
from lre_lightning.training.module import LREModule
from lre_lightning.training.options import Fitting
from tests.helpers.tiny_models import STREAMS
from tests.helpers.toy import LAYERS, WIDTH, toy_model, toy_tokenizer, write_toy_model, write_toy_relations
from tests.helpers.trainer import trainer_of

GRID = {"betas": [0.0, 1.0], "ranks": [1, WIDTH], "beta": 1.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("toy")
    return str(write_toy_model(root / "model")), str(write_toy_relations(root / "relations"))


def data_of(folders, **options):
    return RelationDataModule(folders[0], source=folders[1], **{"n_shot": 4, "trials": 2, **options})


@pytest.fixture(scope="module")
def fitted(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    module = LREModule(folders[0], **GRID)
    trainer = trainer_of(root)
    trainer.fit(module, datamodule=data_of(folders))
    trainer.save_checkpoint(root / "fit.ckpt")
    return module, trainer, root


def test_a_fit_takes_one_epoch_per_trial_and_leaves_the_lm_as_it_was(fitted):
    module, trainer, _ = fitted
    assert trainer.current_epoch == 6
    names = ["half colour", "thing colour", "wrong colour"]
    assert list(module.records) == [(name, trial) for name in names for trial in (0, 1)]
    record = module.records["wrong colour", 0]  # which the LM does not know
    assert (record.tested, record.known, record.scored) == (20, 0, False)
    assert ("wrong colour", 0) not in module.bank.lres
    assert torch.is_grad_enabled()
    assert not any(submodule._forward_hooks or submodule.training for submodule in module.lm.modules())


def test_an_affine_relation_is_recovered_exactly(fitted):
    module, _, _ = fitted
    for trial in (0, 1):
        lre, record = module.bank.lres["thing colour", trial], module.records["thing colour", trial]
        torch.testing.assert_close(lre.weight, torch.eye(WIDTH), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lre.bias, torch.zeros(WIDTH), rtol=0, atol=1e-6)
        assert (record.tested, record.known, record.samples, record.range_size) == (20, 20, 24, 4)
        for layer in ("emb", *range(LAYERS)):
            assert record.faithfulness(layer, 1.0) == 1
            assert record.faithfulness(layer, 0.0) < 0.6  # a control: without W s only the bias is left
            assert record.causality(layer, WIDTH) == 1
            assert record.causality(layer, 1) < 0.6  # a control: one direction does not reach every object


def test_estimate_gives_the_lre_of_a_fit(fitted, folders):
    module = fitted[0]
    (relation,) = load_relations("thing colour", folders[1])
    for trial in (0, 1):
        lre = module.bank.lres["thing colour", trial]
        alone = estimate(module.lm, relation, lre.layer, 4, trial=trial, rank=lre.rank)
        assert torch.equal(alone.weight, lre.weight)
        assert torch.equal(alone.bias, lre.bias)
        assert alone.metadata() == lre.metadata()


@pytest.mark.parametrize("way", ["copied", "stepwise", "whole"])
def test_a_fit_gives_the_same_records_in_every_way(fitted, folders, tmp_path, way):
    module = LREModule(folders[0], **GRID)
    module.lm._behaviour = replace(module.lm._behaviour, way=way)
    trainer_of(tmp_path).fit(module, datamodule=data_of(folders))
    assert module.records == fitted[0].records


def test_a_fit_of_an_lm_with_several_residual_streams(folders, tmp_path):
    """Its blocks do nothing either, so o is the subject's embedding in both streams."""
    llama, (name, options) = toy_model(), STREAMS["hy_v4"]
    options = {**options, "vocab_size": len(llama.lm_head.weight), "hc_mult": 2}
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for path, parameter in model.named_parameters():
        if path.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
            parameter.data.zero_()
    model.set_input_embeddings(llama.model.embed_tokens)
    model.lm_head = llama.lm_head
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    grid = {**GRID, "ranks": [1, 2 * WIDTH], "layers": [0, 1]}
    module = LREModule(str(tmp_path), **grid, measures=[Baselines()])
    trainer_of(tmp_path).fit(module, datamodule=data_of((str(tmp_path), folders[1]), relations=["thing colour"]))
    record = module.records["thing colour", 0]
    assert (module.layers, record.layers, record.known) == ((0, 1), (0, 1), 20)
    torch.testing.assert_close(module.lres["thing colour", 0].weight, torch.eye(2 * WIDTH), rtol=1e-4, atol=1e-5)
    for layer in record.layers:
        assert (record.faithfulness(layer, 1.0), record.causality(layer, 2 * WIDTH)) == (1, 1)
        for name in ("oracle", "object", "unembedding"):  # a row of the unembedding is repeated for both streams
            assert record.measured("baselines", f"causality: {name}", layer=layer) == 1


def test_files_and_checkpoints_bring_the_lres_back(fitted):
    module, _, root = fitted
    assert len(list((root / "lres").rglob("*.safetensors"))) == len(module.bank.lres) == 4
    lre = LRE.load(root / "lres" / "thing_colour" / "trial1.safetensors", module.lm)
    assert torch.equal(lre.weight, module.bank.lres["thing colour", 1].weight)
    assert lre.origin.train == tuple((s.subject, s.object) for s in module._data.trial(3).train)
    checkpoint = torch.load(root / "fit.ckpt", weights_only=True)
    assert list(checkpoint["state_dict"]) == ["bank._extra_state"]  # without the LM
    assert checkpoint["hyper_parameters"]["beta"] == 1.0
    assert checkpoint["datamodule_hyper_parameters"]["n_shot"] == 4
    loaded = LREModule.load_from_checkpoint(root / "fit.ckpt")
    assert (loaded.hparams, loaded.records) == (module.hparams, module.records)
    for key, lre in module.bank.lres.items():
        assert torch.equal(loaded.bank.lres[key].weight, lre.weight)
        assert loaded.bank.lres[key].metadata() == lre.metadata()


def test_the_metrics_are_what_records_and_loggers_have(fitted, folders, tmp_path):
    def counts_of(module):
        return module.faithfulness.correct[0].tolist(), module.causality.correct[0].tolist()

    module, _, root = fitted
    last = [record for record in module.records.values() if record.scored][-1]
    assert counts_of(module) == ([[*row] for row in last.faithful], [[*row] for row in last.causal])
    assert (int(module.faithfulness.total), int(module.causality.total)) == (last.known, last.edited)
    logger, saved = CSVLogger(tmp_path), LREModule(folders[0], **GRID)
    scores = trainer_of(tmp_path, logger=logger).validate(saved, data_of(folders), root / "fit.ckpt", weights_only=True)
    again = [record for record in saved.records.values() if record.scored][-1]
    assert counts_of(saved) == ([[*row] for row in again.faithful], [[*row] for row in again.causal])
    assert scores == [{name: pytest.approx(1) for name in ("faithfulness", "causality")}]
    assert "faithfulness" in Path(logger.experiment.metrics_file_path).read_text()


def test_validation_needs_lres_and_a_fit_a_relation_datamodule(folders, tmp_path):
    module = LREModule(folders[0])
    with pytest.raises(LREError, match=r"there is no LRE to validate: fit first, or give a checkpoint"):
        trainer_of(tmp_path).validate(module, data_of(folders))
    with pytest.raises(LREError, match="needs a RelationDataModule"):
        trainer_of(tmp_path).fit(module, data_of(folders).val_dataloader())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "layer 2 is out of range"),
        ({"ranks": [17]}, "rank 17 is out of range: it must be 1 to 16"),
        ({"betas": [float("nan")]}, "beta nan is out of range"),
        ({"loading": {"chunk_size": 0}}, "chunk_size must be a whole number of at least 1, got 0"),
        ({"loading": {"dtype": "int8"}}, "dtype must be 'auto' or .* got 'int8'"),
        (
            {"fitting": {"select_by": "luck"}},
            "select_by must be 'middle' or 'causality' or 'faithfulness' or 'both', got 'luck'",
        ),
        ({"fitting": {"selection_trials": -1}}, "selection_trials must be a whole number of at least 0, got -1"),
        (
            {"measures": [{"name": "none of ours"}]},
            "there is no measure {'name': 'none of ours'}; imported are: .*base",
        ),
        ({"measures": [{"name": "generations", "edits": 0}]}, "edits must be a whole number of at least 1, got 0"),
        ({"measures": [{"name": "baselines", "size": 1}]}, "there is no measure {'name': 'baselines', 'size': 1}"),
        ({"measures": [Baselines(), Baselines()]}, "the measure 'baselines' is given twice"),
        ({"measures": [1]}, r"measures must be objects such as Baselines\(\), not 1"),
        *(
            ({"fitting": {"choices": {"good": {"layer": 1, "rank": 3}, "of toys": choice}}}, f"for 'of toys'{message}")
            for choice, message in (
                ({"layer": 2, "rank": 3}, ": layer 2 is out of range"),
                ({"layer": 1, "rank": 17}, ": rank 17 is out of range: it must be 1 to 16"),
                ({"layer": 1}, " lacks its 'rank': give layer and rank"),
            )
        ),
    ],
)
def test_arguments_out_of_range(folders, options, message):
    with pytest.raises(LREError, match=message):
        LREModule(folders[0], **options)


def test_default_ranks_fit_the_width():
    assert default_ranks(WIDTH) == [4, 8, 16]
    assert default_ranks(4096) == [4, 8, 16, 32, 64, 128, 256]
    assert default_ranks(3) == [3]


def test_lres_of_a_run_are_looked_for_where_one_says(fitted, folders, tmp_path):
    checkpoint = shutil.copytree(fitted[2], tmp_path / "copy") / "fit.ckpt"
    fitting = {"lre_dir": str(tmp_path / "copy" / "lres")}
    loaded, again = LREModule.load_from_checkpoint(checkpoint, fitting=fitting), LREModule(folders[0], fitting=fitting)
    trainer_of(tmp_path / "elsewhere").validate(again, data_of(folders), checkpoint, weights_only=True)
    for module in (loaded, again):
        assert [path.is_relative_to(tmp_path) for path in module.lres._kept.values()] == [True] * 4
    assert sum(record.scored for record in again.records.values()) == 4


def test_training_prompts_of_one_group_and_shape_share_a_sweep(folders, monkeypatch):
    """Groups are those of the samples' numbers, whatever the batch, and the LRE is that of prompts run alone."""
    data, groups, sweep = data_of(folders, n_shot=7), [], engine.sweep
    data.setup("fit")
    batch = next(iter(data.train_dataloader(0)))

    def note(lm, ids, *arguments):
        groups.append(len(ids))
        return sweep(lm, ids, *arguments)

    monkeypatch.setattr(engine, "sweep", note)
    module, weights = LREModule(folders[0], **GRID), []
    shapes = [(int(at), int(last)) for at, last in zip(batch.subject_position, batch.last_position, strict=True)]
    for data.together in (1, 3):
        run = engine.Run(module.lm, data, ONE_PROCESS, module.layers, (1.0,), None, 1.0, Fitting())
        found = engine.FitTrial(run, data.trial(0))
        found.train(batch)
        found.estimate()
        weights.append(torch.stack([lre.weight for lre in found._lres.values()]))
    torch.testing.assert_close(*weights)
    counted = [Counter(shapes[i] for i in group) for group in ((0, 1, 2), (3, 4, 5), (6,))]
    assert groups == [1] * 7 + [count for group in counted for count in group.values()]
    assert max(groups) > 1
