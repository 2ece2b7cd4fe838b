"""Trains small tokenizers and writes them, lines of text and their ids to a folder: what the tests compare with.

    pip install tokenizers pyarrow
    python train_tokenizers.py FOLDER [LINES [VOCABULARY]]
"""

import json
import random
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ODD = ["größe naïve café", "日本語のテキスト 漢字", "Привет, мир!", "مرحبا بالعالم", "👩‍👩‍👧‍👦 🇩🇪 👍🏽", "e\u0301 a\u0308\u0323 ﬁ ①½Ⅷ",
       "\u200b \ufeff \u00a0nbsp\u3000", "tabs\t\tand  spaces   ", "I'm you're we'LL THEY'D can'T it'ſ", "1234567890 3.14 1,000",
       "\u2028line\u2029para\x85nel", "한국어", "\U0001F600\U00010348\U0002070E", "x" * 70, " leading", "trailing ", "   ", "a\r\nb\rc",
       "<|endoftext|>mid<|endoftext|>", "\x01\x02\x7f", "'s's''s", "नमस्ते ไทย", "!!!???...---", "\n\n\n  \n x", "foo_bar __init__ $x #z"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which".split()


def lines(r, n):
    """Returns n different kinds of lines."""
    all = list(ODD)
    while len(all) < n:
        kind = r.random()
        if kind < 0.5:
            words = (r.choice(WORDS) + r.choice(["", "s", "ing", "ed", "'s", "ly"]) for _ in range(r.randint(1, 20)))
            line = "".join(w + r.choice([" ", " ", " ", ", ", ". ", "\t", "\n", " 42 ", "  "]) for w in words)
        elif kind < 0.8:
            line = r.choice(["", " "]).join(r.choice(ODD) for _ in range(r.randint(1, 3)))
        else:
            sets = [(1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x1FAFF), (32, 32), (32, 32), (10, 10), (39, 39)]
            line = "".join(chr(r.randint(*r.choice(sets))) for _ in range(r.randint(1, 30)))
            line = "".join(c for c in line if unicodedata.category(c) != "Cn")
        if line:
            all.append(line)
    return all


def tokenizers():
    """Returns empty tokenizers by name."""
    split, level = pre_tokenizers.Split, pre_tokenizers.ByteLevel
    llama3 = [split(Regex(LLAMA3), "isolated"), level(add_prefix_space=False, use_regex=False)]
    qwen = [split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), level(add_prefix_space=False, use_regex=False)]
    other = [split(Regex(r"\p{Lu}?\p{Ll}+|\p{Han}| ?[^\s]|\s+"), "isolated"), level(add_prefix_space=False, use_regex=False)]
    digits = [pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)]
    make = {
        "gpt2": (level(add_prefix_space=False), None),
        "prefix": (level(add_prefix_space=True), None),
        "llama3": (pre_tokenizers.Sequence(llama3), None),
        "qwen": (pre_tokenizers.Sequence(qwen), normalizers.NFC()),
        "other": (pre_tokenizers.Sequence(other), None),
        "digits": (pre_tokenizers.Sequence(digits), None),
    }
    for name, (words, normalizer) in make.items():
        t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        t.pre_tokenizer, t.decoder = words, decoders.ByteLevel()
        if normalizer:
            t.normalizer = normalizer
        yield name, t


def main(folder, n=10_000, size=1000):
    r = random.Random(1)
    text = lines(r, n)
    json.dump(text, open(f"{folder}/lines.json", "w"))
    special = ["<|endoftext|>", "<|end"]
    for name, t in tokenizers():
        t.train_from_iterator(text[:500], trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        t.save(f"{folder}/{name}.json", pretty=False)
        json.dump([e.ids for e in t.encode_batch(text, add_special_tokens=False)], open(f"{folder}/{name}.ids.json", "w"))
    for name, t in {"wordpiece": Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), "unigram": Tokenizer(models.Unigram([("a", 0.0)])),
                    "characters": Tokenizer(models.BPE({"a": 0}, []))}.items():
        t.save(f"{folder}/refused-{name}.json")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
