"""The page of results on SmolLM2, docs/results.md, from the records in docs/results, and the lens of the README.

Run with ``python -m scripts.results``; the lens needs SmolLM2.

What the paper measured on GPT-J is in docs/results/paper.csv (Table "hparams-gptj" of Hernandez et al., ICLR 2024).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from lre_lightning import LanguageModel, Likenesses, LRECollection, read_lenses
from lre_lightning.grid import DEFAULT_BETAS
from lre_lightning.lens.plotting import plot_lenses
from lre_lightning.measures.baselines import plot_causality_baselines, plot_faithfulness_baselines
from lre_lightning.measures.jacobian_lens import METHODS
from lre_lightning.measures.whole_objects import WholeObjects
from lre_lightning.records.analysis import (
    SCORES,
    Score,
    by_model,
    causality,
    counted,
    faithfulness,
    joint,
    on_most,
    over_relations,
    overall,
    per_relation,
    scored_in_all,
)
from lre_lightning.records.files import read_records
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import summarize
from lre_lightning.report.findings import findings
from lre_lightning.report.page import plot
from lre_lightning.report.relations import choice_text, chosen_layers, plot_categories, plot_relations, plot_scatter
from lre_lightning.report.sections import Picture, picture_of
from lre_lightning.report.sweeps import (
    plot_beta,
    plot_layers,
    plot_layers_by_relation,
    plot_mode_switch,
    plot_n,
    plot_ranks,
)
from lre_lightning.report.tables import Cell, Table, by_relation, to_text
from lre_lightning.statistics.estimates import Estimate, estimate
from lre_lightning.statistics.intervals import Interval, mean_difference

FITS = ("main", "trials", "n1", "n4", "bare")
"""The files of records that belong together; that of LREs beside the Jacobian lens repeats the first trial."""

STUDIES = (
    (
        "What a collection is made of",
        "The W of all relations at one layer as one tensor, in forms of fewer numbers, beside the same forms of W "
        "whose rows and columns are permuted; and the relations whose W are most alike.",
        "what-a-collection-is-made-of",
        ("components", "components_alike"),
    ),
    (
        "Readings of what isn't there",
        "Can a lens tell subjects of its relation from what has no object to read, a *null*? The first table "
        "compares statistics that tell them apart, each at a threshold with 5% of false alarms. The second says, "
        "over relations, what goes with the LM's answers about made-up names.",
        "readings-of-what-isnt-there",
        ("calibration", "linearity"),
    ),
    (
        "How often a fact occurs",
        "Is what occurs more often more linear (Merullo et al., 2025)? How often each fact occurs is set beside "
        "whether it is known, faithful and edited. For the demo, occurrences are lines of its training texts. For "
        "SmolLM2 they are frequencies of words in general English, for eight relations, at layer 12, rank 64 and "
        "beta 1, with up to 60 known samples of each. The demo has 27 relations, layers 1 to 3, beta 2.25, and knows "
        "all of its facts, each told 103 to 738 times.",
        "fact-by-fact",
        ("frequency",),
    ),
    (
        "What an edit leaves alone",
        "How many edits succeed, and what else they change, over one trial of each relation. An LRE's edit changes "
        "more than one fact about its subject. At the layers and ranks of the best causality, 85% of SmolLM2's edits "
        "succeed (the demo: 91%) and 6% (30%) of the answers by other relations are kept; random steps of the same "
        "length keep 83% (88%). Many of these answers become what the LM says about s': 46% at rank 64 (64% at rank "
        "16), and 80% (72%) where s' itself is inserted, the oracle. So much of what an edit does is to exchange the "
        "subject. Half the step is the better trade. It succeeds for 55% (48%) and keeps 41% (66%), and the harmonic "
        "mean of both rises from 0.10 to 0.42, by 0.32 [0.23, 0.38] paired over relations (0.40 to 0.51, by 0.11 "
        "[0.01, 0.21]). Exchanging two concepts of the LRE is gentler than its edit: it succeeds for 58% (72%) and "
        "keeps 35% (46%). Steering by the same concepts, as long as s, keeps as little as the LRE's edit. Exchanging "
        "what a Jacobian lens reads keeps more, and is the best trade of all on the demo, with 61% and 75%; on "
        "SmolLM2, with J of 23 texts, it hardly succeeds (1%, 4% with twice the step). Layer and rank chosen by both "
        "reach 0.38 (0.58) with the whole step, on the trials that chose them. Answers about other subjects in the "
        "same text are hardly ever lost. `lre fit` with `--model.measures+=Specificity`, "
        "`--model.measures.every_layer=true` and `--model.measures.lens`, and `lre report`, make the tables. "
        "SmolLM2's are of 11 relations at layers 10, 14 and 18, with up to 12 edits of each; 8 share subjects with "
        "others, with 4 to 12 answers of each. The demo's are of 27 relations at layers 1 to 3, with up to 20 edits; "
        "23 share subjects. By rank, causality is over all relations; by edit and choice, success is over those that "
        "share subjects.",
        "what-an-edit-leaves-alone",
        ("specificity", "specificity_by_edit", "specificity_lost", "specificity_by_choice"),
    ),
    (
        "Lenses side by side",
        "Several lenses read the same prompts: how often is the word that they should read among their k likeliest "
        "tokens? In the second table what they read for the object and for another one is exchanged, beside "
        "displacements of equal length. At subjects the LRE reads most among all tokens, though at 10 hardly more "
        "than the most frequent objects would, and the Jacobian lens reads more than the logit lens. Among the "
        "relation's objects the Jacobian lens is as good on the demo. On the published sets, which SmolLM2 alone "
        "is given, the Jacobian lens finds more than the logit lens in multihop, several languages and typos; "
        "neither finds anything in poetry and association. SmolLM2 has ten relations, with up to 24 facts, and J "
        "of 23 texts of 24 to 32 tokens; the demo has 27, with up to 30, and J of 96 sequences of its training "
        "texts.",
        "lenses-side-by-side",
        ("lenses", "lens_swaps"),
    ),
    (
        "Trained maps",
        "Linear maps that are trained by the KL of their answers, beside LREs, on the n = 8 examples of an LRE and "
        "on ten times as many. From 8 examples a map that is trained alone is far behind the LRE: 0.40 against 0.64 "
        "on SmolLM2, 0.44 against 0.94 on the demo. From 80 it is about as faithful as an LRE of 8 on the same "
        "samples, and hardly edits SmolLM2. Training from the LRE on costs it no causality, and is the most faithful "
        "throughout. On one core an LRE of SmolLM2 takes 3 s per example, and training 3 to 8 s in all. `lre fit` "
        "with `--model.measures+=TrainedMaps` and `lre report` make the tables: SmolLM2's of all 39 relations that "
        "it knows well enough, at layer 12, rank 64 and beta 1, of which 17 have samples for 80; the demo's at layer "
        "2, rank 8 and beta 2.25.",
        "trained-maps",
        ("trained_maps", "trained_maps_by_relation"),
    ),
    (
        "Whole objects by templates",
        "How often the lens reads that object, of all objects of the relation, which the LM itself finds most "
        "probable.",
        "whole-objects-by-templates",
        ("objects",),
    ),
)
"""Tables of `scripts.studies`: title, what they show, the section of the method, and names."""

MORE = (
    (
        "Under distraction",
        "How often what the LM knows is among the k likeliest tokens of the LM, and of the LRE's lens at the subject, "
        "in prompts that state a falsehood. For GPT-J the paper has recalls at 1, 2 and 3, over 11,891 prompts, of "
        "0.02, 0.33 and 0.41 (the lens 0.54, 0.65 and 0.71) after repetition, and of 0.03, 0.17 and 0.25 (0.63, 0.73 "
        "and 0.78) after an instruction.",
        "attribute_lens",
        "attribute_lens_macro",
    ),
    (
        "Controls",
        "The LRE of each relation on its own facts, W without b, b alone, an LRE from examples whose objects were "
        "exchanged, and the LREs of other relations. `lre cross` makes the table.",
        "controls",
    ),
    (
        "Concepts",
        "Concepts are directions of objects, W⁺ (o - b) (Chanin et al., 2024), with W⁺ the pseudo-inverse of W and o "
        "the mean state of an object. They classify subjects and edit them, and are set beside linear probes: "
        "accuracy on subjects that they were not made from, and the share of edits that succeed. Every fourth "
        "relation by known samples. `lre concepts` makes the tables.",
        "concepts_accuracy",
        "concepts_causality",
    ),
    (
        "Moves along lenses",
        "The subject's state is moved so that the LM answers for another subject. Prompts have no examples, and the "
        "LM knows their answers. The table sets success beside what else changes. One column is KL(before || after), "
        "in nats, of the next token in prompts of other relations with the same subject. The last column is about "
        "the eight tokens that the LM writes with the move: the mean log probability that the LM without the move "
        "gives to them. [Guide](guides/edits.md#moves-along-a-lens). A second live swap undoes the first, so that "
        "nothing is left of it on SmolLM2; clamping avoids that. `python -m scripts.moves` makes the table, from a "
        "few relations.",
        "moves",
    ),
    *(
        (f"{title} ({where})", f"{note} [Definitions](method.md#{anchor}).", *(f"{name}_{lm}" for name in names))
        for title, note, anchor, names in STUDIES
        for lm, where in (("smollm2", "SmolLM2"), ("demo", "the demo"))
    ),
)
"""Tables of other commands: title, what it shows, and files."""

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images" / "results"


def main() -> None:
    """Write the page and its pictures."""
    files = [DOCS / "results" / f"{name}.jsonl" for name in FITS]
    (model,) = by_model(read_records([file for file in files if file.is_file()]))
    with (DOCS / "results" / "paper.csv").open(newline="") as file:
        paper = {row["relation"]: row for row in csv.DictReader(file)}
    records = model.main
    first = [record for record in records if "baselines" in record.measures]
    by_layer, by_rank = (choice_text(on_most(records, axis)) for axis in ("layers", "ranks"))
    pictures = {
        "Relations": [picture_of(plot_relations, records), picture_of(plot_scatter, records)],
        "Layers": [picture_of(plotted, records, note=by_layer) for plotted in (plot_layers, plot_layers_by_relation)],
        "Ranks and β": [picture_of(plot_ranks, records, note=by_rank), picture_of(plot_beta, records)],
        "Baselines": [
            picture_of(plotted, first, note=choice_text(first))
            for plotted in (plot_faithfulness_baselines, plot_causality_baselines)
        ],
    }
    if len(model.by_n) > 1:
        by_n = dict(sorted(model.by_n.items()))
        own = choice_text(list(chain(*scored_in_all(by_n).values())))
        pictures["Number of examples"] = [picture_of(plot_n, by_n, note=own)]
    if model.bare:
        pictures["Without relation-specific text"] = [picture_of(plot_mode_switch, records, model.bare)]
    sections = [f"## {title}\n\n" + "\n\n".join(map(shown, some)) for title, some in pictures.items()]
    found = findings(records, model.bare)
    text = [*opening(records, found, paper), shown(picture_of(plot_categories, [model])), head(records)]
    text += [verdicts(found), "## The paper's findings\n\n" + judged(found), beside(records, paper)]
    text += [f"## The choice of layers\n\n{gained(records)}\n\n{markdown(table)}" for table in chosen_layers(records)]
    for part in WholeObjects.sections(records):
        sections += [f"## {part.title}\n\n" + "\n\n".join(map(markdown, part.tables))]
    for title, note, *names in MORE:
        tables = [DOCS / "results" / f"{name}.csv" for name in names]
        if all(table.is_file() for table in tables):
            note = f"{note} {FOUND[names[0]](tables[0])}" if names[0] in FOUND else note
            image = IMAGES / f"{names[0]}.png"
            shown_too = [f"![{title}](images/results/{image.name})"] if image.is_file() else []
            sections.append("\n\n".join([f"## {title}\n\n{note}", *shown_too, *map(from_csv, tables)]))
    if (IMAGES / "cross.png").is_file():
        note = "The LRE of each relation (columns) on the facts of each relation (rows), by `lre cross`."
        sections.append(f"## Relation by relation\n\n![{note}](images/results/cross.png)\n\n*{note}*")
    if (DOCS / "results" / "jlens.jsonl").is_file():
        sections.append(beside_the_jacobian_lens(read_records([DOCS / "results" / "jlens.jsonl"])))
    lms = {"smollm2": ("main", "trials", "frozen"), "demo": ("demo", "demo_frozen")}
    read = {name: [read_records([DOCS / "results" / f"{file}.jsonl"]) for file in files] for name, files in lms.items()}
    sections.append(rules({name: (list(chain(*exact)), frozen) for name, (*exact, frozen) in read.items()}))
    lens()
    (DOCS / "results.md").write_text("\n\n".join([*text, *sections]) + "\n", encoding="utf-8")


def lens() -> None:
    """Write the lens of capital cities over a sentence that asks for none, the first picture of the README."""
    lm, lres = LanguageModel.from_pretrained("smollm2"), LRECollection.from_pretrained("smollm2")
    text, layers = "She grew up in Egypt, studied in France and works in Japan", range(1, lm.num_layers - 6, 3)
    likenesses = Likenesses(lm, lres, layers)
    grids = read_lenses(lm, lm.tokenizer, text, lres, ["country capital city"], layers=layers, likenesses=likenesses)
    plot_lenses(grids).savefig(DOCS / "images" / "lens_capitals.png", metadata={"Software": None})


def head(records: Sequence[TrialRecord]) -> str:
    """Say what was measured."""
    scored = [record for record in records if record.scored]
    first, names = scored[0], {record.relation for record in records}
    few = names - {record.relation for record in scored}
    left = "" if len(names) == 47 else f" The other {47 - len(names)} have not been measured yet."
    layers, ranks = len(first.layers), ", ".join(map(str, first.ranks))
    trials = len({record.trial for record in records})
    return f"""## What was measured

{len(names)} of the paper's 47 relations on SmolLM2-135M-Instruct (`smollm2`: Llama's architecture, 30 layers of width
576, 4-bit weights dequantized to float32), beside what the paper reports of GPT-J (6 billion parameters).{left}

- n = {first.n_shot} examples as in the paper, seed 0; {trials} trials of each relation, where the paper has 24. The
  first one is scored on the whole grid, and the others at the layer and rank that it chose.
- All {layers} layers, ranks {ranks}, β from {first.betas[0]:g} to {first.betas[-1]:g}.
- {choice_text(records)} The first trial's are beside them below.
- A trial asks for its test samples in a drawn order until the LM knows 60 of them (`--model.fitting.max_known 60`).
- Of {len(few)} relations the LM knows fewer than n test samples; as in the paper they are not scored.
- Layer and rank are those of the best causality on the first trial's samples.

[Method](method.md) defines all of it. `python -m scripts.results` renders this page from the records in `docs/results`.
`python -m scripts.measure FOLDER` measures them again in some hours on two cores, and resumes what was stopped."""


def opening(records: Sequence[TrialRecord], found: Table, paper: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """Say in five sentences what was found, below the title."""
    faithful, causal = (
        {name: one.value for name, one in per_relation(records, score).items()} for score in SCORES.values()
    )
    theirs = [
        [float(paper[name][score]) for name in own if name in paper]
        for score, own in (("faithfulness", faithful), ("causality", causal))
    ]
    (mean_f, mean_c), (paper_f, paper_c) = (
        [sum(some) / len(some) for some in values] for values in ((faithful.values(), causal.values()), theirs)
    )
    ordered = sorted(faithful, key=faithful.__getitem__)
    rows = {str(row[0]).removeprefix("LRE is more faithful than "): row for row in found.rows}
    own, simpler = (float(str(rows["linear regression"][place])) for place in (2, 3))
    holds, unclear = Counter(str(row[1]) for row in found.rows), "can't tell"
    said = [
        f"For each relation, one linear map of the subject's hidden state gives the LM's own answer for {mean_f:.0%} "
        "of the facts that the LM knows, "
        f"on average over {len(faithful)} relations; in the paper's GPT-J, which is 44 times as large, it is "
        f"{paper_f:.0%} on the same relations.",
        f"Inverted, the map makes the LM answer for another subject in {mean_c:.0%} of edits (GPT-J: {paper_c:.0%}).",
        f"It depends on the relation: *{ordered[-1]}* is at {faithful[ordered[-1]]:.2f}, and *{ordered[0]}* at "
        f"{faithful[ordered[0]]:.2f}; {sum(value > 0.6 for value in faithful.values())} of {len(faithful)} are above "
        "0.6.",
        f"Linear regression over the same examples has {simpler:.2f}, where the map has {own:.2f}.",
        f"Of {len(found.rows)} findings of the paper, {holds['yes']} hold on this LM too, {holds['no']} does not, and "
        f"of {holds[unclear]} these relations can't tell.",
    ]
    return "# The paper's relations on a real LM", " ".join(said)


def judged(table: Table) -> str:
    """Return the table of findings as two that fit a page: what was found, and how it was judged."""
    first = ("finding", "holds", "value", "compared with", "95% interval", "relations")
    parts = (first, ("finding", *(name for name in table.columns if name not in first)))
    places = [[table.columns.index(name) for name in names] for names in parts]
    found, how = (
        replace(table, columns=names, rows=tuple(tuple(row[place] for place in own) for row in table.rows))
        for names, own in zip(parts, places, strict=True)
    )
    return f"{markdown(found)}\n\n{markdown(replace(how, caption='How each was judged, and what the paper has:'))}"


def verdicts(table: Table) -> str:
    """Say in short what of the paper held."""
    holds = {name: [str(row[0]) for row in table.rows if row[1] == name] for name in ("yes", "no", "can't tell")}
    heads = {"yes": "Holds on this LM too", "no": "Does not", "can't tell": "These relations can't tell"}
    return "\n".join(f"- **{heads[name]}:** {'; '.join(some)}." for name, some in holds.items() if some)


def gained(records: Sequence[TrialRecord]) -> str:
    """Say how much better scores look in the trial that chose layer and rank than in the others."""
    lines = []
    for name, score in SCORES.items():
        chose, others = (per_relation([r for r in records if r.chose == own], score) for own in (True, False))
        names, pairs = joint(chose, others)
        apart = estimate(pairs, mean_difference)
        assert apart is not None
        assert apart.interval is not None
        first, rest = pairs.mean(0)
        most = max(names, key=lambda name: chose[name].value - others[name].value)
        lines.append(
            f"- {name.capitalize()} is {first:.2f} in the trial that chose, and {rest:.2f} in the others, over "
            f"{len(names)} relations: {apart.value:.2f} [{apart.interval.low:.2f}, {apart.interval.high:.2f}] less. "
            f"The most is lost in *{most}*: {chose[most].value:.2f} and {others[most].value:.2f}."
        )
    return "\n".join(lines)


def found_under_distraction(path: Path) -> str:
    """Say whether the lens finds more than an answer that ignores the subject."""
    with path.open(newline="", encoding="utf-8") as file:
        found = {row["condition"]: float(row["R@1"]) for row in csv.DictReader(file)}
    lens, most = (found[f"{name} RD prompts"] for name in ("Attribute lens on", "Most frequent objects,"))
    compared = "more than" if lens > most else "**no more than**"
    return (
        f"Over the prompts of this LM the lens finds {lens:.2f} at 1, {compared} the most frequent object of each "
        f"relation would, {most:.2f}, which the paper does not compare with."
    )


def found_of_others(path: Path) -> str:
    """Say how much the LREs of other relations do."""
    with path.open(newline="", encoding="utf-8") as file:
        own, *others = (row for row in csv.DictReader(file) if row["LRE"] == "its own LRE" or "other rel" in row["LRE"])
    said = (
        f"{' and '.join(f'{float(row[metric]):.2f}' for row in others)} of {metric} ({float(own[metric]):.2f})"
        for metric in SCORES
    )
    return f"LREs of other relations, of the same and of other categories, keep {', and '.join(said)}."


FOUND = {"attribute_lens": found_under_distraction, "controls": found_of_others}
"""What the first table of a section says in words."""


def from_csv(path: Path) -> str:
    """Return a table of a command as Markdown, with numbers, deviations and intervals as the report shows them."""
    with path.open(newline="", encoding="utf-8") as file:
        columns, *lines = csv.reader(file)
    names = [name for name in columns if name.removesuffix(" std") == name or name.removesuffix(" std") not in columns]
    names = [name for name in names if not (name.endswith((" low", " high")) and name.rsplit(" ", 1)[0] in names)]

    def cell(row: dict[str, str], name: str) -> Cell:
        parts = [row.get(f"{name}{part}") for part in ("", " std", " low", " high")]
        try:
            value, deviation, low, high = (float(text) if text else None for text in parts)
        except ValueError:
            return row[name]
        if value is None:
            return None
        interval = None if low is None or high is None else Interval(low, high)
        if deviation is not None or interval is not None:
            return Estimate(value, deviation, interval)
        return int(row[name]) if row[name].isdecimal() else value

    rows = [dict(zip(columns, line, strict=True)) for line in lines]
    return markdown(Table(path.stem, "", tuple(names), tuple(tuple(cell(row, name) for name in names) for row in rows)))


def beside_the_jacobian_lens(records: Sequence[TrialRecord]) -> str:
    """Return the table of LREs beside a Jacobian lens at their layers."""
    scores = {
        f"{metric[0].upper()}: {name}": per_relation(records, score)
        for metric, methods in METHODS.items()
        for name, score in methods.items()
    }
    note = (
        "The Jacobian lens J = E[do/dh] of 23 texts that the LM wrote itself (`lre jlens`), in place of W at each "
        "relation's layer and rank: alone, with the LRE's b, and mixed with W. Faithfulness (F) and causality (C) in "
        "the first trial of every fourth relation by known samples."
    )
    names = [record.relation for record in records]
    table = by_relation("generic", "", names, scores, ("mean", *map(overall, scores.values())))
    return f"## LREs and the Jacobian lens\n\n{note}\n\n{markdown(table)}"


def rules(lms: Mapping[str, tuple[Sequence[TrialRecord], Sequence[TrialRecord]]]) -> str:
    """Return the table of the exact backward pass beside the frozen one, by LM."""
    note = (
        "W from the LM's own derivatives (*exact*), and from those with the scales of norms and attention weights as "
        "constants (*frozen*, `--model.fitting.backward frozen`, [method](method.md#backward-rules)), on the same "
        "trials. The first trial chose layer, rank and β for each rule, and scores are those of the other two. Scores "
        "at the best layer are of the first trial, for LMs with counts at all layers by both rules. SmolLM2 has none: "
        "its `frozen.jsonl` keeps only the layers and ranks at which all edits were run, and its other scores do not "
        "depend on the rest. Means over the relations that have been measured by both, their paired difference and "
        "its 95% interval. By the frozen rule the demo's LREs are more faithful at β = 1 than by the exact one at its "
        "best β, and the best β is nearer to 1 on both LMs. For causality these relations can't tell a difference."
    )
    rows = [(name, *row) for name, (exact, frozen) in lms.items() for row in _rule_rows(exact, frozen)]
    columns = ("LM", "score", "relations", "exact", "frozen", "difference", "better", "worse")
    return f"## Backward rules\n\n{note}\n\n" + markdown(Table("rules", "", columns, tuple(rows), digits=3))


def _rule_rows(exact: Sequence[TrialRecord], frozen: Sequence[TrialRecord]) -> Iterator[tuple[Cell, ...]]:
    both = {record.relation for record in counted(exact)} & {r.relation for r in counted(frozen) if r.trial == 2}
    found = [[record for record in records if record.relation in both] for records in (exact, frozen)]
    first, later = ([[r for r in records if (r.trial > 0) == late] for records in found] for late in (False, True))
    best = [max(DEFAULT_BETAS, key=lambda beta: _mean(partial(faithfulness, beta=beta), own)) for own in first]
    scores: dict[str, tuple[Sequence[Sequence[TrialRecord]], Sequence[Score]]] = {
        "faithfulness, β = 1": (later, [partial(faithfulness, beta=1.0)] * 2),
        f"faithfulness, β = {best[0]:g} and {best[1]:g}": (later, [partial(faithfulness, beta=beta) for beta in best]),
        "causality": (later, [causality] * 2),
    }
    if len({record.layers for own in first for record in own}) == 1:
        scores["faithfulness at the best layer, β = 1"] = first, [_at_the_best_layer] * 2
    for name, (records, score) in scores.items():
        means = [per_relation(own, one) for own, one in zip(records, score, strict=True)]
        names, pairs = joint(*means)
        apart = pairs[:, 1] - pairs[:, 0]
        difference = estimate(pairs[:, ::-1], mean_difference)
        counts = int((apart > 1e-9).sum()), int((apart < -1e-9).sum())
        yield (name, len(names), *(float(mean) for mean in pairs.mean(0)), difference, *counts)


def _at_the_best_layer(record: TrialRecord) -> float:
    layers = [layer for layer in record.layers if layer not in record.identity_layers]
    return max(faithfulness(record, layer, 1.0) for layer in layers)


def _mean(score: Score, records: Sequence[TrialRecord]) -> float:
    found = over_relations(records, score)
    return found.value if found else 0.0


def beside(records: Sequence[TrialRecord], paper: dict[str, dict[str, str]]) -> str:
    """Return the table of all relations beside the paper's."""
    alone = partial(faithfulness, beta=0.0)
    scores = [per_relation(records, score) for score in (faithfulness, causality, alone)]
    scores += [per_relation([r for r in records if r.chose], score) for score in SCORES.values()]
    known = {summary.relation: summary.known_of for summary in summarize(records)}
    rows = []
    for first in {record.relation: record for record in reversed(records)}.values():
        name, theirs = first.relation, paper.get(first.relation)
        gptj = [f"{theirs[s]} ± {theirs[f'{s}_deviation']}" if theirs else "-" for s in ("faithfulness", "causality")]
        own = str(first.layer) if first.scored else None, first.rank, *(found.get(name) for found in scores)
        rows.append((name, first.category, known[name], *own, *gptj))
    rows.sort(key=lambda row: row[1::-1])
    columns = (
        "relation",
        "category",
        "known",
        "layer",
        "rank",
        "faithfulness",
        "causality",
        "b alone",
        "first trial: F",
        "C of it",
        "GPT-J: F",
        "C",
    )
    note = (
        "With 95% intervals, which say what other samples of the relation would change. *b alone* is the "
        "faithfulness at β = 0, which says the same for every subject. *First trial*: the scores of the trial that "
        "chose layer and rank. GPT-J's: means and deviations over trials."
    )
    return f"## All relations\n\n{note}\n\n" + markdown(Table("relations", "", columns, tuple(rows)))


def markdown(table: Table) -> str:
    """Return a table as Markdown, under its caption."""
    lines = [table.columns, ["---"] * len(table.columns), *to_text(table)]
    text = "\n".join(f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in line)} |" for line in lines)
    return f"{table.caption}\n\n{text}".strip()


def shown(picture: Picture) -> str:
    """Write a picture to the images of the page, and return it with its caption."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / f"{picture.name}.png").write_bytes(plot(picture)[1])
    return f"![{picture.caption}](images/results/{picture.name}.png)\n\n*{picture.caption}*"


if __name__ == "__main__":
    main()
