"""Loading from the hub: real requests to a local HTTP server that answers as the hub does."""

import hashlib
import os
import subprocess
import sys

import pytest

from lre_lightning.models.language_model import LanguageModel
from tests.helpers.servers import Handler, serving
from tests.helpers.toy import write_toy_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import sys
import huggingface_hub.constants
from lre_lightning import LREError, LanguageModel
from lre_lightning.models.tokenizer import load_tokenizer

def load(name, revision):
    try:
        lm = LanguageModel.from_pretrained(name, revision=revision)
        print(lm.name, lm.revision, lm.num_layers, lm.fingerprint, len(load_tokenizer(name, revision)))
    except LREError as error:
        print("error:", error)

load("toy/lm", "v1")
load("toy/lm", "v9")
huggingface_hub.constants.HF_HUB_OFFLINE = True
load("toy/lm", "v1")
"""


@pytest.fixture
def hub(tmp_path):
    """A hub with the one model toy/lm, at the revision v1; yields its address and the requests it got."""
    folder = write_toy_model(tmp_path / "repository")
    requests, known = [], ("v1", COMMIT)

    class Hub(Handler):
        def answer(self, body):
            requests.append(self.path)
            revision, _, name = self.path.removeprefix("/toy/lm/resolve/").partition("/")
            path = folder / name
            if revision in known and path.is_file():
                content, status = path.read_bytes(), 200
            else:
                content, status = b"{}", 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if status == 200:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
            else:
                found = any(f"/{name}/" in self.path for name in known)
                self.send_header("X-Error-Code", "EntryNotFound" if found else "RevisionNotFound")
            self.end_headers()
            if body:
                self.wfile.write(content)

    with serving(Hub) as address:
        yield address, requests


def test_models_come_from_the_hub_by_name_and_revision_and_then_from_the_cache(hub, tmp_path):
    address, requests = hub
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    fingerprint = LanguageModel.from_pretrained(str(tmp_path / "repository")).fingerprint
    loaded, no_revision, cached = result.stdout.splitlines()
    assert loaded == cached == f"toy/lm v1 2 {fingerprint} 32"
    assert no_revision.startswith("error: no decoder-only LM can be loaded from 'toy/lm'")
    assert sum("model.safetensors" in path for path in requests) <= 2  # HEAD and GET
