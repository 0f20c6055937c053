"""An edit of the subject's hidden state in a prompt, which stays in place while the LM runs or generates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.lre.answers import Answers
from lre_lightning.models.hooks import observe_ids, overridden, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import pad_token
from lre_lightning.prompts.prompt import Prompt


@dataclass(frozen=True, eq=False)
class PromptEdit:
    """An edit of s in a prompt, and the LM's answers without and with it.

    Attributes:
        prompt: The prompt, with the subject.
        target: The subject that the edit imitates, or the object that it steers towards.
        layers: The layers at which s is edited.
        delta: What is added to s, `(hidden,)`: of an LRE magnitude x W^+ (o' - o) (Equation 6).
        lm: The LM.
        before: The LM's answers to the prompt.
        after: Its answers with the edit.
    """

    prompt: Prompt
    target: str
    layers: tuple[Layer, ...]
    delta: Tensor = field(repr=False)
    lm: LanguageModel = field(repr=False)
    before: Answers = field(default_factory=Answers)
    after: Answers = field(default_factory=Answers)

    @property
    def position(self) -> int:
        """The subject's last token in the prompt, counting the start token."""
        return self.prompt.subject_position

    def __call__(self, hidden: Tensor, layer: Layer | None = None, *, hook: Any = None) -> Tensor:
        """Edit hidden states of the prompt at one of `layers`, for hooks of your own.

        The edit itself is a hook of TransformerLens at ``blocks.{layer}.hook_resid_post``, and in nnsight it is called
        on the output of a block. Runs of fewer tokens than the prompt has, such as the steps of a generation with a
        cache, are left as they are.

        Args:
            hidden: `(..., positions, hidden)`, of the prompt with its start token, without pads before it.
            layer: Their layer, which a `Move` at several layers needs to know.
            hook: The hook point, which TransformerLens gives, and which knows the layer.

        Returns:
            A copy, edited at `position`.
        """
        if hidden.shape[-2] < len(self.prompt.input_ids):
            return hidden
        if layer is None and hook is not None:
            layer = hook.layer()
        return changed_at(hidden, self.position, partial(self.at, layer))

    def at(self, layer: Layer | None, states: Tensor) -> Tensor:
        """Edit hidden states of the subject at one of `layers`, `(..., hidden)`."""
        return states + self.delta.to(states)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Keep the edit in place while the LM runs, also in `generate`, in batches and with a cache.

        s is edited in every run that holds the tokens of the prompt, wherever they are in a row; other rows, and the
        tokens that `generate` adds, are left as they are, with or without a cache. A loop of your own that runs all
        tokens anew at each step is not told apart from prompts that hold this one several times.

        Raises:
            LREError: At the end, if no run held the prompt.
        """
        tokens = torch.tensor(self.prompt.input_ids[self.prompt.start :])  # a run may have another start token, or none
        places, applied = torch.zeros(0, 2, dtype=torch.long), False
        generating = False
        given: int | None = None  # in `generate`, the number of tokens of its first run

        def look(ids: Tensor) -> None:
            nonlocal places, applied, given
            if generating:
                if given is not None:  # the tokens that it was given come first, or not at all with a cache
                    ids = ids[:, : given if ids.shape[1] > given else 0]
                given = given or ids.shape[1]
            places = _occurrences(ids, tokens)
            applied = applied or len(places) > 0

        def generate(*args: Any, **kwargs: Any) -> Any:
            nonlocal generating, given
            generating, given = True, None
            try:
                return own(*args, **kwargs)
            finally:
                generating = False

        def edit(layer: Layer, hidden: Tensor) -> Tensor:
            edited = hidden.clone()
            rows, starts = places.to(hidden.device).T
            subjects = rows, starts + self.position - self.prompt.start
            edited[subjects] = self.at(layer, hidden[subjects])
            return edited

        own: Any = getattr(self.lm.model, "generate", None)
        with ExitStack() as stack:
            if own is not None:
                stack.enter_context(overridden({self.lm.model: generate}, "generate"))
            stack.enter_context(observe_ids(self.lm.module_at("emb"), look))
            for layer in self.layers:
                stack.enter_context(replace(self.lm.module_at(layer), partial(edit, layer)))
            yield
        if not applied:
            raise LREError(f"the edit of {self.prompt.text!r} was not applied: no run of the LM held this prompt")

    @torch.no_grad()
    def answered(self, top_k: int) -> Self:
        """Return the edit with the LM's most likely answers before and after it."""
        last = self.lm.num_layers - 1
        before = hidden_at(self.lm, self.prompt, last, -1)
        with self.active():
            after = hidden_at(self.lm, self.prompt, last, -1)
        return dataclasses.replace(
            self, before=Answers.of(self.lm, before, top_k), after=Answers.of(self.lm, after, top_k)
        )

    @torch.no_grad()
    def continuations(self, max_new_tokens: int = 10, samples: int = 0) -> list[tuple[str, str]]:
        """Let the LM continue the prompt without and with the edit (Table "causal-generations" of the paper).

        Args:
            max_new_tokens: The number of tokens to generate.
            samples: The number of sampled continuations, drawn with torch's global generators.

        Returns:
            The text before and after the edit: of the greedy continuation, then of each sampled one. Samples before and
            after are drawn from the same state of the generators.

        Raises:
            LREError: If the LM does not generate.
        """
        if not hasattr(self.lm.model, "generate"):
            raise LREError(f"{self.lm.name} has no method `generate`: load it as AutoModelForCausalLM does")
        kind = self.lm.device.type
        devices = [] if kind in ("cpu", "mps") else range(torch.get_device_module(kind).device_count())
        with torch.random.fork_rng([*devices], device_type=kind):  # an LM on a GPU draws with the generator of the GPU
            before = self._generate(max_new_tokens, samples)
        with self.active():
            after = self._generate(max_new_tokens, samples)
        return list(zip(before, after, strict=True))

    def _generate(self, max_new_tokens: int, samples: int) -> list[str]:
        ids = torch.tensor([self.prompt.input_ids], device=self.lm.device)
        common = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens}
        common["pad_token_id"] = pad_token(self.lm.tokenizer)
        model: Any = self.lm.model
        with self.lm.at_rest():
            rows = [*model.generate(ids, **common, do_sample=False)]
            if samples:
                rows += [*model.generate(ids, **common, do_sample=True, num_return_sequences=samples)]
        texts = self.lm.tokenizer.batch_decode([row[ids.shape[1] :] for row in rows], skip_special_tokens=True)
        return [text.strip() for text in texts]

    def __repr__(self) -> str:
        subject = self.prompt.subject
        return f"{self.prompt.text}\n  {subject}: {self.before}\n  {subject} -> {self.target}: {self.after}"

    def _repr_html_(self) -> str:
        rows = [[*before, *after] for before, after in zip(self.before, self.after, strict=True)]
        subject = self.prompt.subject
        header = [subject, "probability", f"{subject} \u2192 {self.target}", "probability"]
        return html_table(rows, header, self.prompt.text)


def changed_at(hidden: Tensor, position: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a copy of hidden states `(..., positions, hidden)` with those at a position changed."""
    changed = hidden.clone()
    changed[..., position, :] = change(hidden[..., position, :])
    return changed


def hidden_at(lm: LanguageModel, prompt: Prompt, layer: Layer, position: int) -> Tensor:
    """Run a prompt and return its hidden state at a layer and position, `(hidden,)`."""
    ids = torch.tensor([prompt.input_ids], device=lm.device)
    lm.check_ids(ids)
    return lm.hidden_states(ids, [layer])[layer][0, position]


def _occurrences(ids: Tensor, tokens: Tensor) -> Tensor:
    """Return the row and the position of every occurrence of `tokens` in `ids` `(batch, positions)`, `(found, 2)`."""
    if ids.shape[1] < len(tokens):
        return torch.zeros(0, 2, dtype=torch.long)
    return (ids.unfold(1, len(tokens), 1) == tokens.to(ids.device)).all(-1).nonzero()
