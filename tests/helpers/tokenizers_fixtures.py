"""Small tokenizers of every kind that matters for token positions, made here without a download."""

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

CORPUS = [
    "The capital city of France is Paris\nThe capital city of Japan is Tokyo\nThe capital city of Italy is Rome",
    "Miles Davis plays the trumpet. Elton John plays the piano. Tesla, Inc.'s CEO is Elon Musk",
    "Café Müller is in São Paulo, 北京 is in 中国, 東京 is in 日本. Москва is in Россия 😀 👍🏽",
    "cat is in the category of animals. On the outside, apples are red. New York City is in the United States",
] * 4
START, END = "<s>", "</s>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gpt2():
    """Return the real GPT-2 tokenizer, if there is one."""
    folder = os.environ.get("LRE_TOKENIZERS_DIR")
    if not folder:
        pytest.skip("LRE_TOKENIZERS_DIR is not set")
    return AutoTokenizer.from_pretrained(Path(folder) / "gpt2")


def byte_level(trim_offsets=False, add_prefix_space=False, bos=None, eos="<|end|>", post=None, **model):
    """GPT-2, Llama 3, Qwen: one character may be several tokens."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in dict.fromkeys([bos, eos]) if token]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = post(tokenizer) if post else processors.ByteLevel(trim_offsets=trim_offsets)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos)


def qwen():
    """No BOS; NFC, so that the tokens stand for other characters than those of the text."""
    fast = byte_level(eos="<|endoftext|>")
    fast.backend_tokenizer.normalizer = normalizers.NFC()
    return fast


def around(front, back=""):
    """Return a post-processor that puts special tokens around the text."""
    return lambda tokenizer: processors.TemplateProcessing(
        single=f"{front} $A {back}".strip(),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (front, back) if token],
    )


def sentencepiece(prepend="first", legacy=False, back="", split=True):
    """Llama 2, Mistral, Gemma: BPE over characters with bytes to fall back on, "▁" for a space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", START, END, *BYTES])
    # All but these two characters that aren't Latin stay out of the vocabulary and fall back on their bytes.
    tokenizer.train_from_iterator([re.sub("[^\\u0000-\\u024f北京]", "", line) for line in CORPUS], trainer)
    if not split:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    if legacy:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = around(START, back)(tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, eos_token=END)


def unigram():
    """T5-like pieces; no BOS, and an end token that it adds itself."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=220, special_tokens=["<unk>", END], unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def wordpiece():
    """BERT-like: no BOS, but a token that it puts in front itself, and one behind."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]", "[SEP]", "[CLS]"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = around("[CLS]", "[SEP]")(tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]")


def tiktoken(bos=None):
    """Llama 3, GPT-4o: an own split before the bytes, whole words looked up first, special tokens added later."""
    contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = [rf"[^\r\n\p{{L}}\p{{N}}]?{start}{end}{contractions}?" for start, end in
             ((f"{upper}*", f"{lower}+"), (f"{upper}+", f"{lower}*"))]  # fmt: skip
    others = [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex("|".join([*words, *others])), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>", "<|reserved_0|>"])
    steps = [processors.ByteLevel(trim_offsets=False), *([around(bos)(tokenizer)] if bos else [])]
    tokenizer.post_processor = processors.Sequence(steps)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token="<|eot_id|>", padding_side="left"
    )


def one_piece(bos=True, joined=False):
    """Gemma: a text is one piece, since the normalizer leaves no space to split at; no dummy prefix."""
    fast = sentencepiece(legacy=True)
    tokenizer = fast.backend_tokenizer
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    if joined:  # tokens of several words, which SentencePiece models have only on request
        special = ["<unk>", START, END, *BYTES]
        tokenizer.train_from_iterator(
            CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=special, max_token_length=9)
        )
    if not bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    fast.padding_side = "left"
    return fast


def unigram_with_bytes(prepend, bos=None):
    """SentencePiece's Unigram with bytes to fall back on."""
    trained = unigram().backend_tokenizer
    model = json.loads(trained.to_str())["model"]
    vocabulary = [*map(tuple, model["vocab"]), *((byte, -20.0) for byte in BYTES)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, model["unk_id"], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([START])
    if bos:
        tokenizer.post_processor = around(bos)(tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=END, padding_side="left")


def with_added(fast, **options):
    """Add words and signs to a trained vocabulary, as fine-tuned models have them."""
    fast.add_tokens([AddedToken(word, **options) for word in ("York City", "ris", "北京", "<work>", "\n\n", " the")])
    return fast


def wordpiece_uncased():
    """BERT, uncased: tokens stand for other characters than those of the text."""
    fast = wordpiece()
    fast.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    return fast


def characters():
    """One character, one token: every position can be counted by hand. BOS is token 0."""
    vocabulary = {START: 0, "<unk>": 1, **{chr(i): i for i in range(10, 0x250)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, unk_token="<unk>")


# Their tokens, decoded one after another, give exactly the text.
LOSSLESS = {
    "gpt2": gpt2,
    "byte-level": byte_level,
    "byte-level, trimmed offsets": lambda: byte_level(trim_offsets=True),
    "byte-level, bos added": lambda: byte_level(bos=START, post=around(START)),
    "byte-level, bos and eos added": lambda: byte_level(bos=START, eos=END, post=around(START, END)),
    "byte-level, ignore merges": lambda: byte_level(bos=START, ignore_merges=True),
    "qwen": qwen,
    "byte-level, prefix space": lambda: byte_level(add_prefix_space=True),
    "sentencepiece, prepend first": lambda: sentencepiece("first"),
    "sentencepiece, prepend always": lambda: sentencepiece("always"),
    "sentencepiece, prepend never": lambda: sentencepiece("never"),
    "sentencepiece, legacy": lambda: sentencepiece(legacy=True),
    "sentencepiece, eos added": lambda: sentencepiece(back=END),
    "sentencepiece, not split": lambda: sentencepiece(split=False),
    "sentencepiece, one piece": one_piece,
    "sentencepiece, one piece of joined words": lambda: one_piece(joined=True),
    "sentencepiece, one piece, no bos added": lambda: one_piece(bos=False),
    "tiktoken": tiktoken,
    "tiktoken, bos added": lambda: tiktoken("<|begin_of_text|>"),
    "unigram, dummy prefix": lambda: unigram_with_bytes("first"),
    "unigram, no dummy prefix": lambda: unigram_with_bytes("never"),
    "unigram, bos added": lambda: unigram_with_bytes("never", START),
    "added": lambda: with_added(byte_level(), normalized=False),
    "added, normalized": lambda: with_added(qwen(), normalized=True),
    "added, single words": lambda: with_added(tiktoken(), single_word=True),
    "added, sentencepiece": lambda: with_added(sentencepiece("first"), normalized=False),
    "added, one piece": lambda: with_added(one_piece(), normalized=True),
}
OTHERS = {"unigram": unigram, "wordpiece": wordpiece, "characters": characters}
# Their tokens, decoded, give other letters or spaces than those of the text.
CHANGING = {
    "wordpiece, uncased": wordpiece_uncased,
    "added, left stripped": lambda: with_added(byte_level(), lstrip=True),
    "added, right stripped": lambda: with_added(tiktoken(), rstrip=True, normalized=False),
}


@cache
def make(name):
    """Make a tokenizer once for all tests."""
    return (LOSSLESS | OTHERS | CHANGING)[name]()
