package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxPieceBytes bounds a token of Unigram, and so the time for a word.
const maxPieceBytes = 1024

// subwordModel is the "model" of a tokenizer.json. It turns words into tokens.
type subwordModel interface {
	// encode appends the tokens of a word, which is not empty, to those of e.
	encode(e *encoder, word []byte) error
	// pieces returns the text of each token as the file has it.
	pieces() []string
	// unknown returns the token of unknown text, -1 if there is none.
	unknown() int32
}

// subwordModels returns the makers of subword models by their type in a tokenizer.json. WordPiece and WordLevel, which
// no causal language model has, are missing.
func subwordModels() map[string]maker[subwordModel] {
	return map[string]maker[subwordModel]{
		"BPE":     with(newBPE),
		"Unigram": with(newUnigram),
	}
}

// readSubwordModel reads the member "model". Files from before 2020 name no type: it is BPE.
func readSubwordModel(value jsontext.Value) (subwordModel, error) {
	if len(value) == 0 {
		return nil, errors.New("none in the file")
	}
	p, err := readPart(value)
	if err != nil {
		return nil, err
	}
	p.kind = cmp.Or(p.kind, "BPE")
	return makePart(p, subwordModels())
}

// tokenTable has the tokens of a subword model: ids by text and texts by id.
type tokenTable struct {
	ids   map[string]int32
	texts []string
}

func (t *tokenTable) pieces() []string { return t.texts }

// vocabulary has the ids of tokens by text, as a tokenizer.json has them.
type vocabulary map[string]tokenID

// tokenID is an id that may not be null, which package json would read as 0.
type tokenID int

func (id *tokenID) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		return errors.New("id null, want a number")
	}
	return json.UnmarshalDecode(d, (*int)(id))
}

// newTokenTable makes a table from a vocabulary, which may be empty, but not missing or null. Two tokens of one id are
// an error: which of them it decodes to would be left to chance.
func newTokenTable(ids vocabulary) (tokenTable, error) {
	t := tokenTable{ids: make(map[string]int32, len(ids))}
	if ids == nil {
		return t, errors.New("no vocab")
	}
	for _, text := range slices.Sorted(maps.Keys(ids)) { // sorted, so that a file has one error
		id := int(ids[text])
		if id >= 0 && id < len(t.texts) {
			other := t.texts[id] // "" also where no token is yet
			if have, ok := t.ids[other]; ok && int(have) == id {
				return t, fmt.Errorf("tokens %q and %q have the same id %d, want one token for each id",
					other, text, id)
			}
		}
		var err error
		if t.texts, err = putPiece(t.texts, text, id, len(ids)); err != nil {
			return t, err
		}
		t.ids[text] = int32(id)
	}
	return t, nil
}

// putPiece puts a text at the index of its id. most is roughly the number of tokens.
func putPiece(texts []string, text string, id, most int) ([]string, error) {
	if id < 0 || id >= 2*most+1024 {
		return nil, fmt.Errorf("token %q has the id %d, want 0 or more, and not far above the number of tokens, %d",
			text, id, most)
	}
	for len(texts) <= id {
		texts = append(texts, "")
	}
	texts[id] = text
	return texts, nil
}

// byteTokens are the tokens <0x00> to <0xFF>, which stand for the bytes of unknown characters.
type byteTokens [256]int32

// bytes returns the tokens of bytes, or nil if not wanted.
func (t *tokenTable) bytes(wanted bool) *byteTokens {
	if !wanted {
		return nil
	}
	var all byteTokens
	for i := range all {
		id, ok := t.ids[fmt.Sprintf("<0x%02X>", i)]
		if !ok {
			id = -1
		}
		all[i] = id
	}
	return &all
}

// append appends the tokens of a text if each of its bytes has one.
func (t *byteTokens) append(ids []int32, text []byte) ([]int32, bool) {
	if t == nil {
		return ids, false
	}
	n := len(ids)
	for _, b := range text {
		if t[b] < 0 {
			return ids[:n], false
		}
		ids = append(ids, t[b])
	}
	return ids, true
}
