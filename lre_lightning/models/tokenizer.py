"""The tokenizer of an LM: loading, the tokens that prompts start with and are padded with, the text of a token."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from lre_lightning.errors import LREError
from lre_lightning.models.loading import gguf_key, gguf_path, locate, why_not
from lre_lightning.storage.cache import kept

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

StartToken: TypeAlias = Literal["auto", "own", "none", "bos", "eos"]
"""Choices of what prompts start with; see `start_tokens`."""

BOOL, LONGEST_HEADER = 7, 2**26
"""GGUF's number of the type of truth values, and the bytes in which its keys are searched."""

_PRINTED_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(256) if byte not in _PRINTED_BYTES]
_BYTES = {chr(byte): byte for byte in _PRINTED_BYTES} | {chr(256 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""The byte that each character of a byte-level vocabulary stands for."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer is a fast one, which can tell the characters that each token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        name = type(tokenizer).__name__
        raise LREError(f"{name} cannot tell where a token is in a text: use the fast tokenizer (tokenizer.json)")


def start_tokens(tokenizer: PreTrainedTokenizerBase, choice: StartToken = "auto") -> tuple[int, ...]:
    """Return the tokens that a prompt starts with, which are one in general, or none.

    Args:
        tokenizer: The tokenizer.
        choice: ``"bos"`` or ``"eos"``; ``"own"``, what the tokenizer itself puts in front of a text; ``"none"``; or
            ``"auto"``, the first of these that there is: its own, EOS, BOS, none. What suits an LM is
            `LanguageModel.start_token`.

    Raises:
        LREError: If the tokenizer does not have the token.
    """
    named = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    own = _own_start_tokens(tokenizer) if choice in ("auto", "own") else ()
    if own or choice == "own":
        return own
    known = [name for name in ("eos", "bos") if named[name] is not None]
    if choice not in (*known, "auto", "none"):
        raise LREError(
            f"the tokenizer {tokenizer.name_or_path!r} has no {choice.upper()} token to start prompts with: leave "
            f"start_token out, or give one of {', '.join([*known, 'none'])}"
        )
    name = next(iter(known), "none") if choice == "auto" else choice
    return () if name == "none" else (cast(int, named[name]),)


def own_start(tokenizer: PreTrainedTokenizerBase) -> StartToken | None:
    """Return the name of what a tokenizer itself puts in front of a text; None if that is nothing."""
    own = _own_start_tokens(tokenizer)
    named: dict[tuple[Any, ...], StartToken] = {(tokenizer.eos_token_id,): "eos", (tokenizer.bos_token_id,): "bos"}
    return named.get(own, "own") if own else None


def _own_start_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    plain, whole = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    count = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return tuple(whole[:count])


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token to pad with, which is never attended to: the tokenizer's own, else its EOS, BOS or first one."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    return next((cast(int, token) for token in known if token is not None), 0)


def load_tokenizer(
    name_or_path: str, revision: str | None = None, trust_remote_code: bool = False, gguf_file: str | None = None
) -> PreTrainedTokenizerBase:
    """Load a Hugging Face tokenizer.

    Args:
        name_or_path: A model's name on the Hub, its folder or GGUF file, ``"demo"`` for the bundled model, or
            ``"smollm2"``.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code from the model's repository.
        gguf_file: Name of the GGUF file in the folder or repository, if the tokenizer is in one.

    Raises:
        LREError: It cannot be loaded, or is not a fast tokenizer.
    """
    path, gguf_file = locate(name_or_path, gguf_file)
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    file: str | None = None
    try:
        tokenizer: Any
        if gguf_file is None:
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
        else:
            file = gguf_path(path, gguf_file, revision)
            make = partial(AutoTokenizer.from_pretrained, path, gguf_file=gguf_file, **options)
            tokenizer = kept(gguf_key(file, "tokenizer"), make, _save, AutoTokenizer.from_pretrained)
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        if gguf_file is not None:
            raise LREError(f"cannot load the tokenizer {name_or_path!r}: {why_not(error, gguf_file)}") from error
        if "tiktoken" in reason and find_spec("sentencepiece") is None:
            reason = (
                "tokenizer.model needs sentencepiece and protobuf: pip install 'lre-lightning[sentencepiece]', or save "
                "the tokenizer as tokenizer.json"
            )
        raise LREError(f"cannot load the tokenizer {name_or_path!r}: {reason}") from error
    check_tokenizer(tokenizer)
    if len(tokenizer) < 2:
        raise LREError(
            f"cannot load the tokenizer {name_or_path!r}: its vocabulary is empty (is tokenizer.json missing?)"
        )
    if file is not None:
        tokenizer.name_or_path = name_or_path  # else that of its folder, which may have several, or of the cache
        adds = _adds_bos(file)
        if adds not in (None, own_start(tokenizer) is not None) and tokenizer.bos_token is not None:
            tokenizer.add_bos_token = adds
    return cast("PreTrainedTokenizerBase", tokenizer)


def _save(tokenizer: Any, folder: Path) -> None:
    """Save a fast tokenizer; any other is refused."""
    if getattr(tokenizer, "is_fast", False):
        tokenizer.save_pretrained(folder)


def _adds_bos(path: str) -> bool | None:
    """Return what a GGUF file says of its tokenizer's BOS, which transformers before 5.23 ignores; None if nothing."""
    name = b"tokenizer.ggml.add_bos_token"
    key = len(name).to_bytes(8, "little") + name + BOOL.to_bytes(4, "little")
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        found = data.find(key, 0, LONGEST_HEADER)
        return bool(data[found + len(key)]) if found >= 0 else None


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text that one token stands for, with its spaces.

    Bytes that are not a character by themselves, which byte-level tokens may be, are written as ``<0xE4><0xB8>``, and
    an id that the tokenizer does not have, as in padded vocabularies, as ``<50300>``.
    """
    piece: Any = tokenizer.convert_ids_to_tokens(token)
    if piece is None:
        return f"<{token}>"
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if "\ufffd" in text:
        if not all(character in _BYTES for character in piece):
            return str(piece)
        data = [_BYTES[character] for character in piece]
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in data)
    spaces = len(piece) - len(piece.lstrip("\u2581"))  # SentencePiece drops one at the beginning of a text
    return " " * spaces + text.lstrip(" ") if spaces else text
