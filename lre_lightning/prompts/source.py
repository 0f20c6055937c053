"""Protocol of the datamodules that scoring and training work with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.prompts.batch import RelationBatch
    from lre_lightning.prompts.options import Prompts
    from lre_lightning.prompts.prompt import FirstTokenCoverage
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.relations.relation import Relation


class PromptSource(Protocol):
    """A datamodule that serves the prompts of trials, such as `RelationDataModule`."""

    n_shot: int
    seed: int
    prompts: Prompts
    together: int
    """Number of prompts that keep the device busy; as many consecutive training prompts go to one process."""

    @property
    def relations(self) -> Sequence[Relation]:
        """The relations; `RelationBatch.relation` is an index into them."""

    @property
    def schedule(self) -> Sequence[tuple[int, int]]:
        """(Index of the relation, number of the trial) in serving order."""

    @property
    def digest(self) -> str:
        """A hash of the relations and of what their draws depend on."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""

    def use(self, lm: LanguageModel) -> None:
        """Make prompts for an LM."""

    def trial(self, index: int) -> Trial:
        """Return a trial by its index in `schedule`."""

    def coverage(self, relation: Relation) -> FirstTokenCoverage:
        """Count the objects of a relation that have a first token of their own."""

    def val_dataloader(self, indices: list[int] | None = None) -> DataLoader[Any]:
        """Serve the test prompts of some trials."""

    def subjects_alone(self, batch: RelationBatch) -> RelationBatch:
        """Return prompts that hold the subjects of a batch and nothing else."""
