"""The templates of pages, which come with the package."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def load_template(package: str, name: str, **functions: Any) -> Template:
    """A template of an HTML page, which escapes what it is given and refuses names that it is not given.

    Args:
        package: Where its file is.
        name: The file.
        functions: What the template may call, by name.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(functions)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
