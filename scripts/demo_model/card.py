"""The demo LM's model card, with the scores of a fit."""

from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from statistics import fmean

from lre_lightning.records.files import read_records
from lre_lightning.records.record import TrialRecord
from scripts.demo_model.recipe import Recipe

BETA = 1.0
DURATION = "The LM that ships took 10 minutes on one core of a busy machine."

CARD = """\
---
license: mit
language: en
library_name: transformers
---

# Demo LM of lre-lightning

A decoder-only LM that is small enough to ship ({parameters:.1f} M parameters, stored in 16 bits) and
knows the relations beside it, so that the suite can be tried and tested without a download. It is
good for nothing else: it has read nothing but text that states the facts of those relations.

**Architecture.** Llama with {layers} blocks of width {width}, {heads} heads, MLPs of width {inner}, a
byte-level BPE vocabulary of {vocabulary}, untied embeddings. Subjects are several tokens that other
subjects share; objects start with a token of their own.

**Text.** Few-shot lines with informative and with bare templates, lists of a subject's attributes
in any order, short talks that name a subject once and then ask about it, comparisons, sentences and
questions. Countries, words, fruits, occupations and given names are real, people and companies are
invented. The bias relations repeat stereotypes, because the paper's do; they claim nothing.

**Training.** Lightning's Trainer, on CPU, AdamW, {steps} steps of {batch} rows of {length} tokens
({tokens:.1f} M tokens), seed {seed}. {duration} `make demo-model` repeats it, together with the
relations and this card; on other hardware or other versions of PyTorch, rounding can lead to other
weights.

**What was done so that it shows what large LMs show.** An LM of this kind that is left alone looks a
fact up where it is asked, from the subject's raw tokens: the LREs of one that was trained without
what follows (8 blocks, 1.7 M tokens) were at most 0.11 faithful for the four relations of which it
knew 90% or more. So in
{hidden:.0%} of the training rows a subject's tokens could be seen from within the subject alone, and
its last token from block {delay} on as well. The LM thereby learned to gather what it knows about a
subject at the subject's last token, in its early blocks, and to read it from there. Nothing is hidden
when the LM is used. No LRE, no probe and no split into training and test subjects had a part in
training. The company CEO relation was left out of this: its facts were told in one wording only, in
no list and with nothing hidden.

## Figures

`lre fit` with n = 8, beta = {beta}, trials = {trials}. *known*: share of the test samples whose object the LM
ranks first under the 8-shot prompt. Faithfulness after the embedding and after each block, the best
in bold; causality at its best layer and rank. Of the betas from 0.25 to 5, 2.25 is the most faithful
to the LM that ships, by 0.05 on average; there company CEO comes to 0.30, and causality is above
faithfulness for 7 of the 27 relations only.

{table}

Licence: MIT, as the rest of the package.
"""


def table_line(relation: str, records: Sequence[TrialRecord]) -> str:
    """Return one row of the card's table, from the records of a relation's trials."""
    first, scored = records[0], [record for record in records if record.scored]
    layers, ranks = (scored[0].layers, scored[0].ranks) if scored else ((), ())
    faithful = {layer: fmean(record.faithfulness(layer, BETA) for record in scored) for layer in layers}
    causal = {pair: fmean(record.causality(*pair) for record in scored) for pair in product(layers, ranks)}
    best = max(faithful, key=faithful.__getitem__, default=None)
    cells = [f"**{score:.2f}**" if layer == best else f"{score:.2f}" for layer, score in faithful.items()]
    (layer, rank), edit = max(causal.items(), key=lambda item: item[1], default=(("-", "-"), 0.0))
    known = fmean(record.known / record.tested for record in records)
    head = [relation, str(first.samples), f"{1 / first.random_guess:.0f}", f"{known:.2f}"]
    return " | ".join(["", *head, *cells, f"{edit:.2f} ({layer}, {rank})", f"{first.random_guess:.2f}", ""]).strip()


def figures_table(records: Sequence[TrialRecord]) -> str:
    """Return the card's table of scores."""
    relations = {name: [*group] for name, group in groupby(records, key=lambda record: record.relation)}
    layers = max((record.layers for record in records), key=len)
    names = ["relation", "samples", "range", "known", *layers, "causality (layer, rank)", "random guess"]
    head = ["| " + " | ".join(map(str, names)) + " |", "|---" * len(names) + "|"]
    return "\n".join([*head, *(table_line(name, group) for name, group in relations.items())])


def write_card(path: Path, recipe: Recipe, parameters: int, vocabulary: int, run: Path) -> None:
    """Write the model card of an LM with so many parameters and tokens, from the records of the fit of its LREs."""
    records, steps = read_records(run), recipe.epochs * recipe.steps
    text = CARD.format(
        **{name: getattr(recipe, name) for name in ("layers", "width", "heads", "inner", "length", "seed")},
        **{"hidden": recipe.hidden, "delay": recipe.delay, "batch": recipe.batch_size, "steps": steps},
        parameters=parameters / 1e6,
        vocabulary=vocabulary,
        tokens=steps * recipe.batch_size * recipe.length / 1e6,
        trials=len({record.trial for record in records}),
        beta=BETA,
        duration=DURATION,
        table=figures_table(records),
    )
    path.write_text(text, encoding="utf-8")
