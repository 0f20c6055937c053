"""Loading from the hub: real requests to a local HTTP server that answers as the hub does."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tests.helpers.servers import Handler, serving
from tests.helpers.toy import write_toy_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys
from lre_lightning import LREError, LanguageModel
from lre_lightning.prompts.prompt import load_tokenizer
try:
    lm = LanguageModel.from_pretrained(sys.argv[1], revision=sys.argv[2], device_map=json.loads(sys.argv[3]))
    print(lm.name, lm.revision, lm.num_layers, lm.fingerprint, len(load_tokenizer(sys.argv[1], sys.argv[2])))
except LREError as error:
    print("error:", error)
"""


@pytest.fixture
def hub(tmp_path):
    """A hub with the one model toy/lm, at the revision v1; yields its address and the requests it got."""
    folder = write_toy_model(tmp_path / "repository")
    requests = []

    class Hub(Handler):
        def answer(self, body):
            requests.append(self.path)
            start = "/toy/lm/resolve/"
            revision, _, name = self.path.removeprefix(start).partition("/")
            path = folder / name
            if self.path.startswith(start) and revision in ("v1", COMMIT) and path.is_file():
                content, status = path.read_bytes(), 200
            else:
                content, status = json.dumps({"error": "not found"}).encode(), 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if status == 200:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
            else:
                known = "/toy/lm/" in self.path and any(f"/{name}/" in self.path for name in ("v1", COMMIT))
                self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.end_headers()
            if body:
                self.wfile.write(content)

    with serving(Hub) as address:
        yield address, requests


def load(tmp_path, address, name, revision="v1", device_map=None, **changes):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1", **changes}
    command = [sys.executable, "-c", SCRIPT, name, revision, json.dumps(device_map)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_model_comes_from_the_hub_by_name_and_revision(hub, tmp_path):
    from lre_lightning.models.language_model import LanguageModel

    address, requests = hub
    fingerprint = LanguageModel.from_pretrained(str(tmp_path / "repository")).fingerprint
    loaded = load(tmp_path, address, "toy/lm")
    assert loaded == f"toy/lm v1 2 {fingerprint} 32"
    assert any("model.safetensors" in path for path in requests)
    # The second time it comes from the cache, with no hub at all, and part of it stays on disk.
    places = {"": "cpu", "model.layers.1": "disk"}
    assert load(tmp_path, "http://127.0.0.1:9", "toy/lm", device_map=places, HF_HUB_OFFLINE="1") == loaded


def test_a_name_or_revision_that_the_hub_does_not_have(hub, tmp_path):
    address, _ = hub
    assert load(tmp_path, address, "toy/other").startswith("error: no decoder-only LM can be loaded from 'toy/other'")
    assert load(tmp_path, address, "toy/lm", "v9").startswith("error: no decoder-only LM can be loaded from 'toy/lm'")
