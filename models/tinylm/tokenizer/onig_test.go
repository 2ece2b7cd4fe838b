package tokenizer

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

//go:embed testdata/patterns.json.gz
var pythonPatterns []byte

type pythonFile struct {
	Texts    []string
	Patterns []struct {
		Pattern string
		Pieces  [][]string // of each text; nil: the reference refuses the pattern
	}
	Sequences []struct {
		Steps  []jsontext.Value
		Pieces [][]string
	}
}

func readPython(t *testing.T) (file pythonFile) {
	r := testutil.Must(gzip.NewReader(bytes.NewReader(pythonPatterns)))(t)
	require.NoError(t, json.Unmarshal(testutil.Must(io.ReadAll(r))(t), &file))
	return file
}

// listModel gives each word an id.
type listModel struct{ words []string }

func (m *listModel) encode(e *encoder, word []byte) error {
	e.add(int32(len(m.words)))
	m.words = append(m.words, string(word))
	return nil
}

func (m *listModel) pieces() []string { return nil }
func (m *listModel) unknown() int32   { return -1 }

// TestSequencesLikePython: pre-tokenizers in any order give the words of the reference. testdata/write_patterns.py has
// written them.
func TestSequencesLikePython(t *testing.T) {
	file := readPython(t)
	require.NotEmpty(t, file.Sequences)
	for _, s := range file.Sequences {
		sequence := testutil.Must(json.Marshal(object{"type": "Sequence", "pretokenizers": s.Steps}))(t)
		m := &listModel{}
		h := &huggingFace{model: m}
		var err error
		h.steps, h.letters, h.spells, err = readSplitters(sequence, nil)
		if err != nil {
			require.ErrorContains(t, err, "prepend_scheme first behind another pre-tokenizer")
			continue
		}
		for i, want := range s.Pieces {
			e := newEncoder(h)
			e.budget = newBudget(len(file.Texts[i]))
			e.step(0, []byte(file.Texts[i]), true)
			got := []string{}
			for _, id := range e.ids {
				got = append(got, m.words[id])
			}
			require.Equal(t, strings.Join(want, "\x01"), strings.Join(got, "\x01"), "%s %q", s.Steps, file.Texts[i])
		}
	}
}

// TestPatternsLikePython: a pattern cuts texts as in the reference, or is an error. testdata/write_patterns.py has
// written the pieces.
func TestPatternsLikePython(t *testing.T) {
	file := readPython(t)
	taken, refused := 0, []string{}
	for _, p := range file.Patterns {
		find, err := patternOptions{Regex: &p.Pattern}.finder()
		if err != nil {
			if p.Pieces != nil {
				refused = append(refused, err.Error())
			}
			continue
		}
		taken++
		for i, want := range p.Pieces {
			got := []string{}
			isolated.splitter(find, false)([]byte(file.Texts[i]), func(word []byte) { got = append(got, string(word)) })
			if strings.Join(got, "\x01") != strings.Join(want, "\x01") {
				t.Errorf("%q of %q: %q, want %q", p.Pattern, file.Texts[i], got, want)
			}
		}
		require.NotNil(t, p.Pieces, "%q is taken, but the reference refuses it", p.Pattern)
	}
	require.GreaterOrEqual(t, taken, 165)
	t.Logf("%d patterns taken, refused: %s", taken, strings.Join(refused, "\n"))
}
