"""Files of relations for tests."""

import json
import os

import pytest

PAPERS = os.environ.get("LRE_RELATIONS_DIR")
with_papers_relations = pytest.mark.skipif(not PAPERS, reason="LRE_RELATIONS_DIR does not name the paper's relations")

CAPITALS = {
    "name": "country capital city",
    "prompt_templates": ["The capital city of {} is", "{}'s capital is"],
    "prompt_templates_zs": ["What is the capital of {}? It is"],
    "samples": [{"subject": "France", "object": "Paris"}],
}


def write(path, data=CAPITALS, **changes):
    """Write a relation, or a list of relations, as a JSON file; other keys may be given or changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data | changes if changes else data), encoding="utf-8")
    return path
