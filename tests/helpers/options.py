"""The datamodule's options by their own names, for tests that give few of them."""

from dataclasses import fields

from lre_lightning.datamodules.loaders import Loader
from lre_lightning.prompts.options import Prompts
from lre_lightning.relations.selection import Selection

GROUPS = {
    field.name: group
    for group, kind in (("prompts", Prompts), ("selection", Selection), ("loader", Loader))
    for field in fields(kind)
}


def nested(**options):
    """Put ``shots=3`` into ``prompts={"shots": 3}``, and so on; other arguments stay."""
    found = {}
    for name, value in options.items():
        if name in GROUPS:
            found.setdefault(GROUPS[name], {})[name] = value
        else:
            found[name] = value
    return found
