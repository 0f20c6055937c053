"""Peak memory: for few and many relations and trials, on a real LM, and for LMs of larger shapes.

Run with `python -m benchmarks.memory`; each row is measured in its own process. On the larger shapes only the first
chunks of rows of one prompt's Jacobians are computed: they need as much memory as all of them, in a hundredth of the
time.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import CONTEXT, SUFFIX, aimed, table
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.demo import smollm2_file
from lre_lightning.lre import jacobian
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.relations.sources import load_relations
from lre_lightning.training.module import LREModule

GIBIBYTE = 2**30
CHUNKS = 2


def peak() -> float:
    """Return the peak resident memory of this process in bytes."""
    scale = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)


def fit(relations: int, trials: int, lm: str = "demo", n_shot: int = 8) -> dict[str, float]:
    """Fit some of the bundled relations with an LM at all layers."""
    import lightning as L

    names = [relation.name for relation in load_relations(source="demo")][:relations]
    data = RelationDataModule(lm, names, "demo", trials=trials, n_shot=n_shot)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            default_root_dir=folder, max_epochs=-1, reload_dataloaders_every_n_epochs=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(module := LREModule(lm), datamodule=data)
    assert all(record.chosen_scores for record in module.records.values())
    return {"peak": peak(), "weights": sum(parameter.nbytes for parameter in module.lm.parameters())}


def qwen() -> dict[str, float]:
    """Add Jacobians at all layers of an LM of Qwen2-0.5B's shape in float32 to running means."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    shape = Qwen2Config(
        vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        intermediate_size=4864, tie_word_embeddings=True,
    )  # fmt: skip
    return first_chunks(LanguageModel(AutoModelForCausalLM.from_config(shape), name="Qwen2-0.5B's shape"))


def gptj() -> dict[str, float]:
    """Add Jacobians at all layers of an LM of GPT-J's shape in bfloat16 to running means."""
    from transformers import AutoModelForCausalLM, GPTJConfig
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(GPTJConfig(), dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    for module in model.modules():  # buffers that checkpoints do not hold
        if hasattr(module, "embed_positions"):
            module.embed_positions = create_sinusoidal_positions(module.max_positions, module.pos_embd_dim)
    for parameter in model.parameters():
        parameter.data.uniform_(-0.02, 0.02)
    return first_chunks(LanguageModel(model, name="GPT-J's shape"))


def first_chunks(lm: LanguageModel) -> dict[str, float]:
    """Add the first rows of the Jacobians of one prompt at all layers to running means."""
    weights = sum(parameter.nbytes for parameter in lm.parameters())
    zero = torch.zeros(lm.hidden_size, lm.hidden_size, dtype=lm.dtype)
    state = torch.zeros(lm.hidden_size, dtype=lm.dtype)
    estimator = LREEstimator(lm.layers)
    estimator.update(PromptJacobian(dict.fromkeys(lm.layers, zero), dict.fromkeys(lm.layers, state), state))

    def some_rows(
        lm: LanguageModel, suffixes: Tensor, lanes: int, source: slice, _: slice, *graph: Any
    ) -> PromptJacobian:
        nodes, outputs = jacobian._suffix_graph(lm, suffixes, lanes, *graph)
        position, output = source.start, outputs[:, -1]
        hidden = output.shape[1]
        found = {layer: torch.zeros(1, hidden, hidden, dtype=node.dtype) for layer, node in nodes.items()}
        for start in range(0, CHUNKS * lanes, lanes):
            cotangents = torch.zeros_like(output)
            cotangents[:, start : start + lanes] = torch.eye(lanes)
            gradients = torch.autograd.grad(output, list(nodes.values()), cotangents, retain_graph=True)
            for rows, gradient in zip(found.values(), gradients, strict=True):
                rows[0, start : start + lanes] = gradient[:, position]
        states = {layer: node[:1, position].detach().clone() for layer, node in nodes.items()}
        return PromptJacobian(found, states, output[:1].detach().clone())

    jacobian._compute = some_rows
    estimator.update(prompt_jacobian(lm, torch.randint(lm.vocab_size, (CONTEXT + SUFFIX,)), CONTEXT))
    return {"peak": peak(), "weights": weights}


def measured(work: str) -> dict[str, float]:
    """Evaluate a call of a function of this file in its own process."""
    code = f"import json, benchmarks.memory as m; print(json.dumps(m.{work}))"
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    rows, peaks = [], []
    for relations, trials in ((2, 1), (2, 6), (12, 1)):
        peaks.append(measured(f"fit({relations}, {trials})")["peak"])
        cell = aimed(f"{peaks[-1] / GIBIBYTE:.2f}", peaks[-1] < 1.1 * min(peaks), "below 1.1 of the least")
        rows.append([f"demo, {relations} relations, {trials} trials", cell, ""])
    works = {
        "GPT-J's shape in bfloat16, all layers, one prompt": "gptj()",
        "Qwen2-0.5B's shape in float32, all layers, one prompt": "qwen()",
    }
    if smollm2_file() is not None:
        works["SmolLM2 in float32, a fit of one relation, all layers"] = "fit(1, 1, 'smollm2', 3)"
    for name, work in works.items():
        found = measured(work)
        beyond = (found["peak"] - found["weights"]) / GIBIBYTE
        rows.append([name, f"{found['peak'] / GIBIBYTE:.2f}", aimed(f"{beyond:.2f}", beyond < 4, "below 4")])
    print(table("Memory", ["run", "peak GiB", "GiB beyond the weights"], rows))


if __name__ == "__main__":
    main()
