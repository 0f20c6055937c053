"""Make the bundled collection again from a fit: ``make demo``, then ``python -m scripts.demo_lres``."""

from __future__ import annotations

import shutil
from pathlib import Path

from lre_lightning.commands.command_line import DEFAULT_ROOT_DIR
from lre_lightning.commands.push import scorer_of
from lre_lightning.demo import DEMO, LRES_DIR
from lre_lightning.sharing.card import About
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.smaller import Form
from lre_lightning.sharing.writing import write_collection


def main(run: Path = Path(DEFAULT_ROOT_DIR)) -> None:
    """Write the collection from a run's folder."""
    shutil.rmtree(LRES_DIR, ignore_errors=True)
    form, about = Form(rank="auto", dtype="float16"), About(license="mit", repository=DEMO)
    print(write_collection(LRECollection.from_pretrained(run), LRES_DIR, form, scorer_of(run), about))


if __name__ == "__main__":
    main()
