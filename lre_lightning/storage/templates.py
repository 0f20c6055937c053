"""Templates of HTML pages, which come with the package."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def load_template(package: str, name: str, **functions: Any) -> Template:
    """Load the template of an HTML page; it escapes the values it is given, and undefined names are errors.

    Args:
        package: The package with the file.
        name: The name of the file.
        functions: The functions that the template can call, by name.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(functions)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
