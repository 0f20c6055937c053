"""Weights in 8 or 4 bits, stored by bitsandbytes and multiplied as the numbers they stand for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from lre_lightning.errors import LREError

Quantization: TypeAlias = Literal["8bit", "4bit"]

QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "8bit": {"load_in_8bit": True},
    "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}
"""Arguments of transformers' `BitsAndBytesConfig`."""


def dequantized_products(model: nn.Module) -> dict[nn.Module, Callable[..., Tensor]]:
    """Return for each layer of bitsandbytes its product with dequantized weights, in the dtype of its inputs.

    The 8-bit product of bitsandbytes rounds its inputs too, except columns with outliers anywhere in the batch, so that
    the result for a prompt would depend on the prompts beside it. Its 4-bit product passes on no gradients if it packs
    the weights for the CPU, and weights that are packed already are an error.
    """
    library: Any = sys.modules.get("bitsandbytes")
    products: dict[nn.Module, Callable[..., Tensor]] = {}
    for module in model.modules() if library else ():
        if isinstance(module, library.nn.Linear8bitLt) and module.weight.dtype == torch.int8:
            weight = partial(_from_8bit, module)
        elif isinstance(module, library.nn.Linear4bit) and module.weight.quant_state is not None:
            if getattr(module.weight.quant_state, "packing_format_for_cpu", False):
                raise LREError(
                    "bitsandbytes packed the 4-bit weights for the CPU when they ran, and rounded their scales: create "
                    "the LanguageModel before anything runs"
                )
            weight = partial(_from_4bit, module, library.functional.dequantize_4bit)
        else:
            continue
        products[module] = partial(_multiply, module, weight)
    return products


def _from_8bit(module: Any, dtype: torch.dtype) -> Tensor:
    rows: Tensor = module.weight.data
    scale: Tensor = module.state.SCB if module.weight.SCB is None else module.weight.SCB
    return rows.to(dtype) * (scale.to(dtype) / 127)[:, None]


def _from_4bit(module: Any, dequantize: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
    return dequantize(module.weight.data, module.weight.quant_state).to(dtype)


def _multiply(module: Any, weight: Callable[[torch.dtype], Tensor], inputs: Tensor) -> Tensor:
    product: Tensor = _Product.apply(inputs.to(module.weight.device), weight)  # type: ignore[no-untyped-call]
    return product if module.bias is None else product + module.bias.to(product.dtype)


class _Product(torch.autograd.Function):
    """Product of inputs and a weight that exists only while it is computed."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Callable[[torch.dtype], Tensor]) -> Tensor:
        ctx.weight = weight
        return functional.linear(inputs, weight(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.weight(gradients[0].dtype), None
