"""An LM that decodes a relation exactly affinely, with relations that it knows and one that it does not.

A Llama whose blocks do nothing: o is the embedding of the last token, so on templates that end in the subject do/ds
is the identity at every layer. Unembedding rows of the objects are orthogonal directions; a subject's embedding is
its object's direction and noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from lre_lightning.models.language_model import LanguageModel

OBJECTS = ["red", "green", "blue", "white"]
SUBJECTS = [f"thing{i}" for i in range(24)]
WORDS = ["[BOS]", "[UNK]", "\n", "colour", *OBJECTS, *SUBJECTS]
WIDTH, LAYERS = 16, 2


def toy_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """One token a word, and the line break."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[BOS]", unk_token="[UNK]")


def silence_blocks(model: LlamaForCausalLM) -> None:
    """Let the blocks return what they are given."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()


def toy_model(seed: int = 0) -> LlamaForCausalLM:
    """The LM: subject i is followed by object i modulo their number."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    silence_blocks(model)
    directions = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0][: len(OBJECTS)]
    first_object, first_subject = WORDS.index(OBJECTS[0]), WORDS.index(SUBJECTS[0])
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[first_object : first_object + len(OBJECTS)] = directions
    for i in range(len(SUBJECTS)):
        noise = 0.05 * torch.randn(WIDTH)
        model.model.embed_tokens.weight.data[first_subject + i] = directions[i % len(OBJECTS)] + noise
    return model


def write_toy_model(folder: Path, seed: int = 0) -> Path:
    """Save model and tokenizer as a user's folder."""
    toy_model(seed).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def relation_json(name: str, shift: int = 0, count: int = len(SUBJECTS), category: str = "factual") -> dict:
    """A relation of the toy; the LM knows it where `shift` is 0."""
    samples = [{"subject": s, "object": OBJECTS[(i + shift) % len(OBJECTS)]} for i, s in enumerate(SUBJECTS[:count])]
    properties = {"relation_type": category, "domain_name": "thing", "range_name": "colour", "symmetric": False}
    return {
        "name": name,
        "prompt_templates": ["{}"],
        "prompt_templates_zs": ["{}"],
        "properties": properties,
        "samples": samples,
    }


def write_toy_relations(folder: Path) -> Path:
    """Two relations that the LM knows and one that it does not."""
    relations = [
        relation_json("thing colour"),
        relation_json("half colour", count=14, category="bias"),
        relation_json("wrong colour", shift=1),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for relation in relations:
        (folder / f"{relation['name'].replace(' ', '_')}.json").write_text(json.dumps(relation))
    return folder


class AffineBlock(LlamaDecoderLayer):
    """A block that maps every hidden state h to A h + c, whatever the others are."""

    def forward(self, hidden_states, *args, **kwargs):
        """Run the block that does nothing, which keeps the cache, and then the map."""
        return super().forward(hidden_states, *args, **kwargs) @ self.matrix.T + self.shift


def with_affine_blocks(model: LlamaForCausalLM, *maps: tuple[Any, Any]) -> None:
    """Let the blocks map h to A h + c, with A and c in float64 of each."""
    silence_blocks(model)
    for layer, (matrix, shift) in zip(model.model.layers, maps, strict=True):
        layer.__class__ = AffineBlock
        layer.register_buffer("matrix", torch.as_tensor(matrix))
        layer.register_buffer("shift", torch.as_tensor(shift))


def random_toy() -> LanguageModel:
    """The toy in float64 with blocks h -> A h + c that nothing but the LRE approximates well: o = A^k s + ….

    Embeddings are such that o of subject i is the unit vector of object i modulo their number, and noise. Those
    vectors, and noise, are the rows of the unembedding for the objects; "[BOS]" and "[UNK]" have rows of noise.
    """
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 4
    shift = torch.randn(WIDTH, generator=generator, dtype=torch.float64) / 4
    rows = torch.randn(6, WIDTH, generator=generator, dtype=torch.float64) / 10
    rows[:4] += torch.eye(WIDTH, dtype=torch.float64)[:4]
    model = toy_model().double()
    with_affine_blocks(model, *[(matrix, shift)] * LAYERS)
    first_object, first_subject = WORDS.index(OBJECTS[0]), WORDS.index(SUBJECTS[0])
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[first_object : first_object + len(OBJECTS)] = rows[:4]
    model.lm_head.weight.data[:2] = rows[4:]
    noise = 0.05 * torch.randn(len(SUBJECTS), WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states = torch.eye(WIDTH, dtype=torch.float64)[torch.arange(len(SUBJECTS)) % len(OBJECTS)] + noise
    for _ in range(LAYERS):
        states = (states - shift) @ torch.linalg.inv(matrix).T
    model.model.embed_tokens.weight.data[first_subject:] = states
    return LanguageModel(model)
