"""Trains small tokenizers and writes them, lines of text and their ids to a folder: what the tests compare with.

    pip install tokenizers
    python train_tokenizers.py FOLDER [LINES [VOCABULARY]]
    python train_tokenizers.py small tokenizers.jsonl.gz    # what the tests compare with where Python is absent
"""

import gzip
import json
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.implementations import ByteLevelBPETokenizer, CharBPETokenizer, SentencePieceBPETokenizer, SentencePieceUnigramTokenizer

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


def byte_level():
    """Returns empty tokenizers of byte-level BPE by name."""
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


def kinds(text, size):
    """Returns trained tokenizers of other kinds by name."""
    P, N, D, M, T = pre_tokenizers, normalizers, decoders, models, trainers
    bert = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]

    plain = [line for line in text if line.isascii()][:500]  # Unigram needs a vocabulary with all characters

    def make(model, trainer, normalizer=None, words=None, decoder=None):
        t = Tokenizer(model)
        for name, part in {"normalizer": normalizer, "pre_tokenizer": words, "decoder": decoder}.items():
            if part:
                setattr(t, name, part)
        t.train_from_iterator(plain if isinstance(model, M.Unigram) else text[:500], trainer)
        return t

    def bpe(**options):
        return T.BpeTrainer(vocab_size=size, special_tokens=bert, show_progress=False, limit_alphabet=size // 3, **options)

    yield "quicktour", make(M.BPE(unk_token="[UNK]"), bpe(), words=P.Whitespace())
    for name, words in {
        "spaces": P.WhitespaceSplit(), "punctuation": P.Sequence([P.WhitespaceSplit(), P.Punctuation()]), "contiguous": P.Punctuation("contiguous"),
        "digits-runs": P.Sequence([P.Digits(), P.Whitespace()]), "delimiter": P.CharDelimiterSplit("e"),
        "metaspace-always": P.Metaspace(), "metaspace-first": P.Metaspace(prepend_scheme="first"),
        "metaspace-never": P.Metaspace(prepend_scheme="never", split=False), "bert-words": P.BertPreTokenizer(),
        "previous": P.Split(" ", "merged_with_previous"), "next": P.Split(Regex(r"\s"), "merged_with_next"),
        "removed": P.Split(Regex(r"\d+|[^\w\s]"), "removed"), "inverted": P.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True),
        "runs": P.Split(Regex(r"[aeiou,. ]"), "contiguous"), "around": P.Split(Regex(r"(?<=[a-z])(?=[A-Z\s])|\W"), "isolated"),
        "inverted-next": P.Split(Regex(r"\p{L}+"), "merged_with_next", invert=True)}.items():
        yield name, make(M.BPE(unk_token="[UNK]"), bpe(), words=words)
    yield "fused", make(M.BPE(unk_token="[UNK]", fuse_unk=True), bpe(), words=P.Whitespace())
    yield "no-unknown", make(M.BPE(), bpe(), words=P.Whitespace())
    yield "affixes", make(M.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                          bpe(continuing_subword_prefix="##", end_of_word_suffix="</w>"), words=P.Whitespace(), decoder=D.BPEDecoder("</w>"))
    yield "characters", make(M.BPE(unk_token="[UNK]", end_of_word_suffix="</w>", fuse_unk=True), bpe(end_of_word_suffix="</w>"),
                             N.BertNormalizer(), P.BertPreTokenizer(), D.BPEDecoder("</w>"))
    yield "byte-level-alphabet", make(M.BPE(), bpe(), words=P.ByteLevel(add_prefix_space=False), decoder=D.ByteLevel())
    llama = json.loads(make(M.BPE(unk_token="[UNK]", byte_fallback=True, fuse_unk=True), bpe(), N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), P.Split("▁", "merged_with_next"),
        D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])).to_str())
    llama["pre_tokenizer"] = None
    for b in range(256):
        llama["model"]["vocab"][f"<0x{b:02X}>"] = len(llama["model"]["vocab"])
    yield "llama2", Tokenizer.from_str(json.dumps(llama))
    yield "lower", make(M.BPE(unk_token="[UNK]"), bpe(), N.Sequence([N.NFD(), N.Lowercase()]), P.Whitespace())
    yield "compatible", make(M.BPE(unk_token="[UNK]"), bpe(), N.Sequence([N.NFKC(), N.Strip()]), P.Whitespace())
    yield "decomposed", make(M.BPE(unk_token="[UNK]"), bpe(), N.Sequence([N.NFKD(), N.Replace(Regex(r"\s+"), " "), N.Strip(left=False)]), P.Whitespace())
    yield "cased", make(M.BPE(unk_token="[UNK]"), bpe(), N.BertNormalizer(lowercase=False), P.BertPreTokenizer())
    def unigram(**options):
        return T.UnigramTrainer(vocab_size=size, show_progress=False, **options)
    eos = {"special_tokens": ["<unk>", "<s>", "</s>"], "unk_token": "<unk>"}
    yield "unigram", make(M.Unigram(), unigram(**eos), N.Sequence([N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(), D.Metaspace())
    yield "unigram-whole", make(M.Unigram(), unigram(**eos), None, P.Metaspace(split=False, prepend_scheme="first"), D.Metaspace())
    yield "unigram-bytes", make(M.Unigram(), unigram(special_tokens=["<PAD>", "<BOS>", "<EOS>"], initial_alphabet=P.ByteLevel.alphabet()), N.NFKC(), P.ByteLevel(), D.ByteLevel())
    u = json.loads(make(M.Unigram(), unigram(**eos), None, P.Metaspace()).to_str())
    u["model"]["byte_fallback"] = True
    u["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    u["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    yield "unigram-fallback", Tokenizer.from_str(json.dumps(u))
    added = make(M.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), bpe(end_of_word_suffix="</w>"), N.BertNormalizer(), P.BertPreTokenizer(), D.BPEDecoder("</w>"))
    added.add_tokens([AddedToken("THE", normalized=True), AddedToken("ing", single_word=True, normalized=False), AddedToken("42", lstrip=True, rstrip=True, normalized=False),
                      AddedToken("of", lstrip=True, normalized=True), AddedToken("größe", rstrip=True, normalized=True)])
    yield "added", added
    for name, prefix in {"library-bytes": ByteLevelBPETokenizer, "library-characters": CharBPETokenizer, "library-sentence": SentencePieceBPETokenizer, "library-unigram": SentencePieceUnigramTokenizer}.items():
        t = prefix()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        more = {"unk_token": "<unk>"} if name == "library-unigram" else {}
        t.train_from_iterator(plain if name == "library-unigram" else text[:500], vocab_size=size, special_tokens=special, show_progress=False, **more)
        yield name, t._tokenizer


def trained(text, size):
    """Returns all tokenizers by name."""
    made = {}
    for name, t in byte_level():
        t.train_from_iterator(text[:500], trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>", "<|end"], show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        made[name] = t
    made.update(kinds(text, size))
    return made


def main(folder, n=10_000, size=1000):
    text = lines(random.Random(1), n)
    json.dump(text, open(f"{folder}/lines.json", "w"))
    made = trained(text, size)
    for name, t in made.items():
        t.save(f"{folder}/{name}.json", pretty=False)
        ids = [e.ids for e in t.encode_batch(text, add_special_tokens=False)]
        json.dump(ids, open(f"{folder}/{name}.ids.json", "w"))
        json.dump(t.decode_batch(ids, skip_special_tokens=False), open(f"{folder}/{name}.text.json", "w"))
    json.dump(sorted(made), open(f"{folder}/names.json", "w"))


def small(path):
    """Writes small tokenizers with a few lines to one file, for tests without Python."""
    text = lines(random.Random(1), 500)
    with gzip.GzipFile(path, "wb", mtime=0) as f:
        for name, t in trained(text, 265).items():
            ids = [e.ids for e in t.encode_batch(text[:40], add_special_tokens=False)]
            case = {"name": name, "tokenizer": json.loads(t.to_str()), "lines": text[:40], "ids": ids, "texts": t.decode_batch(ids, skip_special_tokens=False)}
            f.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "small":
        small(sys.argv[2])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
