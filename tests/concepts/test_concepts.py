"""Concepts, probes and their scores against a plain loop over texts, in float64."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from lre_lightning import Concepts, LanguageModel, LREError, Origin, estimate_concepts, load_relations
from lre_lightning.concepts.concepts import few_shot, widened
from lre_lightning.concepts.evaluation import evaluate_trial
from lre_lightning.concepts.probes import fit_probes
from lre_lightning.concepts.record import METHODS, STANDARDIZED, ConceptOptions
from lre_lightning.concepts.states import known_states, with_object
from lre_lightning.prompts import trials
from lre_lightning.prompts.options import LINES, Prompts
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.relations.relation import Sample
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import WIDTH, plain_output, tiny_model, widen_casts

OPTIONS = ConceptOptions(layer=1, rank=6, object_layer=4, object_tokens="mean", jacobians=2, magnitude=0.4)


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("demo", dtype="float64")


@pytest.fixture(scope="module")
def trial():
    """Half of 50 samples to train on, of which prompts show 2; the LM does not know the object of some of them."""
    (relation,) = load_relations("object superclass", "demo")
    wrong = [Sample(subject, "currency") for subject in ("hammer", "falcon")]
    relation = replace(relation, samples=(*relation.samples[::2], *wrong))
    return widened(trials.draw(relation, 2, 0, 0), 0.5, 0, LINES)


def read(lm, trial, sample):
    """s, the mean of o over the object's tokens, the LM's answer, and what a plain Jacobian needs, of one sample."""
    context = [s for s in trial.train if s.subject != sample.subject][:2]
    lines = [f"Of all things a {s.subject} is a kind of {s.object}\n" for s in context]
    text = f"{''.join(lines)}Of all things a {sample.subject} is a kind of"
    bos = [lm.tokenizer.bos_token_id]
    asked = lm.tokenizer(text, return_offsets_mapping=True)
    ids = bos + lm.tokenizer(f"{text} {sample.object}")["input_ids"]
    end = len(text) - len(" is a kind of")
    position = max(i for i, (start, _) in enumerate(asked["offset_mapping"]) if start < end) + 1
    last = len(asked["input_ids"])
    with torch.no_grad():
        run = lm.model(torch.tensor([ids]), output_hidden_states=True)
    states = [state[0] for state in run.hidden_states]  # of the embedding, block 0, ...
    return {
        "sample": sample,
        "s": states[2][position],
        "o": states[5][last:-1].mean(0),
        "known": int(run.logits[0, last].argmax()) == ids[last + 1],
        "ids": ids,
        "position": position,
        "last": last,
    }


@pytest.fixture(scope="module")
def reference(lm, trial):
    """The known training and test samples, the concepts of a plain loop, and the targets of edits."""
    assert trial.relation.template == "Of all things a {} is a kind of"
    train, test = ([one for s in part if (one := read(lm, trial, s))["known"]] for part in (trial.train, trial.test))
    objects = sorted({one["sample"].object for one in train})
    test = [one for one in test if one["sample"].object in objects]
    by_object = {name: [one for one in train if one["sample"].object == name] for name in objects}
    firsts = list(dict.fromkeys(one["sample"].object for one in train))
    turns = [by_object[name][turn] for turn in range(9) for name in firsts if turn < len(by_object[name])]
    weight, bias = 0, 0
    for one in turns[: OPTIONS.jacobians]:
        tokens = len(one["ids"]) - 1 - one["last"]

        def run(value, one=one, tokens=tokens):
            return plain_output(lm, one["ids"][:-1], one["position"], 1, value, 4, tokens)

        jacobian = torch.autograd.functional.jacobian(run, one["s"], vectorize=True)
        weight = weight + jacobian / OPTIONS.jacobians
        bias = bias + (one["o"] - jacobian @ one["s"]) / OPTIONS.jacobians
    left, values, right = torch.linalg.svd(weight)
    inverse = right[:6].T @ torch.diag(1 / values[:6]) @ left[:, :6].T
    vectors = [inverse @ (sum(one["o"] for one in by_object[name]) / len(by_object[name]) - bias) for name in objects]
    return train, test, objects, [vector / vector.norm() for vector in vectors]


@pytest.fixture(scope="module")
def evaluated(lm, trial):
    return evaluate_trial(lm, trial, few_shot(LINES, 2), OPTIONS)


def test_samples_that_the_user_names_stay(trial):
    named = Prompts(train_samples={trial.relation.name: ["a", "b"]})
    assert widened(trial, 0.9, 0, named) is trial
    assert few_shot(Prompts(shots=1), 5).shots == 1


def macro_f1(answers, right):
    scores = []
    for name in {*answers, *right}:
        hits = sum(a == b == name for a, b in zip(answers, right, strict=True))
        scores.append(2 * hits / (answers.count(name) + right.count(name)))
    return sum(scores) / len(scores)


def test_concepts_are_those_of_a_plain_loop(evaluated, trial, reference):
    train, test, objects, vectors = reference
    assert len(train) < len(trial.train)
    assert len({*objects}) >= 5
    record, concepts = evaluated
    assert (record.objects, record.trained, record.tested) == (len(objects), len(train), len(test))
    assert concepts.objects == tuple(objects)
    assert (concepts.layer, concepts.object_layer, concepts.rank) == (1, 4, 6)
    torch.testing.assert_close(concepts.vectors, torch.stack(vectors), rtol=0, atol=1e-8)


def test_only_objects_of_training_samples_are_tested(lm, trial, reference):
    _, _, (first, second, *_), _ = reference
    prompts = few_shot(LINES, 2)

    def evaluated_on(objects, test=trial.test):
        train = tuple(sample for sample in trial.train if sample.object in objects)
        part = replace(trial, train=train, test=test)
        known = known_states(lm, trials.test_prompts(part, lm.tokenizer, options=prompts), OPTIONS).prompts
        record, concepts = evaluate_trial(lm, part, prompts, OPTIONS)
        assert record.tested == sum(prompt.object in objects for prompt in known) < len(known)
        assert (concepts is None) == bool(record.reason)
        return record

    assert "fewer than 2 objects" in evaluated_on({first}).reason
    assert evaluated_on({first, second}).reason == ""
    others = tuple(sample for sample in trial.test if sample.object not in (first, second))
    assert "no test sample" in evaluated_on({first, second}, others).reason


def test_every_score_is_that_of_a_plain_loop(lm, trial, reference, evaluated):
    train, test, objects, vectors = reference
    record, _ = evaluated
    states, unseen = (np.stack([one["s"].numpy() for one in part]) for part in (train, test))
    labels, right = ([one["sample"].object for one in part] for part in (train, test))
    svm, logistic = LinearSVC(max_iter=10_000, random_state=0), LogisticRegression(max_iter=10_000)
    scaled = {
        name: make_pipeline(StandardScaler(), clone(made)).fit(states, labels)
        for name, made in (("linear SVM, standardized", svm), ("logistic probe, standardized", logistic))
    }
    means = {name: states[[label == name for label in labels]].mean(0) for name in objects}
    rest = {name: states[[label != name for label in labels]].mean(0) for name in objects}
    directions = {
        "concepts": [vector.numpy() for vector in vectors],
        "linear SVM": svm.fit(states, labels).coef_,
        "difference of means": [means[name] - rest[name] for name in objects],
        "logistic probe": logistic.fit(states, labels).coef_,
        **{name: made[1].coef_ / made[0].scale_ for name, made in scaled.items()},
    }
    directions = {name: [one / np.linalg.norm(one) for one in found] for name, found in directions.items()}
    centred = unseen - states.mean(0)
    answers = {
        "concepts": [objects[max(range(len(objects)), key=lambda i: s @ vectors[i].numpy())] for s in unseen],
        "linear SVM": list(svm.predict(unseen)),
        "difference of means": [objects[int(np.argmax(directions["difference of means"] @ s))] for s in centred],
        "logistic probe": list(logistic.predict(unseen)),
        **{name: list(made.predict(unseen)) for name, made in scaled.items()},
    }
    seed = "\x1f".join([trial.relation.name, "0", *(sample.subject for sample in trial.train)])
    causal = dict.fromkeys(METHODS, 0)
    first = {one["sample"].object: one["ids"][one["last"] + 1] for one in train}
    for one in test:
        sample = one["sample"]
        others = [name for name in objects if first[name] != first[sample.object]]
        target = min(others, key=lambda o: hashlib.sha256(f"{seed}\x1f{sample.subject}\x1f{o}".encode()).digest())
        for method, found in directions.items():
            change = found[objects.index(target)] - found[objects.index(sample.object)]
            edited = one["s"] + 0.4 * one["s"].norm() * torch.as_tensor(change)
            output = plain_output(lm, one["ids"][: one["last"] + 1], one["position"], 1, edited)
            causal[method] += int(lm.decode(output).argmax()) == first[target]
    assert record.edited == len(test)
    assert record.causal == causal
    assert record.correct == {m: sum(a == b for a, b in zip(answers[m], right, strict=True)) for m in METHODS}
    assert record.f1 == {m: pytest.approx(macro_f1(answers[m], right), abs=1e-6) for m in METHODS}
    assert len({*record.correct.values()}) > 1 or len({*causal.values()}) > 1
    assert record.score("accuracy", "concepts") == record.correct["concepts"] / len(test) > 3 / len(objects)


SCALES = torch.tensor([1.0, 1, 1, 1, 1, 1e-2, 0])  # one dimension is small, and one does not vary


@pytest.mark.parametrize("objects", [2, 4])
def test_standardized_probes_do_not_depend_on_the_scale_of_a_dimension(objects):
    """The classes differ in one dimension alone, which is scaled down: the control, raw probes, lose them."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % objects
    states = torch.randn(80, 5, generator=generator)
    states[:, 0] += 8 * labels
    answers = {}
    for scale in (1.0, 1e-3):
        scaled = states * torch.tensor([scale, 1, 1, 1, 1])
        for name, (directions, offsets) in fit_probes(scaled, labels).items():
            answers[name, scale] = (scaled @ directions.T + offsets).argmax(1)
    right = {key: float((given == labels).double().mean()) for key, given in answers.items()}
    for name, standardized in STANDARDIZED.items():
        assert torch.equal(answers[standardized, 1.0], answers[standardized, 1e-3])
        assert right[standardized, 1e-3] > right[name, 1e-3] + 0.2


@pytest.mark.parametrize("objects", [2, 4])
def test_probes_answer_as_scikit_learn_does(objects):
    generator = torch.Generator().manual_seed(objects)
    labels = torch.arange(60) % objects
    states = torch.randn(60, 7, generator=generator) + 2 * torch.randn(objects, 7, generator=generator)[labels]
    unseen = torch.randn(200, 7, generator=generator)
    states, unseen = states * SCALES, unseen * SCALES
    probes = fit_probes(states, labels)
    classifiers = {"linear SVM": LinearSVC(max_iter=10_000, random_state=0), "logistic probe": LogisticRegression()}
    scaled = {f"{name}, standardized": make_pipeline(StandardScaler(), made) for name, made in classifiers.items()}
    for name, made in (classifiers | scaled).items():
        directions, offsets = probes[name]
        expected = made.fit(states.numpy(), labels.numpy()).predict(unseen.numpy())
        assert (unseen @ directions.T + offsets).argmax(1).tolist() == expected.tolist()
        assert directions.shape == (objects, 7)


@pytest.mark.parametrize("object_layer", [1, None])
@pytest.mark.parametrize("tokens", ["first", "mean"])
def test_states_of_objects_of_several_tokens(monkeypatch, object_layer, tokens):
    widen_casts(monkeypatch, "gpt2")
    lm = LanguageModel(tiny_model("gpt2", torch.float64))
    texts = [(3, 5, 7, 2), (4, 9), (8, 8, 1, 6, 11)]
    answers = [int(lm.predict(lm(torch.tensor([ids]))[0, -1])) for ids in texts]
    objects = [(answers[0], 12, 13), (answers[1],), (answers[2] + 1, 5)]  # the LM does not know the last one
    prompts = [
        Prompt("", "", str(i), ids, (0, 2), after) for i, (ids, after) in enumerate(zip(texts, objects, strict=True))
    ]
    ids, count = with_object(prompts[0], tokens)
    expected = ([3, 5, 7, 2, answers[0], 12], 3) if tokens == "mean" else ([3, 5, 7, 2], 1)
    assert (ids.tolist(), count) == expected  # the last one predicts the object's last token
    options = ConceptOptions(layer=0, object_layer=object_layer, object_tokens=tokens)
    found = known_states(lm, prompts, options)
    assert [prompt.object for prompt in found.prompts] == ["0", "1"]
    for row, (ids, after) in enumerate(zip(texts[:2], objects[:2], strict=True)):
        at = 2 if object_layer is None else object_layer
        states = lm.hidden_states(torch.tensor([ids + after]), [0, at])
        predicting = range(len(ids) - 1, len(ids) + len(after) - 1) if tokens == "mean" else [len(ids) - 1]
        expected = sum(states[at][0, i] for i in predicting) / len(predicting)
        torch.testing.assert_close(found.object[row], expected)
        torch.testing.assert_close(found.subject[row], states[0][0, 1])


def test_estimate_predict_and_steer(lm, tmp_path, monkeypatch):
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    concepts = estimate_concepts(lm, "object superclass", 2, n_shot=3, jacobians=5, object_layer=4)
    assert concepts.rank == 16
    train = dict(concepts.origin.train)
    assert len(train) == 48
    asked = ["kestrel", *list(train)[:2]]
    for subject, answer in zip(asked, concepts.predict(asked), strict=True):
        lines = [f"Of all things a {s} is a kind of {o}\n" for s, o in train.items() if s != subject][:3]
        text = f"{''.join(lines)}Of all things a {subject} is a kind of"
        ids = [lm.tokenizer.bos_token_id, *lm.tokenizer(text)["input_ids"]]
        state = lm.hidden_states(torch.tensor([ids]), [2])[2][0, len(ids) - 5]
        assert answer == concepts.objects[int((concepts.vectors @ state).argmax())]
    assert concepts.predict(["kestrel"]) == ["bird"]
    assert concepts.predict([]) == []
    edit = concepts.steer("Of all things a kestrel is a kind of", "fish")
    state = lm.hidden_states(torch.tensor([edit.prompt.input_ids]), [2])[2][0, edit.position]
    difference = concepts["fish"] - concepts["bird"]
    torch.testing.assert_close(edit.delta, 0.5 * state.norm() * difference)
    assert (edit.before[0][0], edit.after[0][0]) == ("bird", "fish")
    other = concepts.steer("Of all things a kestrel is a kind of", "fish", "tool", magnitude=0.1, layers=[1, 2])
    torch.testing.assert_close(other.delta, 0.1 * state.norm() * (concepts["fish"] - concepts["tool"]))
    assert other.layers == (1, 2)

    concepts.save(tmp_path / "c.safetensors")
    again = Concepts.load(tmp_path / "c.safetensors", lm)
    assert torch.equal(again.vectors, concepts.vectors)
    for name in ("objects", "layer", "rank", "object_layer", "object_tokens", "origin"):
        assert getattr(again, name) == getattr(concepts, name)
    assert again.predict(["kestrel"]) == ["bird"]
    with pytest.raises(LREError, match="the LRE behind the concepts of 'object superclass' was estimated from 'demo'"):
        Concepts.load(tmp_path / "c.safetensors", LanguageModel(tiny_model("gpt2")))


TOY = Concepts(("a", "b"), torch.eye(2), 0, 1, 1, "first", Origin("toy", SOME, "letters"))


def test_mistakes():
    lm = LanguageModel(tiny_model("gpt2"))
    narrow = replace(TOY, origin=replace(TOY.origin, identity=lm.identity))
    for call, message in (
        (lambda: TOY["c"], "there is no concept of 'c' in 'letters'; there are those of 'a', 'b'"),
        (lambda: TOY.predict(["x"]), "has no LM to run"),
        (lambda: TOY.predict("x"), r"subjects must be a list, such as \['x'\]"),
        (lambda: replace(TOY, vectors=torch.eye(3)), r"need vectors \(objects, hidden\), not \(3, 3\)"),
        (lambda: replace(TOY, vectors=torch.full((2, 2), torch.nan)), "not finite"),
        (lambda: narrow.bind(lm), "has the width 2, and 'GPT2LMHeadModel' 16"),
    ):
        with pytest.raises(LREError, match=message):
            call()
    assert "<caption>Concepts: letters</caption>" in TOY._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": -1}, "layer must be a whole number"),
        ({"rank": 0}, "rank must be"),
        ({"object_tokens": "last"}, "object_tokens must be 'first' or 'mean'"),
        ({"train_fraction": 1.0}, "train_fraction must be between 0 and 1"),
        ({"jacobians": 0}, "jacobians must be"),
        ({"layers": 1}, "has no option 'layers'"),
        ({"layer": 9}, "layer 9 is out of range"),
        ({"layer": 2, "object_layer": 2}, "layer 2 is not below the object layer 2"),
        ({"rank": WIDTH + 1}, "rank .* is out of range"),
    ],
)
def test_options(options, message):
    lm = LanguageModel(tiny_model("gpt2"))
    with pytest.raises(LREError, match=message):
        estimate_concepts(lm, "object superclass", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {**m, "objects": ["a"]}, "concepts of 1 objects need"),
        (lambda m: {**m, "objects": "ab"}, "objects must be a list"),
        (lambda m: {**m, "object_tokens": "some"}, "object_tokens must be"),
        (lambda m: {**m, "layer": "x"}, "layer must be"),
        (lambda m: {k: v for k, v in m.items() if k != "origin"}, "origin"),
        (lambda m: [m], "must be an object"),
    ],
)
def test_files_of_strangers(tmp_path, change, message):
    path = tmp_path / "c.safetensors"
    TOY.save(path)
    with safe_open(path, "pt") as file:
        metadata = json.loads(file.metadata()["concepts"])
    save_file(load_file(path), path, {"concepts": json.dumps(change(metadata))})
    with pytest.raises(LREError, match=f"is not a file of concepts that can be read: .*{message}"):
        Concepts.load(path)


def test_a_file_with_other_tensors(tmp_path):
    path = tmp_path / "c.safetensors"
    save_file({"vectors": torch.eye(2), "weight": torch.eye(2)}, path, {"concepts": "{}"})
    with pytest.raises(LREError, match="should have vectors alone"):
        Concepts.load(path)
    save_file({"vectors": torch.eye(2, dtype=torch.int64)}, path, {"concepts": "{}"})
    with pytest.raises(LREError, match="vectors must be float32 or float64"):
        Concepts.load(path)
    with pytest.raises(LREError, match="no such file"):
        Concepts.load(tmp_path / "none")
