"""What a run counted: one record a relation and trial, on the grid of layers, betas and ranks, kept in a file.

Records hold counts alone, so any choice of layer, rank or beta can be made again from them, and any table or figure
drawn, without the LM. A file has one record a line (JSON Lines): the files of several jobs are merged by giving all of
them to `read_records`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, layer_of, place_of, rank_of
from lre_lightning.storage.files import grown_whole, written_whole
from lre_lightning.storage.plain import LONGEST_NAME, check_plain, listing, mapping, number, shown, text, truth, whole

FAITHFULNESS_BASELINES = ("linear regression", "translation", "identity")
CAUSALITY_BASELINES = ("oracle", "unembedding", "object")
BETWEEN_TEMPLATES = " | "

Grid = tuple[tuple[int, ...], ...]
ByLayer = Mapping[str, tuple[int, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class TrialRecord:
    """The counts of one relation in one trial, on the grid of layers, betas and ranks.

    Attributes:
        relation: Name of the relation.
        category: Its category.
        trial: Number of the trial.
        samples: All samples of the relation.
        range_size: Number of its distinct objects.
        tested: Test prompts of this trial: one a sample and template.
        known: Those after which the LM answers the object.
        layers: Layers of the grid; none where the pair was not scored.
        betas: Betas of the grid.
        ranks: Ranks of the grid.
        faithful: Faithful predictions out of `known`, `[layer][beta]`.
        causal: Successful edits out of `edited`, `[layer][rank]`.
        edited: Known samples for which there was a target with another object.
        layer: The chosen layer; None where the pair was not scored.
        beta: The chosen beta.
        rank: The chosen rank; None where the pair was not scored.
        model: Name or folder of the LM.
        n_shot: Number n of training examples.
        template: The prompt template; where a sample was asked for with several, these, with `BETWEEN_TEMPLATES`
            between them.
        template_index: Its place among the relation's own templates; None for one that is not the relation's.
        first_tokens: Distinct first tokens of the distinct objects.
        reported: False for a trial that only served to choose the layer and rank of the others.
        faithful_baselines: Faithful predictions out of `known` of each of `FAITHFULNESS_BASELINES`, `[layer]`; empty
            where baselines were not computed.
        faithful_zero_shot: As `faithful`, with s from a prompt that holds the subject alone.
        zero_shot_baselines: As `faithful_baselines`, with s from a prompt that holds the subject alone.
        causal_baselines: Successes out of `edited` of each of `CAUSALITY_BASELINES` put in place of s, `[layer]`.
        faithful_low_rank: Faithful predictions out of `known` at the chosen layer and beta with W cut down to each
            rank, `[rank]`.
        line_integrals: For pairs of test subjects (s1, s2) the integral of u^T F'(s) v from s1 to s2 and its estimate
            u^T W v ||s2 - s1||, at the chosen layer.
        train: Subject and object of each training sample, in draw order.
        seed: What seeded the draw.
        digest: `Relation.digest` of the relation.
        prompts: The options by which samples were drawn and prompts made, `Prompts.recorded`. With `train`, `seed` and
            `digest` they are what `RelationDataModule.of_record` repeats the trial from.
    """

    relation: str
    category: str
    trial: int
    samples: int
    range_size: int
    tested: int
    known: int
    layers: tuple[Layer, ...] = ()
    betas: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    faithful: Grid = ()
    causal: Grid = ()
    edited: int = 0
    layer: Layer | None = None
    beta: float = 1.0
    rank: int | None = None
    model: str = ""
    n_shot: int = 0
    template: str = ""
    template_index: int | None = 0
    first_tokens: int | None = None
    reported: bool = True
    faithful_baselines: ByLayer = field(default_factory=dict)
    faithful_zero_shot: Grid = ()
    zero_shot_baselines: ByLayer = field(default_factory=dict)
    causal_baselines: ByLayer = field(default_factory=dict)
    faithful_low_rank: tuple[int, ...] = ()
    line_integrals: tuple[tuple[float, float], ...] = ()
    train: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    digest: str = ""
    prompts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the record from those of other LMs, prompts, relations and trials."""
        prompts = self.n_shot, self.template_index, self.template, json.dumps(self.prompts, sort_keys=True)
        return self.model, *prompts, self.relation, self.trial

    @property
    def scored(self) -> bool:
        """Whether the LM knew enough of the relation's test samples to score its LRE."""
        return bool(self.layers)

    @property
    def random_guess(self) -> float:
        """Chance of guessing an object that is drawn from the relation's distinct objects."""
        return 1 / self.range_size

    def faithfulness(self, layer: Layer, beta: float, zero_shot: bool = False) -> float:
        """Share of the known samples that the LRE at `layer` predicts as the LM does; NaN where there is none.

        Args:
            layer: A layer of the grid.
            beta: A beta of the grid.
            zero_shot: Whether s is read in a prompt that holds the subject alone.
        """
        counts = self.faithful_zero_shot if zero_shot else self.faithful
        return _share(counts[self.layers.index(layer)][self.betas.index(beta)], self.known)

    def low_rank_faithfulness(self, rank: int) -> float:
        """Faithfulness at the chosen layer and beta with W cut down to `rank`."""
        return _share(self.faithful_low_rank[self.ranks.index(rank)], self.known)

    def causality(self, layer: Layer, rank: int) -> float:
        """Share of the edits at `layer` and `rank` that make the LM answer o'; NaN where there is none."""
        return _share(self.causal[self.layers.index(layer)][self.ranks.index(rank)], self.edited)

    def faithfulness_baseline(self, name: str, layer: Layer, zero_shot: bool = False) -> float:
        """Faithfulness of one of `FAITHFULNESS_BASELINES` at `layer`."""
        counts = self.zero_shot_baselines if zero_shot else self.faithful_baselines
        return _share(counts[name][self.layers.index(layer)], self.known)

    def causality_baseline(self, name: str, layer: Layer) -> float:
        """Causality of one of `CAUSALITY_BASELINES` at `layer`."""
        return _share(self.causal_baselines[name][self.layers.index(layer)], self.edited)

    @property
    def chosen_scores(self) -> tuple[float, float] | None:
        """Faithfulness and causality at the chosen layer, beta and rank; None where the pair was not scored."""
        if self.layer is None or self.rank is None:
            return None
        return self.faithfulness(self.layer, self.beta), self.causality(self.layer, self.rank)

    def plain(self) -> dict[str, Any]:
        """The record as plain data, for a checkpoint or a file; not a copy."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a record from `plain`, also where its tuples have become lists; keys of no field are ignored.

        Raises:
            LREError: If a field is missing, has a value of another kind, or contradicts the others.
        """
        try:
            given = {entry.name: data[entry.name] for entry in fields(cls)}
        except (KeyError, TypeError, IndexError) as error:
            raise LREError(f"this is not a record of results: {type(error).__name__} {error}") from error
        try:
            return cls(**_checked(given))
        except LREError as error:
            raise LREError(f"this is not a record of results: {error}") from error


def _share(count: int, total: int) -> float:
    return count / total if total else float("nan")


LARGEST_GRID = 1_000_000
"""Counts that one grid of a record may have."""


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, each of its kind, and in agreement with each other."""
    counts = {name: whole(given[name], name) for name in ("trial", "samples", "tested", "n_shot")}
    known = whole(given["known"], "known", most=counts["tested"])
    edited = whole(given["edited"], "edited", most=known)
    layers = _axis(given, "layers", layer_of, place_of)
    betas = _axis(given, "betas", number, float)
    ranks = _axis(given, "ranks", rank_of, int)
    if len(layers) * max(len(betas), len(ranks)) > LARGEST_GRID:
        raise LREError(f"a grid of {len(layers)} layers, {len(betas)} betas and {len(ranks)} ranks is too large")
    per_layer = {"faithful_baselines": known, "zero_shot_baselines": known, "causal_baselines": edited}
    found = {
        **counts,
        "known": known,
        "edited": edited,
        "relation": text(given["relation"], "relation", LONGEST_NAME),
        "category": text(given["category"], "category", LONGEST_NAME),
        "model": text(given["model"], "model"),
        "template": text(given["template"], "template"),
        "range_size": whole(given["range_size"], "range_size", 1),
        "template_index": _or_none(whole, given["template_index"], "template_index"),
        "first_tokens": _or_none(whole, given["first_tokens"], "first_tokens"),
        "reported": truth(given["reported"], "reported"),
        "layers": layers,
        "betas": betas,
        "ranks": ranks,
        "faithful": _grid(given, "faithful", layers, betas, known),
        "faithful_zero_shot": _grid(given, "faithful_zero_shot", layers, betas, known),
        "causal": _grid(given, "causal", layers, ranks, edited),
        "faithful_low_rank": _counts(given["faithful_low_rank"], "faithful_low_rank", ranks, known),
        **{name: _by_layer(given[name], name, layers, most) for name, most in per_layer.items()},
        "line_integrals": _line_integrals(given["line_integrals"]),
        "train": _train(given["train"]),
        "seed": whole(given["seed"], "seed"),
        "digest": text(given["digest"], "digest", 64),
        "prompts": _prompts(given["prompts"]),
        "layer": _or_none(layer_of, given["layer"], "layer"),
        "beta": number(given["beta"], "beta"),
        "rank": _or_none(rank_of, given["rank"], "rank"),
    }
    _check_choice(found)
    return found


def _check_choice(found: Mapping[str, Any]) -> None:
    """Check that a record of a grid has counts and a choice on it, and another one neither."""
    scored = bool(found["layers"])
    for name in ("faithful", "causal"):
        if scored and not found[name]:
            raise LREError(f"{name} has no count, and there are {len(found['layers'])} layers")
    for name in ("layer", "rank"):
        if (found[name] in found[f"{name}s"]) != scored or (found[name] is not None) != scored:
            raise LREError(f"{name} {found[name]!r} is not on the grid")
    if scored and found["beta"] not in found["betas"]:
        raise LREError(f"beta {found['beta']} is not on the grid")


def _axis(given: Mapping[str, Any], name: str, check: Callable[..., T], place: Callable[[T], float]) -> tuple[T, ...]:
    """One axis of the grid: values that rise."""
    values = tuple(check(value, f"one of {name}") for value in listing(given[name], name))
    if any(place(one) >= place(other) for one, other in pairwise(values)):
        raise LREError(f"{name} must rise, each above the one before")
    return values


def _grid(given: Mapping[str, Any], name: str, layers: Sequence[Layer], axis: Sequence[float], most: int) -> Grid:
    """Counts `[layer][place on the axis]`, or none at all."""
    lines = listing(given[name], name)
    if len(lines) not in (0, len(layers)):
        raise LREError(f"{name} has {len(lines)} rows, and there are {len(layers)} layers")
    found = tuple(_counts(line, name, axis, most) for line in lines)
    if any(len(line) != len(axis) for line in found):
        raise LREError(f"{name} has rows without counts")
    return found


def _counts(value: object, name: str, axis: Sequence[Any], most: int) -> tuple[int, ...]:
    """A count for each place on an axis, or none at all."""
    found = tuple(whole(count, f"a count of {name}", most=most) for count in listing(value, name, len(axis)))
    if len(found) not in (0, len(axis)):
        raise LREError(f"{name} has {len(found)} counts in a row, and there should be {len(axis)}")
    return found


def _by_layer(value: object, name: str, layers: Sequence[Layer], most: int) -> ByLayer:
    methods = mapping(value, name)
    known = CAUSALITY_BASELINES if name == "causal_baselines" else FAITHFULNESS_BASELINES
    for method in methods:
        if method not in known:
            raise LREError(f"{name} has {shown(method)}, and the baselines are {', '.join(known)}")
    return {method: _counts(counts, name, layers, most) for method, counts in methods.items()}


def _line_integrals(value: object) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers, which need not be finite in an LM whose hidden states overflow."""
    pairs = tuple(tuple(listing(pair, "a pair of line_integrals", 2)) for pair in listing(value, "line_integrals"))
    for pair in pairs:
        if len(pair) != 2 or not all(type(value) is float for value in pair):
            raise LREError("line_integrals must be pairs of numbers")
    return cast("tuple[tuple[float, float], ...]", pairs)


def _train(value: object) -> tuple[tuple[str, str], ...]:
    pairs = [listing(pair, "a sample of train", 2) for pair in listing(value, "train")]
    if any(len(pair) != 2 for pair in pairs):
        raise LREError("train must be pairs of subject and object")
    return tuple(
        (text(subject, "a subject of train"), text(object_, "an object of train")) for subject, object_ in pairs
    )


def _prompts(value: object) -> dict[str, Any]:
    found = mapping(value, "prompts")
    check_plain(found, "prompts")
    return found


def _or_none(check: Callable[..., T], value: object, name: str) -> T | None:
    return None if value is None else check(value, name)


def write_records(records: Iterable[TrialRecord], path: Path) -> None:
    """Write records to a file, one a line, under its name only once it is whole.

    Raises:
        LREError: If the file cannot be written.
    """
    with written_whole(path) as part, part.open("w", encoding="utf-8") as file:
        file.writelines(map(_line, records))


def append_records(records: Iterable[TrialRecord], path: Path) -> None:
    """Add records at the end of a file that `write_records` wrote, all of them or none.

    Raises:
        LREError: If the file cannot be written.
    """
    with grown_whole(path) as part, part.open("a", encoding="utf-8") as file:
        file.writelines(map(_line, records))


def _line(record: TrialRecord) -> str:
    return json.dumps(record.plain(), ensure_ascii=False) + "\n"


def read_records(paths: Iterable[str | Path]) -> list[TrialRecord]:
    """Read and merge the records of one or several runs, such as jobs that share the relations out among them.

    Args:
        paths: Files that `write_records` wrote, or folders of runs, in which every ``fit_results.jsonl`` is read.

    Returns:
        The records in the order of the files; what several files hold alike comes once.

    Raises:
        LREError: If there is no such file, one is broken, or two files hold different records of the same relation,
            trial and prompts.
    """
    found: dict[tuple[Any, ...], tuple[TrialRecord, Path]] = {}
    for path in [file for given in paths for file in result_files(Path(given))]:
        for record in _read(path):
            kept, other = found.setdefault(record.key, (record, path))
            if kept != record:
                raise LREError(
                    f"{str(other)!r} and {str(path)!r} both have trial {record.trial} of {record.relation!r} "
                    f"(n = {record.n_shot}, {record.template!r}), with different counts: give one of them"
                )
    return [record for record, _ in found.values()]


def result_files(path: Path) -> list[Path]:
    """The files that `read_records` reads for a path: itself, or those of the runs in a folder.

    Raises:
        LREError: If there is none.
    """
    if os.path.isfile(path):
        return [path]
    files = sorted(path.rglob("fit_results.jsonl")) if os.path.isdir(path) else []
    if not files:
        raise LREError(f"there is no fit_results.jsonl in {str(path)!r}: give a run's folder, or such a file")
    return files


def _read(path: Path) -> list[TrialRecord]:
    if not os.path.isfile(path):
        raise LREError(f"{str(path)!r} is no file with records of results")
    records = []
    for place, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            records.append(TrialRecord.from_plain(json.loads(line.decode())))
        except (ValueError, RecursionError) as error:
            raise LREError(f"{str(path)!r}, line {place}, is not a record of results: {error}") from error
    return records


def rows(records: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Every count as a row for a data frame, with the keys of `COLUMNS`.

    A row is one score: faithfulness by layer and beta, causality by layer and rank, baselines by layer. What a score
    does not depend on is None. A pair that was not scored has no row.
    """
    return [row for record in records if record.scored for row in _rows(record)]


_COMMON = ("model", "relation", "category", "trial", "n_shot", "template", "reported")
COLUMNS = (*_COMMON, "metric", "method", "prompt", "layer", "beta", "rank", "count", "total", "score")


def _rows(record: TrialRecord) -> list[dict[str, Any]]:
    common = {name: getattr(record, name) for name in _COMMON}

    def row(metric: str, method: str, prompt: str, layer: int, count: int, **point: Any) -> dict[str, Any]:
        total = record.known if metric == "faithfulness" else record.edited
        score = {"count": count, "total": total, "score": _share(count, total)}
        place = {"layer": record.layers[layer], "beta": None, "rank": None} | point
        return common | {"metric": metric, "method": method, "prompt": prompt} | place | score

    def grid(metric: str, prompt: str, counts: Grid, axis: str, values: Sequence[float]) -> list[dict[str, Any]]:
        return [
            row(metric, "LRE", prompt, i, count, **{axis: value})
            for i, at in enumerate(counts)
            for value, count in zip(values, at, strict=True)
        ]

    def baselines(metric: str, prompt: str, counts: ByLayer) -> list[dict[str, Any]]:
        return [row(metric, name, prompt, i, count) for name, at in counts.items() for i, count in enumerate(at)]

    return [
        *grid("faithfulness", "few-shot", record.faithful, "beta", record.betas),
        *grid("faithfulness", "zero-shot", record.faithful_zero_shot, "beta", record.betas),
        *grid("causality", "few-shot", record.causal, "rank", record.ranks),
        *baselines("faithfulness", "few-shot", record.faithful_baselines),
        *baselines("faithfulness", "zero-shot", record.zero_shot_baselines),
        *baselines("causality", "few-shot", record.causal_baselines),
    ]
