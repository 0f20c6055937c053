"""The subcommand ``lenses``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.validate import FromLREs
from lre_lightning.concepts.concepts import Concepts, concept_files
from lre_lightning.errors import LREError, check_number
from lre_lightning.grid import Layer
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.comparison import LensRanks, rank_lenses
from lre_lightning.lens.prompt_sets import PromptSet, read_prompt_set, relation_prompts
from lre_lightning.lens.reading import start_of
from lre_lightning.lens.swaps import LensSwaps, lens_swaps
from lre_lightning.lre.lens import Lens, LogitLens
from lre_lightning.lre.lre import first_trials, origins_of
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.relations.json_files import LARGEST_FILE, check_file
from lre_lightning.relations.relation import draw_order
from lre_lightning.report import page
from lre_lightning.report.console import show_tables
from lre_lightning.report.lenses import layer_table, lens_table, plot_lenses_by_layer, swap_table
from lre_lightning.report.sections import picture_of
from lre_lightning.report.tables import write_table
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.storage.files import write_whole
from lre_lightning.training.bank import LREStore


class Lenses(FromLREs):
    """Compare lenses on the same prompts.

    The lens of each relation, that of another relation, concepts, the Jacobian lens and the logit lens read facts that
    the LM knows, at the subject and at the last token. Lenses without a relation also read the prompts of files. How
    often is the word that they should read among their k likeliest tokens, at every layer? Tables and a figure go to
    the folder ``lenses_compared`` below --trainer.default_root_dir.
    """

    name = "lenses"
    logs = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_lres(parser, "take the LREs from")
        add = parser.add_argument
        files = "files of prompts in the format with which the Jacobian lens was published"
        add("--prompts", type=list[str], default=[], help=files)
        add("--jlens", type=str | None, default=None, help="Jacobian lens: a file, a folder or a hub name")
        add("--concepts", type=str | None, default=None, help="folder of concepts, written by lre concepts")
        add("--facts", type=int, default=60, help="number of facts of a relation at most; 0 to read files alone")
        add("--layers", type=list[int | str] | None, default=None, help="layers to read; all by default")
        swaps = "also swap what each lens reads at the subject, beside controls"
        add("--swaps", type=bool, default=False, help=swaps)
        add("--ks", type=list[int], default=[1, 10], help="the numbers of likeliest tokens that count")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Check the numbers and the files, and take the options of the checkpoint or the LM of the collection."""
        options = line.options
        check_number("facts", options.facts, 0)
        for k in options.ks or [0]:
            check_number("ks", k, 1)
        for file in options.prompts:
            check_file(Path(file), LARGEST_FILE)
        if options.concepts is not None and not concept_files(Path(options.concepts)):
            raise LREError(f"{options.concepts!r} has no concepts: give the folder concepts of a run of lre concepts")
        super().check(line)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        options, (lm, lres, names) = line.options, self.lres_of(line)
        layers, ks = lm.check_layers(options.layers), sorted({*options.ks})
        generic: dict[str, Lens] = {}
        if options.jlens is not None:
            jlens = JacobianLens.load(options.jlens, lm)
            generic[jlens.name] = jlens
        generic[LogitLens().name] = LogitLens()
        start = start_of(lm, lm.tokenizer, origins_of(lres).values(), next(iter(generic.values())))
        sets = [read_prompt_set(Path(file), lm.tokenizer, start) for file in options.prompts]
        found: list[LensRanks] = []
        swaps: list[LensSwaps] = []
        if options.facts:
            concepts = {} if options.concepts is None else read_concepts(Path(options.concepts), lm)
            for facts, layer, lenses in self.facts(line, lm, lres, names, concepts):
                found += rank_lenses(lm, facts, lenses | generic, layers)
                if options.swaps:
                    swaps += lens_swaps(lm, facts, lenses | generic, layer)
        for prompts in sets:
            found += rank_lenses(lm, prompts, generic, layers)
            if prompts.left_out:
                print(f"{prompts.name}: {prompts.left_out} words are no single token, and are not looked for")
        if not found:
            raise LREError("there is nothing to read: give the relations of the LREs, --data.source, or --prompts")
        folder = Path(line.trainer.default_root_dir) / "lenses_compared"
        svg, png = page.plot(picture_of(plot_lenses_by_layer, found, ks[-1]))
        write_whole(folder / "lenses_by_layer.svg", svg)
        write_whole(folder / "lenses_by_layer.png", png)
        write_table(layer_table(found, ks), folder / "lenses_by_layer")
        tables = [lens_table(found, ks, lm.label), *([swap_table(swaps, lm.label)] if swaps else [])]
        show_tables(tables, folder)

    @staticmethod
    def facts(
        line: LRECommandLine,
        lm: LanguageModel,
        lres: LREStore | LRECollection,
        names: list[str],
        concepts: Mapping[str, Concepts],
    ) -> Iterator[tuple[PromptSet, Layer, dict[str, Lens]]]:
        """Yield the prompts of each relation that has an LRE, its layer, and the lenses of relations to read them."""
        relations = {relation.name: relation for relation in line.datamodule.candidates()}
        trials, origins = first_trials(lres), origins_of(lres)
        chosen = [name for name in names if name in trials and name in relations]
        for name in progress(chosen, "Lenses side by side"):
            lre = lres[name, trials[name]].to(lm.device)
            lenses: dict[str, Lens] = {"LRE": lre}
            others = [other for other in chosen if other != name]
            if others:
                other = min(others, key=partial(draw_order, name))
                lenses["LRE of another relation"] = lres[other, trials[other]].to(lm.device)
            seen = []
            if name in concepts:
                lenses["concepts"] = concepts[name]
                seen = [subject for subject, _ in concepts[name].origin.train]
            facts = relation_prompts(lm, relations[name], origins[name], line.options.facts, seen)
            if facts.prompts:
                yield facts, lre.layer, lenses
            else:
                print(f"{name}: the LM knows no fact that its lenses were not estimated from")


def read_concepts(folder: Path, lm: LanguageModel) -> dict[str, Concepts]:
    """Return the concepts of the first trial of each relation in such a folder."""
    loaded = [Concepts.load(file, lm) for file in concept_files(folder)]
    loaded.sort(key=lambda concepts: -concepts.origin.trial)
    return {concepts.origin.relation: concepts for concepts in loaded}
