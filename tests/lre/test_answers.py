"""The way from a name to an answer: estimate, predict, edit a prompt; compared with plain runs of the LM."""

from dataclasses import replace

import pytest
import torch

from lre_lightning import LRE, LanguageModel, LREError, Origin, estimate
from lre_lightning.prompts.options import Prompts
from lre_lightning.relations.sources import load_relations

LAYER = 2


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("demo")


@pytest.fixture(scope="module")
def lre(lm):
    return estimate(lm, load_relations("country capital city", "demo")[0], LAYER)


def plain_run(lm, text, word, value=None):
    """s at the last token of the last mention of a word, and o, of a plain run in which `value` may replace s."""
    encoding = lm.tokenizer(text, return_offsets_mapping=True)
    end = text.rindex(word) + len(word)
    position = max(i for i, span in enumerate(encoding["offset_mapping"]) if span[0] < end) + 1
    ids = torch.tensor([[lm.tokenizer.bos_token_id, *encoding["input_ids"]]])
    states = {}

    def block(module, args, output):
        states["s"] = output[0, position].clone()
        if value is not None:
            output[0, position] = value
        return output

    handles = [lm.module_at(LAYER).register_forward_hook(block)]
    handles.append(lm.module_at(lm.num_layers - 1).register_forward_hook(lambda m, a, o: states.update(o=o[0, -1])))
    with torch.no_grad():
        logits = lm.model(ids).logits[0, -1]
    for handle in handles:
        handle.remove()
    return states["s"], states["o"], logits.softmax(-1)


def best(lm, probabilities, count):
    top = zip(*probabilities.topk(count), strict=True)
    return [(lm.tokenizer.decode([token]).strip(), pytest.approx(float(p), rel=1e-3)) for p, token in top]


def test_a_prediction_reads_s_in_a_prompt_of_the_training_samples(lm, lre):
    for subject in ("Canada", lre.origin.train[3][0]):  # the second one is left out of its own context
        lines = [f"The capital of {s} is {o}\n" for s, o in lre.origin.train if s != subject]
        s, _, _ = plain_run(lm, f"{''.join(lines)}The capital of {subject} is", subject)
        assert list(lre.predict(subject, 3)) == best(lm, lm.decode(lre(s)).softmax(-1), 3)
    assert lre.predict("Canada")[0][0] == "Ottawa"
    assert repr(lre.predict("Canada", 1)).startswith("Ottawa 0.")
    free = estimate(lm, load_relations("country capital city", "demo")[0], LAYER, method="matrix_free")
    torch.testing.assert_close(free.bias, lre.bias, rtol=1e-3, atol=1e-3)
    assert [answer for answer, _ in free.predict("Canada", 3)] == [answer for answer, _ in lre.predict("Canada", 3)]


def test_an_edited_prompt_is_answered_as_with_s_replaced(lm, lre):
    text = "The capital of Canada is"
    s, o, before = plain_run(lm, text, "Canada")
    _, wanted, _ = plain_run(lm, text.replace("Canada", "Peru"), "Peru")
    _, _, after = plain_run(lm, text, "Canada", s + lre.edit(o, wanted))
    edit = lre.edit_prompt(text, target="Peru", top_k=2)
    assert list(edit.before) == best(lm, before, 2)
    assert list(edit.after) == best(lm, after, 2)
    assert (edit.before[0][0], edit.after[0][0]) == ("Ottawa", "Lima")
    assert (edit.prompt.subject, edit.target) == ("Canada", "Peru")
    handle = lm.module_at(LAYER).register_forward_hook(lambda module, args, output: edit(output))  # of one's own
    logits = lm.model(torch.tensor([edit.prompt.input_ids])).logits[0, -1]
    handle.remove()
    assert list(edit.after) == best(lm, logits.softmax(-1), 2)
    assert edit.before._repr_html_().startswith("<table><tr><th>answer</th><th>probability</th></tr><tr><td>Ottawa")
    assert "<td>Lima</td>" in edit._repr_html_()
    named = replace(lre, origin=replace(lre.origin, relation="<b>"))
    assert "<caption>LRE: &lt;b&gt;</caption>" in named._repr_html_()


@pytest.mark.parametrize(
    ("template", "text", "subject"),
    [
        ("The capital of {} is", "The capital of Chile is Santiago\nThe capital of The Gambia is", "The Gambia"),
        ("{} is governed from | The capital of {} is", "A\nThe capital of Chad is", "Chad"),
        ("{} is governed from | The capital of {} is", "A.\nNew Zealand is governed from", "New Zealand"),
    ],
)
def test_the_subject_is_found_by_the_template_or_named(lre, template, text, subject):
    other = replace(lre, origin=replace(lre.origin, template=template))
    assert other.edit_prompt(text, "Peru").prompt.subject == subject
    with pytest.raises(LREError, match="does not end like"):
        other.edit_prompt("Canada", "Peru")
    edit = other.edit_prompt("Canada: in Canada, the capital is", "Peru", subject="Canada")
    assert edit.before[0][0] == "Ottawa"
    with pytest.raises(LREError, match="the subject 'Oman' is not in the prompt"):
        other.edit_prompt(text, "Peru", subject="Oman")


def test_an_lre_needs_its_lm_and_its_prompts(lm, lre, tmp_path):
    lre.save(tmp_path / "lre.safetensors")
    unbound, loaded = LRE.load(tmp_path / "lre.safetensors"), LRE.load(tmp_path / "lre.safetensors", lm)
    assert [answer for answer, _ in loaded.predict("Canada")] == [answer for answer, _ in lre.predict("Canada")]
    with pytest.raises(LREError, match=r"'country capital city' has no LM to run: give it one, \.bind\(lm\)"):
        unbound.predict("Canada")
    with pytest.raises(LREError, match="does not say which prompts"):
        replace(lre, origin=Origin("demo", lm.identity, "r")).predict("Canada")
    with pytest.raises(LREError, match="top_k 0 is out of range: it must be 1 to"):
        lre.predict("Canada", 0)


def test_the_form_of_prompts_is_kept_with_the_lre(lm, tmp_path):
    prompts = Prompts(separator=" ; ", shots=2, template="{} is governed from")
    lre = estimate(lm, load_relations("country capital city", "demo")[0], LAYER, prompts=prompts)
    lre.save(tmp_path / "lre.safetensors")
    train = lre.origin.train[:2]
    expected = " ; ".join([*(f"{s} is governed from {o}" for s, o in train), "Canada is governed from"])
    assert LRE.load(tmp_path / "lre.safetensors").origin.prompt(lm, "Canada").text == expected


def test_estimate_refuses_what_is_not_one_relation(lm, monkeypatch):
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    with pytest.raises(LREError, match=r"'factual' stands for [0-9]+ relations: name one of them"):
        estimate(lm, "factual", LAYER)
    with pytest.raises(LREError, match="layer 99 is out of range"):
        estimate(lm, "country capital city", 99)
    with pytest.raises(LREError, match="rank 0 is out of range: it must be 1 to 128"):
        estimate(lm, "country capital city", LAYER, rank=0)


PROMPT = "The capital of Canada is"


def continued(lm, inputs, **options):
    """The texts that the LM itself generates after a padded batch of token ids."""
    ids = lm.model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0, **options)
    return [lm.tokenizer.decode(row) for row in ids[:, inputs["input_ids"].shape[1] :]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 2}])
def test_an_edit_stays_while_the_lm_generates_and_touches_its_prompt_alone(lm, lre, side, options):
    texts = ["The capital of Kenya is", PROMPT, f"Rona Dodel plays hockey\n{PROMPT}"]
    lm.tokenizer.padding_side = side
    inputs = lm.tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    plain = continued(lm, inputs, **options)
    with lre.editing(PROMPT, target="Peru") as edit:
        edited = continued(lm, inputs, **options)
    assert edited[0] == plain[0]
    assert continued(lm, inputs, **options) == plain  # nothing is left behind
    for row in (1, 2) if side == "left" else (2,):
        assert ("Ottawa" in plain[row], "Lima" in edited[row]) == (True, True)
    assert edit.layers == (LAYER,)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_prompt_that_is_generated_again_is_not_edited(lm, lre, use_cache):
    """The continuation is forced to repeat the prompt, and answers it as the LM does without an edit there."""
    inputs = lm.tokenizer([PROMPT], return_tensors="pt", return_token_type_ids=False)
    again = lm.tokenizer(f" Lima\n{PROMPT}", add_special_tokens=False)["input_ids"]
    start = inputs["input_ids"].shape[1]

    def forced(_batch, ids):
        place = len(ids) - start
        return again[place : place + 1] or [*range(len(lm.tokenizer))]

    options = {"max_new_tokens": len(again) + 1, "pad_token_id": 0, "prefix_allowed_tokens_fn": forced}
    with lre.editing(PROMPT, target="Peru") as edit:
        assert edit.after[0][0] == "Lima"
        (row,) = lm.model.generate(**inputs, do_sample=False, use_cache=use_cache, **options)
    assert lm.tokenizer.decode(row[-1:]).strip() == "Ottawa"
    assert "generate" not in vars(lm.model)


CHAT = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_edits_follow_the_form_of_the_prompts_of_the_estimate(lm, lre, monkeypatch):
    monkeypatch.setattr(lm.tokenizer, "chat_template", CHAT)
    form = Prompts(chat=True, system="Answer.").form
    chatty, texts = replace(lre, origin=replace(lre.origin, form=form)), {}
    for name in ("Canada", "Peru"):
        texts[name] = f"<system> Answer.\n<user> The capital of {name} is\n<assistant>"
    s, o, _ = plain_run(lm, texts["Canada"], "Canada")
    _, wanted, _ = plain_run(lm, texts["Peru"], "Peru")
    _, _, after = plain_run(lm, texts["Canada"], "Canada", s + lre.edit(o, wanted))
    edit = chatty.edit_prompt(PROMPT, target="Peru", top_k=2)
    assert edit.prompt.text == texts["Canada"]
    assert list(edit.after) == best(lm, after, 2)
    plain = lm.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    whole = torch.tensor([[lm.tokenizer.bos_token_id, *lm.tokenizer(texts["Canada"])["input_ids"]]])
    with edit.active(), torch.no_grad():
        logits = lm.model(whole).logits[0, -1]
    assert logits.softmax(-1).max() == pytest.approx(edit.after[0][1], rel=1e-3)
    with pytest.raises(LREError, match="the edit of '<system> Answer"), chatty.editing(PROMPT, target="Peru"):
        lm.model(plain)


def test_edits_have_a_magnitude_and_layers(lm, lre):
    nothing = lre.edit_prompt(PROMPT, target="Peru", magnitude=0.0)
    assert nothing.after == nothing.before
    several = lre.edit_prompt(PROMPT, target="Peru", layers=["emb", 1], magnitude=0.5)
    position, states = several.position, {}
    for name, edited in (("plain", False), ("edited", True)):
        with several.active() if edited else nothing.active(), torch.no_grad():
            states[name] = lm.hidden_states(torch.tensor([several.prompt.input_ids]), ["emb"])["emb"][0, position]
    torch.testing.assert_close(states["edited"] - states["plain"], several.delta)
    torch.testing.assert_close(several.delta, lre.edit_prompt(PROMPT, target="Peru").delta / 2)
    with pytest.raises(LREError, match="layer 9 is out of range"):
        lre.edit_prompt(PROMPT, target="Peru", layers=[9])


def test_an_edit_that_is_not_applied_is_an_error_and_leaves_no_hooks(lm, lre):
    edit = lre.edit_prompt(PROMPT, target="Peru")
    with pytest.raises(LREError, match="was not applied: no run of the LM held this prompt"), edit.active():
        lm(torch.tensor([edit.prompt.input_ids[:-1]]))
    with pytest.raises(ZeroDivisionError), edit.active():
        1 / 0  # noqa: B018
    assert not any(module._forward_hooks for module in lm.modules())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_samples_before_and_after_an_edit_are_drawn_alike_on_a_gpu(lre):
    there = LanguageModel.from_pretrained("demo").to("cuda")
    nothing = lre.bind(there).edit_prompt(PROMPT, target="Peru", magnitude=0.0)
    assert all(before == after for before, after in nothing.continuations(8, samples=4))
