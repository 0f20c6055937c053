"""The prompts that facts are asked with as a task of lm-evaluation-harness, which counts what an LM knows."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError
from lre_lightning.models.tokenizer import start_tokens
from lre_lightning.progress import progress
from lre_lightning.prompts.trials import test_prompts
from lre_lightning.storage.files import safe_name, write_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lre_lightning.prompts.prompt import Prompt
    from lre_lightning.prompts.source import PromptSource

GROUP = "lre_known"
"""The name of the group of tasks, one per relation."""


def write_task(data: PromptSource, folder: Path) -> tuple[int, int]:
    """Write the test prompts of all trials as a group of tasks of lm-evaluation-harness, in YAML and JSON Lines.

    The harness computes the likelihood of the object's first token, and its ``acc`` is whether that token is the LM's
    argmax, as in `lre_lightning.scoring.states.knows`. A prompt is left out if the harness would not make the same
    tokens of its text, as where the object's first token is a part of a character.

    Args:
        data: The datamodule, which makes prompts for the LM that will be asked.
        folder: Where ``lre_known.yaml`` and two files per relation are written. Their paths are relative to it: the
            harness is run there.

    Returns:
        The numbers of prompts that are written, and that are left out.

    Raises:
        LREError: No prompt is left, or a file cannot be written.
    """
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    left_out = 0
    for index in progress(range(len(data.schedule)), "Prompts"):
        trial = data.trial(index)
        for prompt in test_prompts(trial, data.tokenizer, options=data.prompts):
            asked = as_asked(data.tokenizer, prompt, start_tokens(data.tokenizer, data.prompts.start_token))
            left_out += asked is None
            if asked is not None:
                fact = {"subject": prompt.subject, "object": prompt.object, "trial": trial.number}
                name = f"{GROUP}_{safe_name(trial.relation.name)}"
                rows[name].append({**fact, "prompt": asked[0], "answer": asked[1]})
    if not rows:
        raise LREError("the harness cannot ask any of the prompts: their tokens are not those of their texts")
    for name, asked_rows in rows.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in asked_rows)
        write_whole(folder / f"{name}.jsonl", "".join(lines))
        _write_yaml(folder / f"{name}.yaml", _task(name))
    mean = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    _write_yaml(folder / f"{GROUP}.yaml", {"group": GROUP, "task": list(rows), "aggregate_metric_list": [mean]})
    return sum(map(len, rows.values())), left_out


def as_asked(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, start: tuple[int, ...]) -> tuple[str, str] | None:
    """Return the context and the continuation of which the harness makes the tokens of a prompt and of its answer.

    The harness joins them, adds what the tokenizer itself puts in front of a text unless the text begins with it, and
    moves white space at the end of the context to the continuation. Where that gives other tokens, it is None.
    """
    ids = [*prompt.input_ids, prompt.object_token]
    lead, before, whole = (
        str(tokenizer.decode(part, clean_up_tokenization_spaces=False)) for part in ([*start], ids[:-1], ids)
    )
    answer, prefix = whole[len(before) :], str(tokenizer.bos_token or tokenizer.eos_token or "")
    for context in (prompt.text, lead + prompt.text):
        options = {"add_special_tokens": False} if prefix and context.startswith(prefix) else {}
        same = [tokenizer.encode(text, **options) for text in (context, context + answer)] == [ids[:-1], ids]
        if same and context == context.rstrip():
            return context, answer
    return None


def _task(name: str) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def _write_yaml(path: Path, data: dict[str, Any]) -> None:
    import yaml  # type: ignore[import-untyped]

    write_whole(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
