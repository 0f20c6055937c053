"""Maps o = W s + b that are trained by the KL of their answers, beside LREs of as many samples.

Valer, Gresele, Bronzini and Marconato (2026, arXiv:2605.22532) test relational linearity so, without the Jacobians of
Hernandez et al., which they call crude. The map is trained on the n examples that the LRE was estimated from, and on
these with further test samples, which then are not scored. W starts at zero and b at the mean of o, or W at beta W and
b at b of the LRE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lre_lightning.errors import check_number
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.tables import Row, Table, by_relation
from lre_lightning.scoring.cross import counts
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "trained maps"
STEPS = 40
MAPS = ("LRE", "KL", "KL from the LRE")


@torch.inference_mode(False)
def train_map(
    lm: LanguageModel, subjects: Tensor, objects: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Train o = W s + b by the KL of the answers of D(W s + b) from those of D(o), with L-BFGS.

    Args:
        lm: The LM.
        subjects: s, `(samples, hidden)`, float32 or wider.
        objects: o, `(samples, hidden)`.
        weight: The W to start at, `(hidden, hidden)`.
        bias: The b to start at, `(hidden,)`.

    Returns:
        W and b. The change of W maps what is orthogonal to all differences of s to zero.
    """
    subjects, objects, weight, bias = (given.clone() for given in (subjects, objects, weight, bias))
    centre = subjects.mean(0)
    _, values, basis = torch.linalg.svd(subjects - centre, full_matrices=False)
    basis = basis[values > 1e-5 * subjects.norm()]
    scale = (subjects - centre).norm(dim=1).mean().clamp(min=1e-6)
    coordinates = (subjects - centre) @ basis.T / scale
    start = subjects @ weight.T + bias
    with torch.no_grad():
        wanted = lm.decode(objects).to(start.dtype).log_softmax(-1)
    change = bias.new_zeros(len(basis), len(bias)).requires_grad_()
    offset = torch.zeros_like(bias, requires_grad=True)
    optimizer = torch.optim.LBFGS([change, offset], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        said = lm.decode(start + coordinates @ change + offset).to(start.dtype).log_softmax(-1)
        found: Tensor = (wanted.exp() * (wanted - said)).sum(-1).mean()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
    learned = change.detach().T @ basis / scale
    return weight + learned, bias + offset.detach() - learned @ centre


@dataclass(frozen=True)
class TrainedMaps(Measure):
    """Faithfulness and causality of maps trained by KL at the chosen layer, and of the LRE on the same test samples.

    Training takes seconds for each relation, and memory for the answers to all training samples, `(samples, vocab)`.

    Attributes:
        times: How many times the n examples a second pair of maps is trained on. The others are drawn from the test
            samples; a trial with too few of them for a known one to be left has maps of n samples alone.
    """

    name = NAME
    elements = True
    times: int = 10

    def __post_init__(self) -> None:
        check_number("times", self.times, 2)

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of the edits of all maps, by n samples and by more; training is not counted."""
        return Cost(at_choice=2 * len(MAPS) * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Train the maps, and count; every process trains the same ones."""
        states, record, index = trial.states, trial.record, trial.index
        asked = states.trial.test_asked
        lre = replace(trial.lre, beta=record.beta, rank=record.rank)
        own = trial.examples[index], trial.examples[-1]
        every = [
            states.processes.rows(mine, states.samples, len(asked)).to(own[0])
            for mine in (torch.ones_like(states.known, dtype=torch.long), states.subject[:, index], states.object)
        ]
        ran = every[0].bool().tolist()
        order = [sample for sample in states.in_drawn_order(range(len(asked))) if ran[sample]]
        tallies = {}
        for times in (1, self.times):
            more, size = (times - 1) * len(trial.prompts), f"{times} n" if times > 1 else "n"
            drawn = order[:more]
            names = {asked[sample].subject for sample in drawn}
            held = states.keep({sample for sample in order if asked[sample].subject not in names}) if more else states
            if len(drawn) < more or not held.all_known:
                continue
            taught = [torch.cat([mine, rows[drawn]]) for mine, rows in zip(own, every[1:], strict=True)]
            for name, one in zip(MAPS, (lre, *_trained(trial.lm, lre, *taught)), strict=True):
                faithful, causal = counts(held, one, index)
                tallies[f"faithfulness: {name}, {size}"] = Tally(faithful, held.all_known)
                tallies[f"causality: {name}, {size}"] = Tally(causal, len(held.all_edited))
        return Measurement(tallies, chosen=("layer", "beta", "rank"))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return means over relations by the number of samples, and the scores by relation."""
        title, measured = "Trained maps", [one for one in analysis.counted(records) if NAME in one.measures]
        if not measured:
            return (missing(title, "Trained maps were", "--model.measures+=TrainedMaps"),)
        text = (
            f"Linear maps that are trained by the KL of their answers, beside the LREs of {analysis.lm_of(measured)}: "
            f"on the n examples of an LRE, and on more, all on the same test samples. {choice_text(measured)}"
        )
        rows: list[Row] = []
        own = {}
        for size in _sizes(measured):
            found = [_by_map(measured, metric, size) for metric in analysis.SCORES]
            for name in MAPS:
                means = [by_map[name] for by_map in found]
                rows.append((size, name, len(means[0]), *map(analysis.overall, means)))
                own[f"{name}, {size}"] = means[0]
        kinds = analysis.categories(measured)
        tables = (
            Table("trained_maps", text, ("samples", "map", "relations", *analysis.SCORES), tuple(rows)),
            by_relation(
                "trained_maps_by_relation", f"{text} Faithfulness, means and deviations over trials.", kinds, own
            ),
        )
        return (Section(title, (picture_of(plot_trained_maps, measured),), tables),)


def _trained(lm: LanguageModel, lre: LRE, subjects: Tensor, objects: Tensor) -> tuple[LRE, LRE]:
    """Return the map that starts at zero, and that which starts at the LRE; edits are by W, as those of the LRE."""
    weight, bias = lre.operator.dense().to(subjects), lre.bias.to(subjects)
    zero, mean = train_map(lm, subjects, objects, torch.zeros_like(weight), objects.mean(0))
    product, offset = train_map(lm, subjects, objects, lre.beta * weight, bias)
    scale = lre.beta or 1.0
    return replace(lre, weight=zero, bias=mean, beta=1.0), replace(lre, weight=product / scale, bias=offset, beta=scale)


def _sizes(records: Sequence[TrialRecord]) -> list[str]:
    """Return how many samples maps were trained on, as the tallies name it."""
    return [*dict.fromkeys(name.split(", ")[-1] for record in records for name in record.measures[NAME].tallies)]


def _by_map(records: Sequence[TrialRecord], metric: str, size: str) -> dict[str, analysis.Means]:
    """Return a score by map and relation, all of the same trials."""
    scores = {name: analysis.tally_score(NAME, f"{metric}: {name}, {size}") for name in MAPS}
    return analysis.side_by_side(records, scores)


def plot_trained_maps(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness of LREs and of trained maps by relation, by the number of samples. Means over trials."""
    panels = {f"from {size}": _by_map(records, "faithfulness", size) for size in _sizes(records)}
    kinds = analysis.categories(records)
    return plotting.dotted_rows(panels, plotting.best_first(kinds, panels["from n"]["LRE"]), kinds)
