"""Writes how tokenizers cuts texts by regular expressions, as the pieces of each text, or null for a pattern that it refuses, and the pieces
by random sequences of pre-tokenizers.

    pip install tokenizers==0.23.3
    python write_patterns.py | gzip -9n > patterns.json.gz
"""

import json
import random
import sys

from tokenizers import Regex, pre_tokenizers

patterns = r"""
a++b|. ; a*+a|. ; a?+a ; (?:ab)++. ; a{2}+ ; a{1,2}+b ; a{2,}?. ; a{,2} ; a{,2}b ; a{1,} ; a{ ; a{x} ; a{1 ; {a ; a{2}{2} ; a+*b ; a*? ; (?:a|b)+? ; a?? ; a+?+
^a ; ^. ; .$ ; \s+$ ; ^$ ; ^ ; $ ; \Aa ; a\z ; \s\Z ; \Z ; \z ; \A ; \bb ; \b\w ; \w\b ; \Ba ; \b ; \B
[^(\s|[.,!?])]+ ; [a-z&&[^b]]+ ; [a-z&&[^aeiou]&&[^x]]+ ; [a-z&&b-y&&[^c]]+ ; [^a-z&&[^b]]+ ; [^[^a-c]] ; [[^a]b]+ ; [[a][^a]]+ ; [a[b[c]]]+ ; [\p{L}&&[^\p{Lu}]]+ ; [\p{L}&&\p{Ll}]+
[^\p{L}&&\s]+ ; [\p{Han}]+ ; [^\P{L}]+ ; [\P{L}a]+ ; [\Wa]+ ; [\Sa]+ ; [\D1]+ ; [\H]+ ; [\h]+ ; \h+ ; \H+ ; []a]+ ; [^]a]+ ; [a-] ; [-a]+ ; [a\-z]+ ; [a&&]+ ; [&a]+ ; [a&b]+ ; [a^]+ ; [.]+
[[:alpha:]]+ ; [[:^alpha:]]+ ; [[:alnum:]_]+ ; [^[:space:]]+ ; [[:upper:]]+ ; [[:lower:]]+ ; [[:punct:]]+ ; [[:digit:]]+ ; [[:xdigit:]]+ ; [[:word:]]+ ; [[:blank:]]+ ; [[:cntrl:]]+ ; [[:ascii:]]+ ; [[:^digit:][:space:]]+
\p{Alpha}+ ; \p{^Alpha}+ ; \P{Alnum}+ ; \p{letter}+ ; \p{Uppercase_Letter} ; \p{han}+ ; \p{Greek}+ ; \p{White_Space}+ ; \p{L}\p{M}* ; \p{Latin}+ ; \p{Punct}+ ; \p{Any}+ ; \pL ; \p{Foo} ; \p{ L }+ ; \p{^Lu}+ ; \P{^Lu}+
(?i:AB)+ ; (?i)ab|C ; a(?i)b|c ; (?i:k)+ ; (?i:s)+ ; (?i:[a-c])+ ; (?i:[^a])+ ; (?i:\p{Lu})+ ; (?i:[\p{Lu}])+ ; (?i:ß)+ ; (?i:ä|É)+ ; (?i:a(?-i:b)) ; (?-i:a) ; (?m:.)+ ; .+ ; (?x: a b # c
 ) ; (?x)a\ b ; (?s:a) ; (?im:A.)
(?>a|ab)b? ; (?>a+)b ; (?<=a)b ; (?<!a)b ; (?=b). ; (?!b). ; (?<n>a)b ; (a)(b) ; (?#c)a ; a(?#c)* ; (?~ab) ; (a)\1 ; (?<n>a)\k<n> ; (?<n>a)\g<n> ; \Ga ; a\Kb ; \X ; \R+ ; \N+ ; \O+ ; (?:) ; (a ; a) ; * ; [a ; \\ ; a|*
\x41+ ; \x{1F600} ; \x{41}b ; \u0041 ; \101 ; \0 ; \t ; \n+ ; \a ; \e ; \v ; \f ; \cA ; \C-a ; [\x41-\x{43}]+ ; [\n\t ]+ ; [\b] ; \j ; \é ; \_ ; \- ; \/ ; [\j] ; [\e] ; \x ; \xe9 ; [a-\d] ; [\d-a]+ ; [z-a] ; [a-c-e]+ ; [[a]-c]+
's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 ?[^(\s|[.,!?…。，、।۔،])]+
[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+
[\r\n] ; \s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-Ρ]+ ; \s?[!-/:-~！-／：-～‘-‟　-。]+ ; \s+$ ; [一-龥ࠀ-一가-퟿]+ ; [0-9][0-9][0-9]
[A-Za-z]+|[^A-Za-z\s]+(?=\s|\Z)|\s
'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s
[!\"#$%&'()*+,\-./:<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
(?=(\d{3})+(?!\d)) ; \d{1,3}(?=(?:\d{3})*\b) ; [^\S\n]+ ; [^[^a-z]\d]+ ; [^\P{L}\p{Lu}]+ ; [\S&&\P{N}]+ ; [a-z&&[^aeiou]]+|[[:upper:]&&[^A-M]]+
[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
"""
texts = [
    "ab aab  abb\naxb a{2} A{B}", "aaaa abab\n\nba\n", "", "\n", " a \r\n b\u2028c\u0085d\x0b", "It's 1234,5 o'CLOCK, he'LL re'ſ K\u212aſs", "Größe É straße ŒUVRE \u0130ı",
    "漢字abc日本 ひらかな 한국어, Ελλάδα ΣΑΣ ς\u0345", "a\u0301e\u0308 \u0915\u094d\u0937 \U0001f600\u200d x\u00a0y\u3000z\ufeff", "tab\there \x07\x1b\x08\x00 \\ / _-^]&|[.]() $+<=>~`", "x² ½ Ⅷ ⓐ 🄰 ٣ \u0e33",
    "jé'_ \u00e9 101 A\x41Bb 0 cde a-c [a] z9  ", "aab\naa bb\n c  \n\n",
]
parts = []
for line in patterns.strip("\n").replace("# c\n", "# c\0").split("\n"):
    parts += [p.replace("\0", "\n") for p in line.split(" ; ")]
out = []
for pattern in parts:
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        out.append({"pattern": pattern, "pieces": [[p for p, _ in split.pre_tokenize_str(t)] for t in texts]})
    except Exception as e:
        print(repr(pattern), e, file=sys.stderr)
        out.append({"pattern": pattern, "pieces": None})
P, r, sequences = pre_tokenizers, random.Random(1), []
kinds = [lambda: P.ByteLevel(add_prefix_space=r.random() < .5, use_regex=r.random() < .5), lambda: P.Digits(r.random() < .5), P.Whitespace, P.WhitespaceSplit,
         P.BertPreTokenizer, lambda: P.Punctuation(r.choice(["removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"])),
         lambda: P.Metaspace(r.choice("▁_"), r.choice(["always", "first", "never"]), r.random() < .5), lambda: P.CharDelimiterSplit(r.choice("a ")),
         lambda: P.Split(Regex(r.choice(["[0-9][0-9][0-9]", "\\s+$", "Ġ?a+", "[^b]", "$", "b*"])), r.choice(["removed", "isolated", "merged_with_next"]), r.random() < .3)]
for _ in range(400):
    steps = [r.choice(kinds)() for _ in range(r.randint(1, 4))]
    sequences.append({"steps": [json.loads(s.__getstate__()) for s in steps],
                      "pieces": [[p for p, _ in P.Sequence(steps).pre_tokenize_str(t)] for t in texts]})
json.dump({"texts": texts, "patterns": out, "sequences": sequences}, sys.stdout, ensure_ascii=True)
