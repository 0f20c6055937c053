"""One tiny random model a supported family, with parameters moved off their initial values."""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
import transformers

WIDTH, LAYERS, VOCAB = 16, 3, 97
_COMMON: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
_GPT2: dict[str, Any] = {**_COMMON, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": 64}
_LLAMA: dict[str, Any] = {
    **_COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_WINDOW = 6
_NEOX = {key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", _GPT2),
    "gptj": ("GPTJ", {**_GPT2, "rotary_dim": 4}),
    "gpt_neox": ("GPTNeoX", _NEOX),
    "gpt_neox_sequential": ("GPTNeoX", {**_NEOX, "use_parallel_residual": False}),
    "llama": ("Llama", _LLAMA),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": _WINDOW}),
    "qwen2": ("Qwen2", _LLAMA),
    "gemma2": (
        "Gemma2",
        {
            **_LLAMA,
            "head_dim": 8,
            "sliding_window": _WINDOW,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
}


def tiny_model(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """A random model of the family, of width `WIDTH` and `LAYERS` blocks."""
    prefix, options = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**options, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype)


class WideTorch(types.ModuleType):
    """`torch` as a modeling file sees it, with float64 where the file asks for float32.

    Several families compute norms, attention weights or positions in float32 whatever the model's dtype. A float64
    comparison of two ways to compute a Jacobian is one of float32 rounding then, unless those casts are widened.
    """

    def __init__(self) -> None:
        super().__init__("torch")

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def widen_casts(monkeypatch: Any, family: str) -> None:
    """Let a family's modeling code compute in float64 where it casts to float32."""
    name = {"gpt_neox_sequential": "gpt_neox"}.get(family, family)
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    monkeypatch.setattr(module, "torch", WideTorch())
