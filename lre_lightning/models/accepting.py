"""Functions of an LM that also take a model and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from torch import nn

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class OfLanguageModel(Protocol[P, T_co]):
    """A function that is called with a `LanguageModel`, or with a model and its tokenizer, in front of the rest."""

    @overload
    def __call__(self, lm: LanguageModel, /, *args: P.args, **options: P.kwargs) -> T_co: ...
    @overload
    def __call__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, /, *args: P.args, **options: P.kwargs
    ) -> T_co: ...


def or_model_and_tokenizer(function: Callable[Concatenate[LanguageModel, P], T]) -> OfLanguageModel[P, T]:
    """Let a function of a `LanguageModel` take a model and its tokenizer in its place, as two arguments."""

    @wraps(function)
    def call(lm: Any, *args: Any, **options: Any) -> T:
        if isinstance(lm, LanguageModel):
            return function(lm, *args, **options)
        tokenizer, *rest = args or [None]
        if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
            name = function.__name__
            raise LREError(
                f"{name} takes a LanguageModel, or a model and its tokenizer: {name}(model, tokenizer, ...), not "
                f"{type(lm).__name__} and {tokenizer!r}"
            )
        return function(LanguageModel.of(lm, tokenizer), *rest, **options)

    return cast("OfLanguageModel[P, T]", call)
