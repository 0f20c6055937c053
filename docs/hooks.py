"""What mkdocs.yml adds to MkDocs: formulas without scripts, pages of files outside docs/, doctests in docstrings."""

import html
import json
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
PRIME = re.compile("<msup>(<mi>.</mi>)<mi>&#x02032;</mi></msup>")
DOCTEST = re.compile(r"^( *)>>> .*\n?(?:\1(?! *$).*\n?)*", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of files that lie elsewhere in the repository."""
    root = Path(config.config_file_path).parent
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    pages = {"benchmarks.md": (root / "benchmarks/RESULTS.md").read_text(encoding="utf-8"), "changes.md": changes}
    for notebook in sorted((root / "examples/notebooks").glob("*.ipynb")):
        pages[f"examples/{notebook.stem}.md"] = notebook_page(json.loads(notebook.read_text(encoding="utf-8")))
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Turn the formulas of a page into MathML, which browsers render by themselves."""
    return FORMULA.sub(lambda found: mathml(found[2], "inline" if found[1] == "span" else "block"), html)


def mathml(formula: str, display: str) -> str:
    """Convert a LaTeX formula in HTML; a prime is raised already, and too small as a superscript."""
    return PRIME.sub(r"<mrow>\1<mo>&#x02032;</mo></mrow>", convert(html.unescape(formula).strip(), display=display))


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its text, its code, and the best form of each output."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).replace("](../../docs/", "](../")
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [output_of(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def output_of(output: dict[str, Any]) -> str:
    """Return the output of a cell as HTML."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text") or data["text/plain"])
    return f'<pre class="output">{html.escape(text)}</pre>'


class Doctests(griffe.Extension):
    """Fences the examples of docstrings, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(fenced, obj.docstring.value)


def fenced(found: re.Match[str]) -> str:
    """Put a fence around an example, indented as it is."""
    return f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n"
