"""Files from strangers: whatever is in them, what comes of it is a result or one clear error, and nothing else happens.

``LRE_EXAMPLES=n`` tries n new inputs for each property, in place of a few that are the same in every run.
"""

import contextlib
import copy
import io
import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import unicodedata
import warnings
import zipfile
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lre_lightning.cli import main
from lre_lightning.errors import LREError
from lre_lightning.lens.lens import Lens
from lre_lightning.lens.page import lens_page
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import fill, make_prompts
from lre_lightning.records.record import TrialRecord, read_records, rows
from lre_lightning.records.summary import summarize, write_csv
from lre_lightning.relations.json_files import read_json
from lre_lightning.relations.relation import SLOT, check_template
from lre_lightning.relations.sources import load_relations
from lre_lightning.report import figures
from lre_lightning.report.console import print_results
from lre_lightning.report.page import draw, inline
from lre_lightning.report.sections import Picture
from lre_lightning.report.tables import full_dataset, hyperparameters, to_csv, to_latex, to_text
from lre_lightning.runs.checkpoints import STATE, read_checkpoint, read_hyperparameters
from lre_lightning.training.bank import LREBank, file_of
from lre_lightning.training.module import EXPLICIT, LREModule
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.toy import LAYERS, WIDTH, relation_json, toy_model, toy_tokenizer, write_toy_model

EXAMPLES = int(os.environ.get("LRE_EXAMPLES", "0"))
MEMORY = 2**31  # bytes that reading a small file may take beyond what the process has


def load_relation(path):
    (relation,) = read_json(path)
    return relation


def tried(examples):
    """Settings of a property that is tried on so many inputs, each within 30 seconds."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=timedelta(seconds=30),
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def little_memory():
    """Within the context nothing large can be allocated."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(call, *arguments):
    """What a call returns, or None where it raises the one error that there may be."""
    with little_memory():
        try:
            return call(*arguments)
        except LREError:
            return None


# Nasty values.

STRINGS = [
    "",
    " ",
    "../../x",
    "/etc/passwd",
    "a\\b",
    "..",
    "CON",
    "\x00",
    "\x1b[31mred",
    "\x9b2J",
    "\ud83d",
    "\u202egnp.exe",
    "e\u0301\u0301",
    "[red]x[/]",
    "[/]",
    "$\\frac",
    "{}",
    "{0.__class__}",
    "{subject.__init__}",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "</s>",
    "<|endoftext|>",
    "[BOS]",
    "nan",
]
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")]
SPECIAL = {
    "long text": "x" * 100_001,
    "long number": 10**4000,
    "long list": [0] * 2000,
    "half": torch.zeros(WIDTH, WIDTH, dtype=torch.float16),
    "double": torch.zeros(WIDTH, WIDTH, dtype=torch.float64),
    "integers": torch.zeros(WIDTH, WIDTH, dtype=torch.int64),
    "complex": torch.zeros(WIDTH, WIDTH, dtype=torch.complex64),
    "not finite": torch.full((WIDTH, WIDTH), float("nan")),
    "narrow": torch.zeros(2, 2),
    "flat": torch.zeros(WIDTH),
    "empty": torch.zeros(0, 0),
    "scalar": torch.zeros(()),
    "stride 0": torch.zeros(1).expand(2**16, 2**16),
    "long stride 0": torch.zeros(1).expand(2**16),
    "sparse": torch.eye(WIDTH).to_sparse(),
    "parameter": torch.nn.Parameter(torch.zeros(WIDTH, WIDTH)),
    "transposed": torch.zeros(WIDTH, WIDTH).T,
    "part": torch.zeros(WIDTH, 2 * WIDTH)[:, ::2],
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of being deprecated, and of being new
    SPECIAL["quantized"] = torch.quantize_per_tensor(torch.eye(WIDTH), 0.1, 0, torch.qint8)
    SPECIAL["nested"] = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    SPECIAL["meta"] = torch.zeros(10**6, 10**6, device="meta")
SPECIAL["list in itself"] = [None]
SPECIAL["list in itself"][0] = SPECIAL["list in itself"]
SPECIAL["deep"], SPECIAL["small, and endless to walk through"] = [], []
for _ in range(5000):
    SPECIAL["deep"] = [SPECIAL["deep"]]
for _ in range(60):
    SPECIAL["small, and endless to walk through"] = [SPECIAL["small, and endless to walk through"]] * 2


@dataclass(frozen=True)
class Named:
    """A `SPECIAL` value, which may be too large to print."""

    name: str


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(),
    st.floats(),
    st.sampled_from(STRINGS),
    st.text(max_size=20),
    st.sampled_from([[], {}, [[]], [[], []], {"a": 1}, [None], ["emb"], [1.0]]),
    st.sampled_from([Named("long text"), Named("long number"), Named("long list")]),
)
ANY = st.one_of(PLAIN, st.sampled_from([Named(name) for name in SPECIAL]))


def nodes(data, path=()):
    """The path of every part of nested data."""
    yield path
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    for key, part in parts:
        yield from nodes(part, (*path, key))


def recipes(values):
    """How to make one to three changes to nested data: where, what kind, and with which value."""
    kinds = st.sampled_from(["replace", "replace", "replace", "leave out", "double", "add"])
    return st.lists(st.tuples(st.integers(0, 10**6), kinds, values), min_size=1, max_size=3)


def cooked(data, recipe):
    """Nested data with the changes of a recipe, those left out that an earlier one has made impossible."""
    paths = list(nodes(data))
    for place, kind, value in recipe:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            change = SPECIAL[value.name] if isinstance(value, Named) else value
            data = _changed(data, paths[place % len(paths)], kind, change)
    return data


def _changed(data, path, kind, value):
    if path:
        if not isinstance(data, dict | list | tuple):
            raise TypeError
        found = dict(data) if isinstance(data, dict) else list(data)
        if kind == "leave out" and len(path) == 1:
            del found[path[0]]
        else:
            found[path[0]] = _changed(found[path[0]], path[1:], kind, value)
        return tuple(found) if isinstance(data, tuple) else found
    if kind == "double" and isinstance(data, list | tuple):
        return data + data
    if kind == "add" and isinstance(data, dict):
        return {**data, "lm.model.lm_head.weight": value}
    return value


def spoiled(data, changes, end):
    """Bytes of which some are others, and which end early or go on."""
    found = bytearray(data)
    for place, byte in changes:
        found[place % len(found)] = byte
    return bytes(found[: end % len(found)] if end >= 0 else found + b"\0" * -end)


SPOILS = st.tuples(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.one_of(st.just(-1), st.integers(-64, 10**6)),
)


def everything_in(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# Relations.

RELATION = relation_json("thing colour", count=4)


def used(relation):
    """Make all prompts of a relation, with a tokenizer of words and one of bytes."""
    for tokenizer in (toy_tokenizer(), tokenizers.make("byte-level, bos and eos added")):
        controls = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        for template in relation.templates:
            prompts = outcome(make_prompts, tokenizer, template, relation.samples, relation.samples[:2])
            for prompt, sample in zip(prompts or [], relation.samples, strict=bool(prompts)):
                assert prompt.text.endswith("\n" + fill(template, sample.subject))
                assert 0 < prompt.subject_position < len(prompt.input_ids)
                assert not controls & {*prompt.input_ids[1:], prompt.object_token}


@given(recipe=recipes(PLAIN))
@tried(100)
def test_any_relation_file_is_a_relation_whose_prompts_can_be_made_or_an_error(tmp_path, recipe):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(cooked(RELATION, recipe)))
    relation = outcome(load_relation, path)
    if relation:
        json.dumps(relation.name, ensure_ascii=False).encode()
        used(relation)


@given(spoil=SPOILS)
@tried(100)
def test_any_bytes_are_a_relation_or_an_error(tmp_path, spoil):
    path = tmp_path / "x.json"
    path.write_bytes(spoiled(json.dumps(RELATION).encode(), *spoil))
    outcome(load_relation, path)


@given(template=st.one_of(st.text(max_size=20), st.text("{}!:0.[]_a s", max_size=12)), subject=st.text(max_size=10))
@tried(300)
def test_a_template_is_filled_by_its_one_slot_alone(template, subject):
    if "{" not in template:
        template += SLOT
    accepted = (template.count("{"), template.count("}"), template.count(SLOT)) == (1, 1, 1)
    if not accepted:
        with pytest.raises(LREError, match="exactly one"):
            check_template(template)
        return
    check_template(template)
    before, after = template.split(SLOT)
    assert fill(template, subject) == before + subject + after


@given(subjects=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
@tried(100)
def test_any_subject_has_a_place_in_its_prompt_or_is_an_error(subjects):
    samples = [{"subject": subject, "object": subject} for subject in subjects]
    assume(all(subject.strip() and subject.encode("utf-8", "ignore").decode() == subject for subject in subjects))
    relation = replace(
        load_relation(DEMO), samples=tuple(replace(load_relation(DEMO).samples[0], **sample) for sample in samples)
    )
    used(relation)


DEMO = next(Path(load_relations.__globals__["RELATIONS_DIR"]).rglob("*.json"))


FILES = {
    "a digit too many": b'{"name": ' + b"1" * 5000 + b"}",
    "deep": b"[" * 10**6,
    "deep in a name": b'{"name": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a key twice": json.dumps(RELATION).encode()[:-1] + b', "name": "b"}',
    "not a number": b'{"name": NaN}',
    "half a surrogate pair": json.dumps({**RELATION, "name": "\ud83d"}).encode(),
    "UTF-16": json.dumps(RELATION).encode("utf-16"),
    "NUL": json.dumps({**RELATION, "name": "a\x00"}).encode(),
    "a terminal's language": json.dumps({**RELATION, "name": "\x1b]0;x\x07"}).encode(),
    "a long subject": json.dumps({**RELATION, "samples": [{"subject": "x" * 10**7, "object": "y"}]}).encode(),
    "a long name": json.dumps({**RELATION, "name": "x" * 2000}).encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", FILES)
def test_such_a_relation_file_is_an_error(tmp_path, kind):
    path = tmp_path / "x.json"
    path.write_bytes(FILES[kind])
    with little_memory(), pytest.raises(LREError, match=r"x\.json") as caught:
        load_relation(path)
    assert len(str(caught.value)) < 1000


def test_a_relation_file_may_not_be_larger_than_any_relation(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with little_memory(), pytest.raises(LREError, match="has 1099511627776 bytes, and may have"):
        load_relation(path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "broken link", "link to itself", "device"])
def test_what_is_no_file_is_an_error_and_is_not_waited_for(tmp_path, kind):
    for name in ("x.json", "x.safetensors", "x.ckpt", "fit_results.jsonl"):
        path = tmp_path / name
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"broken link": "nowhere", "link to itself": name, "device": "/dev/zero"}[kind])
    for call in (load_relation, lambda path: load_relations(str(path.parent)), lambda path: load_relations(str(path))):
        with pytest.raises(LREError, match=r"can't read|no such file|no relation in it|not a folder"):
            call(tmp_path / "x.json")
    for call, name in ((LRE.load, "x.safetensors"), (read_checkpoint, "x.ckpt")):
        with pytest.raises(LREError, match=name):
            call(tmp_path / name)
    for path in (tmp_path, tmp_path / "fit_results.jsonl"):
        with pytest.raises(LREError, match=r"fit_results\.jsonl"):
            read_records([path])


@pytest.mark.parametrize("item", ["~nobody-of-that-name/x", "x" * 5000, "./" + "x" * 5000, "a\x00b", "./a\x00b.json"])
def test_paths_that_a_system_refuses_are_errors(tmp_path, item):
    with pytest.raises(LREError):
        load_relations(item, tmp_path)
    with pytest.raises(LREError):
        load_relations("x", item)
    for call in (LRE.load, read_checkpoint, lambda path: read_records([path])):
        with pytest.raises(LREError):
            call(item)


# Names of files.

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
    lambda name: str(file_of((name, 0)).parent),
]


@given(name=NAMES, other=NAMES, trial=st.integers(0, 10**12))
@tried(300)
def test_no_two_names_have_one_file_and_none_leaves_its_folder(tmp_path, name, other, trial):
    names = {name, other, *(make(name) for make in ALIKE)}
    files = [file_of((one, trial)) for one in names]
    assert len({unicodedata.normalize("NFKD", str(file)).casefold() for file in files}) == len(names)
    for file in files:
        folder, last = file.parts
        assert last == f"trial{trial}.safetensors"
        assert not re.fullmatch(r"(?i)\.*|(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[. ]", folder)
        assert not set(folder) & set('/\\:*?"<>|\0\n')
        assert len(folder.encode()) < 200
    if EXAMPLES < 1000:
        (tmp_path / files[0]).parent.mkdir(exist_ok=True)


@pytest.mark.parametrize("trial", [-1, True, 1.0, "1/../../x", None])
def test_a_trial_that_is_no_number_has_no_file(trial):
    with pytest.raises(LREError, match="trial"):
        file_of(("x", trial))


# Files of LREs.


def an_lre(trial=0, **origin):
    where = {"model": "toy", "fingerprint": FINGERPRINT, "relation": "thing colour", "train": (("sky", "blue"),)}
    generator = torch.Generator().manual_seed(trial)
    tensors = torch.randn(WIDTH, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)
    return LRE(*tensors, 1, Origin(**{**where, "trial": trial, **origin}), 2.0, 4)


TOY = LanguageModel(toy_model(), name="toy")
FINGERPRINT = TOY.fingerprint


def in_parts(content):
    """The header of a safetensors file, and its tensors."""
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def of_parts(header, tensors, size=0):
    """The bytes of such a file, whose header is said to be longer by `size`."""
    text = json.dumps(header).encode()
    return struct.pack("<q", (len(text) + size) % 2**63) + text + tensors


def check_lre(path):
    lre = outcome(LRE.load, path)
    if lre is None:
        return
    assert lre.metadata() == LRE.read_metadata(path)
    assert torch.isfinite(lre(torch.ones(len(lre.bias)))).all()
    assert json.loads(json.dumps(lre.metadata()))["origin"]["relation"] == lre.origin.relation
    file_of((lre.origin.relation, lre.origin.trial))
    outcome(lre.decode, TOY, torch.ones(WIDTH))


HEADER = {
    "__metadata__": {"format": "lre-lightning/1", "lre": json.dumps(an_lre().metadata())},
    "weight": {"dtype": "F32", "shape": [WIDTH, WIDTH], "data_offsets": [0, 4 * WIDTH**2]},
    "bias": {"dtype": "F32", "shape": [WIDTH], "data_offsets": [4 * WIDTH**2, 4 * WIDTH * (WIDTH + 1)]},
}
HEADER_VALUES = st.one_of(
    PLAIN, st.sampled_from(["F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "U8", [2**40, 2**40]])
)


@given(recipe=recipes(HEADER_VALUES), size=st.sampled_from([0, 0, 0, 1, -1, 100, 2**40, -(2**62)]))
@tried(150)
def test_any_header_of_an_lre_file_is_an_lre_or_an_error(tmp_path, recipe, size):
    path = tmp_path / "x.safetensors"
    path.write_bytes(of_parts(cooked(HEADER, recipe), bytes(4 * WIDTH * (WIDTH + 1)), size))
    check_lre(path)


METADATA = json.loads(json.dumps(an_lre().metadata()))


@given(recipe=recipes(PLAIN))
@tried(100)
def test_any_metadata_of_an_lre_file_is_an_lre_or_an_error(tmp_path, recipe):
    path = tmp_path / "x.safetensors"
    header = {**HEADER, "__metadata__": {"lre": json.dumps(cooked(METADATA, recipe))}}
    path.write_bytes(of_parts(header, bytes(4 * WIDTH * (WIDTH + 1))))
    check_lre(path)


@given(spoil=SPOILS)
@tried(150)
def test_any_bytes_are_an_lre_or_an_error(tmp_path, spoil):
    path = tmp_path / "x.safetensors"
    path.write_bytes(spoiled(of_parts(HEADER, bytes(4 * WIDTH * (WIDTH + 1))), *spoil))
    check_lre(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": {"dtype": "F32", "shape": [0], "data_offsets": [1088, 1088]}}, "it has 3 tensors"),
        ({"__metadata__": {"lre": "[" * 10**5}}, "cannot|can be read"),
        ({"__metadata__": {"lre": '"' + "x" * 10**7 + '"'}}, "it must be an object"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "beta": float("nan")})}}, "beta must be a number"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "layer": True})}}, "layer must be a whole number"),
        ({"__metadata__": {"lre": json.dumps({**METADATA, "rank": WIDTH + 1})}}, "rank 17 is out of range"),
        ({"__metadata__": {"lre": json.dumps({"layer": 1})}}, "it lacks 'origin'"),
    ],
)
def test_such_an_lre_file_is_an_error(tmp_path, change, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(of_parts({**HEADER, **change}, bytes(4 * WIDTH * (WIDTH + 1))))
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


def test_an_lre_of_another_width_or_layer_is_refused():
    lre = an_lre()
    narrow = replace(lre, weight=torch.eye(2), bias=torch.ones(2), rank=None)
    with pytest.raises(LREError, match="has the width 2, and 'toy' 16"):
        narrow.check_model(TOY)
    with pytest.raises(LREError, match=f"layer {LAYERS} is out of range"):
        replace(lre, layer=LAYERS).check_model(TOY)
    for kept, message in ((narrow, "has the width 2"), (replace(lre, layer=LAYERS), "layer 2 is out of range")):
        bank = LREBank()
        bank.lres["thing colour", 0] = kept
        with pytest.raises(LREError, match=message):
            LREModule(TOY).load_state_dict({STATE: bank.get_extra_state()})


# Records.


def a_record(trial=0, **changes):
    fields = {
        "layers": ("emb", 0, 1),
        "betas": (1.0, 2.0),
        "ranks": (4, 8),
        "faithful": ((0, 1), (2, 3), (4, 5)),
        "causal": ((0, 1), (2, 3), (4, 5)),
        "edited": 8,
        "layer": 1,
        "beta": 2.0,
        "rank": 4,
        "model": "toy",
        "n_shot": 4,
        "template": "{}",
        "first_tokens": 4,
        "faithful_baselines": {"linear regression": (1, 2, 3), "translation": (4, 5, 6), "identity": (7, 8, 9)},
        "faithful_zero_shot": ((9, 8), (7, 6), (5, 4)),
        "zero_shot_baselines": {"linear regression": (3, 2, 1), "translation": (6, 5, 4), "identity": (9, 8, 7)},
        "causal_baselines": {"oracle": (8, 7, 6), "unembedding": (5, 4, 3), "object": (2, 1, 0)},
        "faithful_low_rank": (2, 3),
        "line_integrals": ((1.5, 1.25), (0.1, -1e-9)),
    }
    counts = {"samples": 20, "range_size": 4, "tested": 12, "known": 10}
    return TrialRecord(
        **{"relation": "thing colour", "category": "bias", "trial": trial, **counts, **fields, **changes}
    )


def summed_up(records, folder):
    """Make what is made of records without drawing."""
    assert [TrialRecord.from_plain(json.loads(json.dumps(record.plain()))) for record in records] == records
    rows(records)
    print_results(summarize(records))
    write_csv(records, folder / "x.csv")
    for table in (hyperparameters(records), hyperparameters([]), full_dataset([])):
        to_csv(table), to_latex(table), to_text(table)


LINE = json.loads(json.dumps(a_record().plain()))


@given(recipe=recipes(PLAIN))
@tried(200)
def test_any_line_is_a_record_that_tables_are_made_of_or_an_error(tmp_path, recipe):
    path = tmp_path / "fit_results.jsonl"
    path.write_text(json.dumps(cooked(LINE, recipe)) + "\n" + json.dumps(a_record(1).plain()) + "\n")
    records = outcome(read_records, [path])
    if records and not any(value != value for record in records for pair in record.line_integrals for value in pair):
        summed_up(records, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"known": -1}, "known must be a whole number of 0 to 12, not -1"),
        ({"known": 13}, "known must be a whole number of 0 to 12, not 13"),
        ({"edited": 11}, "edited must be a whole number of 0 to 10"),
        ({"trial": True}, "trial must be a whole number"),
        ({"trial": 2**70}, "trial must be a whole number of 0 to 9007199254740992, not a number of 71 bits"),
        ({"range_size": 0}, "range_size must be a whole number of 1"),
        ({"relation": "\x1b[31m"}, ".*has the control character '.x1b' in it"),
        ({"relation": "x" * 10**6}, "relation has 1000000 characters, and may have 1000"),
        ({"relation": "\ud83d"}, ".*half a surrogate pair"),
        ({"faithful": [[0, 1], [2, 3]]}, "faithful has 2 rows, and there are 3 layers"),
        ({"faithful": []}, "faithful has no count, and there are 3 layers"),
        ({"faithful": [[0, 1], [2, 11], [4, 5]]}, "a count of faithful must be a whole number of 0 to 10, not 11"),
        ({"causal": [[0], [2], [4]]}, "causal has 1 counts in a row, and there should be 2"),
        ({"causal": [[], [], []]}, "causal has rows without counts"),
        ({"layers": ["emb", 1, 0]}, "layers must rise"),
        ({"betas": [1.0, float("nan")]}, "one of betas must be a number"),
        ({"layer": 7}, "layer 7 is not on the grid"),
        ({"layer": None}, "layer None is not on the grid"),
        ({"beta": 3.0}, "beta 3.0 is not on the grid"),
        ({"causal_baselines": {"magic": [1, 2, 3]}}, "causal_baselines has 'magic', and the baselines are oracle"),
        ({"line_integrals": [[1.0]]}, "line_integrals must be pairs"),
        ({"reported": 1}, "reported must be true or false, not 1"),
    ],
)
def test_such_a_record_is_an_error(changes, message):
    with pytest.raises(LREError, match=f"this is not a record of results: {message}"):
        TrialRecord.from_plain({**LINE, **changes})


@pytest.mark.parametrize(
    "line", [b"[" * 10**6, b'{"relation": ' + b"1" * 5000 + b"}", b"\xff", b"[" * 900 + b"]" * 900]
)
def test_such_a_line_is_no_record(tmp_path, line):
    path = tmp_path / "fit_results.jsonl"
    path.write_bytes(line)
    with little_memory(), pytest.raises(LREError, match="line 1, is not a record of results"):
        read_records([path])


def test_a_record_of_a_very_large_grid_is_refused_before_it_is_gone_through():
    line, column = [0] * 30_000, [float(beta) for beta in range(30_000)]
    large = {**LINE, "layers": list(range(10_000)), "betas": column, "faithful": [line] * 10_000, "layer": 0}
    with pytest.raises(LREError, match="a grid of 10000 layers, 30000 betas and 2 ranks is too large"):
        TrialRecord.from_plain(large)


# Checkpoints.


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An LM, two relations, and a fit that has ended after the first of them."""
    root = tmp_path_factory.mktemp("stranger")
    write_toy_model(root / "model")
    (root / "relations").mkdir()
    for name in ("thing colour", "half colour"):
        (root / "relations" / f"{name}.json").write_text(json.dumps(relation_json(name, count=10)))
    options = [f"--model.name_or_path={root / 'model'}", f"--data.source={root / 'relations'}"]
    options += ["--data.n_shot=4", "--data.trials=1", "--model.betas=[1.0]", "--model.ranks=[16]"]
    status, _, error = run("fit", root / "run", *options, "--trainer.max_epochs=1")
    assert status == 0, error
    return root


@pytest.fixture(scope="module")
def checkpoint(folders):
    return torch.load(folders / "run" / "checkpoints" / "last.ckpt", weights_only=True)


def run(job, root, *options):
    """Run the command line in a folder; its status, its output and its errors."""
    quick = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={root}"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            status = main([job, *quick, *options])
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


def check_run(result):
    """Check that a run came to a result or to one clear error."""
    status, out, err = result
    assert status in (0, 2)
    assert "Traceback" not in err
    assert "\x1b" not in out + err
    assert [line.startswith("error: ") for line in err.splitlines()].count(True) == (status == 2), err


def saved(data, path):
    try:
        torch.save(data, path)
    except (RuntimeError, NotImplementedError, RecursionError):
        assume(False)
    return path


@given(recipe=recipes(ANY))
@tried(150)
def test_any_checkpoint_has_options_or_is_an_error(checkpoint, tmp_path, recipe):
    found = outcome(read_hyperparameters, saved(cooked(checkpoint, recipe), tmp_path / "x.ckpt"), EXPLICIT)
    if found:
        assert len(json.dumps(found)) < 10**6
        names = {f"{section}.{name}" for section, options in found.items() for name in options}
        assert not {"model.trust_remote_code", "model.lre_dir", "data.loader.trust_remote_code"} & names


@given(spoil=SPOILS)
@tried(200)
def test_any_bytes_are_a_checkpoint_or_an_error(folders, tmp_path, spoil):
    path = tmp_path / "x.ckpt"
    path.write_bytes(spoiled((folders / "run" / "checkpoints" / "last.ckpt").read_bytes(), *spoil))
    outcome(read_hyperparameters, path)


@pytest.fixture(scope="module")
def module():
    return LREModule(TOY)


@pytest.fixture(scope="module")
def state(folders):
    """The state of a module with LREs in memory and one in a file."""
    bank = LREBank()
    for trial in range(3):
        bank.lres.folder = folders / "lres" if trial == 2 else None
        bank.lres["thing colour", trial] = an_lre(trial)
        bank.records["thing colour", trial] = a_record(trial)
    bank.tuned = (1.0, {"thing colour": 2.0})
    return {STATE: bank.get_extra_state()}


@given(recipe=recipes(ANY))
@tried(150)
def test_any_state_is_one_of_lres_or_an_error(module, state, folders, recipe):
    before = everything_in(folders)
    given_state = cooked(state, recipe)

    def use():
        if isinstance(given_state, dict) and list(given_state) != list(state):
            with pytest.raises(RuntimeError, match="the checkpoint does not fit"):
                module.load_state_dict(given_state)
            return
        module.load_state_dict(given_state)
        for lre in module.lres.values():
            lre.decode(TOY, torch.ones(WIDTH))
        print_results(summarize(module.records.values()))
        torch.save(module.state_dict(), io.BytesIO())

    outcome(use)
    assert TOY.fingerprint == LanguageModel(TOY.model).fingerprint
    assert everything_in(folders) == before


def test_weights_of_an_lm_in_a_state_are_not_loaded(module, state):
    weight = module.lm.model.lm_head.weight
    before = weight.clone()
    with pytest.raises(RuntimeError, match=r"unknown \['lm.model.lm_head.weight'\]"):
        module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)})
    module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)}, strict=False)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("kind", [name for name, value in SPECIAL.items() if isinstance(value, torch.Tensor)])
def test_a_tensor_of_another_kind_is_refused_before_it_is_computed_with(module, state, kind):
    good = kind in ("double", "transposed", "part")
    given_state = copy.deepcopy(state)
    given_state[STATE]["lres"][0]["weight"] = SPECIAL[kind]
    if kind == "stride 0":
        given_state[STATE]["lres"][0]["bias"] = SPECIAL["long stride 0"]
    with little_memory(), contextlib.nullcontext() if good else pytest.raises(LREError, match="LRE"):
        module.load_state_dict(given_state)


class Made:
    """What a pickle calls when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


MADE = {
    "a command": Made(os.system, "touch pwned"),
    "much memory": Made(bytearray, 2**40),
    "a large tensor": Made(torch.Tensor, 2**20, 2**20),
    "a sparse tensor": torch.eye(4).to_sparse(),
    "a parameter": torch.nn.Parameter(torch.zeros(2)),
    "a tensor without memory": torch.zeros(2**20, 2**20, device="meta"),
    "a path": Path("x"),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_checkpoint_that_makes_something_when_it_is_read_is_refused(checkpoint, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint, "more": MADE[kind]}, "x.ckpt")
    with little_memory(), pytest.raises(LREError, match=r"'x\.ckpt' holds more than tensors and plain data: '"):
        read_checkpoint("x.ckpt")
    assert os.listdir() == ["x.ckpt"]


def deflated(path):
    """Write an archive anew, with a pickle in it that takes a thousand times the room of the file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def two_pickles(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/DATA.PKL", b"\x80\x02N.")


def legacy(path):
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)


def a_tar(path):
    content = path.read_bytes()
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            part = tarfile.TarInfo(name)
            part.size = len(content)
            archive.addfile(part, io.BytesIO(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (deflated, "is compressed"),
        (two_pickles, "contains 2 pickles"),
        (legacy, "cannot be read"),
        (a_tar, "cannot be read"),
    ],
)
def test_another_kind_of_archive_is_no_checkpoint(checkpoint, tmp_path, change, message):
    path = tmp_path / "x.ckpt"
    torch.save({**checkpoint, "more": "x" * 10**6}, path)
    change(path)
    with little_memory(), pytest.raises(LREError, match=message):
        read_checkpoint(path)


def with_options(section, **options):
    return lambda checkpoint: {**checkpoint, section: {**checkpoint[section], **options}}


def with_entry(name, value):
    return lambda checkpoint: {**checkpoint, name: value}


CHECKPOINTS = {
    "a list": (lambda checkpoint: [checkpoint], "holds a list instead of a run"),
    "nothing": (lambda checkpoint: {}, "is not a checkpoint of a fit"),
    "weights of an LM": (
        lambda c: {**c, "state_dict": {**c["state_dict"], "lm.model.lm_head.weight": torch.zeros(2)}},
        "is not a checkpoint of a fit",
    ),
    "an old version": (with_entry("pytorch-lightning_version", "1.4.0"), "was written by Lightning '1.4.0'"),
    "no version": (with_entry("pytorch-lightning_version", None), "the version of Lightning must be a string"),
    "an endless number": (with_entry("epoch", 1 << 2000), "epoch must be a whole number .* not a number of 2001 bits"),
    "loops": (with_entry("loops", {"fit_loop": 3}), "loops must be an object"),
    "another section": (with_options("hyper_parameters", **{"x.y": 1}), "'x.y' in hyper_parameters is not the name"),
    "a tensor": (with_options("hyper_parameters", beta=torch.ones(())), "it has a Tensor in it"),
    "a huge number": (with_options("hyper_parameters", beta=10**400), "a number of 1329 bits"),
    "a terminal's language": (with_options("hyper_parameters", name_or_path="\x1b[31m"), "control character"),
    "deep": (
        with_options("datamodule_hyper_parameters", selection={"exclude": [[[[[[[["x"]]]]]]]]}),
        "nested more than 8 deep",
    ),
    "endless": (with_options("hyper_parameters", choices=SPECIAL["small, and endless to walk through"]), "nested more"),
    "in itself": (with_options("hyper_parameters", choices=SPECIAL["list in itself"]), "nested more"),
    "long": (with_options("hyper_parameters", betas=[1.0] * 200_000), "more than 100000 entries"),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_such_a_checkpoint_is_an_error(checkpoint, tmp_path, kind):
    change, message = CHECKPOINTS[kind]
    torch.save(change(checkpoint), tmp_path / "x.ckpt")
    with little_memory(), pytest.raises(LREError, match=message) as caught:
        read_hyperparameters(tmp_path / "x.ckpt")
    assert len(str(caught.value)) < 1000


OPTIONS = {
    "an unknown option": ({"_class_path": "os"}, "option '_class_path'"),
    "an instantiator": ({"_instantiator": "os.system"}, "option '_instantiator'"),
    "a text in place of a list": ({"betas": "many"}, "model.betas"),
    "a text in place of a number": ({"beta": "fast"}, "model.beta"),
    "none in place of a number": ({"beta": None}, "has no value for model.beta"),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_of_a_checkpoint_that_do_not_fit_are_one_clear_error(folders, checkpoint, tmp_path, kind):
    options, message = OPTIONS[kind]
    torch.save(with_options("hyper_parameters", **options)(checkpoint), tmp_path / "x.ckpt")
    result = run("validate", tmp_path / "run", f"--ckpt_path={tmp_path / 'x.ckpt'}")
    check_run(result)
    assert result[0] == 2
    assert re.search(message, result[2]), result[2]


def test_a_checkpoint_can_neither_let_code_run_nor_say_where_to_write(folders, checkpoint, tmp_path):
    """The LM that it names has code of its own, and it says that this may run."""
    evil = shutil.copytree(folders / "model", tmp_path / "evil")
    config = json.loads((evil / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}, "model_type": "evil"}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "code.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    paths = {"lre_dir": str(tmp_path / "elsewhere"), "attn_implementation": "a/kernel"}
    hostile = with_options("hyper_parameters", trust_remote_code=True, **paths)(checkpoint)
    torch.save(hostile, tmp_path / "x.ckpt")
    named = with_options("hyper_parameters", name_or_path=str(evil))(hostile)
    data = with_options("datamodule_hyper_parameters", loader={"trust_remote_code": True}, tokenizer=str(evil))
    torch.save(data(named), tmp_path / "evil.ckpt")
    for job in ("validate", "fit"):
        result = run(job, tmp_path / "run", f"--ckpt_path={tmp_path / 'evil.ckpt'}")
        check_run(result)
        assert result[0] == 2
        assert "contains custom code" in result[2], result[2]
    with pytest.raises(LREError, match="contains custom code"):
        LREModule.load_from_checkpoint(tmp_path / "evil.ckpt")
    assert LREModule.load_from_checkpoint(tmp_path / "x.ckpt").lre_dir is None
    assert run("fit", tmp_path / "run", f"--ckpt_path={tmp_path / 'x.ckpt'}")[0] == 0
    assert {entry.name for entry in tmp_path.iterdir()} == {"evil", "run", "x.ckpt", "evil.ckpt"}


def test_a_checkpoint_of_a_stranger_deletes_no_file(folders, checkpoint, tmp_path):
    """Lightning deletes what the state of a ModelCheckpoint calls its last file, when there is a newer one."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("x")
    place = f"{(tmp_path / 'run' / 'checkpoints').resolve()}"
    hostile = copy.deepcopy(checkpoint)
    for state in hostile["callbacks"].values():
        state |= dict.fromkeys(("best_model_path", "last_model_path", "kth_best_model_path"), f"{place}/../../victim")
        state["dirpath"] = place
    torch.save(hostile, tmp_path / "x.ckpt")
    result = run("fit", tmp_path / "run", f"--ckpt_path={tmp_path / 'x.ckpt'}")
    assert result[0] == 0, result[2]
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
    assert (tmp_path / "victim" / "precious").read_text() == "x"


def test_any_checkpoint_on_the_command_line_is_a_run_or_one_clear_error(folders, checkpoint, tmp_path):
    """Changes to every part of a checkpoint, to few of them in each run of the tests, but to the same."""
    chance = random.Random(0)
    paths = list(nodes(checkpoint))
    values = [None, -1, 10**30, True, float("nan"), "x", "\x1b[2J", [], {}, {"a": 1}, [[]], torch.zeros(2), checkpoint]
    for number in range(EXAMPLES or 6):
        path, value = chance.choice(paths), chance.choice(values)
        torch.save(_changed(checkpoint, path, chance.choice(["replace", "leave out"]), value), tmp_path / "x.ckpt")
        before = everything_in(folders)
        root = tmp_path / f"run{number}"
        check_run(run(chance.choice(["fit", "validate", "predict"]), root, f"--ckpt_path={tmp_path / 'x.ckpt'}"))
        assert everything_in(folders) == before
        assert {entry.name for entry in tmp_path.iterdir()} <= {"x.ckpt", root.name}
        shutil.rmtree(root, ignore_errors=True)


# Names, wherever they are shown.

NAMES_TO_SHOW = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1)",
    "{{ 7 * 7 }} {% raw %}",
    "$\\frac$",
    "$a$ $",
    "\\input{/etc/passwd} \\write18{touch pwned}",
    "\\end{tabular}\\end{document} ^^5cend % & # _ ~ {",
    "[red]x[/red] [/]",
    "a\x0bb\x0c\tc\nd",
    "\ufffe\uffff",
    "../../x",
    "=cmd|' /C calc'!A0",
    "\u202egnirts 日本語 😀 e\u0301",
    "_under",
    "x/dataloader_idx_0/y",
]


@pytest.fixture(scope="module")
def shown_records():
    changes = [{"category": name, "template": f"{{}} {name}"} for name in NAMES_TO_SHOW]
    return [a_record(0, relation=name, **change) for name, change in zip(NAMES_TO_SHOW, changes, strict=True)]


def test_names_are_drawn_as_they_are(shown_records):
    """No name is mathematics, or breaks the drawing or the page that it is on."""
    for plot in (figures.plot_relations, figures.plot_scatter, figures.plot_baselines_by_relation):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of signs that no font has
            drawn = draw(Picture("x", "x", "x", lambda plot=plot: plot(shown_records)))
        assert not drawn.note
        svg = str(inline(drawn, NAMES_TO_SHOW[1], "x-"))
        assert "<script" not in svg
        assert "<img" not in svg.replace('<img alt="', "", 1)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_names_are_printed_by_latex_as_they_are(shown_records, tmp_path):
    table = hyperparameters(shown_records)
    parts = [
        "\\documentclass{article}",
        "\\usepackage{booktabs,adjustbox}",
        "\\begin{document}",
        to_latex(table),
        "END",
    ]
    (tmp_path / "x.tex").write_text("\n".join([*parts, "\\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "x.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stdout.decode(errors="replace")[-2000:]
    assert not (tmp_path / "pwned").exists()
    if shutil.which("pdftotext"):
        shown = subprocess.run(
            ["pdftotext", "-layout", "x.pdf", "-"], cwd=tmp_path, capture_output=True
        ).stdout.decode()
        for name in (
            "<script>alert(1)</script>",
            "\\input{/etc/passwd}",
            "% & #",
            "[U+65E5]",
            "[U+202E]gnirts",
            "END",
        ):
            assert name in shown


def test_names_on_the_page_of_a_lens_are_text():
    lenses = [
        Lens(name, name, (name,), (0,), (((name,),),), (((1.0,),),), layer=0)
        for name in [*NAMES_TO_SHOW, *STRINGS[:10]]
    ]
    page = lens_page(lenses, NAMES_TO_SHOW[0])
    assert page.count("<script") == len(lenses) + 1
    assert "<img" not in page
    assert "onmouseover=alert(1)>" not in page
    assert "\x1b" not in page


def test_a_fit_of_relations_with_such_names_stays_in_its_folder(folders, tmp_path):
    (tmp_path / "relations").mkdir()
    for number, name in enumerate(NAMES_TO_SHOW):
        relation = relation_json(name, count=8, category=name)
        (tmp_path / "relations" / f"{number:02}.json").write_text(json.dumps(relation))
    options = [f"--model.name_or_path={folders / 'model'}", f"--data.source={tmp_path / 'relations'}"]
    options += ["--data.n_shot=4", "--data.trials=1", "--model.betas=[1.0]", "--model.ranks=[16]", "--model.layers=[1]"]
    before = everything_in(folders)
    result = run("fit", tmp_path / "run", *options)
    check_run(result)
    assert result[0] == 0, result[2]
    assert "[red]x[/red] [/]" in result[1]
    files = [path for path in (tmp_path / "run" / "lres").rglob("*") if path.is_file()]
    assert len(files) == len(NAMES_TO_SHOW)
    assert {entry.name for entry in tmp_path.iterdir()} == {"relations", "run"}
    assert everything_in(folders) == before
    result = run("validate", tmp_path / "run", "--ckpt_path=last")
    check_run(result)
    assert result[0] == 0, result[2]
    assert [record.relation for record in read_records([tmp_path / "run"])] == NAMES_TO_SHOW


def test_an_error_says_nothing_to_the_terminal_but_its_text(folders, tmp_path):
    (tmp_path / "relations").mkdir()
    (tmp_path / "relations" / "\x1b[31mred\n.json").write_text("{")
    options = [f"--model.name_or_path={folders / 'model'}", f"--data.source={tmp_path / 'relations'}"]
    result = run("fit", tmp_path / "run", *options)
    check_run(result)
    assert r"\x1b[31mred\n.json is not a JSON file" in result[2]
