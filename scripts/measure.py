"""Measure SmolLM2 on the paper's relations again: everything that the page of results shows.

Run with ``python -m scripts.measure FOLDER [SOURCE]``, where SOURCE is "paper" or a folder of its relations. It takes
about three hours on two cores; the same call goes on with what was stopped. Then ``python -m scripts.results`` renders
the page.

The first trial of each relation is scored on the whole grid. The others, the sweep over n, and the Jacobian lens have
the layers and ranks that it chose; without relation-specific text all layers are scored. n is swept over every second
relation by the number of known samples, and every fourth is compared with concepts and the Jacobian lens.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lre_lightning import LanguageModel
from lre_lightning.records.files import read_records
from lre_lightning.records.record import TrialRecord

RESULTS = Path(__file__).parents[1] / "docs" / "results"
START = "--data.prompts.start_token=bos"
OPTIONS = ["--model.name_or_path=smollm2", "--model.fitting.max_known=60", "--data.n_shot=8", START]
OPTIONS += ["--model.fitting.select_by=causality"]  # as in the paper
WHOLE = [f"--model.measures+={name}" for name in ("Baselines", "LineIntegrals", "Generations", "WholeObjects")]
TABLES = (
    "distraction/attribute_lens.csv",
    "distraction/attribute_lens_macro.csv",
    "cross/controls.csv",
    "concepts/concepts_accuracy.csv",
    "concepts/concepts_causality.csv",
)
LETTERS = "ABCDEFGHIJKLMNOPRSTUVWY"


def main(folder: str, source: str = "paper") -> None:
    """Run all measurements in a folder, and copy their records to docs/results as they end."""
    root, source_of = Path(folder), f"--data.source={source}"
    common = [*OPTIONS, source_of]

    def fit(name: str, *options: str) -> Path:
        results = root / name / "fit_results.jsonl"
        lre("fit", root / name, *common, *options)
        shutil.copy(results, RESULTS / f"{name}.jsonl")
        return results

    main_fit = fit("main", "--data.trials=1", *WHOLE)
    scored = sorted((one for one in read_records([main_fit]) if one.scored), key=lambda record: record.known)

    def chosen(records: Sequence[TrialRecord]) -> list[str]:
        choices = {record.relation: {"layer": record.layer, "rank": record.rank} for record in records}
        return [f"--model.fitting.choices={json.dumps(choices)}", f"--data.relations={json.dumps(list(choices))}"]

    fit("trials", *chosen(scored), "--data.trials=2", "--data.selection.first_trial=1")
    fit("bare", chosen(scored)[1], "--data.trials=1", "--data.prompts.template=bare", "--model.betas=[1]")
    for n in (4, 1):
        fit(f"n{n}", *chosen(scored[::2]), "--data.trials=1", f"--data.n_shot={n}", "--model.betas=[1]")
    lre("distract", root / "main")
    lre("cross", root / "main")
    few = "--model.name_or_path=smollm2", START, source_of, chosen(scored[::4])[1], "--data.trials=1", "--jacobians=8"
    lre("concepts", root / "main", *few)
    for table in TABLES:
        shutil.copy(root / "main" / table, RESULTS)
    shutil.copy(root / "main" / "cross" / "cross.png", RESULTS.parent / "images" / "results")
    frozen = ["--model.fitting.backward=frozen", "--model.fitting.grid=choice", "--data.trials=3"]
    fit("frozen", chosen(scored)[1], *frozen)
    for rule in ("exact", "frozen"):
        options = f"--model.fitting.backward={rule}", "--model.fitting.grid=choice", "--data.source=demo"
        lre("fit", root / rule, *options)
        shutil.copy(root / rule / "fit_results.jsonl", RESULTS / {"exact": "demo.jsonl"}.get(rule, "demo_frozen.jsonl"))
    lens(root)
    jlens = ["--model.measures+=JacobianLensLREs", f"--model.measures.lens={root / 'lens'}"]
    fit("jlens", *chosen(scored[::4]), "--data.trials=1", *jlens)


def lens(root: Path) -> None:
    """Estimate the Jacobian lens from texts that the LM writes itself, sampled with a seed, one from each letter."""
    texts = root / "texts.jsonl"
    if not texts.is_file():
        import torch

        lm: Any = LanguageModel.from_pretrained("smollm2")
        torch.manual_seed(0)
        written = []
        for letter in LETTERS:
            ids = torch.tensor([lm.tokenizer.encode(letter)])
            out = lm.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=40)
            written.append(lm.tokenizer.decode(out[0]))
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in written))
    options = ["--model.name_or_path=smollm2", f"--data.texts={texts}", "--data.length=32", "--data.shortest=24"]
    options.append("--data.reading.start_token=bos")
    lre("jlens", root / "lens", *options)


def lre(command: str, folder: Path, *options: str) -> None:
    """Run a subcommand of ``lre`` in a folder, unless it has ended there before."""
    done = folder / f"{command}.done"
    if done.is_file():
        return
    options = (*options, f"--trainer.default_root_dir={folder}")
    subprocess.run([sys.executable, str(RESULTS.parents[1] / "cli.py"), command, *options], check=True)
    done.touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
