"""LMs that processes share: whole fits of five LMs, and the weights and time of a Jacobian, beside one process.

Run with `python -m benchmarks.tensor_parallel`; processes talk by gloo, on the CPU, with one thread each. The counts of
all fits are asserted to be those of one process, and W to be equal to rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.common import DEMO_RELATION, table
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.files import read_records

LAYOUTS: list[tuple[int, int | None]] = [(1, None), (2, 2), (4, 2)]
"""Processes, and how many share an LM."""
ROUNDING = 1e-4
"""The largest relative difference of W in float32."""
OBJECTS, SUBJECTS = ["red", "green", "blue", "white"], [f"thing{i}" for i in range(24)]
WORDS = ["[BOS]", "[UNK]", "\n", "colour", *OBJECTS, *SUBJECTS]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 2},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "GPTNeoX": {},
}
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}


def write_lm(family: str, folder: Path) -> None:
    """Save a random LM of a family whose answers follow from the subject, and a relation of them."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = {**SIZES, **FAMILIES[family], "vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": None}
    config = getattr(transformers, f"{family}Config")(**sizes, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    directions = torch.linalg.qr(torch.randn(32, 32))[0][: len(OBJECTS)]
    first, embedding = WORDS.index(OBJECTS[0]), model.get_input_embeddings().weight.data
    for i in range(len(SUBJECTS)):
        embedding[first + len(OBJECTS) + i] = directions[i % len(OBJECTS)] + 0.1 * torch.randn(32)
    model.get_output_embeddings().weight.data.zero_()[first : first + len(OBJECTS)] = directions
    model.save_pretrained(folder / "lm")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    splits = [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[BOS]", unk_token="[UNK]")
    fast.save_pretrained(folder / "tokenizer")  # beside the LM it would be taken for one of its family
    samples = [{"subject": one, "object": OBJECTS[i % len(OBJECTS)]} for i, one in enumerate(SUBJECTS)]
    relation = {"name": "colour", "prompt_templates": ["colour {}"], "samples": samples}
    kind = {"relation_type": "factual", "domain_name": "thing", "range_name": "colour", "symmetric": False}
    (folder / "colour.json").write_text(json.dumps({**relation, "properties": kind}))


def called(code: str) -> Any:
    """Evaluate an expression in a process of its own, and return its value."""
    program = "import json, pathlib, benchmarks.devices as d, benchmarks.tensor_parallel as t"
    command = [sys.executable, "-W", "ignore", "-c", f"{program}; f = {code}; print('\\n' + json.dumps(f))"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(output.stdout.splitlines()[-1])


def assert_same(one: Path, other: Path) -> tuple[int, float]:
    """Check that two fits have equal records, and W to rounding; return the number of counts, and the difference."""
    found, expected = (read_records([root / "fit_results.jsonl"]) for root in (other, one))
    assert found == expected, "the records differ"
    assert any(record.scored for record in found)
    counts = sum(len(at) for record in found for grid in (record.faithful, record.causal) for at in grid)
    worst = 0.0
    for file in sorted(path.relative_to(one) for path in one.rglob("*.safetensors")):
        right, weight = LRE.load(one / file).weight, LRE.load(other / file).weight
        worst = max(worst, float((weight - right).norm() / right.norm()))
    assert worst < ROUNDING, worst
    return counts, worst


def fits(folder: Path) -> Iterator[list[object]]:
    """Fit every LM in every layout; yield the rows."""
    for name in ("demo", *FAMILIES):
        root = folder / name
        root.mkdir()
        given = f"{[DEMO_RELATION, 'person sport']}"
        if name in FAMILIES:
            write_lm(name, root)
            paths = {"name": root / "lm", "source": root / "colour.json", "tokenizer": root / "tokenizer"}
            given = "None, " + ", ".join(f"{option}={str(path)!r}" for option, path in paths.items())
        for devices, share in LAYOUTS:
            out = root / f"{devices}"
            out.mkdir()
            seconds = called(f"d.run(pathlib.Path({str(out)!r}), {devices}, {given}, share={share})")["fit"]
            counts, error = assert_same(root / "1", out)
            yield [name, _layout(devices, share), f"{seconds:.1f}", f"{counts:,}", f"{error:.0e}"]


def _jacobian(index: int, folder: str, members: int) -> None:
    """Be one of the processes that share an LM; the first one writes what it holds and how long a Jacobian takes."""
    torch.set_num_threads(1)
    if members > 1:
        where = f"file://{folder}/rendezvous{members}"
        distributed.init_process_group("gloo", init_method=where, rank=index, world_size=members)
    lm = LanguageModel.from_pretrained(f"{folder}/lm", tensor_parallel=members if members > 1 else None)
    ids, seconds = torch.arange(40) % 90, []
    for _ in range(2):
        start = time.perf_counter()
        found = prompt_jacobian(lm, ids, 35, [3])
        seconds.append(time.perf_counter() - start)
    if index == 0:
        held = sum(weight.nbytes for weight in lm.parameters())
        torch.save((held, min(seconds) / lm.hidden_size, found.jacobian[3]), f"{folder}/{members}.pt")
    if members > 1:
        distributed.destroy_process_group()


def jacobian(folder: str, members: int) -> None:
    """Compute a Jacobian in processes that share an LM."""
    torch.multiprocessing.start_processes(_jacobian, (folder, members), members, start_method="fork")


def jacobians(folder: Path) -> Iterator[list[object]]:
    """Compute the Jacobian of a wide LM in one, two and four processes; yield the rows."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=1000, num_key_value_heads=4, **WIDE))
    model.save_pretrained(folder / "lm")
    one: Any = None
    for members in (1, 2, 4):
        called(f"t.jacobian({str(folder)!r}, {members})")
        held, seconds, found = torch.load(folder / f"{members}.pt")
        one = one or (held, seconds, found)
        error = float((found - one[2]).norm() / one[2].norm())
        assert error < ROUNDING, error
        part = f"{held / 2**20:.0f} ({held / one[0]:.0%})"
        yield [members, part, f"{1000 * seconds:.2f}", f"{one[1] / seconds:.2f}", f"{error:.0e}"]


def _layout(devices: int, share: int | None) -> str:
    return (
        "one process" if share is None else f"{share} share an LM" + f", {devices // share} times" * (devices > share)
    )


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        header = ["LM", "processes", "fit, seconds", "counts, all equal", "W differs by"]
        notes = ["The demo's architecture and random LMs of four families, which know the relation they are asked."]
        print(table("Processes that share an LM: fits", header, list(fits(Path(folder))), notes))
        header = ["processes", "weights that one holds, MiB", "product, ms", "times faster", "J differs by"]
        notes = [
            "A Llama of 8 blocks of width 1024 with 1000 tokens, float32: rows of a Jacobian at layer 3. Two sums over "
            "the processes per block and direction; each process waits for the others at every one of them."
        ]
        print(table("Processes that share an LM: memory and time", header, list(jacobians(Path(folder))), notes))


if __name__ == "__main__":
    main()
