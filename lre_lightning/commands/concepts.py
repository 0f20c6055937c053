"""The subcommand ``concepts``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command, given
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.concepts.evaluation import evaluate_relations
from lre_lightning.concepts.probes import check_installed
from lre_lightning.concepts.record import ConceptOptions
from lre_lightning.report.concepts import concept_tables, unscored
from lre_lightning.report.console import show_tables
from lre_lightning.sharing.export import check_steerable, write_control_vectors
from lre_lightning.storage.locks import FolderLock


class Concepts(Command):
    """Compare directions of objects with linear probes.

    The LRE of a relation, inverted, turns o, the state of an object, into a direction among s, those of subjects: a
    concept (Chanin et al., 2024). Concepts and probes classify subjects that they were not trained on. They also steer
    the LM from one object to another. Concepts, records and tables go to the folder ``concepts`` below
    --trainer.default_root_dir, where `lre report` finds them. The same command resumes a comparison that was stopped.
    """

    name = "concepts"
    resumable = True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(ConceptOptions, None, instantiate=False)
        vectors = "write each object's concept as a control vector for llama.cpp too, a GGUF file beside the concepts"
        parser.add_argument("--control_vectors", type=bool, default=False, help=vectors)

    @override
    def check(self, line: LRECommandLine) -> None:
        """Check the options and that probes can be fitted."""
        check_installed()
        given(ConceptOptions, line.options)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        root = Path(line.trainer.default_root_dir)
        with FolderLock(root, "concepts"):
            lm = line.placed_lm()
            options = given(ConceptOptions, line.options)
            if line.options.control_vectors:
                check_steerable(options.places(lm)[:1])
            records = evaluate_relations(lm, line.datamodule, options, root / "concepts")
            if line.options.control_vectors:
                write_control_vectors(lm, root / "concepts", options.magnitude)
            show_tables(concept_tables(records), root / "concepts")
            if unscored(records):
                print(unscored(records))
