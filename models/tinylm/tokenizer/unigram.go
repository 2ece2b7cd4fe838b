package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// unknownPenalty is how much lower than the worst piece an unknown character scores.
const unknownPenalty = 10

// unigram cuts a word into the pieces whose scores have the largest sum, as SentencePiece does.
type unigram struct {
	tokenTable
	trie    *trie
	scores  []float64
	penalty float64 // score of an unknown character
	unk     int32   // token of an unknown character, -1: none
	bytes   *byteTokens
}

type unigramOptions struct {
	partType
	Vocab        []scored `json:"vocab"`
	Unknown      *int     `json:"unk_id"`
	ByteFallback bool     `json:"byte_fallback"`
}

// scored is a piece and its score, written in the file as ["a", -1.5].
type scored struct {
	text  string
	score float64
}

func (s *scored) UnmarshalJSON(b []byte) error {
	var values []jsontext.Value
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	if len(values) != 2 || values[0].Kind() == 'n' || values[1].Kind() == 'n' {
		return fmt.Errorf("%.100s, want a piece and its score", b)
	}
	return errors.Join(json.Unmarshal(values[0], &s.text), json.Unmarshal(values[1], &s.score))
}

func newUnigram(o unigramOptions) (subwordModel, error) {
	if len(o.Vocab) == 0 {
		return nil, errors.New("an empty vocabulary")
	}
	m := &unigram{tokenTable: tokenTable{ids: map[string]int32{}}, trie: newTrie(), unk: -1}
	lowest := o.Vocab[0].score
	for i, piece := range o.Vocab {
		if len(piece.text) > maxPieceBytes {
			return nil, fmt.Errorf("token %.20q of %d bytes, want at most %d", piece.text, len(piece.text), maxPieceBytes)
		}
		m.texts, m.scores = append(m.texts, piece.text), append(m.scores, piece.score)
		m.ids[piece.text] = int32(i)
		m.trie.add(piece.text, int32(i))
		lowest = min(lowest, piece.score)
	}
	if o.Unknown != nil {
		if *o.Unknown < 0 || *o.Unknown >= len(o.Vocab) {
			return nil, fmt.Errorf("unk_id %d, the vocabulary has %d tokens", *o.Unknown, len(o.Vocab))
		}
		m.unk = int32(*o.Unknown)
	}
	m.penalty = lowest - unknownPenalty
	m.bytes = m.tokenTable.bytes(o.ByteFallback)
	return m, nil
}

func (m *unigram) unknown() int32 { return m.unk }

// path is the best way to cut the word up to a position.
type path struct {
	score float64
	from  int // where its last piece begins, -1: no way found yet
	id    int32
}

func (m *unigram) encode(e *encoder, word []byte) error {
	if err := m.search(e, word); err != nil {
		return err
	}
	// The pieces from the last one to the first one. Unknown characters side by side are one piece.
	e.cuts = e.cuts[:0]
	for at := len(word); at > 0; at = e.paths[at].from {
		if p := e.paths[at]; p.id != m.unk || at == len(word) || e.paths[e.cuts[len(e.cuts)-1]].id != m.unk {
			e.cuts = append(e.cuts, at)
		}
	}
	from := 0
	for i := len(e.cuts) - 1; i >= 0; i-- {
		if err := m.add(e, word[from:e.cuts[i]]); err != nil {
			return err
		}
		from = e.cuts[i]
	}
	return nil
}

// search finds the best path to each position of a word.
func (m *unigram) search(e *encoder, word []byte) error {
	e.paths = append(e.paths[:0], path{})
	for range word {
		e.paths = append(e.paths, path{from: -1})
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRune(word[at:])
		score, single := e.paths[at].score, false
		better := func(length int, id int32, by float64) {
			if p := &e.paths[at+length]; p.from < 0 || score+by > p.score {
				*p = path{score + by, at, id}
			}
		}
		m.trie.walk(word[at:], func(length int, id int32) {
			better(length, id, m.scores[id])
			single = single || length == size
		})
		if !single {
			if m.unk < 0 {
				return fmt.Errorf("%q has no token, and unk_id names none for what is unknown", word[at:at+size])
			}
			better(size, m.unk, m.penalty)
		}
		at += size
	}
	return nil
}

// add adds the token of a piece, else those of its bytes, else the unknown token.
func (m *unigram) add(e *encoder, piece []byte) error {
	if id, ok := m.ids[string(piece)]; ok {
		e.add(id)
		return nil
	}
	var ok bool
	if e.ids, ok = m.bytes.append(e.ids, piece); !ok {
		e.add(m.unk)
	}
	return nil
}
