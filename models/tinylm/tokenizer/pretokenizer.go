package tokenizer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// splitter cuts a text into words and calls word for each in order. No word is empty.
type splitter func(text []byte, word func([]byte))

// preTokenizer is a step that cuts a text into words.
type preTokenizer struct {
	split splitter // nil: the step cuts nothing
	start splitter // for a word that begins the text; nil: split
	bytes bool     // after the step, words are spelled in letters for bytes
}

// preTokenizers returns the makers of pre-tokenizers by their type in a tokenizer.json. UnicodeScripts, FixedLength and
// RandomSplit are missing.
func preTokenizers() map[string]maker[preTokenizer] {
	cut := func(how behavior, find finder, invert bool) preTokenizer {
		return preTokenizer{split: how.splitter(find, invert)}
	}
	return map[string]maker[preTokenizer]{
		"BertPreTokenizer": constant(cut(removed, findRuns(bertRuns), true)),
		"Whitespace":       constant(cut(removed, findRuns(wordRuns), true)),
		"WhitespaceSplit":  constant(cut(removed, findRunes(unicode.IsSpace), false)),
		"ByteLevel":        with(newByteLevel),
		"Metaspace":        with(newMetaspace),
		"CharDelimiterSplit": with(func(o struct {
			partType
			Delimiter string `json:"delimiter"`
		}) (p preTokenizer, err error) {
			if utf8.RuneCountInString(o.Delimiter) != 1 {
				err = fmt.Errorf("delimiter %q, want one character", o.Delimiter)
			}
			return cut(removed, findText(o.Delimiter), false), err
		}),
		"Digits": with(func(o struct {
			partType
			Individual bool `json:"individual_digits"`
		}) (preTokenizer, error) {
			if o.Individual {
				return cut(isolated, findRunes(unicode.IsNumber), false), nil
			}
			return cut(contiguous, findRunes(unicode.IsNumber), false), nil
		}),
		"Punctuation": with(func(o struct {
			partType
			Behavior behavior `json:"behavior"`
		}) (preTokenizer, error) {
			o.Behavior = cmp.Or(o.Behavior, isolated)
			return cut(o.Behavior, findRunes(isPunctuation), false), o.Behavior.check()
		}),
		"Split": with(func(o struct {
			partType
			Pattern  patternOptions `json:"pattern"`
			Behavior behavior       `json:"behavior"`
			Invert   bool           `json:"invert"`
		}) (p preTokenizer, err error) {
			if err := o.Behavior.check(); err != nil {
				return p, err
			}
			// Matches of known patterns cover every character.
			covers := o.Behavior == isolated || o.Behavior == removed && o.Invert
			if covers && o.Pattern.Regex != nil && o.Pattern.String == nil {
				if s, ok := knownPattern(*o.Pattern.Regex); ok {
					return preTokenizer{split: s.split}, nil
				}
			}
			find, err := o.Pattern.finder()
			return cut(o.Behavior, find, o.Invert), err
		}),
	}
}

// readSplitters returns the steps that cut. If one of them is ByteLevel, it returns the letters for bytes; spells says
// that it is the last one, after which words still have plain text, which is quicker. normal are the kinds of the
// normalizers of the file.
func readSplitters(
	value jsontext.Value, normal []string,
) (steps []preTokenizer, l *letters, spells bool, err error) {
	all, _, err := readParts(value, "pretokenizers", preTokenizers())
	if err != nil {
		return nil, nil, false, err
	}
	for i, s := range all {
		if s.start != nil {
			if err := checkFirst(i, normal); err != nil {
				return nil, nil, false, fmt.Errorf("type Metaspace with the prepend_scheme first behind %w", err)
			}
		}
		if s.bytes && l == nil {
			l = newLetters()
		}
		if spells = s.bytes && i == len(all)-1; s.bytes && !spells {
			s = s.spelled(l)
		}
		if s.split != nil {
			steps = append(steps, s)
		}
	}
	return steps, l, spells, nil
}

// spelled returns a step that also spells words in letters for bytes.
func (s preTokenizer) spelled(l *letters) preTokenizer {
	cut := s.split
	if cut == nil {
		cut = whole
	}
	return preTokenizer{split: func(text []byte, word func([]byte)) {
		cut(text, func(w []byte) { word(l.spell(nil, w)) })
	}}
}

// checkFirst returns an error if something before a Metaspace with the scheme "first", which is pre-tokenizer i, may
// hide which word begins the text.
func checkFirst(i int, normal []string) error {
	if i > 0 {
		return errors.New("another pre-tokenizer, want it in front")
	}
	for _, n := range normal {
		if !slices.Contains([]string{"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend"}, n) {
			return fmt.Errorf("the normalizer %s, which may remove the first character", n)
		}
	}
	return nil
}

type byteLevelOptions struct {
	partType
	AddPrefixSpace bool  `json:"add_prefix_space"`
	TrimOffsets    bool  `json:"trim_offsets"`
	UseRegex       *bool `json:"use_regex"` // null: true
}

func newByteLevel(o byteLevelOptions) (preTokenizer, error) {
	var split splitter
	if o.UseRegex == nil || *o.UseRegex {
		split = gpt2Scanner().split
	}
	if o.AddPrefixSpace && split == nil {
		split = whole
	}
	if o.AddPrefixSpace {
		split = split.withPrefix(" ")
	}
	return preTokenizer{split: split, bytes: true}, nil
}

// whole makes the whole text one word.
func whole(text []byte, word func([]byte)) { word(text) }

// withPrefix returns a splitter that first puts prefix in front of a text, if the text is not empty and does not begin
// with it.
func (s splitter) withPrefix(prefix string) splitter {
	return func(text []byte, word func([]byte)) {
		if len(text) > 0 && !bytes.HasPrefix(text, []byte(prefix)) {
			text = append([]byte(prefix), text...)
		}
		s(text, word)
	}
}

type metaspaceOptions struct {
	partType
	Replacement    string `json:"replacement"`
	PrependScheme  string `json:"prepend_scheme"`
	Split          *bool  `json:"split"`            // null: true
	AddPrefixSpace *bool  `json:"add_prefix_space"` // in old files, which have no prepend_scheme
	OldReplacement string `json:"str_rep"`          // in old files, the same as replacement
}

// scheme returns always, first or never.
func (o metaspaceOptions) scheme() (string, error) {
	if utf8.RuneCountInString(o.Replacement) != 1 {
		return "", fmt.Errorf("replacement %q, want one character", o.Replacement)
	}
	s := o.PrependScheme
	switch {
	case s == "" && o.AddPrefixSpace != nil && !*o.AddPrefixSpace:
		return "never", nil
	case s == "":
		return "always", nil
	case s != "always" && s != "first" && s != "never",
		o.AddPrefixSpace != nil && *o.AddPrefixSpace == (s == "never"):
		return "", fmt.Errorf("prepend_scheme %q, want always, first or never, as add_prefix_space says", s)
	}
	return s, nil
}

func newMetaspace(o metaspaceOptions) (preTokenizer, error) {
	scheme, err := o.scheme()
	if err != nil {
		return preTokenizer{}, err
	}
	cut := splitter(whole)
	if o.Split == nil || *o.Split {
		cut = toNext.splitter(findText(o.Replacement), false)
	}
	step := func(s splitter) splitter {
		return func(text []byte, word func([]byte)) {
			s([]byte(strings.ReplaceAll(string(text), " ", o.Replacement)), word)
		}
	}
	plain, prefixed := step(cut), step(cut.withPrefix(o.Replacement))
	switch scheme {
	case "always":
		return preTokenizer{split: prefixed}, nil
	case "first":
		return preTokenizer{split: plain, start: prefixed}, nil
	}
	return preTokenizer{split: plain}, nil
}
