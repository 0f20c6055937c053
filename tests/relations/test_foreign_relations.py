"""Files of relations from strangers: what is in them becomes a relation or one clear error."""

import json
import os

import pytest
from hypothesis import given

from lre_lightning.errors import LREError
from lre_lightning.prompts.prompt import fill, make_prompts
from lre_lightning.relations.json_files import read_json
from lre_lightning.relations.sources import load_relations
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.hostile import PLAIN, changed, little_memory, outcome, recipes, tried
from tests.helpers.toy import relation_json, toy_tokenizer

RELATION = relation_json("thing colour", count=4)


def used(relation):
    """Make all prompts of a relation, with a tokenizer of words and one of bytes."""
    for tokenizer in (toy_tokenizer(), tokenizers.make("byte-level, bos and eos added")):
        controls = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        for template in relation.templates:
            prompts = outcome(make_prompts, tokenizer, template, relation.samples, relation.samples[:2])
            for prompt, sample in zip(prompts or [], relation.samples, strict=bool(prompts)):
                assert prompt.text.endswith("\n" + fill(template, sample.subject))
                assert 0 < prompt.subject_position < len(prompt.input_ids)
                assert not controls & {*prompt.input_ids[1:], prompt.object_token}


@given(recipe=recipes(PLAIN))
@tried(60)
def test_any_relation_file_is_a_relation_whose_prompts_can_be_made_or_an_error(tmp_path, recipe):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(changed(RELATION, recipe)))
    for _, relation in outcome(read_json, path) or []:
        json.dumps(relation.name, ensure_ascii=False).encode()
        used(relation)


FILES = {
    "a digit too many": b'{"name": ' + b"1" * 5000 + b"}",
    "deep": b"[" * 10**6,
    "deep in a name": b'{"name": ' + b"[" * 900 + b"]" * 900 + b"}",
    "not a number": b'{"name": NaN}',
    "a long subject": json.dumps({**RELATION, "samples": [{"subject": "x" * 10**7, "object": "y"}]}).encode(),
}


@pytest.mark.parametrize("kind", FILES)
def test_such_a_relation_file_is_an_error(tmp_path, kind):
    path = tmp_path / "x.json"
    path.write_bytes(FILES[kind])
    with little_memory(), pytest.raises(LREError, match=r"x\.json") as caught:
        read_json(path)
    assert len(str(caught.value)) < 1000
    os.truncate(path, 2**40)
    with little_memory(), pytest.raises(LREError, match="has 1099511627776 bytes, over the limit of 67108864"):
        read_json(path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "broken link", "link to itself", "device"])
def test_what_is_not_a_file_is_an_error_and_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "x.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"broken link": "nowhere", "link to itself": path.name, "device": "/dev/zero"}[kind])
    for call, given_path in ((read_json, path), (load_relations, str(tmp_path)), (load_relations, str(path))):
        with pytest.raises(LREError, match=r"cannot be read|no such file|no relation in it|not a folder"):
            call(given_path)
