package tokenizer

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestDamagedFiles damages the bytes of tokenizers of some kinds: see requireHarmless.
func TestDamagedFiles(t *testing.T) {
	contents := map[string][]byte{"small": smallTokenizer(t)}
	for _, c := range smallTokenizers(t) {
		if slices.Contains([]string{"unigram-fallback", "llama2", "added", "affixes", "metaspace-first", "around", "library-unigram"}, c.Name) {
			contents[c.Name] = c.Tokenizer
		}
	}
	lines := []string{"Some text, 12 größer\n\n THE of [MASK]"}
	for name, content := range contents {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, path, failed := rand.New(rand.NewPCG(1, 2)), write(t, content), 0
			require.NoError(t, encodeLines(path, lines))
			for range testutil.Mutations(t) {
				if requireHarmless(t, path, testutil.Mutate(r, content), lines) != nil {
					failed++
				}
			}
			t.Logf("%d of %d are errors", failed, testutil.Mutations(t))
		})
	}
}

// TestDamagedTokenizers changes members of tokenizers of all kinds: see requireHarmless.
func TestDamagedTokenizers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := smallTokenizers(t)
	parts := map[string][]any{} // of all files
	for _, c := range all {
		var file map[string]any
		require.NoError(t, json.Unmarshal(c.Tokenizer, &file))
		for _, member := range []string{"normalizer", "pre_tokenizer", "model", "decoder", "added_tokens"} {
			parts[member] = append(parts[member], file[member])
		}
	}
	path, failed := filepath.Join(t.TempDir(), "tokenizer.json"), 0
	for i := range testutil.Mutations(t) {
		c := all[i%len(all)]
		var file map[string]any
		require.NoError(t, json.Unmarshal(c.Tokenizer, &file))
		for range 1 + r.IntN(3) {
			mutateJSON(r, file, parts)
		}
		lines := append(slices.Clone(c.Lines), "Some text, 12 größer\n\n THE of [MASK]", strings.Repeat("aa ", 200))
		if requireHarmless(t, path, testutil.Must(json.Marshal(file))(t), lines) != nil {
			failed++
		}
	}
	t.Logf("%d of %d are errors", failed, testutil.Mutations(t))
}

// requireHarmless writes the content of a tokenizer.json to path, and reads it. It gives an error that names the file, which
// requireHarmless returns, or a tokenizer that encodes and decodes lines. Nothing panics, and all takes little memory and little time.
func requireHarmless(t *testing.T, path string, content []byte, lines []string) error {
	t.Helper()
	const maxBytes, maxTime = 600 << 20, 10 * time.Second
	require.NoError(t, os.WriteFile(path, content, 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := encodeLines(path, lines)
	if err != nil {
		require.ErrorContains(t, err, path)
		require.Less(t, len(err.Error()), len(path)+1000, "%v", err)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxBytes), "%s", content)
	require.Less(t, time.Since(began), maxTime, "%s", content)
	return err
}

// encodeLines reads a tokenizer and encodes lines with it.
func encodeLines(path string, lines []string) error {
	v, err := readHuggingFace(path, "")
	if err != nil {
		return err
	}
	for _, line := range lines {
		ids, err := v.encode(nil, []byte(line))
		if err == nil {
			_, err = v.decode(ids)
		}
		if err == nil {
			v.length(ids)
			continue
		}
		return &os.PathError{Op: "text", Path: path, Err: err} // no token for unknown text
	}
	return nil
}

// mutateJSON changes one member of a tokenizer: a part becomes the part of another file, or a value inside a part becomes another value.
func mutateJSON(r *rand.Rand, file map[string]any, parts map[string][]any) {
	members := []string{"normalizer", "pre_tokenizer", "model", "decoder", "added_tokens"}
	member := members[r.IntN(len(members))]
	if r.IntN(4) == 0 {
		others := parts[member]
		file[member] = others[r.IntN(len(others))]
		return
	}
	var copied any // parts from other files
	text, _ := json.Marshal(file[member])
	d := json.NewDecoder(bytes.NewReader(text))
	_ = d.Decode(&copied)
	file[member] = mutateValue(r, copied)
}

func mutateValue(r *rand.Rand, v any) any {
	switch x := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(x))
		for k := range x {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if len(keys) == 0 || r.IntN(8) == 0 {
			return junk(r, v)
		}
		k := keys[r.IntN(len(keys))]
		switch r.IntN(12) {
		case 0:
			delete(x, k)
		case 1:
			x[k+"x"] = x[k]
		case 2:
			x[keys[r.IntN(len(keys))]] = x[k]
		default:
			x[k] = mutateValue(r, x[k])
		}
		return x
	case []any:
		if len(x) == 0 || r.IntN(8) == 0 {
			return junk(r, v)
		}
		i := r.IntN(len(x))
		switch r.IntN(8) {
		case 0:
			return append(x[:i:i], x[i+1:]...)
		case 1:
			return append(x, x[i])
		case 2:
			return append(x, x...)
		default:
			x[i] = mutateValue(r, x[i])
		}
		return x
	}
	return junk(r, v)
}

// junk returns a value that is unlikely to be valid in place of v.
func junk(r *rand.Rand, v any) any {
	text, _ := v.(string)
	number, _ := v.(float64)
	flag, _ := v.(bool)
	values := []any{
		nil, !flag, "", 0, -1, 1, number + 1, -number, 1 << 30, 1e300, -1e300, 0.5, []any{}, []any{v, v}, map[string]any{}, map[string]any{"type": v},
		text + text, text + "é\u0000", strings.Repeat("a", 5000), "##", "\ufffd", " ", "▁", `(a|aa)*b`, `(a+)+$`, `(?<=a)\s*`, `\p{L}*`, "|", "[^a]{1,1000}{1,1000}",
		"Replace", "Sequence", "Metaspace", "Unigram", "BPE", "first", "Removed", "MergedWithNext",
		map[string]any{"type": "Sequence", "normalizers": []any{v, v}, "pretokenizers": []any{v, v}, "decoders": []any{v, v}},
		map[string]any{"type": "Replace", "pattern": map[string]any{"Regex": "a*"}, "content": text + "aaaa"},
		map[string]any{"type": "Replace", "pattern": map[string]any{"String": "a"}, "content": strings.Repeat("a", 200)},
		map[string]any{"Regex": text}, map[string]any{"String": text},
	}
	return values[r.IntN(len(values))]
}
