"""Many relations: 100,000 samples in 500 relations, read from every kind of file, and prompts made of them.

Run with `python -m benchmarks.data`. The tokenizer is GPT-2's if ``LRE_TOKENIZERS_DIR`` has it, else the bundled one.
Times and memory are measured in one process per kind of file, without the imports. All kinds are asserted to give the
same relations.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import aimed, table, timed
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.relations.json_files import write_relations
from lre_lightning.relations.relation import Relation, Sample

RELATIONS, SAMPLES, OBJECTS = 500, 200, 50
TOKENIZER = Path(os.environ.get("LRE_TOKENIZERS_DIR", "")) / "gpt2"
SCRIPT = """
import hashlib, json, re, sys, time
from lre_lightning.datamodules import RelationDataModule
import datasets, pyarrow.parquet, pydantic
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
data = RelationDataModule(source=sys.argv[1], n_shot=8, trials=1)
data.tokenizer
before, start = peak(), time.perf_counter()
relations = data.candidates()
loaded, memory = time.perf_counter() - start, peak() - before
data.setup()
ready = time.perf_counter() - start
digest = hashlib.sha256("".join(sorted(relation.digest for relation in relations)).encode()).hexdigest()
print(json.dumps([loaded, ready, memory, len(relations), digest]))
"""


def made() -> list[Relation]:
    """Return relations between names of two or three words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvwz", k=draw.randint(3, 9))).title() for _ in range(5000)]
    relations = []
    for number in range(RELATIONS):
        objects = [" ".join(draw.sample(words, 2)) for _ in range(OBJECTS)]
        subjects = {" ".join(draw.sample(words, draw.randint(2, 3))) for _ in range(SAMPLES + 20)}
        samples = tuple(Sample(subject, draw.choice(objects)) for subject in sorted(subjects)[:SAMPLES])
        template = f"The {words[number].lower()} of {{}} is"
        relations.append(Relation(f"relation {number}", "made", (template,), (), "", "", False, samples))
    return relations


def written(relations: list[Relation], folder: Path) -> dict[str, Path]:
    """Write the relations to files of each kind; return their paths."""
    rows = [
        {"relation": r.name, "category": r.category, "template": r.template, "subject": s.subject, "object": s.object}
        for r in relations
        for s in r.samples
    ]
    places = {
        "JSON, one file per relation": folder / "json",
        **{k: folder / f"table.{k}" for k in ("csv", "jsonl", "parquet")},
    }
    write_relations(relations, places["JSON, one file per relation"])
    with places["csv"].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    places["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    from datasets import Dataset

    dataset = Dataset.from_list(rows)
    dataset.to_parquet(str(places["parquet"]))
    places["datasets, saved"] = folder / "saved"
    dataset.save_to_disk(str(places["datasets, saved"]))
    return places


def load(place: Path) -> tuple[float, float, float, int, str]:
    """Return seconds to load and until a trial of each relation is drawn, MiB, number of relations and their digest."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(place)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    loaded, ready, memory, count, digest = json.loads(output)
    return loaded, ready, memory / 2**10, count, digest


def prompts_of(relations: list[Relation], tokenizer: str) -> tuple[float, int]:
    """Return the seconds to make all test prompts of a trial of each relation, and their number."""
    data = RelationDataModule(tokenizer, source=relations, n_shot=8, trials=1)
    data.setup()
    seconds, batches = timed(lambda: list(data.val_dataloader()))
    return seconds, sum(map(len, batches))


def main() -> None:
    """Print the tables."""
    relations = made()
    with tempfile.TemporaryDirectory() as folder:
        loaded = {kind: load(place) for kind, place in written(relations, Path(folder)).items()}
    assert {result[3] for result in loaded.values()} == {RELATIONS}
    assert len({result[4] for result in loaded.values()}) == 1, "kinds of files give different relations"
    rows = [
        [kind, f"{r[0]:.2f}", aimed(f"{r[1]:.2f}", r[1] < 30, "below 30"), f"{r[2]:.0f}"] for kind, r in loaded.items()
    ]
    header = ["source", "seconds to load", "and to draw a trial of each", "MiB"]
    print(table(f"{RELATIONS * SAMPLES:,} samples in {RELATIONS} relations", header, rows))

    name = str(TOKENIZER) if TOKENIZER.is_dir() else "demo"
    seconds, prompts = prompts_of(relations[:20], name)
    title = f"Prompts of 8 examples, tokenizer {Path(name).name}"
    print("\n" + table(title, ["prompts", "per second"], [[f"{prompts:,}", f"{prompts / seconds:,.0f}"]]))


if __name__ == "__main__":
    main()
