"""What a collection is made of: the W of all relations at one layer as one tensor, decomposed without training.

The tensor `(relations, hidden, hidden)` has every W divided by its Frobenius norm. Its truncated higher-order SVD (De
Lathauwer et al., 2000) is what Christ et al. (2025) train an order-3 tensor network for. Each form is compared with
others of as many numbers, and with the same form of a control: W whose rows and columns are permuted, differently for
each relation, and which are permuted back after they have been decomposed. Its singular values are the same, and
nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lre_lightning.demo import DEMO
from lre_lightning.lre.lre import LRE
from lre_lightning.progress import progress
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.report.tables import Table
from lre_lightning.scoring.states import example_states
from lre_lightning.statistics.estimates import Estimate, mean_over
from scripts.studies.common import Setting, run

ALONE = "each W alone"

SHARES = (0.02, 0.1)
"""Shares of the tensor's numbers that forms may keep."""

MOST = 20
"""The number of known samples of a relation that are scored at most, with every form."""


def leading(gram: Tensor, count: int) -> Tensor:
    """Return the leading eigenvectors of a symmetric matrix `(size, size)`: `(size, count)`, the largest first."""
    vectors: Tensor = torch.linalg.eigh(gram)[1].flip(1)[:, :count]
    return vectors


def each_alone(stack: Tensor, size: int) -> Tensor:
    """Cut every W down to `size` singular triplets of its own."""
    left, values, right = torch.linalg.svd(stack)
    cut: Tensor = left[..., :size] * values[:, None, :size] @ right[:, :size]
    return cut


def spaces(stack: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the spaces that all W map to and from best, U and V, `(hidden, size)` each."""
    return (
        leading(torch.einsum("rij,rkj->ik", stack, stack), size),
        leading(torch.einsum("rij,rik->jk", stack, stack), size),
    )


def shared_spaces(stack: Tensor, size: int) -> Tensor:
    """Return W_r = U G_r V^T, with U and V `(hidden, size)` that all relations share."""
    left, right = spaces(stack, size)
    return left @ (left.T @ stack @ right) @ right.T


def shared_maps(stack: Tensor, size: int) -> Tensor:
    """Return W_r = sum_c a_rc M_c, with `size` matrices M_c that all relations share."""
    flat = stack.flatten(1)
    loads = leading(flat @ flat.T, size)
    return (loads @ (loads.T @ flat)).view_as(stack)


def tucker(stack: Tensor, size: int) -> Tensor:
    """Return both, W_r = U (sum_c a_rc G_c) V^T, with half as many maps as there are relations."""
    left, right = spaces(stack, size)
    return left @ shared_maps(left.T @ stack @ right, (len(stack) + 1) // 2) @ right.T


FORMS: Mapping[str, tuple[Callable[..., Tensor], Callable[[int, int, int], int]]] = {
    ALONE: (each_alone, lambda relations, width, size: relations * 2 * width * size),
    "shared spaces": (shared_spaces, lambda relations, width, size: 2 * width * size + relations * size**2),
    "shared maps": (shared_maps, lambda relations, width, size: size * (width**2 + relations)),
    "shared spaces and maps": (
        tucker,
        lambda relations, width, size: 2 * width * size + (relations + 1) // 2 * (size**2 + relations),
    ),
}
"""Forms of a tensor, and how many numbers they have, from the relations, the width and their size."""


def permuted(stack: Tensor, form: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a form of W whose rows and columns are permuted, differently for each relation, permuted back."""
    generator = torch.Generator().manual_seed(0)
    orders = [[torch.randperm(size, generator=generator) for size in stack.shape[1:]] for _ in stack]
    mixed = form(torch.stack([one[rows][:, columns] for one, (rows, columns) in zip(stack, orders, strict=True)]))
    back = ((rows.argsort(), columns.argsort()) for rows, columns in orders)
    return torch.stack([one[rows][:, columns] for one, (rows, columns) in zip(mixed, back, strict=True)])


def energy(stack: Tensor, found: Tensor) -> float:
    """Return the share of the squared elements that a form keeps, 1 less that of what it leaves out."""
    return 1 - float((stack - found).square().sum() / stack.square().sum())


def of_others(stack: Tensor) -> Tensor:
    """Return every W as the best sum of those of the other relations."""
    flat = stack.flatten(1).double()
    gram, rows = flat @ flat.T, torch.arange(len(flat))
    found = []
    for own in rows:
        others = rows != own
        weights = torch.linalg.solve(gram[others][:, others], gram[others][:, own])
        found.append(weights @ flat[others])
    return torch.stack(found).view_as(stack).to(stack)


def sizes(relations: int, width: int, share: float) -> dict[str, int]:
    """Return the largest size of each form within a share of the tensor's numbers, if there is one."""
    most = share * relations * width**2
    limits = {"shared maps": relations}
    found = {
        name: max((s for s in range(limits.get(name, width) + 1) if numbers(relations, width, s) <= most), default=0)
        for name, (_, numbers) in FORMS.items()
    }
    return {name: size for name, size in found.items() if size}


def around(lre: LRE, weight: Tensor, centre: Tensor) -> LRE:
    """Return an LRE with another W, `(hidden, hidden)`, that maps a state, `(hidden,)`, to what it was mapped to."""
    changed = replace(lre, weight=weight)
    return replace(changed, bias=lre.bias + lre(centre) - changed(centre))


def scored(
    setting: Setting, lres: Mapping[str, LRE], stacks: Sequence[Tensor]
) -> list[tuple[Estimate, Estimate | None]]:
    """Return mean faithfulness and causality over relations of LREs with other W, `(relations, hidden, hidden)` each.

    beta and the rank of edits are those of the LRE, and b is changed so that the mean s of the training prompts is
    mapped to what it was. Edits, which take long, are made on the demo alone.
    """
    lm, faithfulness, causality = setting.lm, [], []
    for place, (relation, lre) in enumerate(progress([*lres.items()], "Scores")):
        states = setting.states(relation, [lre.layer], MOST)
        prompts = train_prompts(states.trial, lm.tokenizer, options=setting.data.prompts)
        centre, s = example_states(lm, prompts, [lre.layer])[0].mean(0), states.subject[:, 0]
        others = [around(lre, stack[place].contiguous(), centre) for stack in stacks]
        if states.all_known:
            said = lm.predict(torch.stack([one(s[states.known]) for one in others], 1))
            faithfulness.append((states.count_faithful(said) / states.all_known).tolist())
        if states.all_edited and setting.name == DEMO:
            deltas = [one.operator.edits(states.change, [lre.edit_rank])[:, 0] for one in others]
            edited = s[states.edited, None] + torch.stack(deltas, 1)
            said = lm.predict(states.edited_runs.patched(lre.layer, edited))
            causality.append((states.count_causal(said) / len(states.all_edited)).tolist())
    means = [[mean_over(values) for values in zip(*scores, strict=True)] for scores in (faithfulness, causality)]
    without: list[Estimate | None] = [None] * len(stacks)
    return [*zip(means[0], means[1] or without, strict=True)]


def study(setting: Setting) -> list[Table]:
    """Return the table of forms, and that of relations whose W are most alike."""
    lres = setting.estimated()
    dense = torch.stack([lre.operator.dense() for lre in lres.values()])
    norms = dense.flatten(1).norm(dim=1)[:, None, None]
    stack = dense / norms
    relations, width, _ = stack.shape
    found: dict[tuple[str, int | None], Tensor] = {
        ("all of W", None): stack,
        ("none, LRE(mean s)", None): torch.zeros_like(stack),
    }
    for share in SHARES:
        for name, size in sizes(relations, width, share).items():
            found[name, size] = FORMS[name][0](stack, size)
            if name != ALONE:  # which is the same
                found[f"{name}, permuted", size] = permuted(stack, partial(FORMS[name][0], size=size))
    for size in (2**power for power in range(10) if 2**power < relations):
        found["shared maps", size] = shared_maps(stack, size)
    found["the best sum of the others' W", relations - 1] = of_others(stack)
    rows = []
    for (name, count), scores in zip(
        found, scored(setting, lres, [norms * one for one in found.values()]), strict=True
    ):
        form = FORMS.get(name.removesuffix(", permuted"))
        numbers = form[1](relations, width, count) / stack.numel() if form and count else None
        rows.append((name, count, numbers, energy(stack, found[name, count]), *scores))
    columns = ("W", "size", "numbers", "energy", "faithfulness", "causality")
    return [Table("components", "", columns, tuple(rows)), alike([*lres], stack)]


def alike(names: Sequence[str], stack: Tensor, most: int = 10) -> Table:
    """Return the table of the pairs of relations whose W have the highest cosines."""
    one, another = torch.tril_indices(len(names), len(names), -1)
    cosines = (stack[one] * stack[another]).sum((1, 2))
    best = cosines.topk(min(most, len(cosines))).indices
    pairs = zip(one[best].tolist(), another[best].tolist(), cosines[best].tolist(), strict=True)
    rows = tuple((names[first], names[second], cosine) for first, second, cosine in pairs)
    return Table("components_alike", "", ("relation", "another", "cosine"), rows)


if __name__ == "__main__":
    run(study)
