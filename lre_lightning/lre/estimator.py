"""The estimator: sums of Jacobians and biases over the training examples of one relation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from lre_lightning import paper
from lre_lightning.errors import LREError, check_choice
from lre_lightning.grid import Layer, check_ranks, usual_rank
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.matrix_free import MatrixFree, forward_product
from lre_lightning.lre.operators import Operator, wide_dtype
from lre_lightning.lre.origin import Origin
from lre_lightning.models.backward import Backward, backward_rule, check_backward
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.options import LINES, Prompts, choose_templates
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import Trial, draw, train_prompts
from lre_lightning.relations.relation import Relation
from lre_lightning.relations.sources import load_relations
from lre_lightning.runs.processes import Processes

LOGGER = logging.getLogger("lre_lightning")


class LREEstimator:
    """Accumulates W = E[do/ds] and b = E[o - (do/ds) s] at several layers (Equation 3 of the paper).

    Sums have more precision than the LM: float64 or, for an LM in 16 bits, float32, in which sums of a few numbers are
    all but exact. The means thus depend neither on the order of the examples nor on how they are split over processes.
    The estimator only accumulates; `weight` and `bias` of a layer make a frozen `lre_lightning.LRE`, which is applied.

    Example:
        >>> import torch
        >>> from lre_lightning.lre.jacobian import PromptJacobian
        >>> estimator = LREEstimator([0])
        >>> estimator.update(PromptJacobian({0: 2 * torch.eye(2)}, {0: torch.ones(2)}, torch.tensor([3.0, 5.0])))
        >>> estimator.weight(0).diagonal().tolist(), estimator.bias(0).tolist()
        ([2.0, 2.0], [1.0, 3.0])
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.count = 0
        self._sums: dict[Layer, Tensor] = {}  # W and, as one column more, b
        self._dtype = torch.float32

    def update(self, example: PromptJacobian) -> None:
        """Add the Jacobian and bias of one example at every layer."""
        self.count += 1
        for layer in self.layers:
            bias = example.bias(layer)
            self._dtype = bias.dtype
            with torch.inference_mode(False):
                if layer not in self._sums:
                    self._sums[layer] = _zeros(len(bias), example.object.dtype, bias.device)
                self._sums[layer][:, :-1] += example.jacobian[layer]
                self._sums[layer][:, -1] += bias

    def add_up(self, processes: Processes, lm: LanguageModel) -> None:
        """Add up the examples of all processes; a collective call, also for a process without examples of the LM."""
        (count,) = processes.sum(torch.tensor([self.count]))
        self.count, self._dtype = int(count), torch.promote_types(lm.dtype, torch.float32)
        sums = [
            self._sums[layer] if layer in self._sums else _zeros(lm.hidden_size, lm.dtype, lm.device)
            for layer in self.layers
        ]
        self._sums = dict(zip(self.layers, processes.sum(*sums), strict=True))

    def means(self) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Yield every layer with its W and b and forget their sums, so that memory does not hold both of all layers."""
        for layer in self.layers:
            weight, bias = self.weight(layer), self.bias(layer)
            del self._sums[layer]
            yield layer, weight, bias

    def weight(self, layer: Layer) -> Tensor:
        """Return W at `layer`, `(hidden, hidden)`, in float32 or the LM's dtype if that is wider.

        Raises:
            LREError: If nothing has been accumulated at this layer.
        """
        return paper.mean(self._sum(layer)[:, :-1], self.count).to(self._dtype)

    def bias(self, layer: Layer) -> Tensor:
        """Return b at `layer`, `(hidden,)`, with the dtype and errors of `weight`."""
        return paper.mean(self._sum(layer)[:, -1], self.count).to(self._dtype)

    def _sum(self, layer: Layer) -> Tensor:
        if layer not in self._sums:
            raise LREError(f"no example has been accumulated at layer {layer!r}; the layers are {self.layers}")
        return self._sums[layer]


def _zeros(hidden: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return empty sums of W and b for an LM in `dtype`."""
    return torch.zeros(hidden, hidden + 1, dtype=wide_dtype(dtype, device), device=device)


def estimate(
    lm: LanguageModel,
    relation: Relation | str,
    layer: Layer,
    n_shot: int = 8,
    *,
    beta: float = 1.0,
    rank: int | None = None,
    trial: int = 0,
    seed: int = 0,
    prompts: Prompts = LINES,
    method: Literal["dense", "matrix_free"] = "dense",
    backward: Backward = "exact",
) -> LRE:
    """Estimate the LRE of a relation at one layer, as a fit does, without scoring it.

    Args:
        lm: The LM.
        relation: The relation, or the name of one that `load_relations` finds.
        layer: The layer at which s is read, ``"emb"`` or the index of a decoder block.
        n_shot: Number n of training samples, at least 1.
        beta: The beta of the LRE.
        rank: The rank of its pseudo-inverse for edits. If None, an eighth of the LM's width, but at most 128: edits of
            full rank fail, and those of about this rank succeed (Appendix D of the paper); a fit searches the best one.
        trial: Number of the draw of training samples, as in a fit.
        seed: Seed of the draw.
        prompts: How samples are drawn and prompts are made.
        method: ``"dense"`` computes W, and ``"matrix_free"`` only products with it when they are needed: one for each
            s that the LRE is applied to, and a few times `rank` for the first edit. Such an LRE needs the LM as long
            as it is used; `lre.low_rank(rank)` can be saved.
        backward: The rule of the backward pass that W is read off; see `Fitting`.

    Returns:
        The LRE, bound to `lm`.

    Raises:
        LREError: If the relation, layer, beta, rank, method or rule is not valid, or the relation has too few samples.

    Example:
        >>> from lre_lightning import LanguageModel, estimate
        >>> lre = estimate(LanguageModel.from_pretrained("demo"), "country capital city", layer=2)
        >>> lre.predict("Canada", top_k=1)[0][0]
        'Ottawa'
    """
    (layer,) = lm.check_layers([layer])
    check_choice("method", method, ("dense", "matrix_free"))
    check_backward(lm, backward)
    (rank,) = check_ranks([usual_rank(lm.hidden_size) if rank is None else rank], lm.hidden_size)
    prompts = prompts.of(lm)
    drawn = draw_one(relation, n_shot, trial, seed, prompts)
    examples = train_prompts(drawn, lm.tokenizer, options=prompts)
    if identity_layers(lm, examples, [layer]):
        LOGGER.warning(IDENTITY, layer)
    weight: Tensor | Operator
    if method == "matrix_free":
        runs = prompts_to_run(lm, examples)
        weight = MatrixFree(runs, layer, forward_product(runs, backward), backward=backward)
        bias = weight.bias()
    else:
        weight, bias = mean_over(lm, examples, layer, backward)
    return LRE(weight, bias, layer, Origin.of(lm, drawn, prompts, backward), beta, rank, lm)


IDENTITY = (
    "W at layer %s is the identity: prompts end with their subjects, so that s is o there. It says nothing of the "
    "relation, and an edit of a rank below full inverts directions that are arbitrary; take an earlier layer"
)


def identity_layers(lm: LanguageModel, prompts: Sequence[Prompt], layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers at which s is o and W the identity: the last block, if prompts end with their subjects.

    Of prompts from several templates only some may. W is then a multiple of the identity, which says as little.
    """
    if not any(prompt.subject_position == prompt.last_position for prompt in prompts):
        return ()
    return tuple(layer for layer in layers if layer == lm.num_layers - 1)


def mean_over(
    lm: LanguageModel, examples: Sequence[Prompt], layer: Layer, backward: Backward = "exact"
) -> tuple[Tensor, Tensor]:
    """Return W, `(hidden, hidden)`, and b, `(hidden,)`, at one layer as means over prompts, one sweep each."""
    estimator = LREEstimator([layer])
    for prompt in examples:
        with backward_rule(backward):
            found = prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, [layer])
        estimator.update(found)
    return estimator.weight(layer), estimator.bias(layer)


def draw_one(relation: Relation | str, n_shot: int, trial: int, seed: int, prompts: Prompts) -> Trial:
    """Draw a trial of a relation, which may be given by its name, as a datamodule does."""
    if isinstance(relation, str):
        found = load_relations(relation)
        if len(found) > 1:
            raise LREError(f"{relation!r} stands for {len(found)} relations: name one of them")
        relation = found[0]
    train = (prompts.train_samples or {}).get(relation.name)
    ((relation, templates),) = choose_templates([relation], prompts.template)
    return draw(relation, n_shot, trial, seed, prompts.sampling, train, templates)
