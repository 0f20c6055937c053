"""Lightning's Trainer with the jobs of this project's command line that Lightning has no name for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lightning import Trainer

from lre_lightning.dataset import count_known, print_tables, write_tables
from lre_lightning.evaluation import Setting, evaluate

if TYPE_CHECKING:
    from lre_lightning.datamodules import RelationDataModule
    from lre_lightning.module import LREModule


class LRETrainer(Trainer):
    """Lightning's Trainer; each further method is a subcommand of the command line, with its arguments and help."""

    def evaluate(
        self,
        model: LREModule,
        datamodule: RelationDataModule,
        make_trainer: Callable[[Setting], Trainer],
        n_shots: list[int] | None = None,
        templates: bool = True,
        bare: bool = True,
    ) -> None:
        """Evaluate an LM as the paper does: grid search, baselines, sweeps, and a report.

        Fits in folders of their own below the Trainer's `default_root_dir`: a main fit (grid search over layers, ranks
        and betas, with baselines and line integrals), then fits at other n, with other templates, and without
        relation-specific text. The same command goes on with an evaluation that was stopped. Relations can be shared
        out over several jobs by `data.relations`, each with a `default_root_dir` of its own: `lre report` merges them.

        Args:
            model: The module.
            datamodule: The relations.
            make_trainer: Makes the Trainer of each fit.
            n_shots: Other numbers n of examples (figure "varying_n"); 1 to n - 1 if null, [] for none.
            templates: Fit with every relation's other prompt templates too (table "prompt_template").
            bare: Fit without relation-specific text too, with the template {} alone (figure "mode-switch").
        """
        from lre_lightning.report.page import make_report

        root = Path(self.default_root_dir)
        evaluate(model, datamodule, make_trainer, n_shots, templates, bare)
        print(f"\nReport: {make_report([root], root / 'report')}")

    def dataset(self, model: LREModule, datamodule: RelationDataModule) -> None:
        """Count what an LM knows of the relations under n-shot contexts, without estimating anything.

        Samples, known facts (mean and deviation over trials) and first-token coverage, the paper's tables "dataset",
        "full-dataset" and "first_token_filter", go as CSV and LaTeX to the folder ``dataset`` below the Trainer's
        `default_root_dir`. The same command goes on with a count that was stopped.

        Args:
            model: The module, of which only the LM is used.
            datamodule: The relations.
        """
        root = Path(self.default_root_dir)
        lm = model.lm if model.hparams["device_map"] else model.lm.to(self.strategy.root_device)
        records = count_known(lm, datamodule, root / "dataset_results.jsonl")
        print_tables(records)
        print(f"As CSV and LaTeX: {write_tables(records, root / 'dataset')}")
