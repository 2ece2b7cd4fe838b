"""Writes small tokenizers as tokenizer.json and as the metadata that a GGUF file of it would have, with texts and their tokens by Python: with
special tokens found ("ids") and with all text plain ("plain"). For llama the latter are those of SentencePiece.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python write_gguf.py gguf.jsonl.gz
"""

import gzip
import io
import json
import random
import sys
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"]
USER = ["<think>", "</think>"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ODD = ["日本語", "größe", "e\u0301", "😀👍🏽", "👨‍👩‍👧", "한국", "\u00a0", "\u3000", "\r\n", "\n\n\n", "\t", "    ", "x²½Ⅷ", "1234567", "3.14", "0x1F", "don't", "WE'LL", "if (a[i] != 0) {\n\treturn -1;\n}", "def f(x):\n    return x",
       "https://example.org/a?b=c&d", "a_b-c", "\"quoted\"", "...", "—", "½", "\u200d", "\ufeff", "ﬁ", "İ", "مرحبا", "नमस्ते", "$100", "<b>", "▁", "Ġ", "<0x0A>", "\\n", "~|`^+="]
LOOKS = SPECIAL + USER + ["<|im_end", "|im_end|>", "<|im_end|><|im_start|>", "<|IM_END|>", "< |im_end|>", "<|im_<|im_end|>end|>", "<s>", "</s>", "<unk>", "<|end|", "<|endof"]
WORDS = "the of and a to in is you that it he for was on are as with his they at be this have from or one had by word but not what all were we when your can said".split()


def texts(r, n):
    """Returns n texts, half of them with words."""
    out = ["", " ", "\n", "a", " a ", "<|im_end|>", "user <|im_end|>\n<|im_start|>system\n"] + LOOKS + ODD
    while len(out) < n:
        parts = [r.choice(r.choice([WORDS, WORDS, WORDS, ODD, LOOKS])) for _ in range(r.randint(1, 12))]
        out.append("".join(p + r.choice([" ", " ", "", "  ", "\n", ", "]) for p in parts))
    return [t for t in out if not any(unicodedata.category(c) == "Cn" for c in t)]


def byte_level():
    """Returns the pre-tokenizer, the normalizer and further options of each name of pre."""
    level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    split = lambda *patterns: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [level(False)])
    yield "smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(True)]), None, {}
    yield "gpt-2", level(True), None, {}
    yield "llama-bpe", split(LLAMA3), None, {"ignore_merges": True}
    yield "qwen2", split(LLAMA3.replace("{1,3}", "")), normalizers.NFC(), {}
    yield "default", split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), None, {}


def case(pre, words, normalizer, options, training, lines):
    t = Tokenizer(models.BPE(**options))
    t.pre_tokenizer, t.decoder = words, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(training, trainers.BpeTrainer(vocab_size=360, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken(u, normalized=False, special=False) for u in USER])
    if pre == "llama-bpe":
        t.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", t.token_to_id("<|im_start|>"))])
    file = json.loads(t.to_str())
    merges = [" ".join(m) for m in file["model"]["merges"]]
    tokens = [t.id_to_token(i) for i in range(t.get_vocab_size())]
    kinds = [3 if x in SPECIAL else 4 if x in USER else 1 for x in tokens]
    ids = [e.ids for e in t.encode_batch(lines, add_special_tokens=False)]
    t.encode_special_tokens = True
    plain = [e.ids for e in t.encode_batch(lines, add_special_tokens=False)]
    gguf = {"Model": "gpt2", "Pre": pre, "Tokens": tokens, "Types": kinds, "Merges": merges, "BOS": t.token_to_id("<|im_start|>"), "EOS": t.token_to_id("<|im_end|>")}
    return {"name": pre, "gguf": gguf, "tokenizer": file, "lines": lines, "ids": ids, "plain": plain}


def llama(prefix, training, lines):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(training), model_writer=model, model_type="bpe", vocab_size=500, byte_fallback=True, character_coverage=0.98, add_dummy_prefix=prefix,
                                             remove_extra_whitespaces=False, normalization_rule_name="identity", user_defined_symbols=USER, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = range(sp.get_piece_size())
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 4 if sp.id_to_piece(i) in USER else 1 for i in n]
    gguf = {"Model": "llama", "Pre": "default", "Tokens": [sp.id_to_piece(i) for i in n], "Types": kinds, "Scores": [sp.get_score(i) for i in n], "BOS": 1, "EOS": 2, "Unknown": 0, "AddSpacePrefix": prefix}
    lines = [x for x in lines if not any(u in x for u in USER) and "\0" not in x]  # SentencePiece has no prefix behind these
    t = llama_file(gguf, prefix)
    ids = [e.ids for e in t.encode_batch(lines, add_special_tokens=False)]
    return {"name": f"llama prefix {prefix}", "gguf": gguf, "tokenizer": json.loads(t.to_str()), "lines": lines, "ids": ids, "plain": [sp.encode(x) for x in lines]}


def llama_file(gguf, prefix):
    """Returns the tokenizer.json that Llama 2 has of such a vocabulary."""
    vocab, score = {x: i for i, x in enumerate(gguf["Tokens"])}, dict(zip(gguf["Tokens"], gguf["Scores"]))
    merges = [(x[:i], x[i:]) for x, k in zip(gguf["Tokens"], gguf["Types"]) if k == 1 for i in range(1, len(x)) if x[:i] in vocab and x[i:] in vocab]
    merges.sort(key=lambda m: -score[m[0] + m[1]])
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + [decoders.Strip(" ", 1, 0)] * prefix)
    t.add_special_tokens([AddedToken(x, normalized=False, special=True) for x in ("<unk>", "<s>", "</s>")])
    return t


def main(path):
    r = random.Random(1)
    lines = texts(r, 220)
    training = [" ".join(r.choice(WORDS) for _ in range(12)) for _ in range(200)] + texts(r, 300)
    with gzip.GzipFile(path, "wb", mtime=0) as f:
        cases = [case(*c, training, lines) for c in byte_level()] + [llama(p, [x.replace("\n", " ") for x in training], lines) for p in (True, False)]
        for c in cases:
            f.write(json.dumps(c, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
