"""The paper's whole evaluation of one LM: a main fit, and the same at other n, with other templates, without any.

Each of these is an ordinary fit in a folder of its own, which a second call resumes or leaves alone. The fits after the
main one take its layers and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.options import flatten
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import summarize
from lre_lightning.relations.relation import SLOT
from lre_lightning.runs.checkpoints import read_hyperparameters
from lre_lightning.training.module import LREModule

if TYPE_CHECKING:
    from lightning import Trainer


@dataclass(frozen=True)
class Setting:
    """One fit of an evaluation.

    Attributes:
        name: Name of its folder.
        title: What it is, in words.
        data: Options of the datamodule that differ from the main fit's.
        model: Options of the module that differ from the main fit's.
    """

    name: str
    title: str
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


MAIN = Setting("main", "Main fit: layers, ranks and betas")


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
        module: The module of the main fit; whether it counts baselines and line integrals is its own option.
        data: The datamodule of the main fit, with the relations' first templates.
        make_trainer: Makes the Trainer of one fit, with a `ModelCheckpoint` that writes ``last.ckpt`` into a folder of
            that fit's own, named after `Setting.name` for example; what is there is resumed.
        n_shots: Other numbers of examples n; 1 to n - 1 if None.
        templates: Whether to fit with each relation's other templates.
        bare: Whether to fit with the template ``{}``, without relation-specific text.

    Returns:
        The records of all fits.

    Raises:
        LREError: If `data` has another template, an n is out of range, or a folder has a fit with other options.
    """
    if data.prompts.template != 0:
        template = data.prompts.template
        raise LREError(f"an evaluation goes through the templates itself: leave template {template!r} out")
    numbers = list(range(1, data.n_shot)) if n_shots is None else sorted({n for n in n_shots if n != data.n_shot})
    for n in numbers:
        if type(n) is not int or n < 1:
            raise LREError(f"n {n!r} is out of range: it must be a whole number of at least 1, such as 5")
    records = _fit(module, data, make_trainer(MAIN))
    for setting in _settings(module, data, records, numbers, templates, bare):
        rank_zero_only(print)(f"\n{setting.title}")
        options: dict[str, Any] = {**module.hparams, **setting.model, "name_or_path": module.lm}
        records += _fit(LREModule(**options), data.changed(**setting.data), make_trainer(setting))
    return records


def _settings(
    module: LREModule,
    data: RelationDataModule,
    records: Sequence[TrialRecord],
    n_shots: Sequence[int],
    templates: bool,
    bare: bool,
) -> list[Setting]:
    """The fits after the main one, over the relations that it scored."""
    summaries = summarize(records)
    scored = {s.relation: {"layer": s.layer, "rank": s.rank} for s in summaries if s.trials}
    unscored = [relation.name for relation in data.relations if relation.name not in scored]
    selection = {"exclude": [*data.selection.exclude, *unscored]}
    if not scored:
        return []
    betas = {s.beta for s in summaries if s.trials}
    beta = betas.pop() if len(betas) == 1 else module.beta  # the main fit's, which may have been tuned
    alone: dict[str, Any] = {"baselines": False, "line_integrals": 0, "lre_dir": None, "beta": beta, "betas": [beta]}
    fixed = alone | {"choices": scored, "ranks": None}
    most = max(len(relation.templates) for relation in data.relations if relation.name in scored)

    def asking(template: int | str) -> dict[str, Any]:
        return {"prompts": {"template": template}, "selection": selection}

    return [
        *(Setting(f"n{n}", f"n = {n} examples", {"n_shot": n, "selection": selection}, fixed) for n in n_shots),
        *(
            Setting(f"template{i}", f"Template {i} of each relation", asking(i), fixed)
            for i in range(1, most if templates else 1)
        ),
        *([Setting("bare", "Without relation-specific text", asking(SLOT), alone)] if bare else []),
    ]


def _fit(module: LREModule, data: RelationDataModule, trainer: Trainer) -> list[TrialRecord]:
    """Fit, from the last checkpoint where there is one."""
    callback: Any = trainer.checkpoint_callback
    last = Path(callback.dirpath) / "last.ckpt"
    if last.is_file():
        check_options(last, {"model": dict(module.hparams), "data": dict(data.hparams)})
    trainer.fit(module, datamodule=data, ckpt_path=last if last.is_file() else None)
    return list(module.records.values())


HARMLESS = {
    "data": {"loader.batch_size", "loader.texts", "loader.trust_remote_code"},
    "model": {
        "attn_implementation",
        "chunk_size",
        "device_map",
        "lre_dir",
        "max_memory",
        "offload_folder",
        "trust_remote_code",
    },
}
"""Options of which neither the list of pairs nor what is measured depends."""


def check_options(checkpoint: Path, given: dict[str, dict[str, Any]]) -> None:
    """Refuse to go on with a fit that was begun with other options, the harmless ones excepted.

    Args:
        checkpoint: A checkpoint of the fit.
        given: The options now, under ``"model"`` and ``"data"``.

    Raises:
        LREError: If an option differs, which is named.
    """
    remembered, kinds = read_hyperparameters(checkpoint), {"model": LREModule, "data": RelationDataModule}
    for section, options in given.items():
        earlier = flatten(kinds[section], remembered[section])
        for name, value in flatten(kinds[section], options).items():
            before = earlier.get(name)
            if before != value and name not in HARMLESS[section]:
                raise LREError(
                    f"{str(checkpoint)!r} is of a fit with {section}.{name} {before!r}, not {value!r}: give the same "
                    "options to go on with it, or another --trainer.default_root_dir"
                )
