package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// hostileText is what a file may hold to fill or to command a terminal: megabytes, escape sequences, line breaks, marks
// of direction.
const hostileText = "\x1b]0;title\x07\x1b[2J\r\n\u202egnp.exe\u009b31m\xff\x00"

// requireFit checks that a message is short, without the paths that the test has named, and printable.
func requireFit(t testing.TB, text, what string, paths ...string) {
	t.Helper()
	for _, path := range paths {
		text = strings.ReplaceAll(text, path, "PATH")
	}
	require.LessOrEqual(t, len(text), 1<<10, "%s: %.2000q", what, text)
	require.Equal(t, -1, strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), "%s: %q", what, text)
}

// TestErrorsQuoteLittle: whatever the files of a run or a model hold, errors and warnings about them are short and
// printable.
func TestErrorsQuoteLittle(t *testing.T) {
	t.Parallel()
	whole := newRun(t, tinyArgs(t)...)
	long := strings.Repeat(hostileText, (1<<16)/len(hostileText))
	quoted := string(testutil.Must(json.Marshal(long))(t))
	tensors := func(header string) string {
		return fmt.Sprintf("%s%s", []byte{byte(len(header)), byte(len(header) >> 8), byte(len(header) >> 16),
			byte(len(header) >> 24), 0, 0, 0, 0}, header)
	}
	rows := read(t, whole, runlog.StepsFile)
	step := filepath.Join(checkpointFolder, checkpointName(6))
	for file, texts := range map[string][]string{
		optionsFile: {
			long, quoted, "steps: " + quoted, quoted + `: 1`, "lr: !!" + long,
			"tokenizer: /" + strings.Repeat("x", 1<<16), "attention: " + quoted,
		},
		runFile: {long, quoted, `{"processes":` + quoted + `}`, `{"processes":[{"kernels":` + quoted + `}]}`,
			`{"processes":[{"options":"data: ` + quoted[1:] + `}]}`},
		checksumsFile: {long, long + " " + modelFile, strings.Repeat("x", 1<<16) + "  " + modelFile},
		runlog.StepsFile: {long, strings.Repeat("x,", 1<<16), "step,time\n" + long, rows + strings.Repeat("\x1b", 900) +
			",,,,,,,,,", rows + long},
		modelFile: {
			tensors(`{` + quoted + `:{}}`), tensors(`{"a":{"dtype":` + quoted + `,"shape":[],"data_offsets":[0,0]}}`),
			tensors(`{"__metadata__":{"config":` + quoted + `}}`), tensors(quoted), long,
		},
		step + "/" + stateFile: {
			long, `{` + quoted + `:1}`, `{"step":` + quoted + `}`, `{"step":6,` + quoted + `:1}`,
			`{"step":6,"cursor":{"data":` + quoted + `}}`,
		},
	} {
		for i, text := range texts[:min(len(texts), testutil.Tries(t, 2, len(texts)))] {
			what, folder := fmt.Sprintf("%s %d", file, i), copyOf(t, whole)
			write(t, filepath.Join(folder, file), text)
			if filepath.Dir(file) == step {
				require.NoError(t, writeChecksums(filepath.Join(folder, step), checkpointFiles()...))
			}
			if file == modelFile {
				require.NoError(t, writeChecksums(folder, modelFile, configFile))
			}
			found, err := FindModel(folder)
			if err == nil {
				_, _, err = found.Open("")
			}
			if err != nil {
				requireFit(t, err.Error(), what, folder)
			}
			if file == modelFile || file == checksumsFile {
				continue
			}
			var said bytes.Buffer
			o, err := Parse([]string{"-resume", folder, "-steps", "7"}, io.Discard)
			if err == nil {
				_, err = Run(t.Context(), o, &said)
			}
			if err != nil {
				requireFit(t, err.Error(), what, folder)
			}
			for line := range strings.Lines(said.String()) {
				if strings.HasPrefix(line, "warning: ") {
					requireFit(t, strings.TrimSuffix(line, "\n"), what, folder)
				}
			}
		}
	}
}

// TestDataErrorsQuoteLittle: the same of data, tokenizers and the names of files.
func TestDataErrorsQuoteLittle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(hostileText, (1<<16)/len(hostileText))
	quoted := string(testutil.Must(json.Marshal(long))(t))
	for name, texts := range map[string][]string{
		"a.jsonl": {long, quoted, `{"text":` + quoted + `,"text":1}`, `{` + quoted + `:1}`, `{"text":{"a":` +
			quoted + `}}`, "{}\n" + long},
		"a.parquet": {long, "PAR1" + long + "PAR1"},
		"a.npy": {long, "\x93NUMPY\x01\x00\xff\xff" + long, "\x93NUMPY\x01\x00\x76\x00" +
			fmt.Sprintf("%-118s", "{'descr': '"+hostileText+"'}")},
		"a.bin":           {long},
		"a.gz":            {long, "\x1f\x8b\x08\x18" + long},
		"a.zst":           {long},
		"\x1b[2J\n.jsonl": {"{", `{"text":1}`, ""},
		strings.Repeat("\x1b", 60) + strings.Repeat("n", 180) + ".jsonl": {"{"},
	} {
		for i, text := range texts {
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
				t.Skip(err) // not every system has such names
			}
			_, err := corpus.Open(t.Context(), folder, corpus.Options{HeldOut: 10})
			if err != nil {
				requireFit(t, err.Error(), fmt.Sprintf("%q %d", name, i), folder)
			}
		}
	}
	const vocabulary = `"vocab":{"[UNK]":0,"[SEP]":1}`
	for i, text := range []string{
		long, quoted, `{"model":` + quoted + `}`, `{"model":{"type":` + quoted + `}}`,
		`{"model":{"type":"BPE","merges":[],"unk_token":` + quoted + `,` + vocabulary + `}}`,
		`{"model":{"type":"BPE","merges":[],"vocab":{` + quoted + `:-1}}}`,
		`{"model":{"type":"BPE","merges":[],"vocab":{` + quoted +
			`:1,"a":1}}}`,
		`{"model":{"type":"BPE","merges":[` + quoted + `],` + vocabulary + `}}`, `{"model":{"type":"BPE","merges":[],` +
			vocabulary + `},"normalizer":{"type":` + quoted + `}}`,
		`{"added_tokens":[{"content":` + quoted + `}],"model":{"type":"BPE","merges":[],` + vocabulary + `}}`,
		`{"model":{"type":"BPE","merges":[],` + vocabulary + `},"pre_tokenizer":{"type":"Split","pattern":{"Regex":` + quoted +
			`},"behavior":` + quoted + `}}`,
		`{"model":{"type":"BPE","merges":[],` + vocabulary + `},"pre_tokenizer":{"type":"Metaspace","replacement":` + quoted + `}}`,
		`{"model":{"type":"BPE","merges":[],` + vocabulary + `},"decoder":{"type":"Strip","content":` + quoted + `}}`,
	} {
		path := filepath.Join(t.TempDir(), "tokenizer.json")
		write(t, path, text)
		k, err := tokenizer.Open(path, "")
		if err == nil {
			_, err = k.Encode(hostileText)
		}
		require.Error(t, err, i)
		requireFit(t, err.Error(), fmt.Sprint("tokenizer ", i), path)
	}
}
