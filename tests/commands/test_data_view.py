"""`lre data`: relations with their counts, and prompts with their tokens."""

import json
import os
import re

import pytest

from lre_lightning.commands.data import BOUNDARY, CLOSE, LINE_END, OPEN, prompt_text
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import make_prompt
from lre_lightning.relations.relation import Sample
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.toy import relation_json

CONTEXT = (Sample("Rome", "Italy"), Sample("Milan", "Italy"))
SUBJECTS = ["Paris", "New York City", "São Paulo", "北京 😀", "Cafe\u0301", "i", "x" * 30]


@pytest.fixture
def shown(said):
    """What the subcommand prints."""

    def run(*args):
        status, out, err = said("data", *args)
        assert (status, err) == (0, "")
        return out

    return run


CITIES = relation_json("city in country", category="factual") | {
    "prompt_templates": ["{} is in the country of", "{} lies in"],
    "prompt_templates_zs": [],
    "properties": {"relation_type": "factual", "domain_name": "city", "range_name": "country", "symmetric": False},
    "samples": [
        {"subject": "Doha 2", "object": "Quito"},
        {"subject": "Rome", "object": "Italy"},
        {"subject": "Milan", "object": "Italy"},
        {"subject": "Tokyo ", "object": "Japan"},
        {"subject": "New York", "object": "York"},
        {"subject": "Doha", "object": "Qatar"},
    ],
}


@pytest.fixture
def cities(tmp_path):
    """Options for the cities, and a tokenizer like GPT-2's."""
    (tmp_path / "relations").mkdir()
    (tmp_path / "relations" / "0.json").write_text(json.dumps(CITIES))
    tokenizer = tokenizers.byte_level(bos=tokenizers.START, post=tokenizers.around(tokenizers.START))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return ["--data.source", tmp_path / "relations", "--data.tokenizer", tmp_path / "tokenizer", "--data.n_shot", 2]


def test_the_table_counts(shown, tmp_path, cities):
    (tmp_path / "relations" / "1.json").write_text(json.dumps(relation_json("thing colour")))
    out = shown(*cities)
    lines = {line.split("  ")[0].strip(): line.split() for line in out.splitlines() if line.startswith(" ")}
    assert lines["city in country"][3:] == [
        *("factual", "city", "country", "many-to-one", "6", "6", "5", "4", "(80%)", "2", "+", "0", "1", "1"),
    ]
    assert lines["thing colour"][2:7] == ["factual", "thing", "colour", "many-to-one", "24"]
    assert re.search(r"2 relations, 30 samples; [5-8] of 9 objects have a first token of their own\.", out)
    assert re.search(r"Tokens are those of \S+; --data\.tokenizer takes another LM's\.", out)
    assert "Problems: 1 stray characters, 1 object in prompt." in out


def test_what_is_odd_is_listed_and_repaired(shown, tmp_path, cities):
    out = shown(*cities, "--check", "true")
    assert "city in country: samples[3].subject is 'Tokyo '; repaired it is 'Tokyo'" in out
    assert "samples[4].subject is 'New York', which contains its object 'York'" in out
    out = shown(*cities, "--data.selection.repair", "true", "--out", tmp_path / "mended")
    assert f"relations written to {tmp_path / 'mended'}: 1" in out
    mended = json.loads((tmp_path / "mended/factual/city_in_country.json").read_text())
    assert mended["samples"][3] == {"subject": "Tokyo", "object": "Japan"}
    assert mended["samples"][:3] == CITIES["samples"][:3]
    assert "Problems: 1 object in prompt." in shown("--data.source", tmp_path / "mended", *cities[2:])


def test_prompts_as_the_model_sees_them(shown, cities):
    out = shown(*cities, "--prompts", 2)
    parts = out[out.index("\ncity in country\n") :].split("\n\n")
    assert parts[0].splitlines()[1:] == ["city in country", "one first token: 'Quito', 'Qatar'"]
    assert len(parts) == 3
    for prompt in parts[1:]:
        first, second, asked, answer = prompt.rstrip().splitlines()
        assert first.startswith(f"<s>{BOUNDARY}")
        assert first.endswith(LINE_END)
        assert second.endswith(LINE_END)
        assert asked.startswith(OPEN)
        assert asked.endswith(f"{BOUNDARY} of")
        assert answer.startswith("  -> '")
    plain = out.replace(BOUNDARY, "").replace(OPEN, "").replace(CLOSE, "")
    assert " is in the country of" in plain


def test_relations_that_are_too_small_are_shown_too(shown, said, cities):
    options = cities[:4]  # n_shot is 8
    assert "city in country" in shown(*options)
    status, _, err = said("data", *options, "--prompts", 1)
    assert status == 2
    assert "has 6 distinct subjects, but n_shot=8 needs" in err


def test_relations_by_name(shown):
    out = shown("country currency", "person sport", "--data.source", "demo")
    assert "2 relations, 168 samples" in out
    chosen = ["--data.selection.function", "one-to-one", "--data.selection.min_size", 50]
    out = shown("--data.source", "demo", *chosen)
    assert "country capital city" in out
    assert "person sport" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["contry currency"], "no relation, category or path 'contry currency': did you mean 'country currency'"),
        (["--prompts", "-1"], "prompts must be a whole number of at least 0, got -1"),
    ],
)
def test_mistakes_are_one_line(said, options, message):
    status, _, err = said("data", *options)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


# Tokens of prompts.


@pytest.mark.parametrize("name", tokenizers.LOSSLESS)
def test_no_character_of_a_prompt_is_lost_and_the_subject_is_marked(name):
    tokenizer = tokenizers.make(name)
    for subject in SUBJECTS:
        prompt = make_prompt(tokenizer, "The {} is", Sample(subject, "x"), CONTEXT, Prompts(separator="; "))
        text = prompt_text(prompt, tokenizer).plain
        inside = text[text.index(OPEN) + 1 : text.index(CLOSE)]
        assert inside.count(BOUNDARY) == prompt.subject_span[1] - prompt.subject_span[0] - 1
        if subject.isascii():  # no character is several tokens
            plain = re.sub(f"[{BOUNDARY}{OPEN}{CLOSE}]", "", text)
            assert plain.endswith(prompt.text)
            assert inside.replace(BOUNDARY, "").strip() == subject


@pytest.mark.skipif(not os.environ.get("LRE_RELATIONS_DIR"), reason="LRE_RELATIONS_DIR is not set")
def test_the_papers_relations(shown):
    out = shown("--data.source", os.environ["LRE_RELATIONS_DIR"])
    assert "47 relations, 11089 samples" in out
