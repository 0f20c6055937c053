"""Lightning's Trainer with the jobs of this project's command line that Lightning has no name for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning import Trainer
from typing_extensions import override

from lre_lightning.commands.dataset import count_known, tables_of
from lre_lightning.commands.evaluate import Setting, evaluate
from lre_lightning.errors import LREError
from lre_lightning.report.tables import Table, print_table, write_table
from lre_lightning.runs.checkpoints import read_checkpoint
from lre_lightning.runs.processes import share_error
from lre_lightning.storage.locks import FolderLock

if TYPE_CHECKING:
    from lre_lightning.datamodules import RelationDataModule
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.training.module import LREModule


class LRETrainer(Trainer):
    """Lightning's Trainer; each further method is a subcommand of the command line, with its arguments and help."""

    @override
    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint, as Lightning's Trainer does.

        Raises:
            LREError: On every rank, if it cannot be written.
        """
        error = None
        try:
            super().save_checkpoint(filepath, weights_only, storage_options)
        except LREError as raised:  # by rank zero, before the barrier at which the others wait
            error = raised
            self.strategy.barrier("Trainer.save_checkpoint")
        share_error(self, error)

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
        if self.is_global_zero:
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
        if not self.is_global_zero:
            return
        lock = FolderLock(root, "dataset")
        lock.acquire()
        try:
            records = count_known(self._placed(model), datamodule, root / "dataset_results.jsonl")
            _show(tables_of(records), root / "dataset")
        finally:
            lock.release()

    def distract(self, model: LREModule, datamodule: RelationDataModule, ckpt_path: str) -> None:
        """Ask what an LM still knows under distraction: its own answer against the attribute lens.

        Each known fact is asked for after a falsehood, stated twice or followed by an instruction to repeat it (the
        paper's table "attribute-lens"): how often the true object is among the LM's k most likely, and among those of
        the relation's lens at the subject's last mention, beside controls. The tables go as CSV and LaTeX to the folder
        ``distraction`` below the Trainer's `default_root_dir`.

        Args:
            model: The module.
            datamodule: The relations, in the prompts that the LREs were fitted with.
            ckpt_path: The checkpoint of the fit, or "last".
        """
        from lre_lightning.datamodules import DistractionDataModule
        from lre_lightning.lens.distraction import latent_knowledge
        from lre_lightning.report.distraction import distraction_table

        if not self.is_global_zero:
            return
        model.load_state_dict(read_checkpoint(ckpt_path)["state_dict"])
        lm = self._placed(model)
        kinds: tuple[Literal["repetition", "instruction"], ...] = ("repetition", "instruction")
        results = [
            found
            for kind in kinds
            for found in latent_knowledge(lm, DistractionDataModule(distraction=kind, **datamodule.hparams), model.lres)
        ]
        tables = distraction_table(results, "micro"), distraction_table(results, "macro")
        _show(tables, Path(self.default_root_dir) / "distraction")

    def _placed(self, model: LREModule) -> LanguageModel:
        """The LM on the Trainer's device, or where a device map has put it."""
        return model.lm if model.hparams["device_map"] else model.lm.to(self.strategy.root_device)


def _show(tables: Iterable[Table], folder: Path) -> None:
    """Print tables, and write them to a folder as CSV and LaTeX."""
    for table in tables:
        print_table(table)
        write_table(table, folder)
    print(f"As CSV and LaTeX: {folder}")
