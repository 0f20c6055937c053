"""LREs made of those of other relations, on an affine LM of which numpy computes every count."""

from itertools import product

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.lre.estimator import estimate_trial
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.cross import CONTROLS, cross_scores
from lre_lightning.scoring.derived import Derivation, derivations, derive
from lre_lightning.scoring.states import draw_key, draw_targets
from tests.helpers.identities import SOME
from tests.helpers.toy import toy_model, toy_tokenizer, with_affine_blocks
from tests.scoring.trials import pinv

WIDTH, COUNT = 16, 7
WORDS = ["[BOS]", "[UNK]", "\n", *(f"{letter}{i}" for letter in "abcA" for i in range(COUNT))]


def made(name, *pairs):
    samples = tuple(Sample(*pair.split()) for pair in pairs)
    return Relation(name, "toy", ("{}",), (), "", "", False, samples)


def relation(name, first, second, count=COUNT):
    return made(name, *(f"{first}{i} {second}{i}" for i in range(count)))


RELATIONS = [
    relation("first", "a", "b"),
    relation("second", "b", "c"),
    relation("both", "A", "c"),
    relation("back", "c", "b"),
]
FOUND = {("second", ("back",)), ("back", ("second",)), ("both", ("first", "second")), ("first", ("both", "back"))}


def by_loops(relations):
    """Count shared samples, one combination of relations and samples after another."""
    found = {}

    def same(*pairs):
        return all(one.casefold() == other.casefold() for one, other in pairs)

    def facts(one):
        return {(s.subject.casefold(), s.object.casefold()) for s in one.samples if not same((s.subject, s.object))}

    for a, r in product(relations, repeat=2):
        found[r.name, (a.name,)] = sum((o, s) in facts(a) for s, o in facts(r))
    for a, b, r in product(relations, repeat=3):
        if r.name not in (a.name, b.name):
            chains = {(s, end) for (s, m), (t, end) in product(facts(a), facts(b)) if m == t}
            found[r.name, (a.name, b.name)] = len(chains & facts(r))
    return {key: count for key, count in found.items() if count >= 3}


def test_converses_and_compositions_are_found_whatever_their_case():
    own = made("own", "up down", "Down UP", "in out", "out in", "same same")
    few = relation("few", "B", "a", 2)
    kind = made("kind", *(f"{letter}{i} r" for letter in "pq" for i in range(4)))
    given = [*RELATIONS, own, few, kind, relation("alike", "p", "q", 4)]
    found = {(one.relation, one.sources): one.shared for one in derivations(given)}
    assert found == by_loops(given)
    assert set(found) == FOUND | {("own", ("own",))}
    assert derivations(RELATIONS[:2]) == []
    first, second = (Derivation("both", sources) for sources in (("first",), ("first", "second")))
    assert (first.label, second.label) == ("inverse of first", "first, then second")
    others = [one.sources for one in second.controls(["first", "second", "both", "back"], [second])]
    assert others == [("first", "first"), ("first", "back")]


@pytest.mark.parametrize("exact", [True, False])
def test_the_factor_and_b_are_those_of_least_squares(exact):
    """With W_B = 3 W_A^-1 and W_C = 2 W_B W_A these W are recovered; else numpy's least squares gives the same."""
    draw = np.random.default_rng(0)
    first, other = draw.normal(size=(2, WIDTH, WIDTH)) / 4 + np.eye(WIDTH)
    rank = WIDTH if exact else 5
    inverse = pinv(first, rank)
    states = {layer: draw.normal(size=(8, WIDTH)) for layer in (0, 1)}
    lres = {
        name: LRE(torch.tensor(weight), torch.zeros(WIDTH).double(), layer, Origin("toy", SOME, name), 7.0, own_rank)
        for name, weight, layer, own_rank in (("a", first, 0, rank), ("b", other, 1, 3), ("c", other, 1, 4))
    }
    for derivation, weight, layer, own_rank in (
        (Derivation("b", ("a",)), inverse, 1, rank),
        (Derivation("c", ("a", "b")), other @ first, 0, 4),
    ):
        shift = draw.normal(size=WIDTH)
        objects = states[layer] @ (3 * weight).T + shift if exact else draw.normal(size=(8, WIDTH)) + shift
        tensors = {key: torch.tensor(value) for key, value in states.items()}
        found = derive(derivation, lres, tensors, torch.tensor(objects))
        mapped = states[layer] @ weight.T
        columns = np.concatenate([mapped.reshape(-1, 1), np.tile(np.eye(WIDTH), (8, 1))], 1)  # the factor, and b
        factor, *bias = np.linalg.lstsq(columns, objects.reshape(-1), rcond=None)[0]
        np.testing.assert_allclose(found.operator.dense(), (3 if exact else factor) * weight, atol=1e-9)
        np.testing.assert_allclose(found.bias, shift if exact else bias, atol=1e-9)
        assert (found.layer, found.rank, found.beta) == (layer, own_rank, 1.0)


@pytest.fixture(scope="module")
def affine():
    """An LM whose first block maps h to 2 P h + c with P^2 = I, and its second block h to itself.

    It says b after a, c after b, b after c, and c after A.
    """
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(WIDTH, WIDTH))
    matrix = 2 * vectors @ np.diag([1.0, -1.0] * (WIDTH // 2)) @ np.linalg.inv(vectors)
    rows, shift = draw.normal(size=(len(WORDS), WIDTH)), draw.normal(size=WIDTH)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    said = [f"{dict(zip('abcA', 'bcbc', strict=True))[word[0]]}{word[1:]}" for word in WORDS[3:]]
    config = toy_model().config
    config.vocab_size = len(WORDS)
    model = LlamaForCausalLM(config).eval().double()
    with_affine_blocks(model, (matrix, shift), (np.eye(WIDTH), 0 * shift))
    model.lm_head.weight.data = torch.tensor(rows)
    outputs = np.stack([rows[WORDS.index(word)] for word in said])
    model.model.embed_tokens.weight.data[3:] = torch.tensor((outputs - shift) @ np.linalg.inv(matrix).T)
    lm = LanguageModel(model)
    lm.tokenizer = toy_tokenizer(WORDS)
    return lm


@pytest.fixture(scope="module")
def scored(affine):
    """Scores with all LREs at the embedding in trial 0; in trial 1 that of "second" is at layer 0, of rank 9."""
    data = RelationDataModule(affine.tokenizer, source=RELATIONS, n_shot=3, trials=2)
    trials, lres = {}, {}
    for index in range(len(data.schedule)):
        trial = data.trial(index)
        name, number = trial.relation.name, trial.number
        layer, rank = (0, 9) if (name, number) == ("second", 1) else ("emb", None)
        estimated = estimate_trial(affine, affine.tokenizer, trial, layer, data.prompts)
        trials[name, number] = trial
        lres[name, number] = LRE(*estimated, layer, Origin.of(affine, trial), rank=rank)
    found = cross_scores(affine, data, lres, 2)
    return {(one.relation, one.trial, one.reader): one for one in found}, trials, lres


def test_converse_and_product_are_exact_where_the_lm_is_linear(scored):
    scores, _, _ = scored
    exact = [(name, 0, f"inverse of {other}") for name, other in (("second", "back"), ("back", "second"))]
    for key in [*exact, ("both", 1, "first, then second")]:
        assert scores[key].faithful == scores[key].causal == scores[key].known == COUNT - 3
    assert scores["first", 1, "both, then back"].faithful < COUNT - 3  # P P = I is none of the LREs
    labels = {(name, label) for name, _, label in scores if label not in (*(one.name for one in RELATIONS), *CONTROLS)}
    assert labels == (
        {("second", f"inverse of {other}") for other in ("first", "both", "back")}
        | {("back", f"inverse of {other}") for other in ("first", "second", "both")}
        | {("both", f"first, then {other}") for other in ("first", "second", "back")}
        | {("first", f"both, then {other}") for other in ("second", "both", "back")}
    )


def test_every_count_is_that_of_numpy(affine, scored):
    scores, trials, lres = scored
    rows, states = (one.weight.detach().numpy() for one in (affine.model.lm_head, affine.model.model.embed_tokens))
    matrix, shift = (one.numpy() for one in (affine.module_at(0).matrix, affine.module_at(0).shift))

    def says(output):
        return int((rows @ output).argmax())

    def state(word, layer):
        embedding = states[WORDS.index(word)]
        return embedding if layer == "emb" else matrix @ embedding + shift

    for (relation, number, label), one in scores.items():
        if label in CONTROLS or label in (other.name for other in RELATIONS):
            continue
        names = label.removeprefix("inverse of ").split(", then ")
        own, first, last = (lres[name, number] for name in (relation, names[0], names[-1]))
        if len(names) == 1:
            layer, rank = own.layer, first.rank or WIDTH
            weight = pinv(first.weight.numpy(), rank)
        else:
            layer, rank, weight = first.layer, own.rank or WIDTH, last.weight.numpy() @ first.weight.numpy()
        s, o = (np.stack([state(x.subject, at) for x in trials[relation, number].train]) for at in (layer, 0))
        mapped = s @ weight.T
        factor = ((mapped - mapped.mean(0)) * (o - o.mean(0))).sum() / ((mapped - mapped.mean(0)) ** 2).sum()
        bias = o.mean(0) - factor * mapped.mean(0)
        test = {x.subject: WORDS.index(x.object) for x in trials[relation, number].test}
        faithful = sum(says(factor * weight @ state(x, layer) + bias) == wanted for x, wanted in test.items())
        assert (one.faithful, one.known) == (faithful, len(test)), (relation, label)
        trial = trials[relation, number]
        targets = draw_targets(trial.test, list(test.values()), draw_key(trial), range(len(test)))
        causal, inverse = 0, pinv(factor * weight, rank)
        for x, target in zip(test, targets, strict=True):
            difference = state(trial.test[target].subject, 0) - state(x, 0)
            edited = state(x, layer) + inverse @ difference
            causal += says(edited if layer == 0 else matrix @ edited + shift) == list(test.values())[target]
        assert one.causal == causal, (relation, label)
    assert {one.causal for one in scores.values()} >= {0, COUNT - 3}
