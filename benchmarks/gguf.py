"""Loading a GGUF file: dequantized each time, against read from the user's cache.

Run with `python -m benchmarks.gguf`, or with files as arguments. Each load is in a process of its own; weights, buffers
and tokens are asserted to be equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import aimed, table, timed
from benchmarks.memory import peak
from lre_lightning.models.loading import Loading, load_model
from lre_lightning.models.tokenizer import load_tokenizer

RUNS = 2
MEBIBYTE = 2**20


def load(name: str) -> dict[str, object]:
    """Load an LM in float32 and its tokenizer; return seconds, memory in MiB, and a digest of what was loaded."""
    import numpy  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    before = peak()
    seconds, model = timed(load_model, name, Loading())
    digest = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *model.buffers()):
        digest.update(tensor.contiguous().numpy().data)
    most = peak() - before  # with all weights read: those from the cache are mapped
    size = sum(weight.nbytes for weight in model.parameters())
    then, tokenizer = timed(load_tokenizer, name)
    digest.update(json.dumps([tokenizer(Path(__file__).read_text())["input_ids"], len(tokenizer)]).encode())
    of = {"seconds": seconds, "tokenizer": then, "peak": most / MEBIBYTE, "weights": size / MEBIBYTE}
    return of | {"digest": digest.hexdigest()}


def main(names: list[str]) -> None:
    """Print the table."""
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            places = {"dequantized": os.devnull, "first time": folder, "from the cache": folder}  # none in a device
            found: dict[str, list[dict[str, float]]] = {way: [] for way in places}
            for way in ("first time", *["dequantized", "from the cache"] * RUNS):
                environment = os.environ | {"LRE_CACHE_DIR": places[way]}
                command = [sys.executable, "-m", "benchmarks.gguf", "--load", name]
                said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
                found[way].append(json.loads(said.splitlines()[-1]))
        assert len({one["digest"] for runs in found.values() for one in runs}) == 1
        for way, runs in found.items():
            cells = [f"{min(one[part] for one in runs):.1f}" for part in ("seconds", "tokenizer")]
            most, weights = (min(one[part] for one in runs) for part in ("peak", "weights"))
            ratio = aimed(f"{most / weights:.2f}", way != "from the cache" or most < 1.1 * weights, "1.1")
            rows.append([f"`{Path(name).name}`", way, *cells, f"{most:.0f}", ratio])
    header = ["file", "way", "LM, seconds", "tokenizer, seconds", "peak, MiB", "per weights"]
    print(table("Loading a GGUF file in float32", header, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        print(json.dumps(load(sys.argv[2])))
    else:
        main(sys.argv[1:] or ["smollm2"])
