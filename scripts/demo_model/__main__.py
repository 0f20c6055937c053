"""Rebuild the demo LM, its relations and its card: `python -m scripts.demo_model`.

A killed run resumes from its last finished epoch. The LM and its card are written at the end.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM

from lre_lightning.cli import main as lre_main
from scripts.demo_model.card import BETA, write_card
from scripts.demo_model.corpus import build_library, wording
from scripts.demo_model.data import CorpusDataModule
from scripts.demo_model.recipe import Recipe
from scripts.demo_model.tokenizer import build_tokenizer
from scripts.demo_model.train import DemoTraining, KeepModels, Precision, build_model, fast_precision
from scripts.demo_model.world import Relation, build_world


def write_relations(world: Sequence[Relation], folder: Path) -> None:
    """Write each relation to `folder/<category>/<name>.json`, replacing the folder's content."""
    shutil.rmtree(folder, ignore_errors=True)
    for relation in world:
        path = folder / relation.spec.category / f"{relation.spec.name.replace(' ', '_')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(relation.as_json(), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def train(recipe: Recipe, world: Sequence[Relation], out: Path, work: Path, keep: int, precision: Precision) -> None:
    """Train the demo LM, from the last epoch's checkpoint in `work` if there is one, and write it to `out`.

    `keep` LMs of the training stay in `work / "models"`. The LM that ships was trained in bf16-mixed.
    """
    tokenizer = build_tokenizer(world, wording(world), recipe.merges)
    data = CorpusDataModule(build_library(world), tokenizer, recipe)
    module = DemoTraining(build_model(recipe, tokenizer), tokenizer, world, recipe)
    last = work / "last.ckpt"
    resumed = str(last) if last.exists() else None
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=recipe.epochs,
        precision=precision,
        gradient_clip_val=1.0,
        logger=False,
        callbacks=[
            KeepModels(work / "models", keep),
            ModelCheckpoint(work, "last", enable_version_counter=False, save_on_train_epoch_end=True),
        ],
        reload_dataloaders_every_n_epochs=1,
    )
    trainer.fit(module, data, ckpt_path=resumed, weights_only=False)
    module.model.eval().to(torch.float16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(0o644)
    last.unlink(missing_ok=True)


def describe(recipe: Recipe, out: Path, work: Path, trials: int) -> None:
    """Fit the LREs of the LM in `out`, and write the LM's card."""
    options = {
        "model.name_or_path": out / "model",
        "model.beta": BETA,
        "model.betas": [BETA],
        "data.source": out / "relations",
        "data.trials": trials,
        "trainer.default_root_dir": work,
    }
    if lre_main(["fit", *(f"--{name}={value}" for name, value in options.items())]):
        raise SystemExit("The LREs of the demo LM could not be fitted.")
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    card = out / "model" / "README.md"
    write_card(card, recipe, model.num_parameters(), model.config.vocab_size, work)


def main() -> None:
    """Write the relations and the LM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("lre_lightning/demo"))
    parser.add_argument("--work", type=Path, default=Path("lre_runs/demo_model"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=3, help="trials of the fit for the card")
    parser.add_argument("--keep", type=int, default=10, help="LMs of the training to keep in WORK/models")
    default = "by default 32-true where the CPU emulates bfloat16, else bf16-mixed"
    parser.add_argument("--precision", choices=get_args(Precision), help=default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    recipe = Recipe()
    world = build_world(recipe.seed)
    write_relations(world, arguments.out / "relations")
    precision: Precision = arguments.precision or fast_precision()
    print(f"precision: {precision}")
    train(recipe, world, arguments.out / "model", arguments.work, arguments.keep, precision)
    describe(recipe, arguments.out, arguments.work, arguments.trials)
    print(f"Written to {arguments.out} after {(time.perf_counter() - started) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
