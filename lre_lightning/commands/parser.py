"""The argument parser: a short help, shell completion, and one line per mistake with the nearest valid name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml  # type: ignore[import-untyped]
from jsonargparse import DefaultHelpFormatter
from jsonargparse._util import import_object
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

import lre_lightning
from lre_lightning.commands.outline import nearest, no_subcommand
from lre_lightning.errors import LREError, first_line

CONFIGS = Path(lre_lightning.__file__).parent / "configs"

LIGHTNINGS = {"trainer", "checkpoint", "seed_everything", "weights_only"}
"""Sections and options of Lightning's own, which the short help leaves out."""

EVERYDAY = {"trainer.accelerator", "trainer.devices", "trainer.default_root_dir"}
"""Those of them that the short help shows."""


# Classes of Lightning's, such as Timer, have options that are texts and members of an enumeration.
yaml.SafeDumper.add_multi_representer(str, yaml.SafeDumper.represent_str)


class UsageError(LREError):
    """A mistake in the arguments.

    Attributes:
        lines: The message, and where help is.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class FullHelp(DefaultHelpFormatter):
    """The full help of the options whose names begin with `section`; all of them if it is ``"all"``."""

    def __init__(self, prog: str, section: str) -> None:
        super().__init__(prog)  # type: ignore[no-untyped-call]
        self._section = section

    @override
    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *args: Any, **kwargs: Any) -> None:
        super().add_usage(usage, [action for action in actions if not action.option_strings], *args, **kwargs)

    @override
    def add_argument(self, action: argparse.Action) -> None:
        if self._section == "all" or in_section(action, self._section):
            super().add_argument(action)


class ShortHelp(FullHelp):
    """The first sentence about each option that this project adds, and the names of those in nested sections."""

    def __init__(self, prog: str, unused: Sequence[str] = ()) -> None:
        super().__init__(prog, "all")
        self._max_help_position, self._unused = 6, unused

    @override
    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        actions = [action for action in actions if self._shown(action)]
        nested = [action.dest for action in actions if action.dest.count(".") == 2]
        if nested:
            names = ", ".join(name.rpartition(".")[2] for name in nested)
            self.add_text(f"--{nested[0].rpartition('.')[0]}.NAME, where NAME is {names}")
        else:
            super().add_arguments(actions)

    def _shown(self, action: argparse.Action) -> bool:
        lightnings = action.dest.split(".")[0] in LIGHTNINGS and action.dest not in EVERYDAY
        derived = action.dest.endswith(".help") or (action.metavar == "CONFIG" and action.dest != "config")
        unused = any(in_section(action, name) for name in self._unused)
        return not lightnings and not derived and not unused and type(action).__name__ != "ActionLink"

    @override
    def _format_action_invocation(self, action: argparse.Action) -> str:
        return re.sub(r", --\S+\+ .*", "", super()._format_action_invocation(action))

    @override
    def _get_help_string(self, action: argparse.Action) -> str:
        text = " ".join((action.help or "").split()).replace("``", "")
        sentence, *others = re.split(r"(?<=\.)\s+(?=[A-Z0-9`])", text)
        if action.default is None:
            sentence = " ".join([sentence, *(other for other in others if other.endswith(" if None."))])
            sentence = sentence.replace(" if None", " if not given").replace("; None for", "; if not given")
        if isinstance(action.default, list) and all(isinstance(one, dict) for one in action.default):
            names = ", ".join(one["class_path"].rpartition(".")[2] for one in action.default)
            return f"{sentence} (default: {names})"
        shown = action.default not in (None, argparse.SUPPRESS) and str(action.default).strip(" \n[]{}")
        return f"{sentence} (default: %(default)s)" if shown and action.option_strings else sentence


class PrintHelp(argparse._HelpAction):
    """Print the short help, or the full help of a section of the options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nargs, self.metavar = "?", "SECTION"

    @override
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if values is not None:
            if values != "all" and not any(in_section(action, values) for action in parser._actions):
                names = {action.dest.rpartition(".")[0] for action in parser._actions}
                parser.error(f"no option begins with {values!r}{nearest(values, ['all', *names])}")
            parser.formatter_class = partial(FullHelp, section=values)
        super().__call__(parser, namespace, values, option)


class PrintCompletion(argparse._HelpAction):
    """Print a script that completes subcommands, options and values in a shell."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nargs, self.choices = None, ["bash", "zsh", "tcsh"]

    @override
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        import shtab

        parsers = [parser, *getattr(parser, "_subcommands_action").choices.values()]  # noqa: B009
        for action in (action for each in parsers for action in each._actions):
            known = known_values(getattr(action, "_typehint", None))
            if known and action.nargs is None:
                action.choices = known
            elif action.dest == "config":
                action.choices = bundled_configs()
        print(shtab.complete(parser, values))
        parser.exit()


class Parser(LightningArgumentParser):
    """Lightning's parser with a short help, whose errors are raised as `UsageError`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)
        if not self.add_help:  # a subcommand's
            text = 'Show this help, or all options of a section such as "model.fitting", "trainer" or "all".'
            self.add_argument("-h", "--help", action=PrintHelp, help=text)

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        missing = re.search(r"arguments are required: (\w+)\.", message)
        if missing:
            parser = getattr(self, "_subcommands_action").choices[missing[1]]  # noqa: B009
            message = message.replace(f"{missing[1]}.", "")
        raise UsageError(explain(message, parser), f"help: {parser.prog.removesuffix(' [options]')} --help") from ex


def in_section(action: argparse.Action, section: str) -> bool:
    """Return whether an option's name begins with the parts of `section`."""
    return f"{action.dest}.".startswith(f"{section}.")


def explain(message: str, parser: argparse.ArgumentParser) -> str:
    """Return a parser's message in one line, with the nearest valid name."""
    for pattern, explanation in EXPLANATIONS.items():
        match = re.search(pattern, message, re.DOTALL)
        if match:
            return explanation(match, parser)
    return " ".join(message.split())


def unknown_option(match: re.Match[str], parser: argparse.ArgumentParser) -> str:
    """Name the option with the same last part, or the nearest one."""
    name = "--" + match[1].lstrip("-")
    options = [option for option in parser._option_string_actions if option[-1] != "+"]
    same = [option for option in options if re.split(r"\.|--", option)[-1] == re.split(r"\.|--", name)[-1]]
    return f"there is no option {name}{nearest(name, same, 0) or nearest(name, options)}"


def wrong_value(match: re.Match[str], parser: argparse.ArgumentParser) -> str:
    """Name the values that an option takes, and the nearest one."""
    key, value = match[1], match[2].strip()
    kind = next((getattr(action, "_typehint", str) for action in parser._actions if action.dest == key), str)
    for path in re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", value) if takes_objects(kind) else ():
        try:
            import_object(path)
        except Exception as error:
            return f"--{key}: {path} cannot be imported: {first_line(error)}"
    hints = (nearest(word, known_values(kind)) for word in re.findall(r"[\w-]+", value))
    return f"--{key} takes {expected(kind)}, not {value}{next(filter(None, hints), '')}"


def takes_objects(kind: Any) -> bool:
    """Return whether a type has values that are named by class paths."""
    if isinstance(kind, type) and not get_args(kind):
        return kind.__module__ != "builtins" and not issubclass(kind, Path)
    return any(map(takes_objects, get_args(kind)))


def no_configuration(match: re.Match[str], parser: argparse.ArgumentParser) -> str:
    """Name the bundled configurations."""
    name, known = Path(match[1]).name, bundled_configs()
    return f"there is no configuration {name!r}: give a file or {', '.join(known)}{nearest(name, known)}"


def unknown_subcommand(match: re.Match[str], parser: argparse.ArgumentParser) -> str:
    """Name the subcommands."""
    return no_subcommand(match[1] or "", getattr(parser, "_subcommands_action").choices)  # noqa: B009


EXPLANATIONS: dict[str, Callable[[re.Match[str], argparse.ArgumentParser], str]] = {
    r"unrecognized arguments: (?:[^-]\S* )*(-[^ =]+)": unknown_option,
    r"does not accept option '(.*)'": unknown_option,
    r'Parser key "config": File does not exist: \'(.*)\'': no_configuration,
    r'Parser key "(.+?)":.*(?:Given|Got) value: (.*)': wrong_value,
    r"argument subcommand: invalid choice: '(.*?)'": unknown_subcommand,
    r'^expected "subcommand"()': unknown_subcommand,
}
"""Functions that explain a message of jsonargparse, by a pattern that it matches."""


def known_values(kind: Any) -> list[str]:
    """Return the values of a type that have names."""
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [value for part in get_args(kind) for value in known_values(part)]


def expected(kind: Any) -> str:
    """Return the values of a type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is bool or origin is Literal:
        return " or ".join(known_values(kind))
    if origin in (Union, UnionType):
        return " or ".join(map(expected, parts))
    if origin is list:
        return f"[{expected(parts[0])}, ...]"
    names = {type(None): "null", int: "a whole number", float: "a number", str: "a text"}
    return names.get(kind) or str(getattr(kind, "__name__", kind))


def bundled_configs() -> list[str]:
    """Return the names of the bundled configurations."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def named_configs(args: Sequence[str]) -> list[str]:
    """Replace ``--config NAME`` by the file of a bundled configuration of that name, such as ``gptj``."""
    named = list(args)
    for i, argument in enumerate(args):
        if argument.startswith("--config="):
            named[i] = f"--config={_config_file(argument.removeprefix('--config='))}"
        elif argument in ("-c", "--config") and i + 1 < len(args):
            named[i + 1] = _config_file(args[i + 1])
    return named


def _config_file(name: str) -> str:
    """Return the file of a configuration; broken YAML is an error that names it, as the parser's own does not."""
    bundled = CONFIGS / f"{name}.yaml"
    path = bundled if bundled.is_file() and not Path(name).exists() else Path(name)
    if path.is_file():
        try:
            for _ in yaml.parse(path.read_text(encoding="utf-8")):
                pass
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{str(path)!r} cannot be read: {first_line(error)}") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            problem = getattr(error, "problem", None) or first_line(error)
            raise UsageError(f"{str(path)!r}{where}, is not YAML: {problem}") from error
    return str(path) if path == bundled else name
