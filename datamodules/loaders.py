"""How the prompts of a trial are shared out into batches and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lre_lightning.prompts.batch import RelationBatch


@dataclass(frozen=True)
class Share:
    """Which samples of one pair go into one batch.

    Attributes:
        pair: Index of the (relation, trial) pair.
        samples: Indices into the trial's training or test samples.
        weights: 1 for each sample, 0 for a copy that only fills up.

    >>> Share(pair=0, samples=(6, 0), weights=(1.0, 0.0)).samples
    (6, 0)
    """

    pair: int
    samples: tuple[int, ...]
    weights: tuple[float, ...]


def share_train(pair: int, n: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[Share]:
    """Share n training samples out so that every process gets equally many batches of equal size.

    The processes take turns; where n is no multiple of their number, copies of weight 0 fill up. Otherwise the process
    with a batch less would leave the others waiting in the collective that every training step has.
    """
    mine = list(range(rank, n + -n % world_size, world_size))
    chunks = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    return [Share(pair, tuple(i % n for i in chunk), tuple(float(i < n) for i in chunk)) for chunk in chunks]


def share_test(sizes: Sequence[tuple[int, int]], batch_size: int, rank: int = 0, world_size: int = 1) -> list[Share]:
    """Share the test samples of several pairs out, each to exactly one process, never two pairs in one batch.

    A process that would get no sample of any pair gets a copy of weight 0: Lightning leaves validation out where a
    process has no batch, and the others would wait for it at the validation's end.

    Args:
        sizes: (index of the pair, number of its test samples), one after another.
        batch_size: Most samples in one batch.
        rank: This process; it gets one stretch of each pair's samples.
        world_size: Number of processes.
    """
    shares = []
    for pair, n in sizes:
        first, end = rank * n // world_size, (rank + 1) * n // world_size
        for start in range(first, end, batch_size):
            samples = tuple(range(start, min(start + batch_size, end)))
            shares.append(Share(pair, samples, (1.0,) * len(samples)))
    if not shares:
        shares = [Share(pair, (0,), (0.0,)) for pair, n in sizes if n][:1]
    return shares


class SharedBatches(Dataset[RelationBatch]):
    """This process's batches, made when they are asked for.

    >>> len(SharedBatches(share_train(pair=0, n=5, batch_size=2), make=lambda share: ...))
    3
    """

    def __init__(self, shares: Sequence[Share], make: Callable[[Share], RelationBatch]) -> None:
        self.shares, self.make = shares, make

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.shares)

    def __getitem__(self, index: int) -> RelationBatch:
        """Make one batch."""
        return self.make(self.shares[index])


def loader(
    shares: Sequence[Share],
    make: Callable[[Share], RelationBatch],
    seed: int | None = None,
    pin_memory: bool = False,
) -> DataLoader[RelationBatch]:
    """Return a loader over batches that are already this process's own.

    Its sampler is a `DistributedSampler` over one process, which hands everything out and which Lightning leaves alone,
    but for telling it the epoch; Lightning's own would share out again, shuffle, and repeat samples.

    Args:
        shares: What the batches are.
        make: Makes a batch.
        seed: Seeds the order of the batches, another one each epoch; in their own order if None.
        pin_memory: Whether to put them in page-locked memory.
    """
    batches = SharedBatches(shares, make)
    order: dict[str, Any] = {"shuffle": False} if seed is None else {"shuffle": True, "seed": seed}
    sampler: DistributedSampler[RelationBatch] = DistributedSampler(batches, num_replicas=1, rank=0, **order)
    return DataLoader(batches, batch_size=None, sampler=sampler, collate_fn=_as_it_is, pin_memory=pin_memory)


def _as_it_is(batch: Any) -> Any:
    return batch
