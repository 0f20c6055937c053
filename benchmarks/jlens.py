"""The Jacobian of a text at every layer, for the Jacobian lens: the estimator, a loop and a floor.

* loop: the whole text run once, and one backward pass for each output dimension;
* floor: the estimator's matrix products alone, in the same run.

Run with `python -m benchmarks.jlens`. On two blocks of GPT-2 small's shape the loop is measured on some dimensions and
extrapolated. The Jacobians are asserted to be equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.common import Products, aimed, gpt2_small, table, timed
from benchmarks.jacobian import assert_equal
from lre_lightning.grid import Layer
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.estimator import text_jacobian
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel

ROWS, BLOCKS = 8, 2


def loop(lm: LanguageModel, ids: Tensor, rows: int, skip: int) -> dict[Layer, Tensor]:
    """Compute the first rows of the Jacobian of a text at every layer, `(rows, hidden)`, by its definition."""
    found: dict[Layer, Tensor] = {}

    def start(hidden: Tensor) -> Tensor:
        found["emb"] = hidden.detach().requires_grad_(True)
        return found["emb"].clone()

    with torch.enable_grad(), replace(lm.module_at("emb"), start):
        found |= lm.hidden_states(ids[None], lm.layers[1:])
    output, places = found[lm.num_layers - 1][0], slice(skip, len(ids) - 1)
    nodes = [found[layer] for layer in lm.layers]
    gradients = [torch.autograd.grad(output[places, row].sum(), nodes, retain_graph=True) for row in range(rows)]
    means = zip(*([gradient[0, places].mean(0) for gradient in row] for row in gradients), strict=True)
    return {layer: torch.stack(rows_of_layer) for layer, rows_of_layer in zip(lm.layers, means, strict=True)}


def compare(
    lm: LanguageModel, ids: Tensor, rows: int, most: float, averaging: Averaging = Averaging()
) -> list[list[str]]:
    """Return rows of the table; the loop computes some rows of the Jacobian, and is extrapolated.

    The estimator is to take less than `most` times as long as the floor.
    """
    with Products(lm) as products:
        text_jacobian(lm, ids, averaging)
    engine, found = timed(text_jacobian, lm, ids, averaging)
    floor = products.seconds()
    seconds, expected = timed(loop, lm, ids, rows, averaging.skip)
    for layer in lm.layers:
        assert_equal(found[layer][:rows], expected[layer], layer)
    plain, star = seconds * lm.hidden_size / rows, "" if rows == lm.hidden_size else "*"
    shape = f"{lm.name}: {lm.num_layers} layers of {lm.hidden_size}, {len(ids)} tokens"
    return [
        [
            shape,
            "estimator",
            f"{engine:.2f}",
            "1",
            aimed(f"{engine / floor:.2f}", engine < most * floor, f"below {most}"),
        ],
        ["", "floor", f"{floor:.2f}", f"{floor / engine:.2f}", "1"],
        ["", f"loop{star}", f"{plain:.2f}", f"{plain / engine:.2f}", f"{plain / floor:.2f}"],
    ]


def main() -> None:
    """Print the table."""
    rows = []
    demo, gpt2 = LanguageModel.from_pretrained("demo"), gpt2_small(BLOCKS)
    for lm, length, count, most in ((demo, 128, demo.hidden_size, 5.0), (gpt2, 64, ROWS, 2.0)):
        ids = torch.randint(lm.vocab_size, (length,), generator=torch.Generator().manual_seed(1))
        rows += compare(lm, ids, count, most)
    notes = [
        "Equal at every layer to 1e-4 of its largest element (float32).",
        f"\\* measured on {ROWS} output dimensions and extrapolated.",
    ]
    header = ["LM", "way", "seconds for a text", "estimator = 1", "floor = 1"]
    print(table("The Jacobian lens", header, rows, notes))


if __name__ == "__main__":
    main()
