"""LREs without W against the sweep that computes all its elements, over widths, layers, test subjects and ranks.

Run with `python -m benchmarks.matrix_free`. LMs have GPT-J's shape, scaled, and random weights, in which the singular
values of what blocks write fall as those of relations do; in one row they do not. Up to width 1024 W is computed, and
answers are compared; above, its first rows are, and the time of the sweep is extrapolated from them. `--config gptj`
is a quarter as wide and as deep, with a quarter of the ranks of its relations.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks import common
from benchmarks.common import CONTEXT, SUFFIX, aimed, random_prompts, table
from lre_lightning.commands.parser import CONFIGS
from lre_lightning.grid import Layer, place_of
from lre_lightning.lre.jacobian import _fitting_lanes, _suffix_graph, prompt_jacobian
from lre_lightning.lre.matrix_free import MatrixFree
from lre_lightning.lre.operators import Dense
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.training.method import PUSHED, Products

PROMPTS, SUBJECTS, COMPARED = 2, 30, 1024
FAITHFULNESS, CAUSALITY = 50, 10
"""How many times fewer products are aimed at: for faithfulness alone, and with ranks up to 256, at width 4096."""
HEADER = ["case", "width", "blocks above", "rank", "products", "fewer", "faster", "predicted", "answers differ"]

timed = partial(common.timed, clock=time.process_time)
"""Measures the seconds that the processor spends, whatever else the machine does."""


@dataclasses.dataclass(frozen=True)
class Case:
    """An LM, the layer of s, and what is asked of W."""

    name: str
    width: int
    blocks: int = 2
    layer: Layer = 0
    rank: int | None = None
    subjects: int = SUBJECTS
    falling: bool = True


def gptj(case: Case) -> LanguageModel:
    """Return an LM of GPT-J's shape, scaled."""
    from transformers import AutoModelForCausalLM, GPTJConfig

    torch.manual_seed(0)
    heads = {"n_embd": case.width, "n_head": case.width // 64, "rotary_dim": 32}
    config = GPTJConfig(n_layer=case.blocks, vocab_size=1000, bos_token_id=0, eos_token_id=0, **heads)
    model = AutoModelForCausalLM.from_config(config)
    for block in model.transformer.h:
        for written in (block.attn.out_proj, block.mlp.fc_out):
            written.weight.data *= 10
            if case.falling:
                written.weight.data *= 10 / (10 + torch.arange(written.weight.shape[1]))
    return LanguageModel(model, name="GPT-J's shape, scaled")


def batch(lm: LanguageModel, count: int) -> PromptBatch:
    """Return prompts with a common context."""
    ids = torch.stack(random_prompts(lm, count))
    ids[:, : CONTEXT - 4] = ids[0, : CONTEXT - 4]
    return PromptBatch(lm, ids, torch.full((count,), CONTEXT), torch.full((count,), CONTEXT + SUFFIX - 1))


def dense(lm: LanguageModel, runs: PromptBatch, layer: Layer) -> tuple[float, Tensor]:
    """Return the seconds of a sweep over the prompts, and W or its first rows."""
    if lm.hidden_size <= COMPARED:
        found = [timed(prompt_jacobian, lm, ids, CONTEXT, [layer]) for ids in runs._ids]
        return sum(seconds for seconds, _ in found), sum(one.jacobian[layer] for _, one in found) / len(found)
    seconds, rows = 0.0, []
    for ids in runs._ids:
        prefix, suffix = lm.prefix(ids[None, :CONTEXT]), ids[None, CONTEXT:]
        lanes = _fitting_lanes(lm, suffix, prefix, (layer,))
        nodes, output = _suffix_graph(lm, suffix, lanes, prefix, (layer,), lm.num_layers - 1)
        cotangents = torch.zeros_like(output)
        cotangents[torch.arange(lanes), -1, torch.arange(lanes)] = 1
        torch.autograd.grad(output, nodes[layer], cotangents, retain_graph=True)
        again, (gradient,) = timed(torch.autograd.grad, output, nodes[layer], cotangents)
        seconds += again * lm.hidden_size / lanes
        rows.append(gradient[:, 0])
    return seconds, torch.stack(rows).mean(0)


def measure(case: Case) -> list[object]:
    """Return the row of a case; assert that both ways are equal."""
    lm = gptj(case)
    runs, tests = batch(lm, PROMPTS), batch(lm, case.subjects)
    states, objects = tests.hidden_states([case.layer])
    subject, difference = states[:, 0], objects.roll(1, 0) - objects
    operator = MatrixFree(runs, case.layer)

    def use() -> tuple[Tensor, Tensor | None]:
        applied = operator.apply(subject)
        operator.bias()
        if case.rank is None:
            return applied, None
        return applied, operator.edits(difference, [case.rank])[:, 0]

    runs.select(torch.tensor([0])).products(case.layer, subject[:1, None], operator._forward)  # warm
    without, (applied, edits) = timed(use)
    seconds, weight = dense(lm, runs, case.layer)
    close = {"rtol": 1e-3, "atol": 1e-4 * float(applied.abs().max())}
    torch.testing.assert_close(applied[:, : len(weight)], subject @ weight.T, **close)
    differ = ""
    if len(weight) == case.width:
        pairs = [(applied, subject @ weight.T)]
        if edits is not None:
            exact = Dense(weight).edits(difference, [case.rank or 1])[:, 0]
            assert (edits - exact).norm() < 1e-2 * exact.norm()
            edited = tests.patched(case.layer, torch.stack([subject + edits, subject + exact], 1))
            pairs.append((edited[:, 0], edited[:, 1]))
        different = sum(int((lm.predict(one) != lm.predict(other)).sum()) for one, other in pairs)
        assert different <= len(pairs), different
        differ = f"{different} of {len(pairs) * case.subjects}"
    trial: Any = SimpleNamespace(test_asked=range(case.subjects))
    predicted = Products.of(lm, trial, [case.layer], case.rank or 0, ()).matrix_free
    if case.rank is None:
        predicted = PUSHED * (case.subjects + 1)
    fewer, faster = case.width / operator.products, seconds / without
    aim = {None: FAITHFULNESS, 256: CAUSALITY}.get(case.rank, 0) if case.width == 4096 else 0
    return [
        *(case.name, case.width, lm.num_layers - 1 - place_of(case.layer), case.rank or "", operator.products),
        *(aimed(f"{fewer:.1f}", fewer >= aim, str(aim)), f"{faster:.2f}", f"{case.width / predicted:.2f}", differ),
    ]


def cases() -> list[Case]:
    """Return the cases of the first table."""
    alone = [Case("faithfulness", width) for width in (256, 512, 1024, 2048, 4096)]
    edits = [Case("and edits", width, rank=rank) for width, rank in ((256, 16), (512, 32), (1024, 64), (2048, 64))]
    wide = [Case("and edits", 4096, rank=rank) for rank in (64, 256)]
    flat = [Case("and edits, flat", width, rank=16, falling=False) for width in (256, 512)]
    scaled = []
    for name in ("name gender", "company hq", "superhero person"):
        layer, rank = gptj_choices()[name].values()
        scaled.append(Case(f"gptj: {name}", 1024, 7, layer if layer == "emb" else layer // 4, max(1, rank // 4)))
    return [*alone, *edits, *wide, *flat, *scaled]


def gptj_choices() -> dict[str, dict[str, Any]]:
    """Return the layer and rank of each relation in `--config gptj`."""
    settings = yaml.safe_load((CONFIGS / "gptj.yaml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = settings["model"]["fitting"]["choices"]
    return found


def whole_config(subjects: int) -> float:
    """Return how many times cheaper `auto` expects GPT-J's fits to be, over all relations of the configuration."""
    lm: Any = SimpleNamespace(hidden_size=4096, num_layers=28)
    trial: Any = SimpleNamespace(test_asked=range(subjects))
    dense = chosen = 0.0
    for choice in gptj_choices().values():
        products = Products.of(lm, trial, [choice["layer"]], choice["rank"], ())
        depth = 27 - place_of(choice["layer"])
        dense += depth * products.dense
        chosen += depth * min(products.dense, products.matrix_free)
    return dense / chosen


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rows = [measure(case) for case in cases()]
    expected = ", ".join(f"{whole_config(count):.1f} with {count}" for count in (30, 200, 800))
    notes = [
        f"{PROMPTS} training prompts with a suffix of {SUFFIX} tokens, {SUBJECTS} test subjects. A sweep takes as many "
        "products with each Jacobian as W has rows; *products* are those without W, in forward or reverse mode: "
        "*fewer* is their ratio, *faster* that of the processor's time, and *predicted* what `auto` expects of it. "
        f"*Differ* are answers, of LREs and after edits, up to width {COMPARED}. *Flat*: random weights as they are.",
        f"For the whole of `--config gptj` on GPT-J, `auto` expects to be faster by {expected} test subjects.",
    ]
    print(table("LREs without W", HEADER, rows, notes))


if __name__ == "__main__":
    main()
