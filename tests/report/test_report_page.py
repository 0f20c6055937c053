"""The page of a report as a browser reads it, and the files next to it."""

import csv
import json
import os
import re
import time
from dataclasses import asdict, replace
from statistics import stdev

import pytest
from matplotlib.figure import Figure

from lre_lightning.errors import LREError
from lre_lightning.lens.grid import grid_of
from lre_lightning.records.files import write_records
from lre_lightning.report import page
from lre_lightning.report.chapters import folders_of
from lre_lightning.report.page import make_report
from lre_lightning.report.sections import Picture
from tests.helpers.command import EMPTY, without_plots
from tests.helpers.page import Page
from tests.lens.test_plotting import lens
from tests.report.examples import MAIN, TORN, bare_of, minimal, moved, unscored

HOSTILE = "<script>alert(\"1\")</script> & 'x' $y_1$ 50%"


def check(text):
    """Parse a page after checking that it is well-formed and loads nothing from outside."""
    found = Page(text)
    ids = [element["id"] for element in found.elements if "id" in element]
    assert len(ids) == len(set(ids))
    values = [(name, value or "") for element in found.elements for name, value in element.items() if name != "text"]
    anchors = [value[1:] for name, value in values if name.endswith("href") and value.startswith("#")]
    assert {*anchors, *(name for _, value in values for name in re.findall(r"url\(#([^)]+)\)", value))} <= set(ids)
    assert not found.all("script") + found.all("link")
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search("https?://|@import| src=", without_namespaces)
    assert len(found.all("style")) == 1
    return found


def write_run(folder, records, config="seed_everything: 0\n# <b>\n"):
    path = folder / "fit_results.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_records(records, path)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def everything():
    """Records of a run with all measurements, and of runs at another n, with another template, and without text."""
    renamed = [replace(r, relation=HOSTILE) if r.relation == "Colour" else r for r in MAIN]
    return {
        "main": renamed,
        "n2": [replace(r, n_shot=2) for r in renamed],
        "template1": [replace(r, template="{} <b>", template_index=1) for r in renamed],
        "bare": bare_of(renamed),
    }


SCATTER = {"scatter", "scatter_by_causality", "scatter_by_faithfulness"}
BASIC = {"relations", "categories", *SCATTER}
BOTH = {"causality_baselines", "faithfulness_baselines", "baselines_by_relation", "causality_by_layer", "layers"}
BOTH |= {"mode_switch", "ranks", "betas", "n_shots", "underestimation", "templates"}
FIGURES = BASIC | BOTH | {"faithfulness_baselines_zero_shot", "layers_by_relation", "known"}
TABLES = BOTH | {"findings", "hyperparameters", "categories", "correlations", "dataset", "full_dataset", "first_tokens"}
TABLES |= {"generations", "choices"}


@pytest.fixture
def fast(monkeypatch):
    """Pages with an empty picture for every figure."""
    without_plots(monkeypatch)


DRAWN = {"betas", "scatter", "layers", "faithfulness_baselines_zero_shot"}
"""Figures that are rendered, which takes seconds for all of them; the others are only plotted."""


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The page of all measurements of one LM in the folder ``out``, next to the folders of the runs."""
    folder, render = tmp_path_factory.mktemp("full"), page.plot

    def plot(picture, salt):
        if picture.name in DRAWN:
            return render(picture, salt)
        assert picture.plot().axes
        return EMPTY

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "plot", plot)
        make_report([write_run(folder / name, records) for name, records in everything().items()], folder / "out")
    return folder


def test_page_has_every_figure_and_table_in_itself_and_as_files(full):
    text = (full / "out" / "index.html").read_text()
    assert "<b>" not in text
    found = check(text)
    images = found.all("svg", role="img")
    assert len(images) == len(FIGURES)
    assert all(len(attrs["aria-label"]) > 20 for attrs in images)
    files = {file.relative_to(full / "out").as_posix() for file in (full / "out").rglob("*") if file.is_file()}
    figures = {f"figures/{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    numbers = {f"tables/{name}.{ending}" for name in TABLES for ending in ("csv", "tex")}
    assert files == figures | numbers | {"index.html"}
    links = {attrs["href"] for attrs in found.all("a") if not attrs["href"].startswith("#")}
    assert links == files - {"index.html"}
    assert not any("<a" in summary for summary in re.findall("(?s)<summary>.*?</summary>", text))
    assert {attrs.get("scope") for attrs in found.all("th")} == {"col", "row"}
    assert (full / "out" / "figures" / "betas.png").read_bytes()[:4] == b"\x89PNG"
    assert (full / "out" / "figures" / "betas.svg").read_text().startswith("<?xml")


def test_page_and_files_show_the_numbers_and_names_literally(full):
    found = Page((full / "out" / "index.html").read_text())
    assert HOSTILE in found.texts("th")
    cells = found.texts("td")
    start = cells.index("0.45 ± 0.07 [0.19, 0.74]") - 4  # the first row of the table of relations
    assert cells[start : start + 7] == [
        "4",
        "0",
        "2",
        "4",
        "0.45 ± 0.07 [0.19, 0.74]",
        "0.38 ± 0.00 [0.14, 0.69]",
        "0.25",
    ]
    with (full / "out" / "tables" / "hyperparameters.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["relation"]: row for row in csv.DictReader(file)}
    assert float(rows["capital"]["faithfulness std"]) == stdev([0.8, 0.6])
    assert HOSTILE in rows


def test_page_tells_how_it_was_made(full):
    text = (full / "out" / "index.html").read_text()
    found = Page(text)
    assert "Results of 2023-11-14 22:13 UTC" in text
    assert "seed_everything: 0\n# <b>" in "".join(found.texts("pre")).replace("\r", "")
    commands = found.texts("code")
    assert commands[:-1] == [f"lre fit --config {full / name / 'config.yaml'}" for name in everything()]
    given = " ".join(str(full / name) for name in everything())
    assert commands[-1] == f"lre report {given} --out {full / 'out'}"
    assert re.search(r"python 3\.\d+\.\d+, lre-lightning \d", text)


MISSING = {
    "Baselines": "--model.measures+=Baselines",
    "Beyond the argmax": "--model.measures+=Distributions",
    "Layers": "--model.layers",
    "With and without relation-specific text": "--data.prompts.template '{}'",
    "Ranks": "--model.ranks",
    "Choosing β": "--model.betas",
    "Changes between subjects, and what W estimates of them": "--model.measures+=LineIntegrals",
    "What the LM says after edits": "--model.measures+=Generations",
    "Number of examples": "--data.n_shot",
    "Prompt templates": "--data.prompts.template 1",
}


def test_a_short_note_says_how_to_measure_what_is_missing(tmp_path, fast):
    run = write_run(tmp_path / "run", [minimal(r) for r in MAIN], config="")
    found = check(make_report([run], tmp_path / "out", title="A <title>").read_text())
    assert "A <title>" in found.texts("h1")
    assert f"lre report {run} --out {tmp_path / 'out'} --title 'A <title>'" in found.texts("code")
    (note,) = (note for note in found.texts("p") if "lre evaluate measures these" in note)
    assert all(
        f"{title} ({option}" in " ".join(note.split()) or f"several {option}" in note or f"another {option}" in note
        for title, option in MISSING.items()
    )
    assert not set(MISSING) & set(found.texts("h3"))
    assert "not measured" not in found.texts("td")
    assert "layer" in found.texts("th")
    assert "There is no config.yaml next to these results." in found.texts("p")
    assert {file.stem for file in (tmp_path / "out" / "figures").iterdir()} == {*BASIC, "known"}
    assert not (tmp_path / "out" / "tables" / "first_tokens.csv").exists()


def test_a_report_of_one_relation_compares_none(tmp_path, fast):
    run = write_run(tmp_path / "run", [record for record in MAIN if record.relation == "Colour"])
    text = make_report([run], tmp_path / "out").read_text(encoding="utf-8")
    assert {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")} & {"scatter", "layers"} == set()
    assert "Findings</h3>" not in text
    assert "Relations</h3>" in text


def test_same_records_make_the_same_bytes_everywhere(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [unscored()])
    paths = []
    for zone in ("UTC", "Japan"):
        with monkeypatch.context() as patched:
            patched.setenv("TZ", zone)
            time.tzset()
            paths.append(make_report([run], tmp_path / "out").parent.rename(tmp_path / zone.lower()) / "index.html")
    time.tzset()
    found = check(paths[0].read_text())
    assert any("No relation was scored" in note for note in found.texts("p"))
    folders = [path.parent for path in paths]
    files = [file.relative_to(folders[0]) for file in folders[0].rglob("*.*")]
    assert {file.name for file in files} > {"index.html", "hyperparameters.tex"}
    for file in files:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file


def test_scatter_plots_are_of_what_chose_layer_and_rank(tmp_path, monkeypatch):
    titles = set()

    def plot(picture, salt):
        if picture.name in SCATTER:
            titles.add(picture.plot().axes[0].get_title())
        return "<svg />", b""

    monkeypatch.setattr(page, "plot", plot)
    make_report([write_run(tmp_path / "run", TORN)], tmp_path / "out")
    with (tmp_path / "out" / "tables" / "correlations.csv").open(newline="", encoding="utf-8") as file:
        assert titles == {f"Chosen by {row['chosen by']}, R = {float(row['R']):.2f}" for row in csv.DictReader(file)}
    assert len(titles) == 3


def test_several_lms_are_compared_and_the_jobs_of_one_are_merged(tmp_path, fast):
    records = [minimal(r) for r in MAIN]
    first, rest = (
        write_run(tmp_path / "a", records[:3]),
        write_run(tmp_path / "rest", records[3:]) / "fit_results.jsonl",
    )
    second = write_run(tmp_path / "b", [minimal(r, model="org/Other LM!") for r in moved(MAIN, -1)])
    found = check(make_report([first, second, rest, rest], tmp_path / "out").read_text())
    assert sum(command.startswith("lre fit --config") for command in found.texts("code")) == 3
    assert found.texts("h2") == ["Comparison", "demo", "Other LM!", "How this was made"]
    assert found.texts("h3")[0] == "LMs in pairs"
    assert {"LMs by category", "LMs by relation", "Agreement of LMs"} <= set(found.texts("h3"))
    files = {file.relative_to(tmp_path / "out" / "figures").as_posix() for file in tmp_path.glob("out/**/*.svg")}
    shared = {"models_by_category", "models_by_relation", "model_agreement", "known"}
    assert files == {f"{lm}/{name}.svg" for lm in ("demo", "other-lm") for name in BASIC} | {f"{n}.svg" for n in shared}
    assert r"\label{tab:other-lm-findings}" in (tmp_path / "out/tables/other-lm/findings.tex").read_text()


def test_lms_with_similar_names_have_folders_of_their_own():
    names = ["GPT 2", "gpt-2", "all", "!!", "gpt-2-2", "How"]
    assert folders_of(names) == ["gpt-2", "gpt-2-2", "all-2", "lm", "gpt-2-2-2", "how-2"]


def test_the_newest_configuration_of_a_fit_is_shown(tmp_path):
    run = write_run(tmp_path / "all" / "run", MAIN[:1], config="")
    (tmp_path / "all" / "config.yaml").write_text("of the evaluation")
    for number, text in ((2, "of the second"), (10, "of the newest"), (11, "verbose: false"), (12, "texts: []")):
        config = run / "lightning_logs" / f"version_{number}" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(text)
        os.utime(config, (number, number))
    write_run(run / "other", MAIN[1:2], config="of another run")
    evaluation, fit, _ = page.runs_of([tmp_path / "all"])
    assert (evaluation.text, fit.text) == ("of the evaluation", "of the newest")
    assert evaluation.command == f"lre evaluate --config {tmp_path / 'all' / 'config.yaml'}"
    assert fit.command == f"lre fit --config {run / 'lightning_logs' / 'version_10' / 'config.yaml'}"


def test_figures_take_the_colour_of_the_text_around_them():
    def square():
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([0, 1], color="black", marker="o")
        return figure

    (svg, png), (other, _) = (page.plot(Picture("x", "", square), salt) for salt in "ab")
    assert png[:4] == b"\x89PNG"
    assert not re.search("#000000|#ffffff", svg)
    assert "stroke: currentColor" in svg
    assert "<text" in svg
    check(f"<style></style>{page.inline(svg, 'a')}{page.inline(other, 'b')}")


def test_lenses_of_the_run_are_grids_of_the_page(tmp_path, fast):
    run = write_run(tmp_path / "run", MAIN)
    lenses = [lens(HOSTILE, layer=1), lens("logit lens", tokens=("</script>", " was"))]
    (run / "lenses").mkdir()
    file = run / "lenses" / "lenses.json"
    file.write_text(json.dumps([asdict(one) for one in lenses]))
    found = Page(make_report([run], tmp_path / "out").read_text())
    *grids, script = found.all("script")
    assert [json.loads(one["text"]) for one in grids] == [grid_of(one) for one in lenses]
    assert script["text"].rstrip().endswith("drawAll();")
    assert [one["href"] for one in found.all("a") if "lenses" in one["text"]] == ["#lenses"]
    assert "".join(lenses[1].tokens) in found.texts("h3")
    good = asdict(lenses[0])
    ragged = [good["top"][0][:1], *good["top"][1:]]
    pinned = {"token": "x", "probabilities": [[0.5]], "ranks": [[1]]}
    for wrong in ({"top": []}, {"layers": ["x"]}, {"top": ragged}, {"tokens": ["a"]}, {"pinned": pinned}, {"text": 1}):
        file.write_text(json.dumps([{**good, **wrong}]))
        with pytest.raises(LREError, match=r"lenses.json' is not a file of lenses"):
            make_report([run], tmp_path / "out")


def test_mistakes_are_reported_before_anything_is_written(tmp_path, fast, monkeypatch):
    run = write_run(tmp_path / "run", MAIN)
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    (empty / "below").mkdir(parents=True)
    with pytest.raises(LREError, match=r"there is no fit_results\.jsonl"):
        make_report([run, empty], out)
    (empty / "fit_results.jsonl").write_text("")
    for nothing in ([empty], []):
        with pytest.raises(LREError, match="there are no results in"):
            make_report(nothing, out)
    other = write_run(tmp_path / "other", moved(MAIN, -1))
    with pytest.raises(LREError, match="different counts"):
        make_report([run, other], out)
    assert not out.exists()
    out.write_text("in the way")
    monkeypatch.setattr(page, "plot", lambda picture, salt: pytest.fail("plotted before the folder was checked"))
    with pytest.raises(LREError, match=r"out.* cannot be written: .*a file is where a folder should be"):
        make_report([run], out)
