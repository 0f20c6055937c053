"""Files of LREs from strangers: what is in them becomes an LRE or one clear error."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.hostile import PLAIN, SPOILS, an_lre, changed, little_memory, outcome, recipes, spoiled, tried
from tests.helpers.toy import WIDTH, toy_model

TOY = LanguageModel(toy_model(), name="toy")
LRE_OF_TOY = an_lre(TOY.identity)


def of_parts(header, tensors, size=0):
    """The bytes of such a file, whose header is said to be longer by `size`."""
    text = json.dumps(header).encode()
    return struct.pack("<q", (len(text) + size) % 2**63) + text + tensors


TENSORS = bytes(4 * WIDTH * (WIDTH + 1))
HEADER = {
    "__metadata__": {"format": "lre-lightning/1", "lre": json.dumps(LRE_OF_TOY.metadata())},
    "weight": {"dtype": "F32", "shape": [WIDTH, WIDTH], "data_offsets": [0, 4 * WIDTH**2]},
    "bias": {"dtype": "F32", "shape": [WIDTH], "data_offsets": [4 * WIDTH**2, 4 * WIDTH * (WIDTH + 1)]},
}
HEADER_VALUES = st.one_of(
    PLAIN, st.sampled_from(["F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "U8", [2**40, 2**40]])
)


METADATA = json.loads(json.dumps(LRE_OF_TOY.metadata()))


@given(
    header=recipes(HEADER_VALUES),
    metadata=recipes(PLAIN),
    size=st.sampled_from([0] * 5 + [1, -1, 100, 2**40, -(2**62)]),
    spoil=SPOILS,
)
@pytest.mark.parametrize("part", ["header", "metadata", "bytes"])
@tried(80)
def test_any_header_metadata_and_bytes_are_an_lre_or_an_error(tmp_path, part, header, metadata, size, spoil):
    path = tmp_path / "x.safetensors"
    if part == "header":
        content = of_parts(changed(HEADER, header), TENSORS, size)
    elif part == "metadata":
        content = of_parts({**HEADER, "__metadata__": {"lre": json.dumps(changed(METADATA, metadata))}}, TENSORS)
    else:
        content = spoiled(of_parts(HEADER, TENSORS), *spoil)
    path.write_bytes(content)
    lre = outcome(LRE.load, path)
    if lre is not None:
        assert lre.metadata() == LRE.read_metadata(path)
        assert torch.isfinite(lre(torch.ones(len(lre.bias)))).all()
        assert json.loads(json.dumps(lre.metadata()))["origin"]["relation"] == lre.origin.relation
        outcome(lre.decode, TOY, torch.ones(WIDTH))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"more": {"dtype": "F32", "shape": [0], "data_offsets": [1088, 1088]}},
            "not an LRE file .* it has 3 tensors",
        ),
        ({"__metadata__": {"lre": "[" * 10**5}}, ""),
        ({"bias": {**HEADER["bias"], "shape": [WIDTH, 1]}}, r"b of shape \(hidden,\), not \(16, 16\) and \(16, 1\)"),
        ({"__metadata__": {"lre": '"' + "x" * 10**7 + '"'}}, "it must be an object"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "beta": float("nan")})}}, "beta must be a number"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "layer": True})}}, "layer must be a whole number"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "rank": WIDTH + 1})}}, "rank 17 is out of range"),
        ({"__metadata__": {"lre": json.dumps({"layer": 1})}}, "not the metadata of an LRE: it lacks the key 'beta'"),
    ],
)
def test_such_an_lre_file_is_an_error(tmp_path, change, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(of_parts({**HEADER, **change}, TENSORS))
    with little_memory(), pytest.raises(LREError, match=message) as caught:
        LRE.load(path)
    assert len(str(caught.value)) < 1000


def test_an_lre_file_of_a_tensor_that_is_mostly_a_hole_is_refused(tmp_path):
    wide, path = 2**17, tmp_path / "x.safetensors"
    weight = {"dtype": "F32", "shape": [wide, wide], "data_offsets": [0, 4 * wide**2]}
    bias = {"dtype": "F32", "shape": [wide], "data_offsets": [4 * wide**2, 4 * wide * (wide + 1)]}
    content = of_parts({**HEADER, "weight": weight, "bias": bias}, b"")
    with path.open("wb") as file:
        file.write(content)
        file.truncate(len(content) + 4 * wide * (wide + 1))
    with pytest.raises(LREError, match="not an LRE file that can be read"):
        LRE.load(path)


def test_what_is_not_a_file_is_an_error_and_is_not_waited_for(tmp_path):
    folder, pipe, link = (tmp_path / name for name in ("directory", "pipe", "link to itself"))
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(link)
    for path in (folder, pipe, link, "x" * 5000, "a\x00b"):
        with pytest.raises(LREError, match="not an LRE file that can be read"):
            LRE.load(path)
