"""The estimator: sums of the Jacobians of texts, at every layer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, place_of
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.files import LensOrigin
from lre_lightning.jlens.lens import JacobianLens, standard_error
from lre_lightning.lre.jacobian import prompt_jacobian, sweep
from lre_lightning.lre.operators import wide_dtype
from lre_lightning.models.backward import backward_rule, check_backward
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import StartToken
from lre_lightning.runs.processes import Processes


def text_jacobian(
    lm: LanguageModel, input_ids: Tensor, averaging: Averaging = Averaging(), layers: Sequence[Layer] | None = None
) -> dict[Layer, Tensor]:
    """Compute the mean Jacobian of one text, token ids `(positions,)` with the start token, at every requested layer.

    Returns:
        Jacobians `(hidden, hidden)` by layer, in float32 or the LM's dtype if that is wider, on the LM's device.
    """
    if len(input_ids) < averaging.shortest:
        raise LREError(
            f"a text of {len(input_ids)} tokens is too short: with skip={averaging.skip} it needs {averaging.shortest}"
        )
    places = averaging.chosen(len(input_ids))
    if averaging.targets == "later":
        assert isinstance(places, range)
        ids = input_ids[None, :-1]  # no position sees the last token
        return sweep(lm, ids, places, places, layers, averaging.object_layer)[0].jacobian
    total: dict[Layer, Tensor] = {}
    for place in places:
        found = prompt_jacobian(lm, input_ids[: place + 1], place, layers, averaging.object_layer)
        for layer, jacobian in found.jacobian.items():
            wide = jacobian.to(torch.promote_types(jacobian.dtype, torch.float32)) / len(places)
            total[layer] = total[layer] + wide if layer in total else wide
    return total


def layers_of(lm: LanguageModel, layers: Sequence[Layer] | None, averaging: Averaging) -> tuple[Layer, ...]:
    """Return the layers of a lens; all up to that of o if None. An `LREError` names one that the LM lacks, or above."""
    (last,) = lm.check_layers(lm.layers[-1:] if averaging.object_layer is None else [averaging.object_layer])
    chosen = lm.check_layers(lm.layers[: lm.layers.index(last) + 1] if layers is None else layers)
    if place_of(chosen[-1]) > place_of(last):
        raise LREError(f"layer {chosen[-1]!r} is above the object layer {last!r}, which does not depend on it")
    return chosen


class JacobianLensEstimator:
    """Accumulates J = E[do/dh] over texts at several layers, and how much the texts differ.

    Sums are in the dtype of `LREEstimator`, so that means depend neither on the order of the texts nor on how they are
    split over processes. All layers up to that of o are accumulated if `layers` is None.
    """

    def __init__(
        self, lm: LanguageModel, layers: Sequence[Layer] | None = None, averaging: Averaging = Averaging()
    ) -> None:
        self.lm, self.layers, self.averaging, self.count = lm, layers_of(lm, layers, averaging), averaging, 0
        check_backward(lm, averaging.backward)
        wide, width = wide_dtype(lm.dtype, lm.device), lm.hidden_size
        self.sums = torch.zeros(len(self.layers), width, width, dtype=wide, device=lm.device)
        self.squares = torch.zeros(len(self.layers), dtype=torch.float64)

    def update(self, input_ids: Tensor) -> None:
        """Add the Jacobian of one text, token ids `(positions,)`, at every layer."""
        with backward_rule(self.averaging.backward):
            jacobians = text_jacobian(self.lm, input_ids, self.averaging, self.layers)
        for i, jacobian in enumerate(jacobians.values()):
            with torch.inference_mode(False):
                self.sums[i] += jacobian
            self.squares[i] += float(torch.linalg.vector_norm(jacobian, dtype=self.sums.dtype)) ** 2
        self.count += 1

    def clear(self) -> None:
        """Forget all texts."""
        self.sums.zero_()
        self.squares.zero_()
        self.count = 0

    def add_up(self, processes: Processes) -> None:
        """Add up the texts of all processes; a collective call."""
        self.sums, self.squares, count = processes.sum(self.sums, self.squares, torch.tensor([self.count]))
        self.count = int(count)

    def state(self) -> dict[str, Any]:
        """Return what has been accumulated as tensors and numbers."""
        return {"sums": self.sums.cpu(), "squares": self.squares, "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the result of `state`."""
        self.count = state["count"]
        self.sums.copy_(state["sums"])
        self.squares.copy_(state["squares"])

    def standard_errors(self) -> dict[Layer, float | None]:
        """Return `standard_error` by layer of the texts so far."""
        norms = [float(torch.linalg.vector_norm(total)) for total in self.sums]
        return {
            layer: standard_error(self.count, float(square), norm / max(1, self.count))
            for layer, square, norm in zip(self.layers, self.squares, norms, strict=True)
        }

    def lens(self, texts: str, start_token: StartToken | None = None) -> JacobianLens:
        """Return the lens of texts with the digest `texts`, and their start token; an `LREError` if there was none."""
        if not self.count:
            raise LREError("there is no text to estimate a Jacobian lens from")
        lm, dtype = self.lm, torch.promote_types(self.lm.dtype, torch.float32)
        return JacobianLens(
            {layer: (total / self.count).to(dtype) for layer, total in zip(self.layers, self.sums, strict=True)},
            self.count,
            dict(zip(self.layers, self.squares.tolist(), strict=True)),
            LensOrigin(lm.name, lm.identity, lm.revision, self.averaging, (texts,), lm.adapter, start_token),
        )


def digest_of_texts(texts: Iterable[Sequence[int]]) -> str:
    """Return the SHA-256 of the token ids of texts, in their order."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(f"{list(ids)}\n".encode())
    return digest.hexdigest()


def estimate_jacobian_lens(
    lm: nn.Module,
    texts: Sequence[Sequence[int]],
    layers: Sequence[Layer] | None = None,
    averaging: Averaging = Averaging(),
) -> JacobianLens:
    """Estimate the Jacobian lens of an LM from texts, one after another.

    Args:
        lm: A `LanguageModel`, or a causal LM of transformers, which is left as it is.
        texts: Token ids of each text, with the start token.
        layers: The layers; all up to that of o if None.
        averaging: Which derivatives the lens is the mean of.

    Raises:
        LREError: If there is no text, or a text or layer does not fit the LM.
    """
    estimator = JacobianLensEstimator(LanguageModel.of(lm), layers, averaging)
    for ids in texts:
        estimator.update(torch.as_tensor(ids))
    return estimator.lens(digest_of_texts([list(map(int, ids)) for ids in texts]))
