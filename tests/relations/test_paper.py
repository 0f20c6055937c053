"""The paper's relations, fetched: real requests to a local HTTP server, with a manifest of its own or the real one."""

import hashlib
import http.server
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from lre_lightning.errors import LREError
from lre_lightning.relations import paper

A, B, C = NAMES = ("bias/a.json", "factual/b.json", "factual/c.json")
CONTENT = {name: json.dumps({"name": name, "samples": ["ü" * 500]}).encode() for name in NAMES}
RELATIONS_DIR = os.environ.get("LRE_RELATIONS_DIR")
CHILD = """
import os, signal, sys
from pathlib import Path
from lre_lightning.sources import paper

def killed_at(method, count):
    calls, original = [], getattr(Path, method)
    def call(self, target):
        calls.append(self)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, target)
    setattr(Path, method, call)

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs in the background ignore it
paper.MANIFEST = Path(sys.argv[1])
if sys.argv[2:]:
    killed_at(sys.argv[2], int(sys.argv[3]))
print(paper.fetch_paper_relations())
"""


class Server:
    """An HTTP server that has some files, and answers each request as the test wants.

    Attributes:
        requests: The names of the files that were asked for.
        holding: Set once an answer is held back.
        go_on: To be set for the answers that are held back to be sent.
    """

    def __init__(self, files):
        self.files, self.requests, self.ways = files, [], {}
        self.holding, self.go_on = threading.Event(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                name = self.path.removeprefix("/data/")
                outer.requests.append(name)
                ways = outer.ways.get(name, ["well"])
                outer.answer(self, ways.pop(0) if len(ways) > 1 else ways[0], outer.files.get(name))

            def do_HEAD(self):
                outer.requests.append("HEAD")
                self.send_error(405)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}/data"

    def behave(self, name, *ways):
        """Say how the file is answered, request by request; the last way stays."""
        self.ways[name] = list(ways)

    def answer(self, handler, way, content):
        if way.isdigit() or content is None:
            return handler.send_error(int(way) if way.isdigit() else 404)
        if way == "silent":
            self.hold()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        half = len(content) // 2
        if way == "slow":
            for start in range(0, len(content), 200):
                handler.wfile.write(content[start : start + 200])
                self.go_on.wait(0.1)
        elif way == "wrong":
            handler.wfile.write(b"?" * len(content))
        elif way in ("halts", "cut", "reset"):
            handler.wfile.write(content[:half])
            if way == "halts":
                self.hold()
                handler.wfile.write(content[half:])
            else:
                if way == "reset":
                    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.close_connection = True
        else:
            handler.wfile.write(content)
        return None

    def hold(self):
        self.holding.set()
        self.go_on.wait()

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache's folder; requests go straight to their address, and what may pass is tried again at once."""
    for variable in os.environ:
        if variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LRE_PAPER_RELATIONS_URL", raising=False)
    monkeypatch.setattr(paper, "PAUSES", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    path = tmp_path / "manifest"
    path.write_text("".join(f"{name} {hashlib.sha256(CONTENT[name]).hexdigest()}\n" for name in NAMES))
    monkeypatch.setattr(paper, "MANIFEST", path)
    return path


@pytest.fixture
def server(cache, manifest, monkeypatch):
    server = Server(dict(CONTENT))
    monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", server.address)
    yield server
    server.close()


def content_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def failure(timeout=5.0):
    with pytest.raises(LREError) as caught:
        paper.fetch_paper_relations(timeout)
    return str(caught.value)


def child(manifest, *killed_at, **changes):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(manifest), *killed_at],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **changes,
    )


def test_the_manifest_has_the_47_relations_by_category():
    entries = [line.split() for line in paper.MANIFEST.read_text().splitlines()]
    assert Counter(name.split("/")[0] for name, _ in entries) == {
        "bias": 7,
        "commonsense": 8,
        "factual": 26,
        "linguistic": 6,
    }
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for _, checksum in entries)


@pytest.mark.skipif(not RELATIONS_DIR, reason="LRE_RELATIONS_DIR does not name the paper's relations")
def test_the_47_relations_arrive_byte_for_byte(cache, monkeypatch):
    files = {
        path.relative_to(RELATIONS_DIR).as_posix(): path.read_bytes()
        for path in Path(RELATIONS_DIR).rglob("*")
        if path.suffix == ".json"
    }
    server = Server(files)
    monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", server.address)
    try:
        folder = paper.fetch_paper_relations()
    finally:
        server.close()
    assert len(server.requests) == 47
    assert content_of(folder) == files


def test_all_files_are_fetched_once_and_then_come_from_the_cache_with_the_server_gone(server, cache, capsys):
    folder = paper.fetch_paper_relations()
    assert folder == cache / paper.REVISION
    assert content_of(folder) == CONTENT
    assert sorted(server.requests) == sorted(NAMES)
    assert capsys.readouterr().err == f"fetching 3 relations from {server.address}/ to {cache}\n"
    server.close()
    assert paper.fetch_paper_relations() == folder
    assert len(server.requests) == 3
    assert capsys.readouterr() == ("", "")


def test_the_files_have_the_mode_that_files_usually_have(server, tmp_path):
    (tmp_path / "usual").touch()
    assert (paper.fetch_paper_relations() / A).stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_cache_that_may_only_be_read_is_enough_once_all_is_there(server, cache):
    folder = paper.fetch_paper_relations()
    for path in cache.glob("*.lock"):
        path.unlink()
    everything = [*cache.rglob("*"), cache]
    times = {path: path.stat().st_mtime_ns for path in everything}
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert paper.fetch_paper_relations() == folder
        assert {path: path.stat().st_mtime_ns for path in [*cache.rglob("*"), cache]} == times
    finally:
        for path in everything:
            path.chmod(0o755)


def test_a_slow_server_that_keeps_sending_is_waited_for(server):
    server.behave(B, "slow")
    assert content_of(paper.fetch_paper_relations(timeout=0.9)) == CONTENT


@pytest.mark.parametrize("way", ["cut", "reset", "500", "503", "429"])
def test_trouble_that_passes_is_got_over(server, way):
    server.behave(B, way, way, "well")
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 3, C: 1}


@pytest.mark.parametrize(
    ("way", "timeout", "tries", "reason"),
    [
        ("silent", 0.2, 3, "sent nothing for 0.2 seconds in 3 tries"),
        ("halts", 0.2, 3, "sent nothing for 0.2 seconds in 3 tries"),
        ("cut", 5.0, 3, "broke the connection off in 3 tries"),
        ("reset", 5.0, 3, "broke the connection off in 3 tries"),
        ("500", 5.0, 3, "answers 500 Internal Server Error in 3 tries"),
        ("404", 5.0, 1, "answers 404 Not Found"),
        ("wrong", 5.0, 1, "sent something else than the paper's relation (SHA-256)"),
    ],
)
def test_trouble_that_stays_is_named_with_what_to_do_and_what_has_come_is_kept(
    server, cache, way, timeout, tries, reason
):
    server.behave(A, way)
    server.behave(C, way)
    message = failure(timeout)
    assert message == (
        f"the paper's relations can't be fetched: {server.address}/{A} {reason}. Try again, or set "
        "LRE_PAPER_RELATIONS_URL to a mirror, or get the folder `data` of the repository in another way "
        "(git clone https://github.com/evandez/relations) and give it as `source` or by LRE_RELATIONS_DIR"
    )
    assert Counter(server.requests) == {A: tries}
    server.behave(A, "well")
    assert f"/{C} {reason}" in failure(timeout)
    assert not (cache / paper.REVISION).exists()
    server.go_on.set()
    server.behave(C, "well")
    server.requests.clear()
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert server.requests == [C]


def test_no_server_is_an_error_at_once(server):
    server.close()
    message = failure()
    assert f"{server.address}/{A} can't be reached ([Errno" in message
    assert "Connection refused" in message
    assert "git clone" in message


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses connections")
def test_a_server_that_takes_no_connection_is_given_up(cache, manifest, monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", f"http://127.0.0.1:{full.getsockname()[1]}")
        assert f"/{A} can't be reached: nothing takes the connection. Try again" in failure(0.2)


def test_the_network_is_left_alone_where_the_hub_is_to_be(cache):
    message = failure()
    assert f"{paper.ADDRESS} is not asked because HF_HUB_OFFLINE is set. Try again, or set" in message
    assert not cache.exists()


def test_a_password_in_the_address_is_not_shown(server, monkeypatch, capsys):
    monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", server.address.replace("//", "//me:secret@"))
    server.behave(A, "404")
    assert "secret" not in failure() + capsys.readouterr().err


@pytest.mark.parametrize("address", ["ftp://host/data", "/some/folder", "http://[", "data"])
def test_an_address_that_files_cannot_be_fetched_from(cache, monkeypatch, address):
    monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", address)
    assert failure() == (
        f"LRE_PAPER_RELATIONS_URL is {address!r}; it must be an address that begins with http://, https:// or file://"
    )


def test_a_folder_may_be_the_mirror(cache, manifest, tmp_path, monkeypatch):
    mirror = tmp_path / "a mirror"
    monkeypatch.setenv("LRE_PAPER_RELATIONS_URL", mirror.as_uri())
    for name in (A, B):
        (mirror / name).parent.mkdir(parents=True)
        (mirror / name).write_bytes(CONTENT[name])
    assert f"{mirror.as_uri()}/{C} can't be read (No such file or directory)" in failure()
    (mirror / C).write_bytes(CONTENT[A])
    assert f"{mirror.as_uri()}/{C} sent something else" in failure()
    (mirror / C).write_bytes(CONTENT[C])
    assert content_of(paper.fetch_paper_relations()) == CONTENT


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(CONTENT[A])])
def test_a_file_that_is_missing_or_damaged_in_the_cache_is_fetched_again(server, cache, damage):
    folder = paper.fetch_paper_relations()
    damage(folder / B)
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 2, C: 1}
    assert not list(cache.glob("*.part"))


def test_a_damaged_file_is_named_where_it_cannot_be_fetched_again(server):
    path = paper.fetch_paper_relations() / B
    path.write_bytes(b"")
    server.close()
    assert failure().startswith(f"{str(path)!r} is damaged, and the paper's relations can't be fetched: http://127")


def test_another_relation_in_the_cache_is_never_taken_for_one_of_the_papers(server):
    folder = paper.fetch_paper_relations()
    (folder / "bias" / "mine.json").write_text("{}")
    assert failure() == (
        f"{str(folder / 'bias/mine.json')!r} is none of the paper's relations, which that folder is kept for: move it "
        "elsewhere"
    )


def test_a_cache_that_cannot_be_written_is_named(server, cache):
    cache.touch()
    assert failure() == (
        f"{str(cache)!r} cannot be written: Not a directory; a file is where a folder should be: move it, or give "
        "another folder (LRE_CACHE_DIR names the cache)"
    )
    assert server.requests == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize(("name", "way"), [(A, "silent"), (B, "halts"), (C, "halts")])
def test_a_fetch_that_is_killed_goes_on_with_the_file_that_it_was_at(server, cache, manifest, name, way, number):
    server.behave(name, way, "well")
    with child(manifest) as process:
        assert server.holding.wait(60)
        process.send_signal(number)
    assert process.returncode != 0
    assert not (cache / paper.REVISION).exists()
    server.go_on.set()
    assert content_of(paper.fetch_paper_relations()) == CONTENT
    assert Counter(server.requests) == {A: 1, B: 1, C: 1} | {name: 2}
    assert not list(cache.glob("*.part"))


def test_a_fetch_that_is_killed_just_before_its_end_needs_no_request_to_go_on(server, cache, manifest):
    with child(manifest, "rename", "1") as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (cache / paper.REVISION).exists()
    server.close()
    assert content_of(paper.fetch_paper_relations()) == CONTENT


def test_a_mending_that_is_killed_between_two_files_goes_on(server, manifest):
    folder = paper.fetch_paper_relations()
    for name in (A, C):
        (folder / name).write_bytes(b"")
    with child(manifest, "replace", "2") as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert content_of(folder) == {**CONTENT, C: b""}
    server.close()
    assert content_of(paper.fetch_paper_relations()) == CONTENT


def test_of_two_processes_one_fetches_and_the_other_waits_for_it(server, cache, manifest):
    server.behave(B, "halts", "well")
    with child(manifest) as first:
        assert server.holding.wait(60)
        with child(manifest) as second:
            assert second.stderr.readline() == "another process fetches the paper's relations: waiting for it\n"
            assert second.poll() is None
            server.go_on.set()
            assert second.communicate(timeout=60)[0] == f"{cache / paper.REVISION}\n"
        assert first.communicate(timeout=60) == (
            f"{cache / paper.REVISION}\n",
            f"fetching 3 relations from {server.address}/ to {cache}\n",
        )
    assert Counter(server.requests) == {A: 1, B: 1, C: 1}


def test_a_terminal_shows_one_bar(server, manifest):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(manifest)], env=environment, stderr=theirs, stdout=subprocess.DEVNULL
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 10_000):
            shown += chunk
    except OSError:  # so Linux ends it
        pass
    os.close(ours)
    assert process.wait(60) == 0
    assert b"Fetching the paper's relations" in shown
    assert b"100%" in shown
    assert b"from http" not in shown


def test_importing_it_imports_neither_pooch_nor_requests():
    code = "import sys; import lre_lightning.relations.paper; print({'pooch', 'requests', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
