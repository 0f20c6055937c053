"""Relations in tables: files and data sets written by other libraries are read as they are, or refused in words."""

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, IterableDataset, Value, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations import data_sets, table_files, tables
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.schema import InvalidRelation
from lre_lightning.relations.tables import is_table, read_table
from tests.helpers.servers import Handler, serving

PLAIN = ("subject", "object", "relation", "category", "domain", "range", "template", "zero_shot_template", "symmetric")
OTHER = ("head", "tail", "rel", "kind", "from what", "to,what", 'the "template"', "zs\n", "both ways")
MAPPING = dict(zip(PLAIN, OTHER, strict=True))


@pytest.fixture(scope="module")
def bundled():
    return [relation for _, relation in read_folder(RELATIONS_DIR)]


def rows_of(relations):
    """A sample a row; templates are dealt out to the rows, and the rest stay empty."""
    for r in relations:
        for number, sample in enumerate(r.samples):
            few, zero = (t[number] if number < len(t) else "" for t in (r.prompt_templates, r.zero_shot_templates))
            values = (sample.subject, sample.object, r.name, r.category, r.domain_name, r.range_name, few, zero)
            yield dict(zip(PLAIN, (*values, r.symmetric), strict=True))


def nested_of(relations):
    """A relation a row, in the schema of the JSON files."""
    for r in relations:
        yield {
            "name": r.name,
            "prompt_templates": list(r.prompt_templates),
            "prompt_templates_zs": list(r.zero_shot_templates),
            "properties": {
                "relation_type": r.category,
                "domain_name": r.domain_name,
                "range_name": r.range_name,
                "symmetric": r.symmetric,
            },
            "samples": [{"subject": sample.subject, "object": sample.object} for sample in r.samples],
        }


def write_csv(rows, path, delimiter=","):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return write_bytes(text.getvalue(), path)


def write_bytes(content, path):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_json_lines(rows, path):
    return write_bytes("".join(json.dumps(row) + "\n" for row in rows), path)


def write_parquet(rows, path):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    return path


def save(rows, path):
    Dataset.from_list(rows).save_to_disk(path)
    return path


def save_splits(rows, path):
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(path)
    return path


WRITERS = {
    "facts.csv": write_csv,
    "facts.CSV.gz": write_csv,
    "facts.tsv": lambda rows, path: write_csv(rows, path, "\t"),
    "facts.jsonl": write_json_lines,
    "facts.ndjson": write_json_lines,
    "facts.jsonl.gz": write_json_lines,
    "facts.parquet": write_parquet,
    "saved": save,
    "saved splits": save_splits,
    "data set": lambda rows, path: Dataset.from_list(rows),
    "splits": lambda rows, path: DatasetDict({"train": Dataset.from_list(rows)}),
}


@pytest.fixture
def read(tmp_path, capfd):
    """Write a file, and read it: its relations, or what is wrong."""

    def read(content, name="facts.csv", columns=None, options=None):
        path = tmp_path / name
        write_bytes(content, path)
        try:
            return read_table(path, columns, options)
        except LREError as error:
            return str(error).replace(str(path), name)

    return read


def of(*pairs):
    return tuple(Sample(*pair) for pair in pairs)


# Every format.


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_of_samples_gives_what_the_json_files_give(bundled, tmp_path, name):
    source = WRITERS[name](list(rows_of(bundled)), tmp_path / name)
    assert not isinstance(source, Path) or is_table(source)
    assert read_table(source) == bundled


@pytest.mark.parametrize("name", WRITERS)
def test_columns_may_have_other_names(bundled, tmp_path, name):
    rows = [{MAPPING[key]: value for key, value in row.items()} | {"id": "7"} for row in rows_of(bundled)]
    assert read_table(WRITERS[name](rows, tmp_path / name), MAPPING) == bundled


@pytest.mark.parametrize("name", [name for name in WRITERS if "sv" not in name.lower() or "saved" in name])
def test_a_table_of_relations_gives_what_the_json_files_give(bundled, tmp_path, name):
    assert read_table(WRITERS[name](list(nested_of(bundled)), tmp_path / name)) == bundled


def test_json_files_may_be_loaded_by_datasets(bundled, tmp_path):
    files = [str(path) for path, _ in read_folder(RELATIONS_DIR)]
    loaded = load_dataset("json", data_files=files, cache_dir=str(tmp_path))
    assert read_table(loaded) == bundled


@pytest.mark.skipif("LRE_RELATIONS_DIR" not in os.environ, reason="LRE_RELATIONS_DIR is not set")
@pytest.mark.parametrize("name", ["facts.csv", "facts.jsonl", "facts.parquet", "saved"])
def test_the_paper_s_relations_in_tables(tmp_path, name):
    relations = [relation for _, relation in read_folder(os.environ["LRE_RELATIONS_DIR"])]
    assert read_table(WRITERS[name](list(rows_of(relations)), tmp_path / name)) == relations


# CSV: text stays as it is.


def test_no_cell_of_a_csv_file_is_turned_into_something_else(read):
    cells = ["007", "NA", "null", "None", "true", "TRUE", "1924", "1e5", "2020-01-01", "-", "nan", " x ", "1,5", "'a'"]
    [relation] = read("subject,object\n" + "".join(f'"{cell}",{cell if "," not in cell else 0}\n' for cell in cells))
    assert [sample.subject for sample in relation.samples] == cells
    assert relation.samples[:13][-2].object == " x "
    assert [sample.object for sample in relation.samples][:11] == cells[:11]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_line_breaks_and_a_byte_order_mark(read, end):
    lines = ["\ufeffsubject,object", '"a ""b""",c', '"d\r\ne\nf", g', "", "h,i"]
    [relation] = read(end.join(lines))
    assert relation.samples == of(('a "b"', "c"), ("d\r\ne\nf", " g"), ("h", "i"))
    assert relation.name == "facts"


def test_lines_are_counted_as_an_editor_counts_them(read):
    message = read('subject,object\n"a\nb\nc",d\n\n,e\nf,\n')
    assert message == (
        "'facts.csv' has 2 problems:\n"
        "  line 6: subject is ''; it must not be empty\n"
        "  line 7: object is ''; it must not be empty"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "facts.csv is empty; it must hold at least one row with subject and object"),
        ("subject,object\n", "facts.csv is empty; it must hold at least one row with subject and object"),
        ("subject,object\na,b\nc\n", "facts.csv: line 3: the number of cells must be 2, as in the header, not 1"),
        ('subject,object\na,b\n"c,d\ne,f\n', 'facts.csv: line 3: a quotation mark " opens a cell here, and none'),
        ('subject,object\n"a"b,c\n', 'facts.csv: line 2: a quotation mark " ends a cell, and text follows'),
        (f"subject,object\na,{'b' * 200_000}\n", "facts.csv: line 2: a cell has more than 131072 characters"),
        ("subject,object\na,b\x00\n", "facts.csv: line 2: object is 'b\\x00', which has the control character"),
        (
            "subject,object\na,b\nc,d\xe9\n".encode("latin-1"),
            "can't read the table 'facts.csv': line 3 is not in UTF-8",
        ),
        ("subject,object\na,b\n".encode("utf-16"), "can't read the table 'facts.csv': line 1 is not in UTF-8"),
        ("subject,object,subject\na,b,c\n", "'facts.csv' has the columns 'subject', 'object', 'subject', and so"),
    ],
)
def test_what_is_wrong_with_a_csv_file(read, content, message):
    assert read(content).startswith(message)


def test_all_problems_of_a_file_are_in_one_message(read):
    content = (
        "subject,object,relation,category,template,symmetric\n"
        "a,b,one,c,The {} is,true\n"
        ",b,two,c,The {} is,\n"
        "c,d,one,d,The is,TRUE\n"
        "e,,one,,,no\n"
        "f,g\n"
    )
    assert read(content) == (
        "'facts.csv' has 6 problems:\n"
        "  line 3: subject is ''; it must not be empty\n"
        "  line 4: category is 'd', and 'c' in line 2, of the same relation\n"
        "  line 4: template 'The is' must have exactly one {} for the subject, and no other brace\n"
        "  line 5: object is ''; it must not be empty\n"
        "  line 5: symmetric must be true or false, not 'no'\n"
        "  line 6: the number of cells must be 6, as in the header, not 2"
    )


def test_a_message_shows_twenty_problems(read, tmp_path):
    lines = read("subject,object,rel\n" + ",b,x\n" * 15 + "a,,y\n" * 15, columns={"relation": "rel"}).splitlines()
    assert (lines[0], lines[20][:9], lines[21], len(lines)) == (
        "'facts.csv' has 30 problems:",
        "  line 21",
        "  and 10 more",
        22,
    )


def test_problems_name_the_table_s_own_columns(read):
    columns = {"category": "kind", "template": "q", "relation": "rel"}
    message = read(
        f"subject,object,rel,kind,q\na,b,one,,x\nc,d,{'r' * 2000},c,\ne,f,two,c,' {{}}'\n"
        "g,h,two,c,\x02\ni,j,one,c\x01,\n",
        columns=columns,
    )
    starts = [
        "'facts.csv' has 4 problems:",
        "  line 2: template 'x' must have exactly one {} for the subject, and no other brace",
        "  line 3: rel has 2000 characters, and may have 1000",
        "  line 5: q is '\\x02', which has the control character",
        "  line 6: kind is 'c\\x01', which has the control character",
    ]
    assert [line[: len(start)] for line, start in zip(message.splitlines(), starts, strict=True)] == starts


# JSON Lines, Parquet and data sets: what is no text.


def test_what_is_no_text_is_not_made_text_of_json_lines(read):
    content = (
        '\ufeff{"subject": "a", "object": 5}\n'
        '{"subject": null, "object": "2020-01-01"}\n\n'
        '{"object": "b"}\n'
        '["a", "b"]\n'
        '{"subject": "a", \n'
        '{"subject": "a", "object": "b", "subject": "c"}\n'
        '{"subject": "a", "object": true}\n'
        '{"subject": "a\\ud800", "object": "b"}\n'
    )
    lines = read(content, "facts.jsonl").splitlines()
    assert lines[:7] == [
        "'facts.jsonl' has 8 problems:",
        "  line 1: object must be a string, not 5",
        "  line 2: subject must be a string, not None",
        "  line 4 lacks the key 'subject', which must be a string",
        "  line 5: it must be an object with a sample or a relation, not a list",
        "  line 6: it is no JSON: Expecting property name enclosed in double quotes at column 1",
        "  line 7: it is no JSON: it has the key 'subject' twice in one object",
    ]
    assert lines[7] == "  line 8: object must be a string, not True"
    assert "half a surrogate pair" in lines[8]


def test_the_name_and_the_category_of_a_relation_must_be_text_too(read):
    content = (
        '{"subject": "a", "object": "b", "relation": "r", "kind": "c"}\n'
        '{"subject": "a", "object": "b", "relation": null}\n'
        '{"subject": "a", "object": "b"}\n'
        '{"subject": "a", "object": "b", "relation": "r", "kind": 3}\n'
        '{"subject": "a", "object": "b", "relation": "r", "kind": null}\n'
    )
    assert read(content, "facts.jsonl", columns={"category": "kind"}) == (
        "'facts.jsonl' has 3 problems:\n"
        "  line 2: relation must be a string, not None\n"
        "  line 3 lacks the key 'relation', which must be a string\n"
        "  line 4: kind must be a string, not 3"
    )


def test_text_of_json_lines_stays_as_it_is(read):
    texts = ["007", "2020-01-01", "2020-01-01T00:00:00Z", "null", "", "é", "e\u0301", "a\u2028", "\\u00ed", "{}"]
    rows = [{"subject": f"{number}{text}", "object": text or "0"} for number, text in enumerate(texts)]
    [relation] = read("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "facts.jsonl")
    assert relation.samples == tuple(Sample(**row) for row in rows)


def test_relations_in_json_lines_name_their_line(read):
    content = (
        '{"name": "r", "samples": [{"subject": "a", "object": 5}]}\n'
        '{"name": "s", "prompt_templates": ["x {}"], "samples": [{"subject": "a", "object": "b"}]}\n'
        '{"name": "t", "prompt_templates": ["x"]}\n'
    )
    assert read(content, "facts.jsonl") == (
        "'facts.jsonl' has 3 problems:\n"
        "  line 1: samples[0].object must be a string, not 5\n"
        "  line 3 lacks the key 'samples', which must be a list\n"
        "  line 3: prompt_templates[0]: template 'x' must have exactly one {} for the subject, and no other brace"
    )


@pytest.mark.parametrize(
    ("column", "what"),
    [([1, 2], "1"), ([1.5, 2], "1.5"), ([None, "x"], "None"), ([b"a", b"b"], "a bytes"), ([[], ["a"]], "a list")],
)
@pytest.mark.parametrize("name", ["facts.parquet", "saved", "data set"])
def test_what_is_no_text_is_not_made_text_of_columns(tmp_path, name, column, what):
    rows = [{"subject": "a", "object": cell} for cell in column]
    with pytest.raises(InvalidRelation, match=rf"row 1: object must be a string, not {what}"):
        read_table(WRITERS[name](rows, tmp_path / name))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_all_kinds_of_text_of_arrow_are_text(tmp_path, kind):
    table = pa.table({"subject": pa.array(["a", "b"]).cast(kind), "object": pa.array(["x", "x"]).cast(kind)})
    pq.write_table(table, tmp_path / "facts.parquet")
    assert read_table(tmp_path / "facts.parquet")[0].samples == of(("a", "x"), ("b", "x"))


def test_a_class_label_is_its_name():
    features = Features({"subject": Value("string"), "object": ClassLabel(names=["cold", "hot"])})
    dataset = Dataset.from_dict({"subject": ["sun", "ice"], "object": [1, 0]}, features=features)
    assert read_table(dataset)[0].samples == of(("sun", "hot"), ("ice", "cold"))
    unlabelled = Dataset.from_dict({"subject": ["sun", "ice"], "object": [1, -1]}, features=features)
    with pytest.raises(LREError, match="row 2: object must be a string, not None"):
        read_table(unlabelled)


def test_the_rows_of_a_data_set_are_those_that_are_chosen_in_it():
    dataset = Dataset.from_dict({"subject": ["a", "b", "c"], "object": ["x", "y", "z"]})
    assert read_table(dataset.select([2, 0]).with_format("numpy"))[0].samples == of(("c", "z"), ("a", "x"))


def test_other_columns_are_not_looked_at(tmp_path):
    path = tmp_path / "facts.parquet"
    pictures = [os.urandom(1000) for _ in range(10)]
    table = pa.table({"picture": pictures, "subject": list("abcdefghij"), "object": ["x"] * 10})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    content = bytearray(path.read_bytes())
    content[start : start + size] = bytes(size)
    path.write_bytes(content)
    assert len(read_table(path)[0].samples) == 10
    with pytest.raises(LREError):  # and that column cannot be read
        read_table(path, {"subject": "picture"})
    features = Features({"picture": Image(), "subject": Value("string"), "object": Value("string")})
    dataset = Dataset.from_dict({"picture": [{"bytes": b"?"}], "subject": ["a"], "object": ["b"]}, features=features)
    assert read_table(dataset)[0].samples == of(("a", "b"))


@pytest.mark.parametrize("name", ["facts.jsonl", "facts.parquet", "data set"])
def test_a_column_may_hold_lists_of_templates(tmp_path, name):
    rows = [
        {"subject": "a", "object": "b", "template": ["x {}", "y {}"], "zero_shot_template": []},
        {"subject": "c", "object": "d", "template": ["z {}", "x {}"], "zero_shot_template": ["q {}"]},
        {"subject": "e", "object": "f", "template": None, "zero_shot_template": None},
    ]
    [relation] = read_table(WRITERS[name](rows, tmp_path / name))
    assert (relation.prompt_templates, relation.zero_shot_templates) == (("x {}", "y {}", "z {}"), ("q {}",))
    rows[1]["template"] = ["x {}", None]
    with pytest.raises(LREError, match="2: template must be a string or a list of strings, not None"):
        read_table(WRITERS[name](rows, tmp_path / name))


def test_a_list_of_samples_may_be_turned_inside_out():
    row = {"name": "r", "properties": {"symmetric": True}, "samples": {"subject": ["a", "b"], "object": ["x", "y"]}}
    [relation] = read_table(Dataset.from_list([row]))
    assert (relation.samples, relation.symmetric, relation.templates) == (of(("a", "x"), ("b", "y")), True, ())
    row["samples"]["object"].pop()
    with pytest.raises(LREError, match="row 1: samples must be a list"):
        read_table(Dataset.from_list([row]))


# Columns.


def test_relations_come_in_the_order_of_their_first_rows_and_samples_in_the_order_of_the_rows(read):
    relations = read("relation,object,subject\nz,1,a\ny,2,b\nz,3,c\nx,4,d\nz,5,a\n")
    assert [relation.name for relation in relations] == ["z", "y", "x"]
    assert relations[0].samples == of(("a", "1"), ("c", "3"), ("a", "5"))


def test_the_schema_s_names_of_columns_are_known_too(read):
    header = "subject,object,relation_type,domain_name,range_name,prompt_templates,prompt_templates_zs"
    [relation] = read(f"{header}\na,b,c,d,e,f {{}},g {{}}\n")
    assert relation == replace(
        read("subject,object\na,b\n")[0],
        category="c",
        domain_name="d",
        range_name="e",
        prompt_templates=("f {}",),
        zero_shot_templates=("g {}",),
    )
    message = read("subject,object,domain,domain_name\na,b,c,d\n")
    assert message.endswith("say which of domain and domain_name is the domain, with columns")
    [relation] = read("subject,object,domain,domain_name\na,b,c,d\n", columns={"domain": "domain_name"})
    assert relation.domain_name == "d"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            None,
            "'facts.csv' has the columns 'head', 'tail', 'x', and no 'subject' and no 'object': "
            "did you mean columns={'subject': 'head', 'object': 'tail'}?",
        ),
        (
            {"subject": "heda", "object": "tail"},
            "'facts.csv' has the columns 'head', 'tail', 'x', and no 'heda', which columns names for 'subject' "
            "(did you mean 'head'?)",
        ),
        ({"subject": "x"}, "'facts.csv' has the columns 'head', 'tail', 'x', and no 'object': did you mean columns"),
        ({"sbject": "head"}, "columns has 'sbject', which no table holds: did you mean 'subject'? It may have subject"),
        ({"subject": 3}, "columns must give the name of a column for 'subject', not 3"),
    ],
)
def test_columns_that_are_not_there(read, columns, message):
    assert read("head,tail,x\na,b,c\n", columns=columns).startswith(message)


def test_columns_are_for_samples(read):
    message = read('{"name": "r", "samples": []}\n', "facts.jsonl", columns={"relation": "name"})
    assert message.startswith("'facts.jsonl' has a relation a row, in the column 'samples', and columns is for")


# Files and folders that cannot be read.


@pytest.mark.parametrize("name", ["facts.parquet", "facts.csv.gz", "facts.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"abc", "cut"])
def test_broken_files(tmp_path, bundled, name, content):
    path = WRITERS[name.replace("csv", "CSV")](list(rows_of(bundled)), tmp_path / name)
    path.write_bytes(path.read_bytes()[:-100] if content == "cut" else content)
    with pytest.raises(LREError, match=name):
        read_table(path)


def test_every_byte_of_a_parquet_file_may_be_wrong(tmp_path):
    path = write_parquet([{"subject": f"s{n}", "object": "o"} for n in range(20)], tmp_path / "facts.parquet")
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        with contextlib.suppress(LREError):
            assert read_table(path)


def test_limits(read, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "LARGEST_TABLE", 1000)
    monkeypatch.setattr(table_files, "LONGEST_LINE", 500)
    for room in (tables, table_files):
        monkeypatch.setattr(room, "MOST_ROWS", 3)
    header = "subject,object\n"
    assert read(header + "a,b\n" * 500).endswith("it has 2015 bytes or more, and may have 1000: split it")
    assert read(header + "a,b" + "b" * 500).endswith("line 2 has more than 500 bytes")
    assert read(header + "a,b\n" * 4) == "'facts.csv' has too many rows: it may have 3"
    small = gzip.compress((header + "\n" * 2000).encode())
    path = tmp_path / "facts.csv.gz"
    path.write_bytes(small)
    with pytest.raises(LREError, match="and may have 1000"):
        read_table(path)
    dataset = Dataset.from_dict({"subject": ["a"] * 4, "object": ["b"] * 4})
    with pytest.raises(LREError, match="too many rows: it may have 3"):
        read_table(dataset)


def test_what_is_no_table(tmp_path, read):
    (tmp_path / "folder").mkdir()
    (tmp_path / "facts.txt").write_text("a")
    (tmp_path / "saved").mkdir()
    for file in ("state.json", "dataset_info.json"):
        (tmp_path / "saved" / file).write_text("{")
    os.mkfifo(tmp_path / "pipe.csv")
    for source, message in [
        (tmp_path / "folder", "is none that save_to_disk of a data set wrote"),
        (tmp_path / "facts.txt", "its name must end in .csv, .tsv"),
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "pipe.csv", "it is no ordinary file"),
        (tmp_path / "saved", "can't read the data set"),
        ("facts", "there is no file or folder 'facts' here, and 'facts' is no name of a data set of the hub"),
        ("hf://datasets/a/b/c.csv", "is no name of a data set of the hub"),
        (IterableDataset.from_generator(lambda: iter([])), "not from a IterableDataset"),
        (7, "and not from 7"),
    ]:
        with pytest.raises(LREError, match=message):
            read_table(source)
    assert not is_table(tmp_path / "folder")
    assert not is_table(tmp_path / "facts.txt")
    assert not is_table("capital")
    assert not is_table("relations/capital.json")
    assert not is_table("./a/b")
    assert is_table("a/b")
    assert is_table(tmp_path / "saved")


@pytest.mark.parametrize(
    ("name", "option"), [("facts.csv", "split"), ("saved", "revision"), ("data set", "name"), ("splits", "token")]
)
def test_options_that_a_source_does_not_take(tmp_path, name, option):
    source = WRITERS[name]([{"subject": "a", "object": "b"}], tmp_path / name)
    with pytest.raises(LREError, match=f"takes no option '{option}'"):
        read_table(source, options={option: "train"})


@pytest.mark.parametrize("saved", [False, True])
def test_splits(tmp_path, saved):
    parts = {"train": [("a", "x")], "test": [("b", "y"), ("", "z")], "dev": [("b", "y"), ("c", "x")]}
    source = DatasetDict(
        {name: Dataset.from_list([{"subject": s, "object": o} for s, o in part]) for name, part in parts.items()}
    )
    if saved:
        source.save_to_disk(tmp_path / "saved")
        source = tmp_path / "saved"
    assert read_table(source, options={"split": "train"})[0].samples == of(("a", "x"))
    assert read_table(source, options={"split": "dev+train"})[0].samples == of(("b", "y"), ("c", "x"), ("a", "x"))
    with pytest.raises(LREError, match="has the splits 'train', 'test', 'dev': give split, such as 'train', or 'train"):
        read_table(source)
    with pytest.raises(LREError, match=r"no split 'tset': did you mean 'test'\? It has 'train', 'test', 'dev'"):
        read_table(source, options={"split": "train+tset"})
    with pytest.raises(LREError, match=r"the split 'test', row 2: subject is ''; it must not be empty$"):
        read_table(source, options={"split": "train+test+dev"})


# Whatever text there is.

TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t\x85\u2028\"',;{}\\#"), min_size=1
)
PAIRS = st.lists(st.tuples(*[TEXTS.filter(str.strip)] * 2), min_size=1, max_size=6)


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("facts.ndjson", "saved splits", "splits")])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=PAIRS)
def test_any_text_comes_back_as_it_was_written(tmp_path_factory, name, pairs):
    path = tmp_path_factory.mktemp("facts") / name
    rows = [{"subject": subject, "object": object_} for subject, object_ in pairs]
    assert read_table(WRITERS[name](rows, path))[0].samples == of(*pairs)


# The hub.

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys
from lre_lightning import LREError
from lre_lightning.sources.tables import read_table
for source, options in json.loads(sys.argv[1]):
    try:
        found = read_table(source, None, options)
        print(json.dumps([[r.name, [[s.subject, s.object] for s in r.samples]] for r in found]))
    except LREError as error:
        print(json.dumps(str(error)))
"""
FACTS = [["one", [["007", "NA"], ["b", "2020-01-01"]]]]


@pytest.fixture
def hub(tmp_path):
    """A hub of data sets: folders of toy/; yields its address, the folders' place and the requests it got."""
    root = tmp_path / "repositories"
    requests = []

    class Hub(Handler):
        def answer(self, body):
            requests.append(self.path)
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            api = parts[0] == "api"
            _, organization, name, *rest = [*parts[api:], "", ""]
            folder = root / organization / name
            files = [path for path in folder.rglob("*") if path.is_file()]
            revision = rest[1] if len(rest) > 1 and rest[1] else "main"
            content, error = None, "RepoNotFound"
            if name == "down":
                return self.reply(503, b"{}", {}, body)
            if folder.is_dir():
                error = "RevisionNotFound"
                if revision in ("main", "v1", COMMIT):
                    error = "EntryNotFound"
                    if api and rest[:1] == ["tree"]:
                        content = [self.entry(folder, path) | {"type": "file"} for path in files]
                    elif api:
                        siblings = [
                            {"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size} for path in files
                        ]
                        content = {"id": f"toy/{name}", "sha": COMMIT, "siblings": siblings}
                    elif (folder / "/".join(rest[2:])).is_file():
                        content = (folder / "/".join(rest[2:])).read_bytes()
            if content is None:
                return self.reply(404, b"{}", {"X-Error-Code": error}, body)
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            return self.reply(200, content, headers, body)

        def entry(self, folder, path):
            oid = hashlib.sha1(path.read_bytes()).hexdigest()
            return {"path": str(path.relative_to(folder)), "size": path.stat().st_size, "oid": oid}

        def reply(self, status, content, headers, body):
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

    with serving(Hub) as address:
        yield address, root / "toy", requests


def put(folder, **files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def load(tmp_path, address, *calls, **changes):
    """Read sources in a process of its own: the names and samples of their relations, or the errors."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1", **changes}
    command = [sys.executable, "-c", SCRIPT, json.dumps(calls)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_data_sets_come_from_the_hub_and_then_from_the_cache(hub, tmp_path):
    address, root, requests = hub
    csv_text = "subject,object\n007,NA\nb,2020-01-01\n"
    put(root / "one", **{"facts.csv": csv_text, "huge.bin": b"0" * 1000, "loader.py": "raise SystemExit(9)"})
    put(
        root / "split",
        **{
            "data/train-0.tsv": csv_text.replace(",", "\t"),
            "data/test-0.tsv.gz": gzip.compress(b"subject\tobject\nc\td\n"),
            "data/dev-0.tsv": '"broken',  # and never asked for
        },
    )
    relation = {
        "name": "one",
        "samples": [{"subject": "007", "object": "NA"}, {"subject": "b", "object": "2020-01-01"}],
    }
    semicolons = "---\nconfigs:\n- config_name: default\n  data_files: facts.csv\n  sep: {}\n---\n"
    put(root / "semicolons", **{"README.md": semicolons.format("';'"), "facts.csv": csv_text.replace(",", ";")})
    put(root / "signs", **{"README.md": semicolons.format("'<>'"), "facts.csv": csv_text})
    put(root / "nested", **{"one.json": json.dumps(relation, indent=1)})
    card = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("big", "small")
    )
    big = '{"subject": "007", "object": "NA"}\n{"subject": "b", "object": "2020-01-01"}\n'
    put(root / "lines", **{"facts.json": big})
    put(
        root / "configs",
        **{"README.md": card + "---\n", "big.jsonl": big, "small.jsonl": '{"subject": "x", "object": "y"}'},
    )
    calls = [
        ("toy/one", None),
        ("hf://datasets/toy/one@v1", None),
        ("toy/split", {"split": "train"}),
        ("toy/split", {"split": "train+test"}),
        ("toy/nested", {"revision": "v1"}),
        ("toy/configs", {"data_files": {"train": "**/small.jsonl"}}),
        ("toy/configs", {"name": "big"}),
        ("toy/lines", None),
        ("toy/semicolons", None),
        ("toy/signs", None),
        ("toy/split", None),
        ("toy/split", {"split": "tran"}),
        ("toy/configs", None),
        ("toy/configs", {"name": "medium"}),
    ]
    found = load(tmp_path, address, *calls)
    assert found[0] == found[1] == FACTS
    assert found[2] == [["split", FACTS[0][1]]]
    assert found[3] == [["split", [*FACTS[0][1], ["c", "d"]]]]
    assert found[4] == FACTS
    assert found[5:7] == [[["configs", [["x", "y"]]]], [["configs", FACTS[0][1]]]]
    assert found[7] == [["lines", FACTS[0][1]]]
    assert found[8] == [["semicolons", FACTS[0][1]]]
    assert found[9].startswith("can't read the table 'toy/signs/facts.csv': \"delimiter\" must be")
    splits = (
        "'toy/split' has the splits 'train', 'validation', 'test': give split, such as 'train', or 'train+validation'"
    )
    assert found[10] == f"{splits} for both"
    assert found[11].startswith("'toy/split' has no split 'tran': did you mean 'train'? It has 'train', ")
    assert all(re.search(r"configs?'.*\['big', 'small'\]", message) for message in found[12:])
    assert not [path for path in requests if "huge.bin" in path or "loader.py" in path]
    # From the cache: with no hub at all, and with one that cannot be reached.
    assert load(tmp_path, "http://127.0.0.1:9", *calls, HF_HUB_OFFLINE="1") == found
    assert load(tmp_path, "http://127.0.0.1:9", calls[0], calls[6]) == [found[0], found[6]]


def test_what_the_hub_refuses(hub, tmp_path):
    address, root, requests = hub
    put(root / "one", **{"facts.csv": "subject,object\na,b\n"})
    put(root / "pictures", **{"a.png": b"?"})
    (tmp_path / "secret.csv").write_text("subject,object\nmine,own\n")
    card = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    put(root / "absolute", **{"README.md": card.format(tmp_path / "secret.csv"), "a.csv": "subject,object\na,b\n"})
    put(root / "above", **{"README.md": card.format("../" * 5 + "secret.csv"), "a.csv": "subject,object\na,b\n"})
    put(root / "broken", **{"facts.csv": "subject,object\na,b\n", "more.csv": "subject,object\nc\n,d\n"})
    messages = load(
        tmp_path,
        address,
        ("toy/other", None),
        ("hf://datasets/toy/other", None),
        ("toy/one@v9", None),
        ("toy/one@v1", {"revision": "v2"}),
        ("toy/one", {"trust_remote_code": True}),
        ("toy/pictures", None),
        ("toy/one", {"data_files": "none/*.csv"}),
        ("toy/absolute", None),
        ("toy/above", None),
        ("toy/broken", None),
        ("toy/down", None),
    )
    starts = [
        "there is no file or folder 'toy/other' here, and the Hugging Face Hub has no data set 'toy/other': check the",
        "the Hugging Face Hub has no data set 'toy/other': check the name",
        "there is no file or folder 'toy/one@v9' here, and the data set 'toy/one' of the hub has no revision 'v9'",
        "'toy/one@v1' names the revision 'v1', and the options 'v2': give one of them",
        "a data set of the hub takes no option 'trust_remote_code': it may have name, split, revision",
        "the data set 'toy/pictures' of the hub has no table that is asked for: it must have files .json, .csv, .tsv",
        "the data set 'toy/one' of the hub has no table that is asked for",
        "the data set 'toy/absolute' of the hub names the file",
        "the data set 'toy/above' of the hub names the file",
        "'toy/broken' has 2 problems:\n  toy/broken/more.csv, line 2: the number of cells must be 2",
        "there is no file or folder 'toy/down' here, and the data set 'toy/down' of the hub is not in the cache, and",
    ]
    assert [message[: len(start)] for message, start in zip(messages, starts, strict=True)] == starts
    # A name that is mistyped costs one request, and so does a hub that is down.
    assert len([path for path in requests if "toy/other" in path]) == 2
    assert len([path for path in requests if "toy/down" in path]) == 1


def test_a_data_set_of_the_hub_may_not_be_too_large(monkeypatch):
    monkeypatch.setattr(data_sets, "LARGEST_TABLE", 1000)
    files = [SimpleNamespace(rfilename=name, size=600) for name in ("a.csv", "b/c.parquet", "d.bin")]
    data_sets._check_size("toy/one", files, data_sets._patterns({"data_files": ["*.csv"]}))
    with pytest.raises(LREError, match="have 1200 bytes, and may have 1000: choose some by the option data_files"):
        data_sets._check_size("toy/one", files, data_sets._patterns({}))


def test_a_hub_that_cannot_be_reached(tmp_path):
    message = "the data set 'toy/one' of the hub is not in the cache, and "
    advice = ": fetch it once where there is a network, or save it to a folder and give that"
    [found] = load(tmp_path, "http://127.0.0.1:9", ("hf://datasets/toy/one", None))
    assert found.startswith(message + "the Hugging Face Hub can't be reached (")
    assert found.endswith(advice)
    [found] = load(tmp_path, "http://127.0.0.1:9", ("hf://datasets/toy/one", None), HF_HUB_OFFLINE="1")
    assert found == message + "HF_HUB_OFFLINE is set" + advice
