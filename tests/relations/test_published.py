"""Downloading published relations: real requests to a local HTTP server, with a small manifest or the real one."""

import hashlib
import io
import json
import os
import re
import threading
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.relations import published
from lre_lightning.relations.sources import load_relations
from tests.helpers.relations import PAPERS, with_papers_relations
from tests.helpers.servers import Handler, serving

A, B, C = NAMES = ("bias/a.json", "factual/b.json", "factual/c.json")
PLUS = {
    "name": "number plus 2",
    "prompt_templates": ["{} plus 2 is"],
    "properties": {"relation_type": "mathematical"},
    "samples": [{"subject": "1", "object": "3"}],
}
CONTENT = {name: json.dumps({"name": name, "samples": ["ü" * 500]}).encode() for name in NAMES}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the cache. Proxies are bypassed, and failed requests are repeated without a pause."""
    for variable in os.environ:
        if variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LRE_PAPER_COPY", raising=False)
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
    return tmp_path / "cache"


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    path = tmp_path / "manifest"
    path.write_text("".join(f"{name} {hashlib.sha256(CONTENT[name]).hexdigest()}\n" for name in NAMES))
    monkeypatch.setattr(published.Published, "manifest", path)
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
        monkeypatch.setenv("LRE_PAPER_COPY", state.address)
        yield state
        state.over.set()


def content_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def failure(timeout=5.0):
    with pytest.raises(LREError) as caught:
        published.fetch_published("paper", timeout)
    return str(caught.value)


def test_the_manifest_has_the_47_relations_by_category():
    entries = [line.split() for line in published.PUBLISHED["paper"].manifest.read_text().splitlines()]
    categories = Counter(name.split("/")[0] for name, _ in entries)
    assert categories == {"bias": 7, "commonsense": 8, "factual": 26, "linguistic": 6}
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for _, checksum in entries)


@with_papers_relations
def test_the_47_relations_arrive_byte_for_byte(server):
    server.files = content_of(Path(PAPERS))
    folder = published.fetch_published("paper")
    assert len(server.requests) == 47
    assert content_of(folder) == server.files


def test_files_are_downloaded_once_and_then_read_from_the_cache(server, manifest, cache, capsys, monkeypatch):
    folder = published.fetch_published("paper")
    assert folder == cache / "relations" / "paper"
    assert content_of(folder) == CONTENT
    assert sorted(server.requests) == sorted(NAMES)
    assert capsys.readouterr().err == f"downloading the relations 'paper' from {server.address} to {folder}\n"
    assert (folder / A).stat().st_mode & 0o777 == 0o644
    times = {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]}
    monkeypatch.delenv("LRE_PAPER_COPY")  # the tests run with HF_HUB_OFFLINE
    assert published.fetch_published("paper") == folder
    assert {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]} == times
    assert len(server.requests) == 3
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["cut", "503"])
def test_a_failed_request_is_repeated(server, manifest, way):
    server.ways[B] = [way, way, "well"]
    assert content_of(published.fetch_published("paper")) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 3, C: 1}


@pytest.mark.parametrize(
    ("way", "timeout", "reason"),
    [
        ("halts", 0.3, "timed out"),
        ("cut", 5.0, "IncompleteRead"),
        ("404", 5.0, "404 Client Error"),
        ("wrong", 5.0, "it is not what was published, by its SHA-256"),
    ],
)
def test_a_request_that_keeps_failing_is_an_error_and_other_files_are_kept(server, manifest, way, timeout, reason):
    server.ways[B] = [way]
    message = failure(timeout)
    assert message.startswith(f"the relations 'paper' cannot be downloaded from {server.address}/{B}: ")
    assert reason in message
    assert message.endswith(
        ". Try again, or get them in another way (https://github.com/evandez/relations) and let LRE_PAPER_COPY name "
        "their folder, or a mirror"
    )
    del server.ways[B]
    assert content_of(published.fetch_published("paper")) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 4, C: 1}


def test_no_request_is_made_if_the_hub_is_offline(cache):
    assert (
        f"cannot be downloaded from {published.PUBLISHED['paper'].address}: HF_HUB_OFFLINE is set. Try again"
        in failure()
    )
    assert not cache.exists()


def test_missing_and_damaged_files_are_downloaded_again(server, manifest):
    folder = published.fetch_published("paper")
    (folder / A).unlink()
    (folder / B).write_bytes(CONTENT[A])
    assert content_of(published.fetch_published("paper")) == CONTENT
    assert Counter(server.requests) == {A: 2, B: 2, C: 1}


def test_a_cache_that_cannot_be_written_is_named(server, manifest, cache):
    cache.touch()
    assert failure().startswith(f"{str(cache)!r} cannot be written: File exists; a file is where a folder should be")
    assert server.requests == []


def test_two_downloads_at_the_same_time_do_not_disturb_each_other(server, manifest):
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: published.fetch_published("paper"), range(2)))
    assert folders[0] == folders[1]
    assert content_of(folders[0]) == CONTENT


def manifest_of(files):
    return "".join(f'"{name}" {hashlib.sha256(content).hexdigest()}\n' for name, content in files.items())


def publish(monkeypatch, tmp_path, name, files):
    """Let the files be what was published under a name, and a folder a copy of them; returns the folder."""
    path, folder = tmp_path / "manifest", tmp_path / "copy"
    path.write_text(manifest_of(files))
    monkeypatch.setattr(published.Published, "manifest", path)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    monkeypatch.setenv(f"LRE_{name.upper()}_COPY", str(folder))
    return folder


KLAR = {
    "name": "capital",
    "prompt_templates": ["Die Hauptstadt von <subject> ist <mask>.", "<subject> <subject> <mask>", "<mask> ist"],
    "samples": [{"subject": "Peru", "object": "Lima", "index": 1, "subject_en": "Peru"}],
    "relation_id": "P36",
}
BATS = {
    "1_Inflectional_morphology/I02 [noun - plural_irreg].txt": b"child\tchildren\nice_age\tice_ages/icy_ages",
    "4_Lexicographic_semantics/L10 [antonyms - binary].txt": b"west\teast",
}
FILES = {
    "klar": {f"{language}/capital_of.json": json.dumps(KLAR).encode() for language in ("de", "nl")},
    "christ": {"math/plus.json": json.dumps(PLUS | {"prompt_templates_zs": ["No slot", "{} and 2 is"]}).encode()},
    "bats": BATS,
}


def test_parallel_relations_are_named_by_their_languages(monkeypatch, tmp_path):
    publish(monkeypatch, tmp_path, "klar", FILES["klar"])
    assert [relation.name for relation in load_relations(source="klar")] == ["capital of (de)", "capital of (nl)"]
    (german,) = load_relations("de", source="klar")
    assert german.templates == ("Die Hauptstadt von {} ist",)
    assert [(sample.subject, sample.object) for sample in german.samples] == [("Peru", "Lima")]


def test_templates_without_a_place_for_the_subject_are_left_out(monkeypatch, tmp_path):
    publish(monkeypatch, tmp_path, "christ", FILES["christ"])
    (plus,) = load_relations(source="christ")
    assert (plus.category, plus.templates) == ("mathematical", ("{} plus 2 is", "{} and 2 is"))


def packed(files):
    """Return a zip archive of files, and of one that the manifest does not have."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("BATS_3.0/../../outside.txt", "not in the manifest")
            for name, content in files.items():
                archive.writestr(f"BATS_3.0/{name}", content)
        return file.getvalue()


def test_bats_is_unpacked_from_its_archive(monkeypatch, tmp_path, cache):
    publish(monkeypatch, tmp_path, "bats", BATS)
    copied = load_relations(source="bats")
    served = {name: packed(files) for name, files in (("good", BATS), ("other", dict.fromkeys(BATS, b"a\tb")))}

    class Archive(Handler):
        def answer(self, body):
            self.reply(200, served[self.path.split("/")[1]])

    with serving(Archive) as address:
        monkeypatch.setenv("LRE_BATS_COPY", f"{address}/other/BATS_3.0.zip")
        with pytest.raises(LREError, match=r"'bats' cannot be downloaded from .*: it is not what was published"):
            load_relations(source="bats")
        assert not list(cache.rglob("*.txt"))
        monkeypatch.setenv("LRE_BATS_COPY", f"{address}/good/BATS_3.0.zip")
        relations = load_relations(source="bats")
    assert relations == copied
    assert {path.name for path in cache.rglob("*.txt")} == {name.split("/")[1] for name in BATS}
    assert [(r.name, r.category, r.templates) for r in relations] == [
        ("noun - plural irreg", "Inflectional morphology", ()),
        ("antonyms - binary", "Lexicographic semantics", ()),
    ]
    assert [(s.subject, s.object) for s in relations[0].samples] == [("child", "children"), ("ice age", "ice ages")]


@pytest.mark.parametrize("name", FILES)
def test_a_folder_that_is_not_a_copy_is_refused(monkeypatch, tmp_path, name):
    folder = publish(monkeypatch, tmp_path, name, FILES[name])
    load_relations(source=name)
    next(path for path in folder.rglob("*.*") if path.is_file()).write_text("[]")
    with pytest.raises(LREError, match=f"'{name}': of its {len(FILES[name])} files 1 are missing or different"):
        load_relations(source=name)


@pytest.mark.parametrize(("name", "count"), {"christ": 170, "bats": 40, "klar": 340}.items())
def test_published_copies_are_whole(name, count):
    if not os.environ.get(published.PUBLISHED[name].variable):
        pytest.skip(f"{published.PUBLISHED[name].variable} does not name a copy")
    assert len(load_relations(source=name)) == count
