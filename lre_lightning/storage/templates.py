"""Templates of pages, as files of a package."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def load_template(package: str, name: str, html: bool = True, **functions: Any) -> Template:
    """Load a template of a package, which escapes values if it is HTML.

    It can call `functions`, and use them as filters. Undefined names are errors.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(functions)
    environment.filters.update(functions)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
