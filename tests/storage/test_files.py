"""Files that are written atomically, and names of files for anything."""

import errno
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.storage.files import check_writable, safe_name, write_whole, written_whole
from tests.helpers.hostile import STRINGS, tried


def test_a_file_appears_once_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "down" / "file"
    with written_whole(path) as part:
        part.write_text("some")
        assert [file.name for file in path.parent.iterdir()] == ["file.part"]
    assert path.read_text() == "some"
    with written_whole(path, append=True) as part:
        assert part.read_text() == "some"
        part.write_text("more")
        assert path.read_text() == "some"
    assert path.read_text() == "more"


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path):
    def write():
        with written_whole(tmp_path / "it") as part:
            part.write_text("text")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LREError, match=r"/it' cannot be written: No space left on device; free some space there$"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("something")
    message = "cannot be written: Not a directory; a file is where a folder should be"
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LREError, match=f"{folder}' {message}"):
            check_writable(folder)
    with pytest.raises(LREError, match=r"/file/below/it' cannot be written: .* a file is where a folder should be"):
        write_whole(tmp_path / "file" / "below" / "it", "text")
    check_writable(tmp_path / "not" / "there" / "yet")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


NAMES = st.one_of(
    st.sampled_from([*STRINGS, "con", "Aux", "nul", "lpt1", "\u65e5" * 200, "x" * 300, "company CEO", "Caf\u00e9"]),
    st.text(max_size=20),
    st.text("aA\u00e4\u00c4e\u0301_- ./+", max_size=8),
)
ALIKE = [
    str.lower,
    str.upper,
    str.title,
    lambda name: unicodedata.normalize("NFD", name),
    lambda name: unicodedata.normalize("NFC", name),
    lambda name: name.replace(" ", "_"),
    lambda name: name.replace("_", " "),
    lambda name: f"{name} ",
    lambda name: f"{name}.",
    safe_name,
]


@given(name=NAMES, other=NAMES)
@tried(200)
def test_no_two_names_have_one_file_and_every_system_accepts_it(name, other):
    names = {name, other, *(make(name) for make in ALIKE)}
    files = [safe_name(one) for one in names]
    assert len({unicodedata.normalize("NFKD", file).casefold() for file in files}) == len(names)
    for file in files:
        assert not re.fullmatch(r"(?i)\.*|(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[. ]", file)
        assert not set(file) & set('/\\:*?"<>|\0\n')
        assert len(file.encode()) < 200
