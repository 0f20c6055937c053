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
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, IterableDataset, Value, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations import tables
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.schema import InvalidRelation
from lre_lightning.relations.sources import read_source

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


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_of_samples_gives_the_relations_of_the_json_files(bundled, tmp_path, name):
    source = WRITERS[name](list(rows_of(bundled)), tmp_path / name)
    assert read_table(source) == bundled


@pytest.mark.parametrize("name", ["facts.csv", "facts.jsonl", "saved"])
def test_columns_may_have_other_names(bundled, tmp_path, name):
    rows = [{MAPPING[key]: value for key, value in row.items()} | {"id": "7"} for row in rows_of(bundled)]
    assert read_table(WRITERS[name](rows, tmp_path / name), MAPPING) == bundled


@pytest.mark.parametrize("name", ["facts.jsonl", "facts.parquet", "saved splits"])
def test_a_table_of_relations_gives_the_relations_of_the_json_files(bundled, tmp_path, name):
    rows = [json.loads(path.read_text(encoding="utf-8")) for path, _ in read_folder(RELATIONS_DIR)]
    assert read_table(WRITERS[name](rows, tmp_path / name)) == bundled


def test_json_files_can_be_loaded_by_datasets(bundled, tmp_path):
    files = [str(path) for path, _ in read_folder(RELATIONS_DIR)]
    loaded = load_dataset("json", data_files=files, cache_dir=str(tmp_path))
    assert read_table(loaded) == bundled


def test_no_cell_of_a_csv_file_is_interpreted(read):
    cells = ["007", "NA", "null", "None", "true", "TRUE", "1924", "1e5", "2020-01-01", "-", "nan", " x ", "1,5", "'a'"]
    [relation] = read("subject,object\n" + "".join(f'"{cell}",{cell if "," not in cell else 0}\n' for cell in cells))
    assert [sample.subject for sample in relation.samples] == cells
    assert relation.samples[:13][-2].object == " x "
    assert [sample.object for sample in relation.samples][:11] == cells[:11]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_file_may_have_quotes_line_breaks_and_a_byte_order_mark(read, end):
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
        ("subject,object\n", "facts.csv is empty; it must hold at least one row with subject and object"),
        ("subject,object\na,b\nc\n", "facts.csv: line 3 must have 2 cells, as the header has, not 1"),
        ('subject,object\na,b\n"c,d\ne,f\n', 'facts.csv: line 3 opens a cell with a quotation mark " and never closes'),
        ('subject,object\n"a"b,c\n', 'facts.csv: line 2 has text after a quotation mark " that closes a cell'),
        (f"subject,object\na,{'b' * 200_000}\n", "facts.csv: line 2 has a cell that is too long"),
        ("subject,object\na,b\x00\n", "facts.csv: line 2: object is 'b\\x00', which contains the control character"),
        (
            "subject,object\na,b\nc,d\xe9\n".encode("latin-1"),
            "'facts.csv' cannot be read: line 3 is not in UTF-8 (the byte 0xe9)",
        ),
        ("subject,object\na,b\n".encode("utf-16"), "'facts.csv' cannot be read: line 1 is not in UTF-8"),
        ("subject,object,subject\na,b,c\n", "'facts.csv' has the columns 'subject', 'object', 'subject', and so"),
    ],
)
def test_the_error_of_an_invalid_csv_file_names_the_line(read, content, message):
    assert read(content).startswith(message)


def test_all_problems_of_a_file_are_in_one_message_with_the_names_of_its_columns(read):
    content = (
        "subject,tail,rel,kind,q,symmetric\n"
        "a,b,one,c,The {} is,true\n"
        ",b,two,c,The {} is,\n"
        "c,d,one,d,The is,TRUE\n"
        f"e,,{'r' * 2000},,,no\n"
        "f,g\n"
        "h,i,three,c\x01,\x02,false\n"
    )
    columns = {"object": "tail", "relation": "rel", "category": "kind", "template": "q"}
    starts = [
        "'facts.csv' has 9 problems:",
        "  line 3: subject is ''; it must not be empty",
        "  line 4: kind is 'd', and 'c' in line 2, of the same relation",
        "  line 4: q is 'The is'; it must have exactly one {} for the subject, and no other brace",
        "  line 5: rel has 2000 characters, and may have 1000",
        "  line 5: symmetric must be true or false, not 'no'",
        "  line 5: tail is ''; it must not be empty",
        "  line 6 must have 6 cells, as the header has, not 2",
        "  line 7: q is '\\x02', which contains the control character",
        "  line 7: kind is 'c\\x01', which contains the control character",
    ]
    lines = read(content, columns=columns).splitlines()
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_other_values_of_json_lines_are_not_converted_to_text(read):
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
    assert lines[:8] == [
        "'facts.jsonl' has 8 problems:",
        "  line 1: object must be a string, not 5",
        "  line 2: subject must be a string, not None",
        "  line 4: subject must be a string, not None",
        "  line 5 must be an object with a sample or a relation, not a list",
        "  line 6 is not JSON: Expecting property name enclosed in double quotes at column 1",
        "  line 7 is not JSON: it has the key 'subject' twice in one object",
        "  line 8: object must be a string, not True",
    ]
    assert "an unpaired surrogate" in lines[8]


def test_a_file_of_json_lines_without_an_object_lists_its_problems(read):
    assert read("1\n2\n", "facts.jsonl").splitlines()[0] == "'facts.jsonl' has 2 problems:"


def test_the_name_of_a_relation_must_be_text_too(read):
    content = '{"subject": "a", "object": "b", "relation": "r"}\n{"subject": "a", "object": "b", "relation": null}\n'
    assert read(content, "facts.jsonl") == "facts.jsonl: line 2: relation must be a string, not None"


def test_problems_of_relations_in_json_lines_name_their_line(read):
    content = (
        '{"name": "r", "samples": [{"subject": "a", "object": 5}]}\n'
        '{"name": "s", "prompt_templates": ["x {}"], "samples": [{"subject": "a", "object": "b"}]}\n'
        '{"name": "t", "prompt_templates": ["x"]}\n'
    )
    assert read(content, "facts.jsonl") == (
        "'facts.jsonl' has 3 problems:\n"
        "  line 1: samples[0].object must be a string, not 5\n"
        "  line 3: prompt_templates[0] is 'x'; it must have exactly one {} for the subject, and no other brace\n"
        "  line 3 lacks the key 'samples', which must be a list"
    )


@pytest.mark.parametrize(
    ("column", "what"),
    [([1, 2], "1"), ([1.5, 2], "1.5"), ([None, "x"], "None"), ([b"a", b"b"], "a bytes"), ([[], ["a"]], "a list")],
)
@pytest.mark.parametrize("name", ["facts.parquet", "data set"])
def test_other_values_of_columns_are_not_converted_to_text(tmp_path, name, column, what):
    rows = [{"subject": "a", "object": cell} for cell in column]
    with pytest.raises(InvalidRelation, match=rf"row 1: object must be a string, not {what}"):
        read_table(WRITERS[name](rows, tmp_path / name))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_all_string_types_of_arrow_are_text(tmp_path, kind):
    table = pa.table({"subject": pa.array(["a", "b"]).cast(kind), "object": pa.array(["x", "x"]).cast(kind)})
    pq.write_table(table, tmp_path / "facts.parquet")
    assert read_table(tmp_path / "facts.parquet")[0].samples == of(("a", "x"), ("b", "x"))


def test_a_class_label_is_read_as_its_name():
    features = Features({"subject": Value("string"), "object": ClassLabel(names=["cold", "hot"])})
    dataset = Dataset.from_dict({"subject": ["sun", "ice"], "object": [1, 0]}, features=features)
    assert read_table(dataset)[0].samples == of(("sun", "hot"), ("ice", "cold"))
    unlabelled = Dataset.from_dict({"subject": ["sun", "ice"], "object": [1, -1]}, features=features)
    with pytest.raises(LREError, match="row 2: object must be a string, not None"):
        read_table(unlabelled)


def test_only_the_selected_rows_of_a_data_set_are_read():
    dataset = Dataset.from_dict({"subject": ["a", "b", "c"], "object": ["x", "y", "z"]})
    assert read_table(dataset.select([2, 0]).with_format("numpy"))[0].samples == of(("c", "z"), ("a", "x"))


def test_other_columns_are_not_read():
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


def test_relations_come_in_the_order_of_their_first_rows_and_samples_in_the_order_of_the_rows(read):
    relations = read("relation,object,subject\nz,1,a\ny,2,b\nz,3,c\nx,4,d\nz,5,a\n")
    assert [relation.name for relation in relations] == ["z", "y", "x"]
    assert relations[0].samples == of(("a", "1"), ("c", "3"), ("a", "5"))


def test_columns_may_have_the_names_of_the_schema(read):
    header = "subject,object,relation_type,domain_name,range_name,prompt_templates,prompt_templates_zs"
    [relation] = read(f"{header}\na,b,c,d,e,f {{}},g {{}}\n")
    assert (relation.category, relation.domain_name, relation.range_name) == ("c", "d", "e")
    assert (relation.prompt_templates, relation.zero_shot_templates) == (("f {}",), ("g {}",))
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
        (
            {"sbject": "head"},
            "columns has 'sbject', which is not a field: did you mean 'subject'? The fields are subject",
        ),
        ({"subject": 3}, "columns must give the name of a column for 'subject', not 3"),
    ],
)
def test_the_error_of_a_missing_column_suggests_others(read, columns, message):
    assert read("head,tail,x\na,b,c\n", columns=columns).startswith(message)


def test_columns_are_refused_for_a_table_of_relations(read):
    message = read('{"name": "r", "samples": []}\n', "facts.jsonl", columns={"relation": "name"})
    assert message.startswith("'facts.jsonl' has one relation per row, in the column 'samples', and columns is for")


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


def test_the_number_of_rows_is_limited(read, monkeypatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 3)
    assert read("subject,object\n" + "a,b\n" * 4) == "'facts.csv' has too many rows: it may have 3"
    with pytest.raises(LREError, match="too many rows: it may have 3"):
        read_table(Dataset.from_dict({"subject": ["a"] * 4, "object": ["b"] * 4}))


def test_a_source_that_is_not_a_table_is_refused(tmp_path, read):
    (tmp_path / "folder").mkdir()
    (tmp_path / "facts.txt").write_text("a")
    (tmp_path / "saved").mkdir()
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


@pytest.mark.parametrize(
    ("name", "option"), [("facts.csv", "split"), ("saved", "revision"), ("data set", "name"), ("splits", "token")]
)
def test_unknown_options_of_a_source_are_refused(tmp_path, name, option):
    source = WRITERS[name]([{"subject": "a", "object": "b"}], tmp_path / name)
    with pytest.raises(LREError, match=f"takes no option '{option}'"):
        read_table(source, options={option: "train"})


@pytest.mark.parametrize("saved", [False, True])
def test_splits_are_chosen(tmp_path, saved):
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


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t\x85\u2028\"',;{}\\#"), min_size=1
)
PAIRS = st.lists(st.tuples(*[TEXTS.filter(str.strip)] * 2), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["facts.csv", "facts.tsv", "facts.jsonl.gz", "facts.parquet", "data set"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=PAIRS)
def test_any_text_is_read_as_it_was_written(tmp_path_factory, name, pairs):
    path = tmp_path_factory.mktemp("facts") / name
    rows = [{"subject": subject, "object": object_} for subject, object_ in pairs]
    assert read_table(WRITERS[name](rows, path))[0].samples == of(*pairs)
