"""What scoring and training ask of a datamodule, so that they work with any that offers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from lre_lightning.prompts.batch import RelationBatch
    from lre_lightning.prompts.prompt import FirstTokenCoverage, PromptFormat
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.relations.relation import Relation


class PromptSource(Protocol):
    """A datamodule that serves the prompts of (relation, trial) pairs, such as `RelationDataModule`."""

    n_shot: int
    seed: int
    sampling: Any
    template: Any
    form: PromptFormat

    @property
    def relations(self) -> Sequence[Relation]:
        """The relations; `RelationBatch.relation` is an index into them."""

    @property
    def schedule(self) -> Sequence[tuple[int, int]]:
        """The (index of the relation, trial) pairs, in the order in which they are served."""

    @property
    def digest(self) -> str:
        """A hash of the relations and of what their draws depend on."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""

    def trial(self, pair: int) -> Trial:
        """Return the training and test samples of a pair."""

    def coverage(self, relation: Relation) -> FirstTokenCoverage:
        """Count the objects of a relation that have a first token of their own."""

    def val_dataloader(self, pairs: list[int] | None = None) -> DataLoader[Any]:
        """Serve the test prompts of some pairs."""

    def subjects_alone(self, batch: RelationBatch) -> RelationBatch:
        """Return prompts that hold the subjects of a batch and nothing else."""
