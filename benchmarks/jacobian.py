"""Jacobians at every layer for the 8 training prompts of a trial: the engine against two loops and a floor.

* plain: `torch.autograd.functional.jacobian(vectorize=True)` of the whole prompt, layer by layer;
* published: the same function of the suffix alone, with the context's keys and values computed once;
* prompt by prompt: the engine without sweeps that several prompts of a small LM share;
* copied prefix, stepwise, whole prompts: the engine as it runs LMs whose prompts cannot share a prefix;
* floor: the engine's matrix products alone, in the same run;
* products of all lanes: as many as a sweep would take that did not compute linear layers once for all lanes.

Run with `python -m benchmarks.jacobian`. On GPT-2 small's shape the loops are measured on a part and extrapolated;
`--all` computes them in full (hours). All ways are asserted to give the same Jacobians.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager
from dataclasses import replace as change
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common import CONTEXT, Products, Prompt, aimed, demo_prompts, gpt2_small, random_prompts, table, timed
from lre_lightning.grid import Layer
from lre_lightning.lre import jacobian
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian, prompts_in_a_sweep, sweep
from lre_lightning.models.activations import one_slope_for_all_lanes
from lre_lightning.models.hooks import observe, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.prefix import Way

OTHER_WAYS: dict[Way, str] = {"copied": "copied prefix", "stepwise": "stepwise", "whole": "whole prompts"}

FLOOR_RUNS = 4
"""Number of measurements of the floor of the first sweep."""

MOST = 2.0
"""What the engine is to take less than, in times of the floor."""


def jacobians(lm: LanguageModel, prompts: list[Prompt]) -> list[PromptJacobian]:
    """Compute the Jacobians of prompts of one shape as a fit does, several of a small LM in one sweep."""
    ids, position = torch.stack([ids for ids, _ in prompts]), prompts[0][1]
    sources, targets = range(position, position + 1), range(ids.shape[1] - 1, ids.shape[1])
    parts = ids.split(prompts_in_a_sweep(lm))
    return [example for part in parts for example in sweep(lm, part, sources, targets)]


def layer_jacobian(lm: LanguageModel, prompt: Prompt, layer: Layer, *, from_cache: bool) -> Tensor:
    """Compute the Jacobian at one layer, running the whole model with its unembedding, as the published code does."""
    ids, position = prompt
    prefix = lm.prefix(ids[None, :position]) if from_cache else None
    ids, position = (ids[position:], 0) if from_cache else (ids, position)
    with torch.no_grad():
        subject = lm.hidden_states(ids[None], [layer], prefix)[layer][0, position]

    def run(value: Tensor) -> Tensor:
        def put(hidden: Tensor) -> Tensor:
            edited = hidden.clone()
            edited[0, position] = value
            return edited

        seen: list[Tensor] = []
        with replace(lm.module_at(layer), put), observe(lm.module_at(lm.num_layers - 1), seen.append):
            lm.model(input_ids=ids[None], **({"use_cache": False} if prefix is None else prefix.inputs(1)))
        return seen[0][0, -1]

    found: Tensor = torch.autograd.functional.jacobian(run, subject, vectorize=True)
    return found


def assert_equal(found: Tensor, expected: Tensor, layer: Layer) -> None:
    """Check that two Jacobians are equal up to float32 rounding."""
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale, msg=lambda text: f"layer {layer}: {text}")


def other_ways(lm: LanguageModel, prompt: Prompt, expected: PromptJacobian) -> dict[Way, float]:
    """Return the seconds of the engine as it runs LMs whose prompts cannot share a prefix; check its Jacobians."""
    behaviour, found = lm._behaviour, {}
    for way in OTHER_WAYS:
        lm._behaviour = change(behaviour, way=way)
        found[way], other = timed(prompt_jacobian, lm, *prompt)
        for layer in lm.layers:
            assert_equal(other.jacobian[layer], expected.jacobian[layer], layer)
    lm._behaviour = behaviour
    return found


def floors(lm: LanguageModel, prompts: list[Prompt]) -> list[float]:
    """Return the seconds of the products alone: the engine's, and those of all lanes."""

    def on_all_lanes(*arguments: Any, linear: bool) -> AbstractContextManager[None]:
        return one_slope_for_all_lanes(*arguments)

    found = []
    for way in (one_slope_for_all_lanes, on_all_lanes):
        with Products(lm) as products, mock.patch.object(jacobian, "one_slope_for_all_lanes", way):
            jacobians(lm, prompts)
        found.append(sum(products.seconds() for _ in range(FLOOR_RUNS)) / FLOOR_RUNS)
    return found


def compare(
    lm: LanguageModel, prompts: list[Prompt], published: int, plain_layers: list[Layer], plain: int
) -> list[list[str]]:
    """Return rows of the table; the loops run on some prompts, the plain one at some layers, and are extrapolated."""
    first = prompts[: prompts_in_a_sweep(lm)]
    jacobians(lm, first)
    engine, examples = timed(jacobians, lm, prompts)
    floor, lanes = (len(prompts) / len(first) * seconds for seconds in floors(lm, first))
    alone = timed(lambda: [prompt_jacobian(lm, *prompt) for prompt in prompts])[0] if len(first) > 1 else None
    cached, whole, unshared = 0.0, 0.0, dict.fromkeys(OTHER_WAYS, 0.0)
    for index, (prompt, found) in enumerate(zip(prompts, examples, strict=True)):
        if index < published:
            for way, seconds in other_ways(lm, prompt, found).items():
                unshared[way] += seconds * len(prompts) / published
            for layer in lm.layers:
                seconds, expected = timed(layer_jacobian, lm, prompt, layer, from_cache=True)
                cached += seconds * len(prompts) / published
                assert_equal(found.jacobian[layer], expected, layer)
        if index < plain:
            for layer in plain_layers:
                seconds, expected = timed(layer_jacobian, lm, prompt, layer, from_cache=False)
                whole += seconds
                assert_equal(found.jacobian[layer], expected, layer)
    # A layer costs as many blocks as there are above it.
    blocks = {layer: lm.num_layers - index for index, layer in enumerate(lm.layers)}
    whole *= len(prompts) / plain * sum(blocks.values()) / sum(blocks[layer] for layer in plain_layers)
    ids, position = prompts[0]
    suffix = len(ids) - position
    shape = f"{lm.name}: {lm.num_layers} layers of {lm.hidden_size}, {len(ids)} tokens, {suffix} of them suffix"
    partly = "" if plain == len(prompts) and len(plain_layers) == len(lm.layers) else "*"
    star = "" if published == len(prompts) else "*"

    def row(way: str, seconds: float, digits: int) -> list[str]:
        """Return a row with ratios of some digits after the point."""
        ratios = [f"{seconds / other:.{digits}f}" for other in (engine, floor)]
        return ["", way, f"{seconds:.{digits + 1}f}", *ratios]

    return [
        [shape, "engine", f"{engine:.2f}", "1", aimed(f"{engine / floor:.2f}", engine < MOST * floor, f"below {MOST}")],
        ["", "floor", f"{floor:.2f}", f"{floor / engine:.2f}", "1"],
        ["", "products of all lanes", f"{lanes:.2f}", f"{lanes / engine:.2f}", f"{lanes / floor:.2f}"],
        *([row("prompt by prompt", alone, 1)] if alone else []),
        *(row(f"{name}{star}", unshared[way], 1) for way, name in OTHER_WAYS.items()),
        row(f"published{star}", cached, 1),
        row(f"plain{partly}", whole, 0),
    ]


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore", message=".*vmap.*")
    everything = "--all" in sys.argv[1:]
    demo = LanguageModel.from_pretrained("demo")
    rows = compare(demo, demo_prompts(), 8, list(demo.layers), 8)
    lm = gpt2_small()
    prompts = [(ids, CONTEXT) for ids in random_prompts(lm, 8)]
    layers: list[Layer] = list(lm.layers) if everything else [lm.num_layers - 2]
    rows += compare(lm, prompts, 8 if everything else 1, layers, 8 if everything else 1)
    header = ["LM", "way", "seconds for 8 prompts", "engine = 1", "floor = 1"]
    notes = [
        "Equal at every layer to 1e-4 of its largest element (float32).",
        "\\* measured on one prompt, the plain way only at the second to last layer, and extrapolated by the number of "
        "prompts and of blocks above a layer.",
    ]
    print(table("Jacobians", header, rows, notes))


if __name__ == "__main__":
    main()
