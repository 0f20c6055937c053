"""One trial on SmolLM2 by the code that was published with the paper, beside the same trial here.

The published code runs in an environment of its own, which is set up once; nothing of it is part of this project:

    python3.11 -m venv ENV
    ENV/bin/pip install torch==2.13.0
    ENV/bin/pip install transformers==4.34.1 tokenizers==0.14.1 numpy==1.26.4 dataclasses-json
    git clone https://github.com/evandez/relations CODE
    git clone https://github.com/davidbau/baukit BAUKIT

Run with `python -m benchmarks.paper ENV/bin/python CODE BAUKIT`, or set `LRE_PAPER="ENV/bin/python CODE BAUKIT"` for
`make bench SECTION=paper`. The published code draws the examples and the targets of edits; this project is given them.
The prompts and the known subjects are asserted to be equal, W and b to be equal to rounding.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from benchmarks.common import DEMO_RELATION, table, timed
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.grid import DEFAULT_BETAS, default_ranks
from lre_lightning.lre.estimator import estimate
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import start_tokens
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.records.record import TrialRecord
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions
from lre_lightning.scoring.states import run_trial
from lre_lightning.training.module import LREModule

RUNS = 2
LAYERS = (10, 14, 18)
N_SHOT = 8
ROUNDING = 1e-4
"""The largest relative difference of W and b in float32."""
DRIVER = Path(__file__).with_name("paper_driver.py")
RELATION = "data/factual/country_capital_city.json"
NOTES = [
    "The prompts are equal token by token: the published code draws the examples, and this project is given them. The "
    "published code takes the first mention of a subject where it tests and edits, also one within another word, and "
    "the last one where it estimates; here it is the last one everywhere. It counts any text that the object begins "
    "with, such as *Mexico* without the space before it, where here the token must be the LM's. By default each draws "
    "its own targets of edits, so those counts agree in size alone.",
    "Seconds of one trial of 8 examples, 7 ranks and 21 betas without loading, its sweep there, `Trainer.fit` here: "
    f"the best of {RUNS} runs each, in turn. The published code computes each layer anew; here one sweep serves all.",
]


def write_lm(lm: LanguageModel, folder: Path) -> None:
    """Save a Llama and its tokenizer in the form that transformers 4.34 reads."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"rope_theta": config["rope_parameters"]["rope_theta"]}))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    file.write_text(json.dumps(tokenizer | {"post_processor": None}))


def published(python: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run the trial by the published code, in a process of its own; return what `paper_driver` finds."""
    subprocess.run([python, "-W", "ignore", str(DRIVER), json.dumps(given)], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = torch.load(given["out"])
    return found


def fitted(lm: LanguageModel, data: RelationDataModule, layers: Sequence[int], folder: str) -> TrialRecord:
    """Fit the trial here, as users do."""
    module = LREModule(lm, layers=[*layers])
    trainer = L.Trainer(
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=data)
    (record,) = module.records.values()
    return record


def compare(lm: LanguageModel, data: RelationDataModule, found: dict[str, Any]) -> list[list[object]]:
    """Return rows of the table: W, b and each answer beside those of the published code.

    The prompts and the known subjects are asserted to be equal, W and b to be equal to rounding.
    """
    data.setup()
    prompts = train_prompts(data.trial(0), lm.tokenizer)
    assert [[list(prompt.input_ids), prompt.subject_position] for prompt in prompts] == found["prompts"]
    states = run_trial(lm, data, 0, LAYERS)
    subjects = [prompt.subject for prompt in states.prompts]
    known = [subjects[row] for row in states.known.nonzero().flatten()]
    assert set(known) == set(found["targets"])
    rows: list[list[object]] = [["", "known test subjects", len(known), len(known), 0]]
    once = torch.tensor([prompt.text.count(prompt.subject) == 1 for prompt in states.prompts])[states.known]
    targets = torch.tensor([subjects.index(found["targets"][subjects[row]]) for row in states.edited])
    states = replace(states, targets=targets, target_objects=states.object[targets])
    ranks = default_ranks(lm.hidden_size)
    for index, (layer, theirs) in enumerate(zip(LAYERS, found["layers"], strict=True)):
        lre = estimate(lm, data.trial(0).relation, layer, data.n_shot, prompts=data.prompts)
        for name, own, other in (("W", lre.weight, theirs["weight"]), ("b", lre.bias, theirs["bias"])):
            apart, most = (float(of(own - other) / of(other)) for of in (Tensor.norm, largest))
            assert max(apart, most) < ROUNDING, (layer, name, apart, most)
            norms = [f"norm {float(one.norm()):.5g}" for one in (other, own)]
            rows.append([layer, name, *norms, f"{apart:.0e} of the norm, {most:.0e} of the largest element"])
        subject = states.subject[:, index, None]
        said = faithfulness_predictions(lm, [lre], subject[states.known], DEFAULT_BETAS)[:, 0]
        faithful = said == states.predicted[states.known][:, None]
        edited = causality_predictions(states.edited_runs, [lre], subject[states.edited], states.change, ranks)[:, 0]
        causal = edited == states.wanted[:, None]
        rows.append([layer, "faithful", *counted(theirs["faithful"], known, once, faithful)])
        rows.append([layer, "causal, the same targets", *counted(theirs["causal"], known, once, causal)])
    return rows


def largest(values: Tensor) -> Tensor:
    """Return the largest absolute value."""
    return values.abs().max()


def counted(found: list[list[str]], known: list[str], once: Tensor, right: Tensor) -> list[str]:
    """Return cells of a row: successes `(known, values)` of both, and in how many they differ."""
    theirs = torch.tensor([[subject in at for at in found] for subject in known])
    counts, differ = [f"{int(one.sum())} of {one.numel()}" for one in (theirs, right)], theirs != right
    return [*counts, f"{int(differ.sum())}, of subjects named once {int(differ[once].sum())}"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    if len(arguments) != 3:
        sys.exit('no published code is given: set LRE_PAPER="ENV/bin/python CODE BAUKIT", see benchmarks/paper.py')
    python, code, baukit = arguments
    relation = Path(code) / RELATION
    lm = LanguageModel.from_pretrained("smollm2")
    (start,) = start_tokens(lm.tokenizer, lm.start_token)
    given = {
        "code": code,
        "baukit": baukit,
        "relation": str(relation),
        "ranks": default_ranks(lm.hidden_size),
        "betas": DEFAULT_BETAS,
        "n_shot": N_SHOT,
        "start": lm.tokenizer.convert_ids_to_tokens(start),
    }
    seconds: dict[tuple[int, ...], list[tuple[float, float]]] = {LAYERS[1:2]: [], LAYERS: []}
    with tempfile.TemporaryDirectory() as folder:
        write_lm(lm, Path(folder) / "lm")
        for run in range(RUNS):
            for layers, took in seconds.items():
                own = {"layers": layers, "lm": f"{folder}/lm", "out": f"{folder}/found.pt"}
                found = published(python, given | own)
                prompts = Prompts(train_samples={DEMO_RELATION: found["train"]})
                data = RelationDataModule(lm.tokenizer, source=relation, n_shot=N_SHOT, trials=1, prompts=prompts)
                time, record = timed(fitted, lm, data, layers, f"{folder}/{len(layers)}-{run}")
                took.append((found["seconds"], time))
                print(f"{len(layers)} layers, run {run}: {found['seconds']:.1f} s and {time:.1f} s", file=sys.stderr)
    rows = compare(lm, data, found)
    for index, layer in enumerate(LAYERS):
        edits = [sum(len(at) for at in found["layers"][index]["causal"]), sum(record.causal[index])]
        cells = [f"{count} of {len(record.ranks) * record.edited}" for count in edits]
        rows.append([layer, "causal, targets of its own", *cells, ""])
    for layers, took in seconds.items():
        there, here = map(min, zip(*took, strict=True))
        ratio = f"{there / here:.1f} times as fast"
        rows.append([", ".join(map(str, layers)), "seconds", f"{there:.1f}", f"{here:.1f}", ratio])
    title = f"The paper's own code on SmolLM2 ({DEMO_RELATION})"
    print(table(title, ["layer", "", "published code", "here", "differ"], rows, NOTES))


if __name__ == "__main__":
    main(sys.argv[1:] or shlex.split(os.environ.get("LRE_PAPER", "")))
