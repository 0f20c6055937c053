"""The user's cache: kept once, checked, bounded, and shared by processes."""

import os
import threading

import pytest

from lre_lightning.storage import cache
from lre_lightning.storage.cache import converted_folder, kept


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path))
    return converted_folder()


def write(content, folder):
    (folder / "content").write_text(content)


def read(folder):
    return (folder / "content").read_text()


def made(key, content="made", save=write):
    """What `kept` gives, and how often it was made."""
    calls = []
    return kept(key, lambda: calls.append(0) or content, save, read), len(calls)


def entries(folder):
    return [path for path in folder.iterdir() if path.is_dir()]


def test_what_is_damaged_or_half_written_is_made_again(folder):
    assert [made("a"), made("a"), made("b")] == [("made", 1), ("made", 0), ("made", 1)]
    for path in entries(folder):
        (path / "content").write_text("fade")  # of the same size
    assert [made("a", "new"), made("a")] == [("new", 1), ("new", 0)]
    (entries(folder)[0] / "checksums.json").write_text("[")
    (entries(folder)[1] / "content").unlink()
    assert [made(key)[1] for key in "abab"] == [1, 1, 0, 0]

    def full(content, folder):
        write(content, folder)
        raise OSError("no space left")

    assert [made("c", save=full), made("c", save=full)] == [("made", 1), ("made", 1)]
    assert len(entries(folder)) == 2


def test_those_that_were_used_longest_ago_are_removed(folder, monkeypatch):
    for age, key in enumerate("abc"):
        made(key)
        for path in entries(folder):
            os.utime(path, (path.stat().st_mtime - 9,) * 2)
        assert len(entries(folder)) == age + 1
    assert made("a")[1] == 0  # used again
    size = sum(path.stat().st_size for path in entries(folder)[0].iterdir())
    monkeypatch.setattr(cache, "LIMIT", 3 * size)
    assert made("d")[1] == 1
    assert [made(key)[1] for key in "acd"] == [0, 0, 0]
    assert made("b")[1] == 1


def test_others_that_want_the_same_wait_for_it(folder):
    started, found = threading.Event(), []

    def slowly():
        started.set()
        waiting.start()
        waiting.join(0.1)
        assert not found
        return "made"

    waiting = threading.Thread(target=lambda: found.append(made("a", "another")))
    assert kept("a", slowly, write, read) == "made"
    waiting.join()
    assert found == [("made", 0)]
