"""Tiny random models of every causal LM type that transformers knows."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WIDTH, BLOCKS, HEADS, VOCAB = 32, 4, 4, 97

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "n_embed", "embedding_size", "lru_width"), WIDTH),
    **dict.fromkeys(("word_embed_proj_dim", "attention_hidden_size", "embedding_dim", "hidden_size_global"), WIDTH),
    **dict.fromkeys(("adapter_in_dim", "adapter_input_size", "adapter_out_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), BLOCKS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "d_ff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("dff", "hidden_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    **{"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "rotary_dim": 4},
    **dict.fromkeys(("sliding_window", "attention_window_size"), 8),
    # Mixtures of experts.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    # Compressed keys and indexers.
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"index_head_dim": 8, "index_n_heads": 16, "index_topk": 32, "num_nextn_predict_layers": 0},
    **{"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8},
    # State spaces and linear attention.
    **dict.fromkeys(("mamba_d_state", "state_size", "mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **{"mamba_d_ssm": 64, "time_step_rank": 4, "mamba_dt_rank": 4},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
"""Values for options of these names, in the configurations that have them."""

PATTERNS = ("layer_types", "mlp_layer_types", "block_types", "layers_block_type")
"""Options that list the kind of every block."""

CHANGES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1, 3], "attn_rotary_emb": 8},
    "blt": {"encoder_hash_byte_group_vocab": 50, "patch_in_forward": False},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {
        "vision_config": {
            **{"num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2, "num_attention_heads": HEADS},
            **dict.fromkeys(("hidden_size", "intermediate_size", "adapter_in_dim", "adapter_out_dim"), WIDTH),
        }
    },
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "kimi_linear": {
        "linear_attn_config": {
            **{"kda_layers": [1, 2, 3], "full_attn_layers": [4], "head_dim": 8, "num_heads": 4},
            "short_conv_kernel_size": 4,
        }
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "longcat_flash": {"num_hidden_layers": 8, "head_dim": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "moshi": {"sliding_window": 64},  # which transformers applies to cached keys alone
    "qwen4_exp_text": {
        **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8},
        **{"indexer_budget": 16, "indexer_compress_ratio": 2},
    },
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local"] * 4, "feed_forward_size": 48},
    "xlstm": {"num_blocks": BLOCKS},
    "zamba": {
        **{"n_mamba_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16, "num_hidden_layers": 6},
        **{"attn_layer_period": 3, "attn_layer_offset": 2, "num_key_value_heads": 4},
    },
    "zamba2": {
        **{"attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4},
        **{"layers_block_type": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
    },
    "zaya": {"num_experts_per_tok": 1},
}
CHANGES["qwen4_exp"] = CHANGES["qwen4_exp_text"]
"""Options of types for which the values above do not fit."""


def tiny_model(kind: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Build a random model of a type, of width `WIDTH` with `BLOCKS` blocks, on the CPU."""
    config: Any = _config(CONFIG_MAPPING[kind], CHANGES.get(kind, {}))
    config._experts_implementation = "eager"  # torch's grouped products of experts do not support float64
    torch.manual_seed(0)
    if "decoder" in vars(config):  # models that write music: transformers would give it the whole configuration
        decoder: Any = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
        model: PreTrainedModel = decoder(config.decoder)
    else:
        model = AutoModelForCausalLM.from_config(config)
    model.eval().to(dtype)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def _config(cls: Any, changes: dict[str, Any]) -> Any:
    """Make a small configuration, also of those that it contains."""
    default = cls()
    inner = {name: value for name, value in vars(default).items() if isinstance(value, PretrainedConfig)}
    inner = {name: value for name, value in inner.items() if name not in changes}
    small = {name: _config(type(value), changes).to_dict() for name, value in inner.items()}
    config = cls(**(_small(default) | small | changes))
    for one in (config, *(getattr(config, name) for name in inner)):
        for name in PATTERNS:
            kinds = getattr(one, name, None)
            count = getattr(one, "num_hidden_layers", BLOCKS)
            if isinstance(kinds, list) and len(kinds) != count:
                setattr(one, name, (list(dict.fromkeys(kinds)) * BLOCKS)[:count])
    return config


def _small(default: PretrainedConfig) -> dict[str, Any]:
    options, names = default.to_dict(), default.attribute_map
    known = {name: value for name, value in SMALL.items() if name in options or name in names}
    known = {name: value for name, value in known.items() if not isinstance(options.get(name), dict | list)}
    if "kv_lora_rank" in known:  # whose keys are expanded to all heads, and of two widths
        known |= {"num_key_value_heads": HEADS} if "num_key_value_heads" in known else {}
        known.pop("head_dim", None)
    for alias, name in names.items():
        if name in known:
            known.pop(alias, None)
    return known
