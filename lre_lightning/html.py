"""HTML tables that results show of themselves in notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), caption: str = "") -> str:
    """Return a table of texts, of numbers with two digits, and of empty cells for None.

    >>> html_table([["Ottawa", 0.931]], ["answer", "probability"])
    '<table><tr><th>answer</th><th>probability</th></tr><tr><td>Ottawa</td><td>0.93</td></tr></table>'
    """

    def row(values: Sequence[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_text(value)}</{tag}>' for value in values)}</tr>"

    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    lines += [row(header, "th")] if header else []
    return f"<table>{''.join(lines)}{''.join(row(values, 'td') for values in rows)}</table>"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else escape(str(value))
