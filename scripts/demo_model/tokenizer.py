"""The demo LM's tokenizer: byte-level BPE with a designed vocabulary.

Few merges are learned, and only from the subjects, so that a subject is several tokens that other subjects share. Words
of templates and objects enter the vocabulary whole (`ignore_merges`, as in Llama 3's tokenizer), so that an object's
first token distinguishes it from other objects.
"""

import json
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.demo_model.world import Relation

START = "<|start|>"


def learn_merges(words: Iterable[str], count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn BPE merges from words, each once and after a space; return the vocabulary by id, and the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + count, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator((f" {word}" for word in words), trainer)
    vocabulary = tokenizer.get_vocab()
    merges = [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def whole_words(texts: Iterable[str]) -> list[str]:
    """Return the distinct words of texts as byte-level tokens, sorted."""
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return sorted({word for text in texts for word, _ in pre_tokenizer.pre_tokenize_str(text)})


def build_tokenizer(world: Sequence[Relation], texts: Iterable[str], merges: int) -> PreTrainedTokenizerFast:
    """Build the tokenizer, which splits the world's subjects, but neither its objects nor the texts around them."""
    subjects = sorted({subject for relation in world for subject, _ in relation.samples})
    objects = {f" {obj}" for relation in world for _, obj in relation.samples}
    vocabulary, learned = learn_merges(subjects, merges)
    kept = set(whole_words([*texts, *objects])) - set(whole_words(f" {s}" for s in subjects))
    vocabulary = [START, *vocabulary, *sorted(kept - set(vocabulary))]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(ids, learned, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START, eos_token=START, pad_token=START, model_max_length=512
    )
