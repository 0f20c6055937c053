"""Downloading the paper's relations: real requests to a local HTTP server, with a small manifest or the real one."""

import hashlib
import json
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.relations import paper
from tests.helpers.relations import PAPERS, with_papers_relations
from tests.helpers.servers import Handler, serving

A, B, C = NAMES = ("bias/a.json", "factual/b.json", "factual/c.json")
CONTENT = {name: json.dumps({"name": name, "samples": ["ü" * 500]}).encode() for name in NAMES}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the cache. Proxies are bypassed, and failed requests are repeated without a pause."""
    for variable in os.environ:
        if variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LRE_PAPER_RELATIONS_URL", raising=False)
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
    return tmp_path / "cache"


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    path = tmp_path / "manifest"
    path.write_text("".join(f"{name} {hashlib.sha256(CONTENT[name]).hexdigest()}\n" for name in NAMES))
    monkeypatch.setattr(paper, "MANIFEST", path)
    return path


@pytest.fixture
def server(cache, monkeypatch):
    """A server of `files`: `ways` says, by name, how the next requests are answered, and the last of them stays."""
    state = SimpleNamespace(files=CONTENT, ways={}, requests=[], over=threading.Event())

    class Files(Handler):
        protocol_version = "HTTP/1.1"

        def answer(self, body):
            name = self.path.removeprefix("/data/")
            state.requests.append(name)
            content, ways = state.files[name], state.ways.get(name, ["well"])
            way = ways.pop(0) if len(ways) > 1 else ways[0]
            if way.isdigit():
                return self.reply(int(way), b"")
            if way == "wrong":
                return self.reply(200, b"?" * len(content))
            half = len(content) // 2 if way in ("cut", "halts") else len(content)
            self.reply(200, content, body=False)
            self.wfile.write(content[:half])
            self.close_connection = True
            if way == "halts":
                state.over.wait(60)
            return None

    with serving(Files) as address:
        state.address = f"{address}/data"
        monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", state.address)
        yield state
        state.over.set()


def content_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def failure(timeout=5.0):
    with pytest.raises(LREError) as caught:
        paper.fetch_paper_relations(timeout)
    return str(caught.value)


def test_the_manifest_has_the_47_relations_by_category():
    entries = [line.split() for line in paper.MANIFEST.read_text().splitlines()]
    categories = Counter(name.split("/")[0] for name, _ in entries)
    assert categories == {"bias": 7, "commonsense": 8, "factual": 26, "linguistic": 6}
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for _, checksum in entries)


@with_papers_relations
def test_the_47_relations_arrive_byte_for_byte(server):
    server.files = content_of(Path(PAPERS))
    folder = paper.fetch_paper_relations()
    assert len(server.requests) == 47
    assert content_of(folder) == server.files


def test_files_are_downloaded_once_and_then_read_from_the_cache(server, manifest, cache, capsys, monkeypatch):
    folder = paper.fetch_paper_relations()
    assert folder == cache / paper.REVISION
    assert content_of(folder) == CONTENT
    assert sorted(server.requests) == sorted(NAMES)
    assert capsys.readouterr().err == f"downloading the paper's relations from {server.address}/ to {folder}\n"
    assert (folder / A).stat().st_mode & 0o777 == 0o644
    times = {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]}
    monkeypatch.delenv("LRE_PAPER_RELATIONS_URL")  # the tests run with HF_HUB_OFFLINE
    assert paper.fetch_paper_relations() == folder
    assert {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]} == times
    assert len(server.requests) == 3
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["cut", "503"])
def test_a_failed_request_is_repeated(server, manifest, way):
    server.ways[B] = [way, way, "well"]
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 3, C: 1}


@pytest.mark.parametrize(
    ("way", "timeout", "reason"),
    [
        ("halts", 0.3, "timed out"),
        ("cut", 5.0, "IncompleteRead"),
        ("404", 5.0, "404 Client Error"),
        ("wrong", 5.0, "its SHA-256 is not that of the paper's relation"),
    ],
)
def test_a_request_that_keeps_failing_is_an_error_and_other_files_are_kept(server, manifest, way, timeout, reason):
    server.ways[B] = [way]
    message = failure(timeout)
    assert message.startswith(f"the paper's relations cannot be downloaded from {server.address}/{B}: ")
    assert reason in message
    assert message.endswith(
        ". Try again, or set LRE_PAPER_RELATIONS_URL to a mirror, or get the folder `data` of the repository in "
        "another way (git clone https://github.com/evandez/relations) and give it as source or by LRE_RELATIONS_DIR"
    )
    del server.ways[B]
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 4, C: 1}


def test_no_request_is_made_if_the_hub_is_offline(cache):
    assert f"cannot be downloaded from {paper.ADDRESS}: HF_HUB_OFFLINE is set. Try again" in failure()
    assert not cache.exists()


def test_missing_and_damaged_files_are_downloaded_again(server, manifest):
    folder = paper.fetch_paper_relations()
    (folder / A).unlink()
    (folder / B).write_bytes(CONTENT[A])
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 2, B: 2, C: 1}


def test_a_cache_that_cannot_be_written_is_named(server, manifest, cache):
    cache.touch()
    assert failure().startswith(f"{str(cache)!r} cannot be written: File exists; a file is where a folder should be")
    assert server.requests == []


def test_two_downloads_at_the_same_time_do_not_disturb_each_other(server, manifest):
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: paper.fetch_paper_relations(), range(2)))
    assert folders[0] == folders[1]
    assert content_of(folders[0]) == CONTENT
