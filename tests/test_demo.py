"""The bundled model and relations: their properties, and that they show what the paper shows of large LMs."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.demo import COLLECTIONS, MODEL_DIR
from lre_lightning.lre.operators import Factors
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.relations.sources import load_relations
from lre_lightning.scoring.states import knows
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.smaller import Scorer
from lre_lightning.training.module import LREModule
from scripts.demo_model.card import figures_table
from tests.helpers.records import small_record
from tests.helpers.trainer import trainer_of

LINEAR, NOT_LINEAR = ["person nationality", "country capital city", "object superclass"], "company CEO"


@pytest.fixture(scope="module")
def data():
    return RelationDataModule("demo", source="demo", trials=1)


def test_relations_of_every_category_share_subjects_which_share_tokens(data):
    categories = Counter(relation.category for relation in data.relations)
    assert set(categories) == {"factual", "commonsense", "linguistic", "bias"}
    assert sum(categories.values()) >= 14
    sharing = Counter(frozenset(sample.subject for sample in relation.samples) for relation in data.relations)
    assert max(sharing.values()) >= 4
    assert max(len(relation.objects) for relation in data.relations) >= 50
    subjects = {sample.subject for relation in data.relations for sample in relation.samples}
    tokens = [data.tokenizer(f" {subject}", add_special_tokens=False)["input_ids"] for subject in sorted(subjects)]
    assert sum(len(ids) > 1 for ids in tokens) > 0.7 * len(tokens)
    uses = Counter(token for ids in tokens for token in set(ids))
    shared = sum(all(uses[token] > 1 for token in ids) for ids in tokens if len(ids) > 1)
    assert shared > 0.5 * len(tokens)


def test_the_lm_is_small_and_knows_its_facts():
    lm = LanguageModel.from_pretrained("demo")
    data = RelationDataModule("demo", source="demo", trials=1, selection={"max_samples": 30})
    assert (MODEL_DIR / "model.safetensors").stat().st_size <= 10e6
    assert "## Figures" in (MODEL_DIR / "README.md").read_text(encoding="utf-8")
    known, tested = Counter(), Counter()
    for batch in data.val_dataloader():
        name = data.relations[int(batch.relation[0])].name
        known[name] += int(knows(lm, batch).sum())
        tested[name] += len(batch)
    assert len(tested) == len(data.relations)
    assert {name for name in tested if known[name] < 0.9 * tested[name]} == set()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of one trial of three linear relations and the one that is not, on a small grid."""
    return records_of(fit(tmp_path_factory.mktemp("demo"), [*LINEAR, NOT_LINEAR], layers=["emb", 1, 3, 5]))


def fit(folder, relations, **options):
    data = RelationDataModule("demo", relations, "demo", trials=1, selection={"max_samples": 30})
    module = LREModule("demo", betas=[2.25], ranks=[16], **options)
    trainer_of(folder).fit(module, data)
    return module


def records_of(module):
    return {name: record for (name, _), record in module.records.items()}


def test_without_w_a_fit_has_the_same_counts(records, tmp_path):
    module = fit(tmp_path, LINEAR[:1], layers=[1], fitting={"method": "matrix_free"})
    for name, record in records_of(module).items():
        place = records[name].layers.index(1)
        assert record.faithful == records[name].faithful[place : place + 1]
        assert record.causal == records[name].causal[place : place + 1]
        lre = module.lres[name, 0]
        assert isinstance(lre.weight, Factors)
        assert lre.rank == 16 < lre.operator.rank <= 64


@pytest.mark.parametrize("name", LINEAR)
def test_linear_relations_are_linear_in_the_middle_and_nowhere_else(records, name):
    record = records[name]
    blocks = [record.faithfulness(layer, record.beta) for layer in record.layers if layer != "emb"]
    assert max(blocks) >= 0.6
    assert max(blocks) >= record.random_guess + 0.3
    assert max(blocks) > record.faithfulness("emb", record.beta) + 0.2
    assert max(blocks) > blocks[-1] + 0.2
    assert record.layer != "emb"
    assert record.causality(record.layer, record.rank) >= 0.6


def test_a_relation_that_the_lm_knows_is_not_linear(records):
    record = records[NOT_LINEAR]
    assert record.known >= 0.9 * record.tested
    assert record.faithfulness(record.layer, record.beta) < 0.3
    assert min(records[name].faithfulness(records[name].layer, 2.25) for name in LINEAR) > 0.8


def test_the_card_shows_the_scores_of_every_layer():
    _, _, line = figures_table([small_record(0), small_record(1)]).splitlines()
    assert line == "| capital | 20 | 4 | 0.83 | **0.90** | 0.30 | 0.88 (0, 4) | 0.25 |"


def test_make_demo_replaces_its_own_fit_and_refuses_to_replace_another(tmp_path):
    def make():
        instead = ["PY=echo", "-o", ".venv/.lre-lightning-installed"]
        command = ["make", "-f", Path(__file__).parents[1] / "Makefile", "demo", *instead]
        # `make test` runs this: what it tells its own makes is not for this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert make().stdout.endswith("cli.py fit --data.source demo --overwrite\n")
    config = tmp_path / "lre_runs" / "lightning_logs" / "version_0" / "config.yaml"
    for folder in (config.parent, tmp_path / "lre_runs" / "checkpoints"):
        folder.mkdir(parents=True)
    config.write_text("model:\n  name_or_path: demo\ndata:\n  source: demo\n")
    assert make().returncode == 0
    config.write_text("model:\n  name_or_path: demo\ndata:\n  source: demo.csv\n")
    refused = make()
    assert (refused.returncode, "error: lre_runs has another fit" in refused.stderr) == (2, True)


def test_the_bundled_lres_are_those_of_the_bundled_model_and_relations():
    lm, relations = LanguageModel.from_pretrained("demo"), load_relations(None, "demo")
    lres = LRECollection.from_pretrained("demo")
    assert {relation for relation, _ in lres} == {relation.name for relation in relations}
    assert sum(path.stat().st_size for path in COLLECTIONS["demo"].rglob("*") if path.is_file()) <= 1_000_000
    assert [lre.origin.relation for lre in lres.for_text(lm, "The capital of Peru is")] == ["country capital city"]
    data = RelationDataModule("demo", "word sentiment", "demo", trials=1)
    scorer, (entry,) = Scorer(lm, data), [one for one in lres.index.entries.values() if one.key[0] == "word sentiment"]
    assert scorer.scores(scorer.states([entry]), lres["word sentiment"]) == pytest.approx(entry.scores)
    assert max(loss for one in lres.index.entries.values() for loss in one.loss) <= 0.01
