"""Measures: what a fit may measure of a trial beside faithfulness and causality, one class each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.records.measurement import Measurement
from lre_lightning.scoring.states import TrialStates, example_states

if TYPE_CHECKING:
    from torch import Tensor

    from lre_lightning.lre.lre import LRE
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.prompts.prompt import Prompt
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.records.record import TrialRecord


@dataclass(frozen=True, eq=False)
class ScoredTrial:
    """A trial whose LREs were scored on the grid, and whose layer and rank were chosen, as measures see it.

    On several processes each holds a part of the test prompts; counts of `states` are sums over all of them.

    Attributes:
        record: The record, with grid and choice.
        states: The test prompts, with s at the layers of the record.
        lres: The LREs by layer, in the order of the record's layers.
        said: The LREs' answers for this process's known samples, token ids `(known, layers, betas)`, int64.
        edited: The LM's answers after its edits, token ids `(edits, layers, ranks)`, int64.
        prompts: All training prompts.
        tokens: The tokens of each of the relation's objects.
        data: The datamodule, with the other relations of the fit.
    """

    record: TrialRecord
    states: TrialStates
    lres: Mapping[Layer, LRE]
    said: Tensor
    edited: Tensor
    prompts: Sequence[Prompt]
    tokens: Mapping[str, tuple[int, ...]]
    data: PromptSource

    @property
    def lm(self) -> LanguageModel:
        """The LM."""
        return self.states.runs.lm

    @property
    def index(self) -> int:
        """The index of the chosen layer."""
        assert self.record.layer is not None
        return self.record.layers.index(self.record.layer)

    @property
    def lre(self) -> LRE:
        """The LRE at the chosen layer."""
        assert self.record.layer is not None
        return self.lres[self.record.layer]

    @cached_property
    def examples(self) -> Tensor:
        """S of the training prompts at each layer and, last, their o, `(layers + 1, prompts, hidden)`."""
        return example_states(self.lm, self.prompts, list(self.lres))


class Cost(NamedTuple):
    """What a measure adds to the work of a trial, for the time that a fit is expected to take.

    Attributes:
        edits: Runs of test prompts with s replaced, whose answers are decoded, at each layer of the grid.
        decoded: Other hidden states that are decoded, at each layer.
        at_choice: Runs of test prompts with s replaced at the chosen layer alone.
    """

    edits: float = 0.0
    decoded: float = 0.0
    at_choice: float = 0.0


class Measure(ABC):
    """Something that is measured of every scored trial of a fit.

    A measure is a frozen dataclass, whose fields are its options. It is given to `LREModule(measures=[...])`, or on the
    command line by its class path, ``--model.measures+=my.project.MyMeasure``. Its tallies are in the records and in
    `Records.to_pandas`; those with `Tally.column` in the tables of results, in the CSV files and in the loggers too;
    and reports have a section of it.

    Attributes:
        name: Its name in records.
        alone: Whether it needs s from prompts that hold the subject alone, `TrialStates.zero_shot`.
        embedding: Whether it needs an LRE at the embedding, whichever layers are tried.
        elements: Whether it needs all elements of W.
        applied: How often it applies W to s of all test samples, or edits them at all points: what a fit's form of W
            depends on.
    """

    name: ClassVar[str]
    alone: ClassVar[bool] = False
    embedding: ClassVar[bool] = False
    elements: ClassVar[bool] = False
    applied: ClassVar[int] = 0

    @property
    def before_choice(self) -> bool:
        """Whether it is measured before layer and rank are chosen, so that they can be chosen by it."""
        return False

    @abstractmethod
    def measure(self, trial: ScoredTrial) -> Measurement:
        """Measure a trial; a collective call of all processes, each of which returns the same."""

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return what it adds to the work of a trial with so many known samples, betas and ranks."""
        return Cost()

    def check(self, lm: LanguageModel) -> None:
        """Raise an `LREError` if the measure cannot be taken of an LM; called before a fit."""
        return

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Any, ...] | None:
        """Return the sections of a report (`lre_lightning.report.sections.Section`) on one LM's main records.

        By default it is None: a table of the columns, where there are some.
        """
        return None

    def plain(self) -> dict[str, Any]:
        """Return the name and the options as plain data."""
        return {"name": self.name, **(asdict(self) if is_dataclass(self) else {})}


def known_measures() -> dict[str, type[Measure]]:
    """Return the classes of measures that were imported, by their names."""
    found: dict[str, type[Measure]] = {}
    classes: list[type[Measure]] = [*Measure.__subclasses__()]
    for kind in classes:
        classes += kind.__subclasses__()
        if "name" in vars(kind):
            found[kind.name] = kind
    return found


def measures_of(given: Sequence[Measure | Mapping[str, Any]] | None) -> tuple[Measure, ...]:
    """Return measures, also where a checkpoint gives their `plain` data.

    Raises:
        LREError: If the data are of a class that was not imported, or two measures have one name.
    """
    measures: list[Measure] = []
    for one in given or ():
        if isinstance(one, Mapping):
            options = dict(one)
            kind = known_measures().get(str(options.pop("name", None)))
            names: set[str] = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
            if kind is None or not options.keys() <= names:
                known = ", ".join(sorted(known_measures())) or "none is"
                raise LREError(f"there is no measure {dict(one)!r}; imported are: {known}")
            one = kind(**options)
        if not isinstance(one, Measure):
            raise LREError(f"measures must be objects such as Baselines(), not {one!r}")
        if one.name in [other.name for other in measures]:
            raise LREError(f"the measure {one.name!r} is given twice")
        measures.append(one)
    return tuple(measures)


def layers_for(lm: LanguageModel, layers: Sequence[Layer] | None, measures: Sequence[Measure]) -> tuple[Layer, ...]:
    """Return the layers to estimate LREs at: those that are tried, all if None, and the embedding where needed."""
    embedding: list[Layer] = ["emb"] if any(m.embedding for m in measures) and "emb" in lm.layers else []
    return lm.check_layers(None if layers is None else [*embedding, *layers])
