"""The subcommand ``explore``."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import find_checkpoint
from lre_lightning.commands.validate import FromLREs, name_the_lm
from lre_lightning.concepts.concepts import Concepts, concept_files
from lre_lightning.demo import COLLECTIONS
from lre_lightning.explore.explorer import Explorer
from lre_lightning.explore.server import HOST, PORT, check_installed, listen, new_token, serve
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lre.lre import first_trials
from lre_lightning.lre.origin import check_origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.sharing.collection import LRECollection


class Explore(FromLREs):
    """Look through lenses and edit on a page in the browser.

    A local page, for this machine alone: type a text, see what every layer and token says through the lens of a
    relation, the Jacobian lens, concepts or the logit lens, and edit a subject to see what the LM says instead. An LM
    without LREs has the logit lens.
    """

    name = "explore"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_lres(parser, "take the LREs from")
        jlens = "Jacobian lens to offer as well: a file, a folder or a hub name"
        parser.add_argument("--jlens", type=str | None, default=None, help=jlens)
        other = "collection of another LM, to set side by side with this one"
        parser.add_argument("--other", type=str | None, default=None, help=other)
        other_model = "hub name or folder of the LM of --other, if it is not one of this package's"
        parser.add_argument("--other_model", type=str | None, default=None, help=other_model)
        parser.add_argument("--port", type=int, default=PORT, help="port of the page; 0 for any that is free")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint or the LM of the collection, where there is one."""
        check_installed()
        options = line.options
        bundled = options.lres or options.model.name_or_path in COLLECTIONS
        if (
            not bundled
            and options.ckpt_path == "last"
            and not find_checkpoint("last", Path(options.checkpoint.dirpath))
        ):
            options.ckpt_path = None
        super().check(line)

    @override
    def check_data(self, line: LRECommandLine) -> None:
        if line.options.ckpt_path is not None:
            super().check_data(line)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        listener = listen(line.options.port)
        explorers = [self.explorer(line)]
        other, name = line.options.other, line.options.other_model
        if other is not None:
            explorers.append(explorer_of_collection(other, explorers[0].lm.device, name))
        for explorer in explorers:
            print(f"{explorer.lm.label}: {len(explorer.lenses)} lenses")
        token = new_token()
        print(f"http://{HOST}:{listener.getsockname()[1]}/{token}/ (stop with Ctrl-C)", flush=True)
        serve(explorers, listener, token)

    def explorer(self, line: LRECommandLine) -> Explorer:
        """Return the explorer of the LREs, with the Jacobian lens that was named, and the run's concepts."""
        options, root = line.options, Path(line.trainer.default_root_dir)
        lm, lres, names = self.lres_of(line)
        lens = None if options.jlens is None else JacobianLens.load(options.jlens, lm)
        loaded = [Concepts.load(file) for file in concept_files(root / "concepts")]
        own = [concepts for concepts in loaded if concepts.origin.identity.fits(lm.identity)]
        return Explorer(lm, lres, names, self.subjects_of(line), lens, own, self.faithfulness_of(line))


def explorer_of_collection(source: str, device: torch.device, name_or_path: str | None = None) -> Explorer:
    """Return the explorer of a collection, whose LM is loaded: `name_or_path`, or the one it names if it is `trusted`.

    Raises:
        LREError: If there is no such collection, or its LM cannot be loaded or must be named.
    """
    lres = LRECollection.from_pretrained(source)
    if name_or_path is None and not lres.trusted:
        raise name_the_lm(lres, "--other_model")
    loading = {name.removeprefix("loading."): value for name, value in lres.loading.items()}
    loading |= {} if name_or_path is None else {"name_or_path": name_or_path}
    lm = LanguageModel.from_pretrained(**loading).to(device)
    check_origin(lres.index.origin, lm)
    scores = {entry.key[0]: entry.scores[0] or 0.0 for entry in lres.index.entries.values()}
    return Explorer(lm, lres, [*first_trials(lres)], lres.subjects, scores=scores)
