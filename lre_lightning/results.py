"""What a run found: one record a relation and trial, as rows of a file and as the table of results. Pure functions."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.files import written_whole
from lre_lightning.language_model import Layer
from lre_lightning.scoring import Counts

Criterion = Literal["causality", "faithfulness"]
COLUMNS = [
    "relation",
    "category",
    "trial",
    "samples",
    "tested",
    "known",
    "random_guess",
    "layer",
    "beta",
    "rank",
    "faithful",
    "faithfulness",
    "edited",
    "causal",
    "causality",
    "chosen",
]


@dataclass(frozen=True)
class PairRecord:
    """The counts of one relation in one trial, on the grid of layers, betas and ranks.

    Attributes:
        relation: Name of the relation.
        category: Its category.
        trial: Number of the trial.
        samples: All samples of the relation.
        range_size: Number of its distinct objects.
        tested: Test samples of this trial.
        known: Those whose object the LM answers.
        layers: Layers of the grid; none where the pair was not scored.
        betas: Betas of the grid.
        ranks: Ranks of the grid.
        faithful: Faithful predictions out of `known`, `[layer][beta]`.
        causal: Successful edits out of `edited`, `[layer][rank]`.
        edited: Known samples for which there was a target with another object.
        layer: The chosen layer; None where the pair was not scored.
        beta: The chosen beta.
        rank: The chosen rank; None where the pair was not scored.
    """

    relation: str
    category: str
    trial: int
    samples: int
    range_size: int
    tested: int
    known: int
    layers: tuple[Layer, ...] = ()
    betas: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    faithful: tuple[tuple[int, ...], ...] = ()
    causal: tuple[tuple[int, ...], ...] = ()
    edited: int = 0
    layer: Layer | None = None
    beta: float = 1.0
    rank: int | None = None

    @property
    def scored(self) -> bool:
        """Whether the LM knew enough of the relation's test samples to score its LRE."""
        return bool(self.layers)

    @property
    def random_guess(self) -> float:
        """Chance of guessing an object that is drawn from the relation's distinct objects."""
        return 1 / self.range_size

    def faithfulness(self, layer: Layer, beta: float) -> float:
        """Share of the known samples that the LRE at `layer` predicts as the LM does; NaN where there is none."""
        count = self.faithful[self.layers.index(layer)][self.betas.index(beta)]
        return count / self.known if self.known else float("nan")

    def causality(self, layer: Layer, rank: int) -> float:
        """Share of the edits at `layer` and `rank` that make the LM answer o'; NaN where there is none."""
        count = self.causal[self.layers.index(layer)][self.ranks.index(rank)]
        return count / self.edited if self.edited else float("nan")

    @property
    def chosen_scores(self) -> tuple[float, float] | None:
        """Faithfulness and causality at the chosen layer, beta and rank; None where the pair was not scored."""
        if self.layer is None or self.rank is None:
            return None
        return self.faithfulness(self.layer, self.beta), self.causality(self.layer, self.rank)

    def plain(self) -> dict[str, Any]:
        """The record as plain data, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a record from `plain`.

        Raises:
            LREError: If a field is missing.
        """
        try:
            return cls(**{field.name: data[field.name] for field in fields(cls)})
        except (KeyError, TypeError) as error:
            raise LREError(f"this is not a record of results: {type(error).__name__} {error}") from error


def grid_of(counts: Counts, layers: Sequence[Layer], betas: Sequence[float], ranks: Sequence[int]) -> dict[str, Any]:
    """The fields of a `PairRecord` that hold the grid and its counts."""
    return {
        "layers": tuple(layers),
        "betas": tuple(betas),
        "ranks": tuple(ranks),
        "faithful": tuple(map(tuple, counts.faithful.tolist())),
        "causal": tuple(map(tuple, counts.causal.tolist())),
        "edited": counts.edited,
    }


def choose(
    counts: Counts, layers: Sequence[Layer], ranks: Sequence[int], beta_index: int, criterion: Criterion
) -> tuple[Layer, int]:
    """Choose the layer and rank of a relation (Appendix on hyperparameters).

    Args:
        counts: The counts of one trial.
        layers: Layers of the grid.
        ranks: Ranks of the grid.
        beta_index: Index of the beta at which faithfulness counts.
        criterion: ``"causality"``, the paper's choice, takes the layer and rank with the most successful edits, and
            among equals the most faithful; ``"faithfulness"`` the reverse. What is equal in both goes to the earlier
            layer and the lower rank.
    """
    points = [(layer, rank) for layer in range(len(layers)) for rank in range(len(ranks))]

    def merit(point: tuple[int, int]) -> tuple[int, int]:
        causal = int(counts.causal[point])
        faithful = int(counts.faithful[point[0], beta_index])
        return (causal, faithful) if criterion == "causality" else (faithful, causal)

    layer, rank = max(points, key=merit)
    return layers[layer], ranks[rank]


def rows(records: Iterable[PairRecord]) -> list[dict[str, Any]]:
    """One row a relation, trial, layer, beta and rank, with the keys of `COLUMNS`.

    Faithfulness does not depend on the rank, nor causality on beta: each is repeated along the other's axis. A pair
    that was not scored has one row, whose grid point and scores are None.
    """
    return [row for record in records for row in _rows(record)]


def _rows(record: PairRecord) -> list[dict[str, Any]]:
    common = {
        name: getattr(record, name)
        for name in ("relation", "category", "trial", "samples", "tested", "known", "random_guess")
    }
    if not record.scored:
        return [dict.fromkeys(COLUMNS) | common]
    chosen = (record.layer, record.beta, record.rank)
    return [
        common
        | {"layer": layer, "beta": beta, "rank": rank, "chosen": (layer, beta, rank) == chosen}
        | {"faithful": record.faithful[i][j], "faithfulness": record.faithfulness(layer, beta)}
        | {"edited": record.edited, "causal": record.causal[i][k], "causality": record.causality(layer, rank)}
        for i, layer in enumerate(record.layers)
        for j, beta in enumerate(record.betas)
        for k, rank in enumerate(record.ranks)
    ]


def write_csv(records: Iterable[PairRecord], path: Path) -> None:
    """Write `rows` to a CSV file, under its name only once it is whole."""
    with written_whole(path) as part:
        with part.open("w", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writeheader()
        append_csv(records, part)


def append_csv(records: Iterable[PairRecord], path: Path) -> None:
    """Add `rows` at the end of a file that `write_csv` wrote."""
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, COLUMNS).writerows(rows(records))


@dataclass(frozen=True)
class RelationSummary:
    """One line of the table of results: means over the scored trials of a relation, and their standard deviations.

    Attributes:
        relation: Name of the relation.
        category: Its category.
        samples: All its samples.
        known: Mean number of known test samples, over all trials.
        trials: Number of scored trials.
        random_guess: Chance of guessing the object.
        layer: The chosen layer; None where no trial was scored.
        rank: The chosen rank; None where no trial was scored.
        beta: The chosen beta.
        faithfulness: Mean and standard deviation (n - 1; None with one trial); None where no trial was scored.
        causality: Likewise.
    """

    relation: str
    category: str
    samples: int
    known: float
    trials: int
    random_guess: float
    layer: Layer | None = None
    rank: int | None = None
    beta: float | None = None
    faithfulness: tuple[float, float | None] | None = None
    causality: tuple[float, float | None] | None = None


def summarize(records: Iterable[PairRecord]) -> list[RelationSummary]:
    """Summarize records by relation, in the order in which the relations first occur."""
    by_relation: dict[str, list[PairRecord]] = {}
    for record in records:
        by_relation.setdefault(record.relation, []).append(record)
    return [_summary(group) for group in by_relation.values()]


def _summary(group: Sequence[PairRecord]) -> RelationSummary:
    first = group[0]
    known = statistics.fmean(record.known for record in group)
    scores = [record.chosen_scores for record in group if record.chosen_scores is not None]
    common = (first.relation, first.category, first.samples, known, len(scores), first.random_guess)
    if not scores:
        return RelationSummary(*common)
    chosen = next(record for record in group if record.scored)
    faithfulness, causality = (_mean_and_deviation(values) for values in zip(*scores, strict=True))
    return RelationSummary(*common, chosen.layer, chosen.rank, chosen.beta, faithfulness, causality)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
