package tokenizer

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestDamagedTokenizers changes members of tokenizers of all kinds, and damages bytes: see requireHarmless.
func TestDamagedTokenizers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := smallTokenizers(t)
	var files []map[string]json.RawMessage
	for _, c := range all {
		files = append(files, map[string]json.RawMessage{})
		require.NoError(t, json.Unmarshal(c.Tokenizer, &files[len(files)-1]))
	}
	path, failed := filepath.Join(t.TempDir(), "tokenizer.json"), 0
	for i := range 2 * testutil.Mutations(t) {
		c, file := all[i%len(all)], maps.Clone(files[i%len(all)])
		for range 1 + r.IntN(2) {
			member := []string{"normalizer", "pre_tokenizer", "model", "decoder", "added_tokens"}[r.IntN(5)]
			if r.IntN(4) == 0 {
				file[member] = files[r.IntN(len(files))][member]
			} else {
				file[member] = mutateJSON(r, file[member])
			}
		}
		content := testutil.Must(json.Marshal(file))(t)
		if i%4 == 0 {
			content = testutil.Mutate(r, c.Tokenizer)
		}
		lines := append(slices.Clone(c.Lines), "Some text, 12 größer\n\n THE of [MASK]", strings.Repeat("aa ", 200))
		if requireHarmless(t, path, content, lines) != nil {
			failed++
		}
	}
	t.Logf("%d of %d are errors", failed, 2*testutil.Mutations(t))
}

// requireHarmless writes the content of a tokenizer.json to path, and reads it. It gives an error that names the file,
// which requireHarmless returns, or a tokenizer that encodes and decodes lines. Nothing panics, and all takes little
// memory and little time.
func requireHarmless(t *testing.T, path string, content []byte, lines []string) error {
	t.Helper()
	const maxBytes, maxTime = 600 << 20, 10 * time.Second
	require.NoError(t, os.WriteFile(path, content, 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := encodeLines(t, path, lines)
	if err != nil {
		require.ErrorContains(t, err, path)
		require.Less(t, len(err.Error()), len(path)+1000, "%v", err)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxBytes), "%s", content)
	require.Less(t, time.Since(began), maxTime, "%s", content)
	return err
}

// encodeLines reads a tokenizer and encodes lines with it. The tokens are in the vocabulary and have a text.
func encodeLines(t *testing.T, path string, lines []string) error {
	v, err := readHuggingFace(path, "")
	if err != nil {
		return err
	}
	for _, line := range lines {
		ids, err := v.encode([]int32{-1}, []byte(line), nil)
		if err == nil {
			require.True(t, utf8.ValidString(line))
			require.EqualValues(t, -1, ids[0], "encode appends")
			ids = ids[1:]
			require.False(t, slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || int(id) >= len(v.pieces) }))
			require.Len(t, appendTokens(v.tokenizer(), ids), v.tokenizer().TextLen(ids))
			_, err = v.decode(ids)
		}
		if err != nil {
			return &os.PathError{Op: "text", Path: path, Err: err} // no token for unknown text
		}
	}
	return nil
}

// jsonToken is a string, a number or a word, and the comma behind it.
var jsonToken = regexp.MustCompile(`("(?:[^"\\]|\\.)*"|-?[0-9][-+.eE0-9]*|true|false|null)(,?)`)

// mutateJSON replaces a token of a value by one that is unlikely to be valid there, doubles it or drops it.
func mutateJSON(r *rand.Rand, value json.RawMessage) json.RawMessage {
	tokens := jsonToken.FindAllSubmatchIndex(value, -1)
	if len(tokens) == 0 {
		return value
	}
	at := tokens[r.IntN(min(len(tokens), 1+r.IntN(len(tokens))))] // more often one in front of a vocabulary
	token, by := value[at[2]:at[3]], []byte(nil)
	switch r.IntN(8) {
	case 0:
		by = slices.Concat(token, []byte(","), token)
	case 1:
		at[3] = at[1]
	default:
		by, _ = json.Marshal(junk(r, token))
	}
	changed := slices.Concat(value[:at[0]], by, value[at[3]:])
	if !json.Valid(changed) {
		return mutateJSON(r, value)
	}
	return changed
}

// junk returns a value that is unlikely to be valid in place of a token.
func junk(r *rand.Rand, token json.RawMessage) any {
	text, number := strings.Trim(string(token), `"`), 0.0
	_ = json.Unmarshal(token, &number)
	values := []any{
		nil, true, false, "", 0, -1, 1, number + 1, -number, 1 << 30, 1e300, -1e300, 0.5, []any{}, []any{token, token},
		map[string]any{}, map[string]any{"type": token}, text + text, text + "é\u0000", strings.Repeat("a", 5000),
		"##", "\ufffd",
		" ", "▁", `(a|aa)*b`, `(a+)+$`, `(?<=a)\s*`, `\p{L}*`, "|", "[^a]{1,1000}{1,1000}",
		"Replace", "Sequence", "Metaspace", "Unigram", "BPE", "first", "Removed", "MergedWithNext",
		map[string]any{"type": "Sequence", "normalizers": []any{token}, "pretokenizers": []any{token},
			"decoders": []any{token}},
		map[string]any{"type": "Replace", "pattern": map[string]any{"Regex": "a*"}, "content": text + "aaaa"},
		map[string]any{"type": "Replace", "pattern": map[string]any{"String": "a"}, "content": strings.Repeat("a", 200)},
		map[string]any{"Regex": text}, map[string]any{"String": text},
	}
	return values[r.IntN(len(values))]
}
