"""Relations in tables: files and data sets written by other libraries are read unchanged, or refused with a reason."""

import contextlib
import csv
import gzip
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, IterableDataset, Value
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations import tables
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.sources import read_source
from tests.helpers.hostile import tried

PLAIN = ("subject", "object", "relation", "category", "domain", "range", "template", "zero_shot_template", "symmetric")
OTHER = ("head", "tail", "rel", "kind", "from what", "to,what", 'the "template"', "zs\n", "both ways")
MAPPING = dict(zip(PLAIN, OTHER, strict=True))


def read_table(source, columns=None, options=None):
    return [relation for _, relation in read_source(source, columns, options)]


@pytest.fixture(scope="module")
def bundled():
    return [relation for _, relation in read_folder(RELATIONS_DIR)]


def rows_of(relations):
    """One sample per row; the templates are spread over the rows."""
    for r in relations:
        for number, sample in enumerate(r.samples):
            few, zero = (t[number] if number < len(t) else "" for t in (r.prompt_templates, r.zero_shot_templates))
            values = (sample.subject, sample.object, r.name, r.category, r.domain_name, r.range_name, few, zero)
            yield dict(zip(PLAIN, (*values, r.symmetric), strict=True))


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


def save(dataset, path):
    dataset.save_to_disk(path)
    return path


WRITERS = {
    "facts.csv": write_csv,
    "facts.CSV.gz": write_csv,
    "facts.tsv": lambda rows, path: write_csv(rows, path, "\t"),
    "facts.jsonl": write_json_lines,
    "facts.ndjson": write_json_lines,
    "facts.jsonl.gz": write_json_lines,
    "facts.parquet": write_parquet,
    "saved": lambda rows, path: save(Dataset.from_list(rows), path),
    "saved splits": lambda rows, path: save(DatasetDict({"train": Dataset.from_list(rows)}), path),
    "data set": lambda rows, path: Dataset.from_list(rows),
    "splits": lambda rows, path: DatasetDict({"train": Dataset.from_list(rows)}),
}


@pytest.fixture
def read(tmp_path):
    """Write a file and read it: returns its relations or the error message."""

    def read(content, name="facts.csv", columns=None):
        path = write_bytes(content, tmp_path / name)
        try:
            return read_table(path, columns)
        except LREError as error:
            return str(error).replace(str(path), name)

    return read


def of(*pairs):
    return tuple(Sample(*pair) for pair in pairs)


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_of_samples_gives_the_relations_of_the_json_files(bundled, tmp_path, name):
    source = WRITERS[name](list(rows_of(bundled)), tmp_path / name)
    assert read_table(source) == bundled


@pytest.mark.parametrize("name", ["facts.csv", "facts.jsonl", "saved"])
def test_columns_may_have_other_names(bundled, tmp_path, name):
    for names, columns in ((MAPPING, MAPPING), (tables.FIELDS, None)):  # and those of the schema
        rows = [{names[key]: value for key, value in row.items()} | {"id": "7"} for row in rows_of(bundled)]
        assert read_table(WRITERS[name](rows, tmp_path / f"{columns is None} {name}"), columns) == bundled


@pytest.mark.parametrize("name", ["facts.jsonl", "facts.parquet", "saved splits"])
def test_a_table_of_relations_gives_the_relations_of_the_json_files(bundled, tmp_path, name):
    rows = [json.loads(path.read_text(encoding="utf-8")) for path, _ in read_folder(RELATIONS_DIR)]
    del rows[0]["properties"]["symmetric"]  # the default; columns have None for it
    assert read_table(WRITERS[name](rows, tmp_path / name)) == bundled


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_file_may_have_quotes_line_breaks_and_a_byte_order_mark(read, end):
    lines = ["\ufeffsubject,object", '"a ""b""",c', '"d\r\ne\nf", g', "", "h,i"]
    [relation] = read(end.join(lines))
    assert relation.samples == of(('a "b"', "c"), ("d\r\ne\nf", " g"), ("h", "i"))
    assert (relation.name, relation.category, relation.symmetric) == ("facts", "", False)


HAS = "facts.csv has the columns 'head', 'tail', 'x', and no"
EXAMPLE = "with --data.selection.columns, as in {'subject': 'head', 'object': 'tail'}"


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", None, "facts.csv has no row with subject and object"),
        ("subject,object\n", None, "facts.csv has no row with subject and object"),
        ("subject,object\na,b\nc\n", None, "facts.csv, line 3 must have 2 cells, as the header has, not 1"),
        ('subject,object\na,b\n"c,d\ne,f\n', None, "facts.csv, line 3 is not CSV: unexpected end of data; is a quota"),
        ('subject,object\n"a"b,c\n', None, "facts.csv, line 2 is not CSV: "),
        (f"subject,object\na,{'b' * 200_000}\n", None, "facts.csv, line 2 is not CSV: field larger than"),
        ("subject,object\na,b\x00\n", None, "facts.csv, line 2: object is 'b\\x00', which contains the control"),
        ("subject,object\na,d\xe9\n".encode("latin-1"), None, "facts.csv, line 2 is not in UTF-8 (the byte 0xe9)"),
        ("subject,object\na,b\n".encode("utf-16"), None, "facts.csv, line 1 is not in UTF-8"),
        ("subject,object,subject\na,b,c\n", None, "facts.csv has the columns 'subject', 'object', 'subject', and so"),
        ("head,tail,x\na,b,c\n", None, f"{HAS} 'subject': Name it {EXAMPLE}"),
        ("head,tail,x\na,b,c\n", {"subject": "heda"}, f"{HAS} 'heda': did you mean 'head'? Name it {EXAMPLE}"),
        ("head,tail,x\na,b,c\n", {"subject": "head"}, f"{HAS} 'object': Name it"),
        ("head,tail,x\na,b,c\n", {"subject": 3}, f"{HAS} 3: "),
        (
            "a,b\n",
            {"sbject": "a"},
            "--data.selection.columns has 'sbject', which is not a field: did you mean 'subject'?",
        ),
    ],
)
def test_the_error_of_an_invalid_csv_file_says_where_and_what(read, content, columns, message):
    assert read(content, columns=columns).startswith(message)


def test_the_problems_of_all_rows_are_in_one_message_with_the_names_of_their_columns(read):
    content = (
        "subject,tail,rel,kind,q,symmetric\n"
        '"a\nb",b,one,c,The {} is,true\n'  # two lines
        ",b,two,c,The {} is,\n"
        "c,d,one,d,The {} is,TRUE\n\n"
        f"e,f,{'r' * 2000},,,\n"
        "f,,,,,\n"
        "h,i,three,,,no\n"
        "h,i,three,,The is,false\n"
    )
    columns = {"object": "tail", "relation": "rel", "category": "kind", "template": "q"}
    long = f"'{'r' * 47}...{'r' * 48}'"
    assert read(content, columns=columns).split("\n") == [
        "the relations have 6 problems:",
        "  facts.csv, line 4: subject is ''; it must not be empty",
        "  facts.csv, line 5: kind is 'd', but 'c' in an earlier row of 'one'",
        f"  facts.csv, line 7: rel has 2000 characters, over the limit of 1000: it begins with {long}",
        "  facts.csv, line 8: tail is ''; it must not be empty",
        "  facts.csv, line 9: symmetric must be true or false, not 'no'",
        "  facts.csv, line 10: q is 'The is'; it must have exactly one {} for the subject, and no other brace",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"subject": "a", "object": 5}', ": object must be a string, not 5"),
        ('{"subject": null, "object": "b"}', ": subject must be a string, not None"),
        ('{"object": "b"}', ": subject must be a string, not None"),
        ('{"subject": "a", "object": "b", "relation": null}', ": relation must be a string, not None"),
        ('{"subject": "a\\ud800", "object": "b"}', ": subject is 'a\\ud800', which contains an unpaired surrogate"),
        ('["a", "b"]', " must be an object with names for keys, not a list"),
        ('{"subject": "a", ', " is not JSON: Expecting property name enclosed in double quotes"),
        ('{"subject": "a", "subject": "c"}', " is not JSON: it has the key 'subject' twice in one object"),
        ("[" * 100_000, " is not JSON: maximum recursion depth exceeded"),
    ],
)
def test_values_of_json_lines_are_not_converted_to_text(read, line, problem):
    good = '\ufeff{"subject": "a", "object": "b", "relation": "r"}'
    assert read(f"{good}\n\n{line}\n", "facts.jsonl").startswith(f"facts.jsonl, line 3{problem}")


def test_problems_of_relations_in_json_lines_name_their_line(read):
    content = '{"name": "r", "samples": [{"subject": "a", "object": 5}]}\n\n{"name": "t", "samples": 3}\n7\n'
    assert read(content, "facts.jsonl").split("\n") == [
        "the relations have 3 problems:",
        "  facts.jsonl, line 1: samples[0].object must be a string, not 5",
        "  facts.jsonl, line 3: samples must be a list, not 3",
        "  facts.jsonl, line 4 must hold an object with name, prompt_templates and samples, not 7",
    ]
    message = read(content, "facts.jsonl", columns={"relation": "name"})
    assert message == "facts.jsonl has one relation per row: leave out --data.selection.columns, which is for samples"


@pytest.mark.parametrize(
    ("column", "what"),
    [([1, 2], "1"), ([1.5, 2], "1.5"), ([None, "x"], "None"), ([b"a", b"b"], "a bytes"), ([[], ["a"]], "a list")],
)
@pytest.mark.parametrize("name", ["facts.parquet", "data set"])
def test_other_values_of_columns_are_not_converted_to_text(tmp_path, name, column, what):
    rows = [{"subject": "a", "object": cell} for cell in column]
    with pytest.raises(LREError, match=rf"row 1: object must be a string, not {what}"):
        read_table(WRITERS[name](rows, tmp_path / name))


def test_a_class_label_is_read_as_its_name_and_an_image_is_not_read():
    features = Features({"picture": Image(), "subject": Value("string"), "object": ClassLabel(names=["cold", "hot"])})
    columns = {"picture": [{"bytes": b"?"}] * 2, "subject": ["sun", "ice"]}
    dataset = Dataset.from_dict(columns | {"object": [1, 0]}, features=features)
    assert read_table(dataset)[0].samples == of(("sun", "hot"), ("ice", "cold"))
    assert read_table(dataset.select([1]).with_format("numpy"))[0].samples == of(("ice", "cold"))
    with pytest.raises(LREError, match="split 'train' cannot be read: Invalid integer class label -1"):
        read_table(Dataset.from_dict(columns | {"object": [1, -1]}, features=features))


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
    with pytest.raises(LREError, match="2: template must be a string, not None"):
        read_table(WRITERS[name](rows, tmp_path / name))


def test_relations_come_in_the_order_of_their_first_rows_and_samples_in_the_order_of_the_rows(read):
    relations = read("relation,object,subject\nz,1,a\ny,2,b\nz,3,c\nx,4,d\nz,5,a\n")
    assert [relation.name for relation in relations] == ["z", "y", "x"]
    assert relations[0].samples == of(("a", "1"), ("c", "3"), ("a", "5"))


@pytest.mark.parametrize("name", ["facts.parquet", "facts.CSV.gz", "facts.jsonl.gz"])
@pytest.mark.parametrize("content", [b"abc", "cut"])
def test_a_broken_file_is_named(tmp_path, bundled, name, content):
    path = WRITERS[name](list(rows_of(bundled)), tmp_path / name)
    path.write_bytes(path.read_bytes()[:-100] if content == "cut" else content)
    with pytest.raises(LREError, match=name):
        read_table(path)


def test_any_byte_of_a_parquet_file_may_be_wrong(tmp_path):
    path = write_parquet([{"subject": f"s{n}", "object": "o"} for n in range(20)], tmp_path / "facts.parquet")
    content = path.read_bytes()
    for position in range(0, len(content), 13):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        with contextlib.suppress(LREError):
            assert read_table(path)


def test_the_number_of_rows_is_limited(monkeypatch):
    monkeypatch.setattr(tables, "MOST_SAMPLES", 3)
    with pytest.raises(LREError, match="has too many rows: the limit is 3"):
        read_table(Dataset.from_dict({"subject": ["a"] * 4, "object": ["b"] * 4}))


def test_a_source_that_is_not_a_table_is_refused(tmp_path):
    for folder in ("folder", "saved"):
        (tmp_path / folder).mkdir()
    (tmp_path / "facts.txt").write_text("a")
    for file in ("state.json", "dataset_info.json"):
        (tmp_path / "saved" / file).write_text("{")
    os.mkfifo(tmp_path / "pipe.csv")
    for source, message in [
        (tmp_path / "folder", "folder' has no relation in it"),
        (tmp_path / "facts.txt", "facts.txt is not a JSON file in UTF-8"),
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "pipe.csv", "it is not an ordinary file"),
        (tmp_path / "saved", "saved' cannot be read: "),
        ("facts", "no such file or folder of relations: 'facts'"),
        ("hf://datasets/a/b/c.csv", "is not the name of a data set of the Hub"),
        (IterableDataset.from_generator(lambda: iter([])), "not from a IterableDataset"),
        (7, "not from 7"),
    ]:
        with pytest.raises(LREError, match=message):
            read_table(source)


@pytest.mark.parametrize("name", ["saved splits", "splits"])
def test_splits_are_chosen(tmp_path, name):
    parts = {"train": [("a", "x")], "test": [("b", "y"), ("", "z")], "dev": [("b", "y"), ("c", "x")]}
    source = DatasetDict(
        {name: Dataset.from_list([{"subject": s, "object": o} for s, o in part]) for name, part in parts.items()}
    )
    if name == "saved splits":
        source = save(source, tmp_path / "saved")
    assert read_table(source, options={"split": "train"})[0].samples == of(("a", "x"))
    assert read_table(source, options={"split": "dev+train"})[0].samples == of(("b", "y"), ("c", "x"), ("a", "x"))
    for split, message in {
        None: "has the splits 'train', 'test', 'dev': give split, such as 'train', or 'train",
        "train+tset": r"no split 'tset': it has 'train', 'test', 'dev'",
        "train+test+dev": r"split 'test', row 2: subject is ''; it must not be empty$",
    }.items():
        with pytest.raises(LREError, match=message):
            read_table(source, options={"split": split})


CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t\x85\u2028\"',;{}\\#")
CELLS = ["007", "NA", "null", "None", "true", "TRUE", "1924", "1e5", "2020-01-01", "-", "nan", " x ", "1,5", "'a'"]
TEXTS = st.text(CHARACTERS, min_size=1).filter(str.strip) | st.sampled_from(CELLS)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["facts.csv", "facts.tsv", "facts.jsonl.gz", "facts.parquet", "data set"])
@tried(15)
@given(pairs=PAIRS)
def test_any_text_is_read_as_it_was_written(tmp_path_factory, name, pairs):
    path = tmp_path_factory.mktemp("facts") / name
    rows = [{"subject": subject, "object": object_} for subject, object_ in [*pairs, *zip(CELLS, CELLS, strict=True)]]
    [relation] = read_table(WRITERS[name](rows, path))
    assert relation.samples == of(*pairs, *zip(CELLS, CELLS, strict=True))
    assert relation.name == ("dataset" if name == "data set" else "facts")


def test_columns_may_be_paths_and_templates_have_the_marks_of_other_data_sets(tmp_path):
    """The layouts of CounterFact, and of LAMA and its translations."""
    rewrite = {"prompt": "The mother tongue of {} is", "subject": "Danielle Darrieux", "target_true": {"str": "French"}}
    columns = {"subject": "at.subject", "object": "at.target_true.str", "template": "at.prompt"}
    lines = write_bytes(json.dumps({"at": rewrite}), tmp_path / "facts.jsonl")
    for place in (Dataset.from_list([{"at": rewrite}]), lines):
        [relation] = read_table(place, columns)
        assert relation.samples == (Sample("Danielle Darrieux", "French"),)
        assert relation.templates == ("The mother tongue of {} is",)
    lama = [{"sub": "Marie Curie", "obj": "Warsaw", "template": "[X] was born in [Y] .", "dotted.name": "born"}]
    [relation] = read_table(Dataset.from_list(lama), {"subject": "sub", "object": "obj", "relation": "dotted.name"})
    assert (relation.name, relation.templates) == ("born", ("{} was born in",))
    for template in ("[Y] is where [X] was born", "[X] and [X]"):
        with pytest.raises(LREError, match=r"it must have exactly one \{\} for the subject"):
            read_table(Dataset.from_list([lama[0] | {"template": template}]), {"subject": "sub", "object": "obj"})
    with pytest.raises(LREError, match=r"at\.target\.str must be a string, not None"):
        read_table(Dataset.from_list([{"at": rewrite}]), columns | {"object": "at.target.str"})
