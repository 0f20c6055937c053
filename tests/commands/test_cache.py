"""`cache`: what is kept is told, and removed."""

from lre_lightning.storage.cache import converted_folder, kept
from tests.helpers.command import lre


def test_what_is_kept_is_counted_and_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path))
    (tmp_path / "other").write_text("")
    kept("a", lambda: "", lambda _, folder: (folder / "content").write_bytes(bytes(10**6)), lambda _: "")
    for option, said, size in (("", "kept", "1.0"), ("--clear=true", "removed", "1.0"), ("", "kept", "0.0")):
        assert lre("cache", *option.split()) == 0
        assert capsys.readouterr().out == f"{said}: {size} MB in {converted_folder()}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
