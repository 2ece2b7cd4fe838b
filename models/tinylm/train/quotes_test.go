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
)

// hostileText is what a file may hold to fill or to command a terminal: megabytes, escape sequences, line breaks, marks of direction.
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

// TestErrorsQuoteLittle: whatever the files of a run or a model hold, errors and warnings about them are short and printable.
func TestErrorsQuoteLittle(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	testutil.Must(runArgs(t, tinyArgs(t, "-out "+whole)...))(t)
	long := strings.Repeat(hostileText, (1<<16)/len(hostileText))
	quoted := string(testutil.Must(json.Marshal(long))(t))
	tensors := func(header string) string {
		return fmt.Sprintf("%s%s", []byte{byte(len(header)), byte(len(header) >> 8), byte(len(header) >> 16), byte(len(header) >> 24), 0, 0, 0, 0}, header)
	}
	rows := string(testutil.Must(os.ReadFile(filepath.Join(whole, runlog.StepsFile)))(t))
	step := filepath.Join(checkpointFolder, checkpointName(6))
	for file, texts := range map[string][]string{
		optionsFile: {
			long, quoted, "steps: " + quoted, quoted + `: 1`, "lr: !!" + long,
			"tokenizer: /" + strings.Repeat("x", 1<<16), "attention: " + quoted,
		},
		runFile:          {long, quoted, `{"processes":` + quoted + `}`, `{"processes":[{"kernels":` + quoted + `}]}`, `{"processes":[{"options":"data: ` + quoted[1:] + `}]}`},
		checksumsFile:    {long, long + " " + modelFile, strings.Repeat("x", 1<<16) + "  " + modelFile},
		runlog.StepsFile: {long, strings.Repeat("x,", 1<<16), "step,time\n" + long, rows + strings.Repeat("\x1b", 900) + ",,,,,,,,,", rows + long},
		modelFile: {
			tensors(`{` + quoted + `:{}}`), tensors(`{"a":{"dtype":` + quoted + `,"shape":[],"data_offsets":[0,0]}}`),
			tensors(`{"__metadata__":{"config":` + quoted + `}}`), tensors(quoted), long,
		},
		step + "/" + stateFile: {
			long, `{` + quoted + `:1}`, `{"step":` + quoted + `}`, `{"step":6,` + quoted + `:1}`, `{"step":6,"cursor":{"data":` + quoted + `}}`,
		},
	} {
		for i, text := range texts[:min(len(texts), testutil.Tries(t, 2, len(texts)))] {
			what, folder := fmt.Sprintf("%s %d", file, i), filepath.Join(t.TempDir(), "run")
			require.NoError(t, os.CopyFS(folder, os.DirFS(whole)))
			require.NoError(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644))
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
