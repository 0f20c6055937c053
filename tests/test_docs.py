"""The README and the docs: Python examples, links, the navigation, names of the reference, messages, versions."""

import ast
import importlib
import linecache
import re
import sys
from pathlib import Path

import pytest
import yaml

import lre_lightning
from lre_lightning.cli import main
from tests.helpers.command import without_plots

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"benchmarks": "benchmarks/RESULTS.md", "changes": "CHANGELOG.md"}
"""Pages of the site that `docs/hooks.py` makes of other files."""

PRINTED = {
    "docs/getting-started.md": ["Ottawa", "Canada -> Peru: Lima"],
    "docs/guides/adapters.md": [
        "demo ['Ottawa', 'Paris'",
        "demo+lima ['Lima', 'Lima', 'Lima']",
        "computes something else",
    ],
    "docs/guides/concepts.md": ["['bird', 'insect']", "kestrel -> fish: fish"],
    "docs/guides/edits.md": ["Ottawa", "Lima", "The capital of Canada is Lima"],
    "docs/guides/evaluation.md": ["country capital city  causality"],
    "docs/guides/jacobian-lens.md": ["(2, 3, 4)"],
    "docs/guides/models.md": ["Ottawa 0.", " True default"],
    "docs/guides/measures.md": ["among the first 3", "0.0625", "'axes': ('beta',), 'column': True"],
    "docs/guides/sharing.md": ["Ottawa", "['country capital city']", "27 relations", "LREs of 5 relations"],
    "docs/method.md": ["country capital city", "Interval(low="],
    "docs/guides/your-project.md": ["torch.Size([32, ", "tensor([[1.0000, 1.0000, 0.5000]", "word sentiment"],
}
"""What the examples of a page print, among other things."""

ON_SMOLLM2 = {
    "README.md": ["Tokyo 0.94", "Paris 0.7", "France -> Japan: Tokyo 0.5", "Cairo 0.9", "country capital city 19 ("]
}
"""The same of pages whose examples run on SmolLM2."""

IN_OTHER_TOOLS = {
    "docs/guides/other-tools.md": [
        "Ottawa 0.70 edited:  Lima\n" * 3,
        "by hand:  Lima",
        "country capital city: The capi",
    ]
}
"""The same of pages whose examples need nnsight and TransformerLens."""


def examples_of(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def printed_by(name, capsys):
    capsys.readouterr()
    code = "\n".join(examples_of(name))
    linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name  # which nnsight reads
    exec(compile(code, name, "exec"), {})
    return capsys.readouterr().out


@pytest.mark.real
@pytest.mark.parametrize("name", ON_SMOLLM2)
def test_the_python_examples_run_on_smollm2(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    printed = printed_by(name, capsys)
    assert [text for text in ON_SMOLLM2[name] if text not in printed] == []


@pytest.mark.parametrize("name", IN_OTHER_TOOLS)
def test_the_python_examples_run_in_other_tools(name, monkeypatch, capsys):
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    for package in ("nnsight", "transformer_lens"):
        pytest.importorskip(package, reason=f"{package} is not installed: make other-tools")
    printed = printed_by(name, capsys)
    assert [text for text in IN_OTHER_TOOLS[name] if text not in printed] == []


def test_the_python_examples_run_after_a_fit(monkeypatch, tmp_path, capsys, subtests):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lre"])
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    without_plots(monkeypatch)
    options = ["--data.relations=[country_capital_city]", "--data.trials=1", "--model.layers=[1, 2]"]
    assert main(["fit", *options, "--trainer.enable_progress_bar=false"]) == 0
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    assert {name for name in names if examples_of(name)} == {*PRINTED, *ON_SMOLLM2, *IN_OTHER_TOOLS}
    for name, wanted in PRINTED.items():
        with subtests.test(page=name):
            printed = printed_by(name, capsys)
            assert [text for text in wanted if text not in printed] == []
    assert Path("layers.png").is_file()
    assert Path("report/index.html").is_file()


def anchors_of(page):
    """Return the ids of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_exist(page):
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = (page.parent / link).resolve() if link else page
        if not target.exists():  # a page that `docs/hooks.py` makes
            name = target.relative_to(ROOT / "docs").with_suffix("").as_posix()
            target = ROOT / ELSEWHERE.get(name, name.replace("examples/", "examples/notebooks/") + ".ipynb")
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), (link, anchor)


def test_the_architecture_names_what_exists():
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    for path in re.findall(r"`([\w/]+(?:/|\.py))`", architecture):
        assert (ROOT / path).exists() or (ROOT / "lre_lightning" / path).exists(), path


def test_the_page_of_examples_shows_all_projects():
    page = (ROOT / "docs/examples/index.md").read_text()
    shown = [ROOT / path for path in re.findall(r'^ *--8<-- "(.*)"', page, re.MULTILINE)]
    assert {path.parent.name for path in shown if path.is_file()} == {
        folder.name for folder in (ROOT / "examples").iterdir() if list(folder.glob("*.py"))
    }


def test_the_reference_names_what_exists():
    names = [name for page in PAGES for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)]
    assert len(names) > 30
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, attribute) or importlib.import_module(name), name


def test_the_page_of_public_names_lists_those_of_all_modules():
    page = (ROOT / "docs/reference/stability.md").read_text()
    listed = {}
    for row in re.findall(r"^\| `(lre_lightning.*)` \| (.*) \| (.*) \|$", page, re.MULTILINE):
        stable, other = (re.findall(r"`(\w+)`", cell) for cell in row[1:])
        listed[row[0]] = sorted([*stable, *other])
    modules = [
        "lre_lightning",
        *(f"lre_lightning.{name}" for name in ("callbacks", "datamodules", "measures", "metrics")),
    ]
    public = {name: importlib.import_module(name) for name in modules}
    assert listed == {name: sorted(module.__all__) for name, module in public.items()}
    assert all(hasattr(module, name) for module in public.values() for name in module.__all__)


def messages():
    """Return the texts in the product's code, with … for what is filled in."""
    for folder in ("lre_lightning", "datamodules", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = [getattr(part, "value", None) for part in parts]
                yield "".join(text if isinstance(text, str) else "…" for text in texts).replace("{{}}", "{}")


def test_the_messages_that_are_explained_exist():
    explained = re.findall(r"^### `(.*)`$", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)
    there = "\n".join(messages())
    assert len(explained) > 10
    assert [message for message in explained if message.replace("{}", "…").strip("… ") not in there] == []


def test_the_version_is_the_same_everywhere():
    versions = {
        re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1],
        str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]),
    }
    assert versions == {lre_lightning.__version__}
