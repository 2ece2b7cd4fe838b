package corpus

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"
)

// tokenizerFile is what matters of a tokenizer.json. Truncation, padding and the post-processor, which adds tokens around a text, do not
// matter to training.
type tokenizerFile struct {
	AddedTokens []struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LeftStrip  bool   `json:"lstrip"`
		RightStrip bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
	} `json:"added_tokens"`
	Normalizer   *normalizerFile   `json:"normalizer"`
	PreTokenizer *preTokenizerFile `json:"pre_tokenizer"`
	Model        modelFile         `json:"model"`
}

type modelFile struct {
	Type         string         `json:"type"`
	Dropout      *float64       `json:"dropout"`
	Prefix       string         `json:"continuing_subword_prefix"`
	Suffix       string         `json:"end_of_word_suffix"`
	IgnoreMerges bool           `json:"ignore_merges"`
	Vocab        jsontext.Value `json:"vocab"` // ids by token; another kind of model may have a list
	Merges       jsontext.Value `json:"merges"`
}

// check returns an error for a model of another kind than byte-level BPE. Files of before 2020 name no type.
func (m modelFile) check() error {
	switch {
	case m.Type != "BPE" && !(m.Type == "" && m.Merges != nil):
		return fmt.Errorf("model of the type %q, want BPE over bytes, as of GPT-2, Llama 3 and Qwen", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model with a dropout of %g, want none", *m.Dropout)
	case m.Prefix != "" || m.Suffix != "":
		return fmt.Errorf("model with the prefix %q and the suffix %q in words, want none", m.Prefix, m.Suffix)
	}
	return nil
}

// readMerges returns the merges, which stand in the file as "a b" or as ["a", "b"].
func (t *tokenizer) readMerges(b jsontext.Value) (map[pair]merge, error) {
	var pairs [][2]string
	var lines []string
	if json.Unmarshal(b, &lines) == nil {
		for _, line := range lines {
			left, right, ok := cutSpace(line)
			if !ok {
				return nil, fmt.Errorf("merge %q, want two tokens and a space between them", line)
			}
			pairs = append(pairs, [2]string{left, right})
		}
	} else if err := json.Unmarshal(b, &pairs); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	letters := byteLetters()
	merges := make(map[pair]merge, len(pairs))
	for rank, p := range pairs {
		left, okLeft := letters.bytes(p[0])
		right, okRight := letters.bytes(p[1])
		a, okA := t.ids[left]
		b, okB := t.ids[right]
		c, okC := t.ids[left+right]
		if !okLeft || !okRight || !okA || !okB || !okC {
			return nil, fmt.Errorf("merge %d of %q and %q: they or the result are not in the vocabulary", rank, p[0], p[1])
		}
		merges[pair{int32(a), int32(b)}] = merge{rank, int32(c)}
	}
	return merges, nil
}

type normalizerFile struct {
	Type        string            `json:"type"`
	Normalizers []*normalizerFile `json:"normalizers"`
}

// forms returns the Unicode forms that are applied one after the other.
func (n *normalizerFile) forms() ([]norm.Form, error) {
	if n == nil {
		return nil, nil
	}
	switch n.Type {
	case "NFC":
		return []norm.Form{norm.NFC}, nil
	case "NFD":
		return []norm.Form{norm.NFD}, nil
	case "NFKC":
		return []norm.Form{norm.NFKC}, nil
	case "NFKD":
		return []norm.Form{norm.NFKD}, nil
	case "Sequence":
		var all []norm.Form
		for _, part := range n.Normalizers {
			forms, err := part.forms()
			if err != nil {
				return nil, err
			}
			all = append(all, forms...)
		}
		return all, nil
	}
	return nil, fmt.Errorf("type %q, want NFC, NFD, NFKC, NFKD or a sequence of them", n.Type)
}

type preTokenizerFile struct {
	Type          string              `json:"type"`
	PreTokenizers []*preTokenizerFile `json:"pretokenizers"`

	AddPrefixSpace bool  `json:"add_prefix_space"` // of ByteLevel
	UseRegex       *bool `json:"use_regex"`

	Individual bool `json:"individual_digits"` // of Digits

	Pattern struct { // of Split
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
}

// splitters returns what cuts a text into words, one after the other. The last one is ByteLevel.
func (p *preTokenizerFile) splitters() ([]splitter, error) {
	parts := []*preTokenizerFile{p}
	if p != nil && p.Type == "Sequence" {
		parts = p.PreTokenizers
	}
	var all []splitter
	for i, part := range parts {
		if part == nil || (part.Type == "ByteLevel") != (i == len(parts)-1) {
			return nil, errors.New("want ByteLevel in the end and nowhere else")
		}
		s, err := part.splitter()
		if err != nil {
			return nil, err
		}
		all = append(all, s...)
	}
	if len(parts) == 0 {
		return nil, errors.New("an empty sequence, want ByteLevel in the end")
	}
	return all, nil
}

func (p *preTokenizerFile) splitter() ([]splitter, error) {
	switch p.Type {
	case "ByteLevel":
		var all []splitter
		if p.AddPrefixSpace {
			all = append(all, prefixSpace)
		}
		if p.UseRegex == nil || *p.UseRegex {
			all = append(all, scanner{gpt2: true}.split)
		}
		return all, nil
	case "Digits":
		if p.Individual {
			return splitPattern(`\p{N}`)
		}
		return splitPattern(`\p{N}+`)
	case "Split":
		if p.Behavior != "Isolated" || p.Invert || p.Pattern.Regex == nil {
			return nil, fmt.Errorf("split of behavior %q, inverted %t, want Isolated, not inverted, with a regular expression", p.Behavior, p.Invert)
		}
		return splitPattern(*p.Pattern.Regex)
	}
	return nil, fmt.Errorf("type %q, want ByteLevel, Digits or Split", p.Type)
}
