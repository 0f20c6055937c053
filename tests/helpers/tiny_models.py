"""A tiny random model per supported family, with parameters moved off their initial values."""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
import transformers

from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch

WIDTH, LAYERS, VOCAB = 16, 3, 97
_WINDOW = 6  # shorter than the tests' prompts
_COMMON: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
_GPT2 = dict(_COMMON, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=64)
_WIDE = dict(_COMMON, hidden_size=WIDTH, num_hidden_layers=LAYERS)
_NEOX = dict(_WIDE, intermediate_size=48, num_attention_heads=4, max_position_embeddings=64)
_OPT = dict(_NEOX, ffn_dim=48, word_embed_proj_dim=WIDTH)
_FALCON = dict(_WIDE, num_attention_heads=4)
_LLAMA = dict(_NEOX, num_key_value_heads=2)
_GEMMA = dict(_LLAMA, head_dim=8)
_GEMMA2 = dict(_GEMMA, sliding_window=_WINDOW, query_pre_attn_scalar=8)
_BY_LAYER = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 4}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_INDEXER = {"index_head_dim": 8, "index_n_heads": 16, "index_topk": 32}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
_DEEPSEEK = {**_LLAMA, **_EXPERTS, **_INDEXER, **_LATENT, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
_LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
_ROPE3 = {"rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SLIDING, _FULL, _OTHER = "sliding_attention", "full_attention", "linear_attention"

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", _GPT2),
    "ctrl": ("CTRL", dict(_GPT2, dff=48)),  # which changes its embeddings in place
    "gptj": ("GPTJ", dict(_GPT2, rotary_dim=4)),
    "gpt_neo": (
        "GPTNeo",
        dict(_NEOX, num_layers=LAYERS, num_heads=4, window_size=_WINDOW)
        | {"attention_types": [[["global", "local", "global"], 1]]},
    ),
    "gpt_neox": ("GPTNeoX", _NEOX),
    "gpt_neox_sequential": ("GPTNeoX", dict(_NEOX, use_parallel_residual=False)),
    "opt": ("OPT", _OPT),
    "bloom": ("Bloom", dict(_COMMON, hidden_size=WIDTH, n_layer=LAYERS, n_head=4)),
    "falcon": ("Falcon", dict(_FALCON, multi_query=True, bias=False)),
    "falcon_new": ("Falcon", dict(_FALCON, new_decoder_architecture=True, num_kv_heads=2)),
    "falcon_alibi": ("Falcon", dict(_FALCON, alibi=True, parallel_attn=False, multi_query=False, bias=True)),
    "mpt": ("Mpt", dict(_COMMON, d_model=WIDTH, n_layers=LAYERS, n_heads=4, max_seq_len=64)),
    "phi": ("Phi", _LLAMA),
    "phi3": ("Phi3", dict(_LLAMA, sliding_window=_WINDOW)),
    "llama": ("Llama", _LLAMA),
    "llama3": (
        "Llama",
        dict(_LLAMA, rope_scaling=dict(_ROPE3, rope_type="llama3", original_max_position_embeddings=8)),
    ),
    "mistral": ("Mistral", dict(_LLAMA, sliding_window=_WINDOW)),
    "mixtral": ("Mixtral", dict(_LLAMA, sliding_window=_WINDOW, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen3": ("Qwen3", _GEMMA),
    "gemma": ("Gemma", _GEMMA),
    "gemma2": ("Gemma2", dict(_GEMMA2, attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "gemma3": ("Gemma3Text", dict(_GEMMA2, layer_types=[_SLIDING, _SLIDING, _FULL])),
    "olmo": ("Olmo", dict(_LLAMA, clip_qkv=1.0)),
    "olmo2": ("Olmo2", _LLAMA),
    "stablelm": ("StableLm", dict(_LLAMA, partial_rotary_factor=0.5)),
    "starcoder2": ("Starcoder2", dict(_LLAMA, sliding_window=_WINDOW)),
    "cohere": ("Cohere", dict(_LLAMA, logit_scale=0.25, use_qk_norm=True)),
    "granite": (
        "Granite",
        dict(_LLAMA, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.4, logits_scaling=4.0),
    ),
}

UNSHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("OpenAIGPT", _GPT2),
    "mamba": ("Mamba", dict(_WIDE, state_size=4)),
    "rwkv": ("Rwkv", dict(_WIDE, attention_hidden_size=WIDTH)),
    "recurrent_gemma": ("RecurrentGemma", dict(_LLAMA, lru_width=WIDTH, attention_window_size=_WINDOW)),
    "qwen3_next": (
        "Qwen3Next",
        dict(_GEMMA, **_LINEAR, layer_types=[_OTHER, _OTHER, _FULL])
        | {"num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "lfm2": ("Lfm2", dict(_LLAMA, layer_types=["conv", "conv", _FULL])),
    "jamba": (
        "Jamba",
        dict(_LLAMA, mamba_d_state=4, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1)
        | {"num_experts": 4, "use_mamba_kernels": False},
    ),
    "mamba2": ("Mamba2", dict(_WIDE, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4)),
    "deepseek_v32": ("DeepseekV32", dict(_DEEPSEEK, first_k_dense_replace=1)),
    "gemma4_shared_keys": (
        "Gemma4Text",
        dict(_GEMMA2, **_BY_LAYER, layer_types=[_SLIDING, _FULL, _FULL], num_kv_shared_layers=1, global_head_dim=8),
    ),
}
"""Families without keys and values that prompts could share."""

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v4": (
        "DeepseekV4",
        {
            **{**_GEMMA, **_EXPERTS, **_INDEXER, "hc_mult": 3, "sliding_window": _WINDOW},
            **{"q_lora_rank": 8, "o_lora_rank": 8, "o_groups": 2, "num_key_value_heads": 1},
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            "layer_types": [_SLIDING, "compressed_sparse_attention", "heavily_compressed_attention"],
        },
    ),
    "hy_v4": (
        "HYV4",
        dict(_DEEPSEEK, hc_mult=3, layer_types=["indexed_attention"] * 3, indexer_types=["full", "full", "shared"]),
    ),
    "gemma3n": (  # on the first axis
        "Gemma3nText",
        dict(_GEMMA2, **_BY_LAYER, altup_num_inputs=3, num_kv_shared_layers=0, laurel_rank=4)
        | {"layer_types": [_SLIDING, _SLIDING, _FULL], "activation_sparsity_pattern": None},
    ),
    "opt_350m": ("OPT", dict(_OPT, word_embed_proj_dim=8, do_layer_norm_before=False)),
}
"""Families with three residual streams, and one with a projection, so without the layer "emb"."""

WAYS = {
    **dict.fromkeys([*UNSHARED, *STREAMS], "copied"),
    **dict.fromkeys(("mamba", "jamba"), "stepwise"),
    **dict.fromkeys(("openai", "recurrent_gemma", "rwkv"), "whole"),
    **dict.fromkeys([*FAMILIES, "gemma3n", "opt_350m"], "shared"),
}
"""How prompts with a common beginning are run."""


def tiny_model(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """Return a random model of the family, of width `WIDTH` with `LAYERS` blocks."""
    prefix, options = (FAMILIES | UNSHARED | STREAMS)[family]
    config = getattr(transformers, f"{prefix}Config")(**{**options, **changes})
    config._experts_implementation = "eager"  # torch's grouped products of experts do not support float64
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype)


def overflowing_gpt2() -> Any:
    """Return a model that overflows in float16 on token 60, which is not among those that every LM is checked with."""
    model = tiny_model("gpt2", torch.float32)
    model.transformer.wte.weight.data[60] = 65000
    model.transformer.h[1].mlp.c_proj.bias.data += 1000
    return model


SHARED = [5, 9, 2, 40, 41, 7]
PROMPTS = [[*SHARED, 11, 12, 13], [*SHARED, 21, 8], [*SHARED, 11, 12, 60, 61, 62]]
SUBJECTS = [7, 6, 7]


def batch_of(lm: LanguageModel, prompts: Any = PROMPTS, subjects: Any = SUBJECTS) -> PromptBatch:
    """Return prompts of several lengths as a batch."""
    length = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in prompts])
    return PromptBatch(lm, ids, torch.tensor(subjects), torch.tensor([len(prompt) - 1 for prompt in prompts]))


def plain_output(
    lm: LanguageModel, ids: Any, position: int, layer: Any, value: Any, object_layer: Any = None, tokens: int = 1
) -> torch.Tensor:
    """Return o of a whole prompt with s replaced, as a function of it: a hook, no cache, no batch."""

    def put(hidden: torch.Tensor) -> torch.Tensor:
        return hidden.index_copy(1, torch.tensor([position]), value.to(hidden)[None, None])

    with replace(lm.module_at(layer), put):
        target = lm.num_layers - 1 if object_layer is None else object_layer
        states = lm.hidden_states(torch.as_tensor(ids)[None], [target])[target][0]
    return sum(states[-1 - i] for i in range(tokens)) / tokens


class WideTorch(types.ModuleType):
    """A stand-in for `torch` in a modeling file, with float64 instead of float32.

    Several families compute norms, attention weights or positions in float32 whatever the model's dtype. Without wider
    casts, comparisons in float64 would only see float32 rounding.
    """

    def __init__(self) -> None:
        super().__init__("torch")

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def widen_casts(monkeypatch: Any, family: str) -> None:
    """Make a family's modeling code compute in float64 where it casts to float32."""
    config = getattr(transformers, f"{(FAMILIES | UNSHARED | STREAMS)[family][0]}Config").__module__
    monkeypatch.setattr(importlib.import_module(config.replace("configuration_", "modeling_")), "torch", WideTorch())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
