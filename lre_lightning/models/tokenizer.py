"""The tokenizer of an LM: loading, and the tokens that prompts start with and are padded with."""

import os
from typing import TYPE_CHECKING, cast

from lre_lightning.errors import LREError
from lre_lightning.models.loading import locate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Check that a tokenizer is a fast one, which can tell the characters that each token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        name = type(tokenizer).__name__
        raise LREError(f"{name} cannot tell where a token is in a text: use the fast tokenizer (tokenizer.json)")


def start_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the token that every prompt starts with.

    It is the tokenizer's BOS token, else the token that it puts in front of a text itself, else its EOS token (Qwen).
    """
    if tokenizer.bos_token_id is not None:
        return cast(int, tokenizer.bos_token_id)
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    if whole[: len(plain)] != plain:
        return int(whole[0])
    if tokenizer.eos_token_id is None:
        name = tokenizer.name_or_path
        raise LREError(f"the tokenizer {name!r} has neither a BOS nor an EOS token to start prompts with")
    return cast(int, tokenizer.eos_token_id)


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the token to pad with: the tokenizer's own, else the start token (it is never attended to)."""
    return start_token(tokenizer) if tokenizer.pad_token_id is None else cast(int, tokenizer.pad_token_id)


def load_tokenizer(
    name_or_path: str, revision: str | None = None, trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase":
    """Load a Hugging Face tokenizer.

    Args:
        name_or_path: A model's name on the Hub, its folder, or ``"demo"`` for the bundled model.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code from the model's repository.

    Raises:
        LREError: It cannot be loaded, or is not a fast tokenizer.
    """
    path = locate(name_or_path)
    from transformers import AutoTokenizer

    options = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        where = "the folder" if os.path.isdir(path) else "no such folder here, and from the Hub"
        raise LREError(f"cannot load the tokenizer {name_or_path!r} ({where}): {reason}") from error
    check_tokenizer(tokenizer)
    if len(tokenizer) < 2:
        raise LREError(
            f"cannot load the tokenizer {name_or_path!r}: its vocabulary is empty (is tokenizer.json missing?)"
        )
    return cast("PreTrainedTokenizerBase", tokenizer)
