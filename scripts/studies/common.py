"""What studies share: an LM with its relations, LREs of all relations at one layer, test prompts, and tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from lre_lightning import LanguageModel, LRECollection, RelationDataModule
from lre_lightning.grid import Layer
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.progress import progress
from lre_lightning.prompts.batch import collate
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.trials import Trial, test_prompts, train_prompts
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import draw_order
from lre_lightning.report.tables import Table, to_csv
from lre_lightning.scoring.states import TrialStates
from lre_lightning.storage.files import safe_name, write_whole

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ASKED, MOST = 100, 60
"""The numbers of test subjects that the LM is asked for, and of known ones that are scored, at most."""


@dataclass(frozen=True)
class Setting:
    """An LM and its relations, whose first trials the records of the bundled collection describe.

    Attributes:
        name: "demo" or "smollm2".
        folder: Where estimated LREs are kept.
        source: The relations: "demo", "paper" or a folder.
    """

    name: str
    folder: Path
    source: str

    @cached_property
    def lm(self) -> LanguageModel:
        """The LM."""
        return LanguageModel.from_pretrained(self.name)

    @cached_property
    def data(self) -> RelationDataModule:
        """The first trial of each relation."""
        start_token = self.collection.records[0].prompts["start_token"]
        return RelationDataModule(self.name, source=self.source, trials=1, prompts=Prompts(start_token=start_token))

    @cached_property
    def collection(self) -> LRECollection:
        """The bundled LREs, each at the layer of its best causality."""
        return LRECollection.from_pretrained(self.name)

    @cached_property
    def records(self) -> dict[str, TrialRecord]:
        """The records of the first trials that are scored, by relation."""
        return {record.relation: record for record in self.collection.records if record.scored and not record.trial}

    @cached_property
    def indices(self) -> dict[str, int]:
        """The trials' indices in the schedule, by relation, of those that have records."""
        names = [self.data.relations[relation].name for relation, _ in self.data.schedule]
        return {name: index for index, name in enumerate(names) if name in self.records}

    @cached_property
    def point(self) -> tuple[Layer, float]:
        """The layer and the beta of the highest mean faithfulness over relations."""
        records = [*self.records.values()]
        grid = np.mean([np.array(record.faithful) / record.known for record in records], axis=0)
        layer, beta = np.unravel_index(grid.argmax(), grid.shape)
        return records[0].layers[layer], records[0].betas[beta]

    def rank(self, relation: str, layer: Layer) -> int:
        """Return the rank of the best causality at a layer, the lower one of several."""
        record = self.records[relation]
        causal = [-1 if count is None else count for count in record.causal[record.layers.index(layer)]]
        return record.ranks[int(np.argmax(causal))]

    def states(self, relation: str, layers: Sequence[Layer], most: int = MOST) -> TrialStates:
        """Run test prompts of a relation, up to `ASKED`, until the LM knows `most` of them."""
        trial = self.data.trial(self.indices[relation])
        if len(trial.test) > ASKED:
            chosen = set(drawn([sample.name for sample in trial.test], relation, ASKED))
            trial = replace(trial, test=tuple(sample for sample in trial.test if sample.name in chosen))
        prompts = test_prompts(trial, self.lm.tokenizer, options=self.data.prompts)
        return TrialStates.run(self.lm, [collate(prompts, 0, 0, range(len(prompts)))], trial, layers, max_known=most)

    def estimated(self) -> dict[str, LRE]:
        """Return the LREs of all relations at the layer and beta of `point`."""
        layer, beta = self.point
        found = {}
        for relation, index in progress([*self.indices.items()], f"LREs of {self.name} at layer {layer}"):
            path = self.folder / self.name / f"layer{layer}" / f"{safe_name(relation)}.safetensors"
            if not path.is_file():
                self._estimate(self.data.trial(index), layer, beta).save(path)
            found[relation] = LRE.load(path)
        return found

    def _estimate(self, trial: Trial, layer: Layer, beta: float) -> LRE:
        estimator = LREEstimator([layer])
        for prompt in train_prompts(trial, self.lm.tokenizer, options=self.data.prompts):
            estimator.update(prompt_jacobian(self.lm, torch.tensor(prompt.input_ids), prompt.subject_position, [layer]))
        origin = Origin.of(self.lm, trial, self.data.prompts)
        rank = self.rank(trial.relation.name, layer)
        return LRE(estimator.weight(layer), estimator.bias(layer), layer, origin, beta, rank)


def drawn(items: Sequence[str], key: str, count: int = 40) -> list[str]:
    """Draw distinct items by a hash."""
    return sorted(set(items), key=partial(draw_order, key))[:count]


def settings(folder: str, source: str = "paper") -> Iterator[Setting]:
    """Return the demo on its own relations, and SmolLM2 on those of a source."""
    yield Setting("demo", Path(folder), "demo")
    yield Setting("smollm2", Path(folder), source)


def run(study: Callable[[Setting], Sequence[Table]]) -> None:
    """Run a study on both LMs, as the arguments of the command say, and write its tables."""
    for setting in settings(*sys.argv[1:]):
        for table in study(setting):
            write_whole(RESULTS / f"{table.name}_{setting.name}.csv", to_csv(table))
