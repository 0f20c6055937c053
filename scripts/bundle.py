"""Bundle the LREs of a fit with the package: ``make demo``, then ``python -m scripts.bundle demo lre_runs``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lre_lightning.commands.push import scorer_of
from lre_lightning.demo import COLLECTIONS
from lre_lightning.lens.likeness import Likenesses, write_likenesses
from lre_lightning.lre.lre import first_trials
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.sharing.card import About
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.smaller import Form
from lre_lightning.sharing.writing import write_collection

LICENCES = {"demo": ("mit", None), "smollm2": ("apache-2.0", "the relations of the paper, MIT")}
"""Licences of the LREs, which are derived from the LM, and of the relations where the source does not tell."""


def main(name: str, run: str) -> None:
    """Write the collection of a bundled name from a run's folder; the same call continues one that was stopped."""
    folder, (license_, data_license) = COLLECTIONS[name], LICENCES[name]
    if name == "demo":
        shutil.rmtree(folder, ignore_errors=True)
    form = Form(rank="auto", least=4 if name == "demo" else 64, dtype="float16")
    about = About(license=license_, data_license=data_license, repository=name)
    print(write_collection(LRECollection.from_pretrained(run), folder, form, scorer_of(Path(run)), about))
    carry_likenesses(name)


def carry_likenesses(name: str) -> None:
    """Write what says where the lenses of a bundled collection say nothing, which takes its LM a minute to find."""
    lm, lres = LanguageModel.from_pretrained(name), LRECollection.from_pretrained(name)
    layers = {relation: lres.metadata[relation, trial]["layer"] for relation, trial in first_trials(lres).items()}
    write_likenesses(Likenesses(lm, dict(lres), [*{*layers.values()}]), layers, COLLECTIONS[name])


if __name__ == "__main__":
    main(*sys.argv[1:])
