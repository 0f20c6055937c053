"""Names of any kind, wherever they are shown: in figures, LaTeX, pages and the terminal, and as names of files."""

import json
import shutil
import subprocess
import warnings

import pytest

from lre_lightning.lens.page import lens_page
from lre_lightning.lens.reading import LensGrid
from lre_lightning.measures.baselines import plot_baselines_by_relation
from lre_lightning.records.files import read_records
from lre_lightning.report import relations
from lre_lightning.report.page import inline, plot
from lre_lightning.report.sections import Picture
from lre_lightning.report.tables import to_latex
from tests.helpers.command import QUIET
from tests.helpers.hostile import STRINGS, everything_in
from tests.helpers.records import full_record
from tests.helpers.toy import relation_json

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
    return [full_record(0, name, reported=True, **change) for name, change in zip(NAMES_TO_SHOW, changes, strict=True)]


def test_names_are_plotted_as_they_are(shown_records):
    """No name is mathematics, or breaks the figure or the page that it is on."""
    for figure in (relations.plot_relations, relations.plot_scatter, plot_baselines_by_relation):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of signs that no font has
            plotted, _ = plot(Picture("x", "x", lambda figure=figure: figure(shown_records)))
        svg = str(inline(plotted, NAMES_TO_SHOW[1]))
        assert "<script" not in svg
        assert "<img" not in svg


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_names_are_printed_by_latex_as_they_are(shown_records, tmp_path):
    (table,) = relations.relations(shown_records).tables
    head = ["\\documentclass{article}", "\\usepackage{booktabs,adjustbox}", "\\begin{document}"]
    (tmp_path / "x.tex").write_text("\n".join([*head, to_latex(table), "END", "\\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "x.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stdout.decode(errors="replace")[-2000:]
    assert not (tmp_path / "pwned").exists()
    if shutil.which("pdftotext"):
        command = ["pdftotext", "-layout", "x.pdf", "-"]
        shown = subprocess.run(command, cwd=tmp_path, capture_output=True).stdout.decode()
        wanted = ["<script>alert(1)</script>", "\\input{/etc/passwd}", "% & #", "[U+65E5]", "[U+202E]gnirts", "END"]
        assert [name for name in wanted if name not in shown] == []


def test_names_on_the_page_of_a_lens_are_text():
    names = [*NAMES_TO_SHOW, *STRINGS[:10]]
    lenses = [LensGrid(name, name, (name,), (0,), (((name,),),), (((1.0,),),), layer=0) for name in names]
    page = lens_page(lenses, NAMES_TO_SHOW[0])
    assert page.count("<script") == len(lenses) + 1
    assert "<img" not in page
    assert "onmouseover=alert(1)>" not in page
    assert "\x1b" not in page


def test_a_fit_of_relations_with_such_names_stays_in_its_folder(launch, tmp_path):
    (tmp_path / "relations").mkdir()
    for number, name in enumerate(NAMES_TO_SHOW):
        relation = relation_json(name, count=8, category=name)
        (tmp_path / "relations" / f"{number:02}.json").write_text(json.dumps(relation))
    options = [f"--data.source={tmp_path / 'relations'}", "--data.trials=1", "--model.betas=[0.0]"]
    options += ["--model.ranks=[16]", "--model.layers=[1]"]
    before = everything_in(launch.model.parent)
    ended = launch(tmp_path, *options, cwd=str(tmp_path.parent))
    assert ended.status == 0, ended.error
    assert "[red]x[/red] [/]" in ended.output
    assert "\x1b" not in ended.output + ended.error
    files = [path for path in (tmp_path / "run" / "lres").rglob("*") if path.is_file()]
    assert len(files) == len(NAMES_TO_SHOW)
    assert {entry.name for entry in tmp_path.iterdir()} == {"relations", "run"}
    assert everything_in(launch.model.parent) == before
    args = ["validate", *QUIET, f"--trainer.default_root_dir={tmp_path / 'run'}", "--ckpt_path=last"]
    ended = launch(tmp_path, args=args)
    assert ended.status == 0, ended.error
    assert [record.relation for record in read_records([tmp_path / "run"])] == NAMES_TO_SHOW


def test_an_error_sends_nothing_but_text_to_the_terminal(launch, tmp_path):
    (tmp_path / "relations").mkdir()
    (tmp_path / "relations" / "\x1b[31mred\n.json").write_text("{")
    ended = launch(tmp_path, f"--data.source={tmp_path / 'relations'}")
    assert ended.status == 2
    assert r"\x1b[31mred\n.json is not a JSON file" in ended.error
