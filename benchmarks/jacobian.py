"""Jacobians of one prompt at every layer: the engine against a layer-by-layer loop, and against a batched `vmap`.

Run with `python -m benchmarks.jacobian [name or folder of an LM]`. Prints the seconds of each way and their ratios, the
best of several runs, after it has asserted that all three give the same Jacobians.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.hooks import replace
from lre_lightning.jacobian import DEFAULT_CHUNK_SIZE, _suffix_graph, prompt_jacobian
from lre_lightning.language_model import LanguageModel, Layer

RUNS = 3
Jacobians = dict[Layer, Tensor]


def plain(lm: LanguageModel, ids: Tensor, position: int) -> Jacobians:
    """Layer by layer, the whole prompt, `torch.autograd.functional.jacobian(vectorize=True)`."""
    return {layer: _plain_at(lm, ids, position, layer) for layer in lm.layers}


def _plain_at(lm: LanguageModel, ids: Tensor, position: int, layer: Layer) -> Tensor:
    with torch.no_grad():
        subject = lm.hidden_states(ids[None], [layer])[layer][0, position]

    def run(value: Tensor) -> Tensor:
        def put(hidden: Tensor) -> Tensor:
            edited = hidden.clone()
            edited[0, position] = value
            return edited

        with replace(lm.module_at(layer), put):
            return lm(ids[None])[0, -1]

    jacobian: Tensor = torch.autograd.functional.jacobian(run, subject, vectorize=True)
    return jacobian


def vmapped(lm: LanguageModel, ids: Tensor, position: int) -> Jacobians:
    """The engine's graph with one lane, and `vmap` over the backward pass in chunks of the engine's size."""
    nodes, output = _suffix_graph(lm, ids, position, lm.layers, lanes=1)
    chunks = torch.eye(lm.hidden_size, dtype=output.dtype)[:, None].split(DEFAULT_CHUNK_SIZE)
    inputs = [nodes[layer] for layer in lm.layers]
    rows = [torch.autograd.grad(output, inputs, chunk, retain_graph=True, is_grads_batched=True) for chunk in chunks]
    found = [torch.cat([gradient[:, 0, 0] for gradient in layer]) for layer in zip(*rows, strict=True)]
    return dict(zip(lm.layers, found, strict=True))


def engine(lm: LanguageModel, ids: Tensor, position: int) -> Jacobians:
    """What the library does."""
    return prompt_jacobian(lm, ids, position).jacobian


def seconds(way: Callable[[], Jacobians]) -> float:
    """Best wall-clock time of several runs."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        way()
        times.append(time.perf_counter() - start)
    return min(times)


def main(name: str = "demo") -> None:
    """Compare the three ways on one training prompt of the bundled relations."""
    warnings.filterwarnings("ignore", message=".*vmap.*")
    lm = LanguageModel.from_pretrained(name)
    batch = next(iter(RelationDataModule(name, "country capital city", "demo").train_dataloader()))
    ids, position = batch.input_ids[0, : int(batch.last_position[0]) + 1], int(batch.subject_position[0])
    ways = {"plain": plain, "vmap": vmapped, "engine": engine}
    results = {label: way(lm, ids, position) for label, way in ways.items()}
    for layer in lm.layers:
        scale = float(results["plain"][layer].abs().max())
        for label in ("vmap", "engine"):
            torch.testing.assert_close(results[label][layer], results["plain"][layer], rtol=1e-4, atol=1e-4 * scale)
    times = {label: seconds(lambda way=way: way(lm, ids, position)) for label, way in ways.items()}  # type: ignore[misc]
    print(f"{name}: {lm.num_layers} layers of width {lm.hidden_size}, {len(ids)} tokens, {len(ids) - position} suffix")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; equal to 1e-4 at every layer")
    for label, duration in times.items():
        print(f"{label:8s} {duration:8.3f} s   {duration / times['engine']:6.1f} x the engine")


if __name__ == "__main__":
    main(*sys.argv[1:])
