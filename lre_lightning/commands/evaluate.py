"""The subcommand ``evaluate``: the paper's whole evaluation of one LM, or the main fits of several.

A main fit is followed by fits at other n, with other templates, and without relation-specific text. Each is an ordinary
fit in a folder of its own, which a second call resumes or leaves alone. The later fits use the main fit's layers and
ranks. Of several LMs, such as the checkpoints of a training, each has its main fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import DEFAULT_MEASURES, LRECommandLine, measure_named
from lre_lightning.commands.fit import check_trials, try_folders
from lre_lightning.commands.resuming import check_options
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError, check_number
from lre_lightning.models.loading import check_model, locate
from lre_lightning.options import vary
from lre_lightning.prompts.options import TEMPLATES
from lre_lightning.records.analysis import short_name
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import summarize
from lre_lightning.relations.relation import SLOT
from lre_lightning.report.chapters import folders_of
from lre_lightning.report.page import make_report
from lre_lightning.runs.checkpoints import finished_trials
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.locks import FolderLock
from lre_lightning.training.module import LREModule


@dataclass(frozen=True)
class Setting:
    """One fit of an evaluation.

    Attributes:
        name: The name of its folder.
        title: Its description.
        data: Options of the datamodule that differ from the main fit's, by their dotted names.
        model: Options of the module that differ from the main fit's, likewise.
    """

    name: str
    title: str
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


MAIN = Setting("main", "Main fit: layers, ranks and betas")


class Evaluate(Command):
    """Evaluate an LM as the paper does, up to a report.

    Fits in folders of their own below --trainer.default_root_dir: a main fit (grid search over layers, ranks and betas,
    with baselines and line integrals), then fits at other n, with other templates, and without relation-specific text.
    With --models or --revisions, the main fits of several LMs, one after another, and a report that compares them.
    The same command resumes an evaluation that was stopped. Relations can be split over several jobs by
    --data.relations, each with a --trainer.default_root_dir of its own: `lre report` merges them.
    """

    name = "evaluate"
    resumable = True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        numbers = 'fit with these numbers of examples too (figure "varying_n"); 1 to n - 1 if null, [] for none'
        parser.add_argument("--n_shots", type=list[int] | None, default=None, help=numbers)
        templates = """fit with every relation's other prompt templates too (table "prompt_template")"""
        parser.add_argument("--templates", type=bool, default=True, help=templates)
        bare = 'fit without relation-specific text too, with the template {} alone (figure "mode-switch")'
        parser.add_argument("--bare", type=bool, default=True, help=bare)
        models = "evaluate these LMs in place of --model.name_or_path, by main fits alone: hub names or folders"
        parser.add_argument("--models", type=list[str], default=[], help=models)
        revisions = "evaluate these revisions of --model.name_or_path on the hub, by main fits alone"
        parser.add_argument("--revisions", type=list[str], default=[], help=revisions)
        # The paper's figures and tables need baselines and line integrals, and a fit alone does not. The records then
        # differ from a fit's, and one report cannot have both: an evaluation has a folder of its own.
        more = ("Baselines", "LineIntegrals", "Generations", "Distributions")
        parser.set_defaults({"model.measures": [*DEFAULT_MEASURES, *map(measure_named, more)]})
        parser.set_defaults({"trainer.default_root_dir": "lre_evaluation"})

    @override
    def check(self, line: LRECommandLine) -> None:
        options = line.options
        root = Path(options.trainer.default_root_dir or ".")
        try_folders(root, options.model.fitting.lre_dir)
        settings = several(options.model.name_or_path, options.models, options.revisions)
        for setting in settings:
            if not (root / setting.name / "fit_results.jsonl").is_file():
                revision = setting.model.get("loading.revision")
                loading = options.model.loading
                check_model(setting.model["name_or_path"], revision, loading.trust_remote_code, loading.gguf_file)
        for setting in settings[:1]:
            for section in ("model", "data"):
                for name, value in getattr(setting, section).items():
                    options[f"{section}.{name}"] = value  # the LM that is loaded first

    @override
    def check_data(self, line: LRECommandLine) -> None:
        """Find mistakes in the data, and data of which nothing could be scored."""
        check_trials(line)

    @override
    def run(self, line: LRECommandLine) -> None:
        root, options = Path(line.trainer.default_root_dir), line.options
        settings = several(options.model.name_or_path, options.models, options.revisions)
        lock = FolderLock(root)

        def begin() -> None:
            """Take the evaluation's folder, and leave its configuration beside its fits."""
            lock.acquire()
            write_whole(root / "config.yaml", line.dump())

        def make_trainer(setting: Setting) -> Trainer:
            return line.trainer_for(root / setting.name, setting.model, setting.data, begin)

        try:
            if settings:
                evaluate_several(line.model, line.datamodule, make_trainer, settings)
            else:
                evaluate(line.model, line.datamodule, make_trainer, options.n_shots, options.templates, options.bare)
            if line.trainer.is_global_zero:
                print(f"\nReport: {make_report([root], root / 'report')}")
        finally:
            lock.release()


def several(name_or_path: str, models: Sequence[str], revisions: Sequence[str]) -> list[Setting]:
    """Return the settings of the main fits of several LMs, in folders named after them; none if none are given.

    They are of `models`, hub names or folders, or of `revisions` of one LM on the hub.
    """
    if models and revisions:
        raise LREError("give --models or --revisions: the revisions are those of one LM, --model.name_or_path")
    if revisions and Path(locate(name_or_path).path).is_dir():
        raise LREError(f"{name_or_path!r} is a folder, which has no revisions: give a hub name, or folders as --models")
    lms = {name: (name, None) for name in models} | {revision: (name_or_path, revision) for revision in revisions}
    folders = folders_of(short_name(name) for name in lms)
    return [
        Setting(
            folder,
            revision or name,
            {"tokenizer": name} | ({"loader.tokenizer_revision": revision} if revision else {}),
            {"name_or_path": name} | ({"loading.revision": revision} if revision else {}),
        )
        for folder, (name, revision) in zip(folders, lms.values(), strict=True)
    ]


def evaluate_several(
    module: LREModule, data: RelationDataModule, make_trainer: Callable[[Setting], Trainer], settings: Sequence[Setting]
) -> None:
    """Run the main fits of several LMs, with one LM in memory at a time; finished fits are left alone.

    The module and the datamodule are those of the first setting, whose LM's weights are dropped after its fit.
    """
    arguments = {**module.hparams}
    for place, setting in enumerate(settings):
        rank_zero_only(print)(f"\n{setting.title} ({place + 1} of {len(settings)})")
        options = data.changed(**vary({"loader": data.loader}, setting.data))
        trainer, own = make_trainer(setting), vary(arguments, setting.model)
        if not _finished(trainer, own, options.hparams):
            module = module if place == 0 else LREModule(**own)
            _fit(module, options, trainer)
        module.lm.release()


def _finished(trainer: Trainer, model: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether the fit in a Trainer's folder has written everything, after a check of its options."""
    callback: Any = trainer.checkpoint_callback
    last, results = Path(callback.dirpath) / "last.ckpt", Path(trainer.default_root_dir) / "fit_results.jsonl"
    if not last.is_file():
        return False
    check_options(last, model, data)
    done, total, _ = finished_trials(last)
    # The end of a fit writes the results once more, after the last checkpoint.
    return done == total and results.is_file() and results.stat().st_mtime_ns >= last.stat().st_mtime_ns


def evaluate(
    module: LREModule,
    data: RelationDataModule,
    make_trainer: Callable[[Setting], Trainer],
    n_shots: Sequence[int] | None = None,
    templates: bool = True,
    bare: bool = True,
) -> list[TrialRecord]:
    """Run the main fit and the fits that vary it (figures "varying_n", "mode-switch", table "prompt_template").

    Args:
        module: The module of the main fit, with its measures.
        data: The datamodule of the main fit, with the relations' first templates. A template that is given in
            their place is a relation's only one.
        make_trainer: Makes the Trainer of one fit, with a `ModelCheckpoint` that writes ``last.ckpt`` into a folder of
            that fit's own, named after `Setting.name` for example; what is there is resumed.
        n_shots: Other numbers of examples n; 1 to n - 1 if None.
        templates: Whether to fit with each relation's other templates.
        bare: Whether to fit with the template ``{}``, without relation-specific text.

    Returns:
        The records of all fits.
    """
    chosen = data.prompts.template
    if chosen in (SLOT, *TEMPLATES) or (isinstance(chosen, int) and chosen):
        raise LREError(f"an evaluation uses all templates in turn: leave template {chosen!r} out")
    numbers = list(range(1, data.n_shot)) if n_shots is None else sorted({n for n in n_shots if n != data.n_shot})
    for n in numbers:
        check_number("n", n, 1)
    records = _fit(module, data, make_trainer(MAIN))
    for setting in _settings(module, data, records, numbers, templates, bare):
        rank_zero_only(print)(f"\n{setting.title}")
        varied_module = LREModule(**{**vary(module.hparams, setting.model), "name_or_path": module.lm})
        varied_data = data.changed(**vary({"prompts": data.prompts, "selection": data.selection}, setting.data))
        records += _fit(varied_module, varied_data, make_trainer(setting))
    return records


def _settings(
    module: LREModule,
    data: RelationDataModule,
    records: Sequence[TrialRecord],
    n_shots: Sequence[int],
    templates: bool,
    bare: bool,
) -> list[Setting]:
    """Return the fits after the main one, over the relations that it scored."""
    summaries = [summary for summary in summarize(records) if summary.trials]
    if not summaries:
        return []
    scored = {summary.relation: {"layer": summary.layer, "rank": summary.rank} for summary in summaries}
    unscored = [relation.name for relation in data.relations if relation.name not in scored]
    data_options = {"selection.exclude": [*(data.selection.exclude or []), *unscored]}
    betas = {summary.beta for summary in summaries}
    beta = betas.pop() if len(betas) == 1 else module.beta  # the main fit's, which may have been tuned
    alone: dict[str, Any] = {
        "measures": [],
        "fitting.lre_dir": None,
        "beta": beta,
        "betas": [beta],
    }
    fixed = alone | {"fitting.choices": scored, "ranks": None}
    settings = [Setting(f"n{n}", f"n = {n} examples", data_options | {"n_shot": n}, fixed) for n in n_shots]
    if templates and data.prompts.template == 0:
        most = max(len(relation.templates) for relation in data.relations if relation.name in scored)
        settings += [
            Setting(f"template{i}", f"Template {i} of each relation", data_options | {"prompts.template": i}, fixed)
            for i in range(1, most)
        ]
    if bare:
        bare_options = data_options | {"prompts.template": SLOT}
        model_options = alone
        if module.fitting.select_by == "both":  # which needs what it chooses by
            model_options = alone | {"measures": [one.plain() for one in module.measures if one.before_choice]}
        settings.append(Setting("bare", "Without relation-specific text", bare_options, model_options))
    return settings


def _fit(module: LREModule, data: RelationDataModule, trainer: Trainer) -> list[TrialRecord]:
    """Fit, from the last checkpoint if there is one."""
    callback: Any = trainer.checkpoint_callback
    last = Path(callback.dirpath) / "last.ckpt"
    if last.is_file():
        check_options(last, module.hparams, data.hparams)
    trainer.fit(module, datamodule=data, ckpt_path=last if last.is_file() else None)
    return list(module.records.values())
