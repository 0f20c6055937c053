"""The subcommand ``explore``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.predict import subjects_of
from lre_lightning.commands.validate import FromLREs
from lre_lightning.concepts.concepts import Concepts
from lre_lightning.explore.explorer import Explorer
from lre_lightning.explore.server import HOST, PORT, check_installed, listen, serve
from lre_lightning.jlens.lens import JacobianLens


class Explore(FromLREs):
    """Look through lenses and edit on a page in the browser.

    A local page, for this machine alone: type a text, see what every layer and token says through the lens of a
    relation, the Jacobian lens, concepts or the logit lens, and edit a subject to see what the LM says instead.
    """

    name = "explore"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_lres(parser, "take the LREs from")
        jlens = "Jacobian lens to offer as well: a file, a folder or a hub name"
        parser.add_argument("--jlens", type=str | None, default=None, help=jlens)
        parser.add_argument("--port", type=int, default=PORT, help="port of the page; 0 for any that is free")

    @override
    def check(self, line: LRECommandLine) -> None:
        check_installed()
        super().check(line)

    @override
    def run(self, line: LRECommandLine) -> None:
        if line.trainer.is_global_zero:
            listener = listen(line.options.port)
            explorer = explorer_of(line, self)
            print(f"{len(explorer.lenses)} lenses of {explorer.lm.label}: http://{HOST}:{listener.getsockname()[1]}/")
            print("Stop with Ctrl-C.", flush=True)
            serve(explorer, listener)


def explorer_of(line: LRECommandLine, command: FromLREs) -> Explorer:
    """Return the explorer of a command line's LREs, with the Jacobian lens that it names, and the run's concepts."""
    lm, lres, names = command.lres_of(line)
    jlens = line.options.jlens
    lens = line.model.jacobian_lens if jlens is None else JacobianLens.load(jlens, lm)
    files = sorted(Path(line.trainer.default_root_dir).glob("concepts/*/trial*.safetensors"))
    concepts = [Concepts.load(file) for file in files]
    own = [one for one in concepts if one.origin.fingerprint == lm.fingerprint]
    return Explorer(lm, line.datamodule.tokenizer, lres, names, subjects_of(line, lres), lens, own)
