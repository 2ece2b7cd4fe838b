package corpus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestSkippedFiles(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{
		"a.go": []byte("one"), "b.go.gz": []byte("two"), "sub/c.go": []byte("three"),
		"d.txt": []byte("x"), "e.md.zst": []byte("x"), "empty.go": nil, "binary.go": []byte("a\x00b"),
		"binary.go.gz": []byte("\x00"),
		"latin.go":     []byte("gr\xf6\xdfer"),
	})
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Symlink("sub", filepath.Join(folder, "link.go")))
	}
	for _, heldOut := range []int{0, 1 << 20} {
		c := open(t, folder, Options{Ext: ".go", HeldOut: heldOut}, 1000)
		s := Shape{Batch: 1, Seq: 100}
		texts := textsOf(t, epochOf(t, c, s, Cursor{}))
		if heldOut == 0 {
			require.Equal(t, []string{"gr\xf6\xdfer", "one", "three", "two"}, texts)
		}
		epochOf(t, c, s, Cursor{}) // a second epoch counts nothing again
		want := []Skipped{{"binary", 2, "binary.go"}, {"empty", 1, "empty.go"}, {"not a regular file", 1, "link.go"},
			{"other extension", 2, "d.txt"}}
		if runtime.GOOS == "windows" {
			want = slices.Delete(want, 2, 3)
		}
		got := c.Skipped()
		got[0].Example = "binary.go" // the example depends on the order of an epoch
		require.Equal(t, want, got)
		require.Equal(t, 6, c.Files())
	}
	tokenizer := writeFiles(t, map[string][]byte{"tokenizer.json": smallTokenizer(t)})
	c := open(t, folder, Options{Ext: ".go", HeldOut: 1 << 20, Tokenizer: filepath.Join(tokenizer, "tokenizer.json")},
		1000)
	require.Contains(t, c.Skipped(), Skipped{"not UTF-8", 1, "latin.go"})
}

// A file without a document counts as empty, whatever its format, and once.
func TestEmptyFiles(t *testing.T) {
	zeros := numpyBytes(nil, 2)
	for name, content := range map[string][]byte{
		"a.txt": nil, "a.txt.gz": nil, "a.jsonl.zst": nil, "blank.jsonl": []byte("\n \n"),
		"mark.txt": []byte("\ufeff"), "mark.jsonl": []byte("\ufeff\n"),
		"a.bin": llmcBytes(nil), "a.bin.gz": llmcBytes(nil), "a.npy": zeros, "a.npy.zst": zeros,
		"separator.npy": numpyBytes([]int32{0}, 2),
		"a.parquet":     parquetBytes(t, nil, 1),
	} {
		folder := writeFiles(t, map[string][]byte{name: content})
		more, text := "more.txt", []byte("some text")
		if f, err := describe(name, name, 0, ""); err == nil && f.isTokens() {
			more, text = "more.npy", numpyBytes([]int32{1, 2, 3, 4}, 2)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, more), text, 0o644))
		for _, heldOut := range []int{0, 1 << 20} {
			c := testutil.Must(Open(t.Context(), folder, Options{HeldOut: heldOut}))(t)
			epochOf(t, c, Shape{Batch: 1, Seq: 2}, Cursor{})
			require.Equal(t, []Skipped{{"empty", 1, name}}, c.Skipped())
		}
	}
}

func TestByteOrderMarks(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{
		"a.jsonl":    []byte("\ufeff{\"text\": \"one\"}\r\n{\"text\": \"\ufefftwo\"}\n"),
		"b.jsonl.gz": []byte("\ufeff{\"text\": \"three\"}"),
		"c.txt":      []byte("\ufefffour\ufeff"), "d.txt.zst": []byte("\ufefffive"),
	})
	c := open(t, folder, Options{}, 1000)
	require.Equal(t, sorted([]string{"one", "\ufefftwo", "three", "four\ufeff", "five"}),
		textsOf(t, epochOf(t, c, Shape{Batch: 1, Seq: 100}, Cursor{})))
}

func TestBrokenFiles(t *testing.T) {
	good := testutil.Documents(50, 50, 1)
	header := func(change func(b []byte)) []byte {
		b := llmcBytes(good)
		change(b)
		return b
	}
	cut := func(b []byte, n int) []byte { return b[:len(b)-n] }
	array := numpyBytes(joined(good), 2)
	for name, c := range map[string]struct {
		file    string
		content []byte
		want    string
	}{
		"short .gz": {"a.txt.gz", cut(compress(t, bytes.Repeat([]byte("text "), 100), ".gz"), 5), "unexpected EOF"},
		"no .gz":    {"a.txt.gz", []byte("text and more text"), "unpack: gzip: invalid header"},
		".gz and more": {"a.txt.gz", append(compress(t, []byte("text"), ".gz"), "more"...),
			"behind byte 4 of the content: unexpected EOF"},
		"short .zst": {"a.txt.zst", cut(compress(t, bytes.Repeat([]byte("text "), 100), ".zst"), 5),
			"unpack: behind byte"},
		"bomb .gz":       {"a.txt.gz", compress(t, bytes.Repeat([]byte("a"), 100<<20), ".gz"), "expand to more than"},
		"bomb .zst":      {"a.txt.zst", compress(t, bytes.Repeat([]byte("a"), 200<<20), ".zst"), "expand to more than"},
		"no Parquet":     {"a.parquet", bytes.Repeat([]byte("text "), 100), `ends with`},
		"short Parquet":  {"a.parquet", cut(parquetBytes(t, good, 10), 10), "parquet"},
		"packed Parquet": {"a.parquet.gz", parquetBytes(t, good, 10), "unpack the .gz"},
		"no magic":       {"a.bin", header(func(b []byte) { b[0]++ }), "magic number 20240521, want 20240520 or 20240801"},
		"other version":  {"a.bin", header(func(b []byte) { b[4]++ }), "version 2"},
		"more tokens":    {"a.bin", header(func(b []byte) { b[8]++ }), "want"},
		"short header":   {"a.bin", make([]byte, 100), "100 bytes, want 1024"},
		"negative count": {"a.bin", header(func(b []byte) { b[11] = 0xff }), "want version 1 with 0 or more"},
		"large token": {"a.bin", header(func(b []byte) { binary.LittleEndian.PutUint16(b[1024+2*7:], 300) }),
			"token 7: 300, the vocabulary has 256"},
		"short array":     {"a.npy", cut(array, 1), "want"},
		"short .npy.gz":   {"a.npy.gz", compress(t, cut(array, 2), ".gz"), "2 bytes of tokens are missing"},
		"long .npy.gz":    {"a.npy.gz", compress(t, append(slices.Clone(array), 0, 0), ".gz"), "data behind the last token"},
		"two dimensions":  {"a.npy", bytes.Replace(array, []byte(",)"), []byte(",1"), 1), "one dimension"},
		"int64":           {"a.npy", bytes.Replace(array, []byte("<u2"), []byte("<i8"), 1), "array of <i8, want uint8"},
		"high byte first": {"a.npy", bytes.Replace(array, []byte("<u2"), []byte(">u2"), 1), "array of >u2"},
		"no array":        {"a.npy", []byte("text and more text"), "NumPy"},
		"huge header":     {"a.npy", []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"), "want at most"},
		"empty":           {"a.txt", nil, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.file)
			require.NoError(t, os.WriteFile(path, c.content, 0o644))
			err := readAll(t, path)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestFolderErrors(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{"a.txt": []byte("a"), "b.npy": numpyBytes([]int32{1, 2}, 1),
		"sub/c.go": []byte("c")})
	for _, c := range []struct{ path, ext, want string }{
		{folder, ".rs", `has no file whose name ends in ".rs": 3 skipped as other extension`},
		{folder, "", "text (a.txt) and tokens (b.npy)"},
		{filepath.Join(folder, "none"), "", "none"},
		{os.DevNull, "", "neither a file nor a folder"},
	} {
		require.ErrorContains(t, openError(t, c.path, Options{Ext: c.ext}), c.want)
	}
	require.ErrorContains(t, openError(t, folder, Options{HeldOut: -1}), "-1 held-out tokens")
	require.ErrorContains(t, openError(t, folder, Options{Separator: "x"}), "without a tokenizer")
}

// Hidden files and the folders of runs are left out of a folder, and read where they are named.
func TestHiddenFilesAndRuns(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{
		".git/config": []byte("hidden"), ".DS_Store": []byte("hidden"), "a.txt": []byte("one"),
		"sub/config.yaml": []byte("two"), "sub/.x": nil,
		"runs/1/config.yaml": []byte("run"), "runs/1/run.json": []byte("run"), "runs/1/events.jsonl": []byte("{}\n"),
		"runs/killed/.lock": nil, "runs/killed/events.jsonl": []byte("{}\n"),
	})
	s := Shape{Batch: 1, Seq: 100}
	t.Chdir(folder)
	for _, path := range []string{folder, "."} {
		c := open(t, path, Options{}, 1000)
		require.Equal(t, []string{"one", "two"}, textsOf(t, epochOf(t, c, s, Cursor{})))
		require.Equal(t, []Skipped{{"a run's folder", 2, "runs/1"}, {"hidden", 3, ".DS_Store"}}, c.Skipped())
	}
	for _, path := range []string{".git", ".DS_Store"} {
		c := open(t, path, Options{}, 1000)
		require.Equal(t, []string{"hidden"}, textsOf(t, epochOf(t, c, s, Cursor{})))
	}
	c := open(t, filepath.Join("runs", "1"), Options{}, 1000)
	require.Equal(t, []string{"run"}, textsOf(t, epochOf(t, c, s, Cursor{})))
	require.Equal(t, []Skipped{{"neither text nor messages", 1, "run.json"}, {`without "text"`, 1, "events.jsonl"}},
		c.Skipped())
}

func TestLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need rights")
	}
	folder := writeFiles(t, map[string][]byte{"blobs/1f": []byte("{\"text\": \"one\"}\n"), "blobs/2f": nil,
		"links/a.txt": []byte("two")})
	for name, to := range map[string]string{
		"a.jsonl": "../blobs/1f", "chain.jsonl": "a.jsonl", "empty.jsonl": "../blobs/2f", "folder": "../blobs",
		"none.jsonl": "../blobs/3f", "self": "self",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(folder, "links", name)))
	}
	c := open(t, filepath.Join(folder, "links"), Options{}, 1000)
	require.Equal(t, []string{"one", "one", "two"}, textsOf(t, epochOf(t, c, Shape{Batch: 1, Seq: 100}, Cursor{})))
	require.Equal(t, []Skipped{{"a broken link", 2, "none.jsonl"}, {"empty", 1, "empty.jsonl"},
		{"not a regular file", 1, "folder"}}, c.Skipped())
}

// Chunks are the same whether they are read one after the other or each by itself. Together they are the stream.
func TestChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		text := make([]byte, r.IntN(3000))
		for i := range text {
			text[i] = "abc\n"[min(3, r.IntN(4+r.IntN(100)))]
		}
		c := cutter{size: 1 + r.IntN(500), near: 1 + r.IntN(100), begin: lineStart}
		c.near = min(c.near, c.size)
		var all, one [][]byte
		for p, err := range c.chunks(bytes.NewReader(text), false, false) {
			require.NoError(t, err)
			require.Equal(t, text[p.at:p.at+len(p.bytes)], p.bytes)
			all = append(all, bytes.Clone(p.bytes))
		}
		require.Equal(t, string(text), string(bytes.Join(all, nil)))
		for from := 0; from < len(text); from += c.size {
			for p, err := range c.chunks(bytes.NewReader(text[from:]), from > 0, true) {
				require.NoError(t, err)
				one = append(one, bytes.Clone(p.bytes))
			}
		}
		require.Equal(t, all, one)
	}
}

// Large files are cut in the same places and have as many bytes, whether they are compressed or not.
func TestLargeText(t *testing.T) {
	text := bytes.Repeat([]byte("A line of größer text, some more of it.\n"), 2*textChunk/30)
	var want []string
	for _, name := range []string{"a.txt", "a.txt.gz"} {
		got, _ := readTexts(t, name, text, "")
		require.Equal(t, string(text), strings.Join(got, ""))
		require.Len(t, got, len(text)/textChunk+1)
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
		for _, d := range got {
			require.True(t, strings.HasSuffix(d, "\n"))
		}
	}
}

// TestRangesOfLines: ranges of a file of lines have the documents of the whole file, wherever they begin.
func TestRangesOfLines(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		content := jsonl(t, testutil.Documents(40, 300, r.Uint64()))
		for range 20 { // line breaks and damaged lines
			at := r.IntN(len(content))
			content = slices.Insert(content, at, []byte([]string{"\n", "\r\n", "\n \n", "{", "\xff"}[r.IntN(5)])...)
		}
		path := filepath.Join(writeFiles(t, map[string][]byte{"a.jsonl": content}), "a.jsonl")
		f := file{path: path, size: int64(len(content)), format: jsonLines, field: defaultField}
		read := func(u unit) (texts []string) {
			for d, err := range readLines(f, u) {
				require.NoError(t, err)
				texts = append(texts, d.skip+string(d.text))
			}
			return texts
		}
		var got []string
		for from := int64(0); from < f.size; {
			u := unit{from: from, to: min(f.size, from+1+r.Int64N(2000))}
			got, from = append(got, read(u)...), u.to
		}
		require.Equal(t, read(unit{to: f.size}), got)
	}
}

// A line that is too long is skipped, in the range in which it begins. Its end is not looked for in the rest of the
// file.
func TestRangeInsideOfALongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	const size = 1 << 30
	require.NoError(t, os.Truncate(path, size)) // zeros that take no room
	for from := range int64(3) {
		var got []string
		for d, err := range readLines(file{path: path, size: size, format: jsonLines, field: defaultField},
			unit{from: from * unitBytes, to: (from + 1) * unitBytes}) {
			require.NoError(t, err)
			got = append(got, d.skip)
		}
		require.Len(t, got, int(max(0, 1-from)))
		require.Equal(t, strings.Repeat(reasonLong, len(got)), strings.Join(got, ""))
	}
}

// Files written by pyarrow have the right texts.
func TestParquetOfPython(t *testing.T) {
	paths := testutil.Must(filepath.Glob(filepath.Join(pythonParquet(t), "*.parquet")))(t)
	require.Len(t, paths, 30)
	var want []string
	for i := range 100 {
		n := i
		if i%5 == 1 {
			n--
		}
		if i%7 != 6 {
			want = append(want, fmt.Sprintf("document %d ", n)+strings.Repeat("word ", i%9))
		}
	}
	for _, path := range paths {
		c := open(t, path, Options{}, 1<<20)
		require.Equal(t, sorted(want), textsOf(t, epochOf(t, c, Shape{Batch: 1, Seq: 1 << 20}, Cursor{})), path)
		require.Equal(t, []Skipped{{"null", 14, filepath.Base(path)}}, c.Skipped())
	}
}

// formats writes the same documents in all formats.
func formats(t *testing.T, documents []string) map[string]map[string][]byte {
	half := len(documents) / 2
	text := map[string][]byte{}
	for i, d := range documents {
		text[fmt.Sprintf("%02d/%04d.txt%s", i%7, i, []string{"", ".gz", ".zst"}[i%3])] = []byte(d)
	}
	return map[string]map[string][]byte{
		"text":      text,
		"jsonl":     {"a.jsonl": jsonl(t, documents[:half]), "b.jsonl": jsonl(t, documents[half:])},
		"jsonl.gz":  {"a.jsonl.gz": jsonl(t, documents)},
		"jsonl.zst": {"a.jsonl.zst": jsonl(t, documents)},
		"parquet": {"a.parquet": parquetBytes(t, documents[:half], 7), "b.parquet": parquetBytes(t,
			documents[half:], 1000)},
		"mixed":        {"a.parquet": parquetBytes(t, documents[:half], 50), "b.jsonl.gz": jsonl(t, documents[half:])},
		"llm.c":        {"a.bin": llmcBytes(documents[:half]), "b.bin.gz": llmcBytes(documents[half:])},
		"numpy uint8":  {"a.npy": numpyBytes(joined(documents), 1)},
		"numpy uint16": {"a.npy": numpyBytes(joined(documents), 2)},
		"numpy uint32": {"a.npy.zst": numpyBytes(joined(documents), 4)},
	}
}

func TestFormatsGiveTheSameDocuments(t *testing.T) {
	s := Shape{Batch: 1, Seq: 1 << 20}
	for seed := range uint64(testutil.Tries(t, 1, 2)) {
		documents := testutil.Documents(300, 200, seed)
		var textHeld []string // the same for all formats of text
		for name, files := range formats(t, documents) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				folder := writeFiles(t, files)
				c := open(t, folder, Options{Seed: seed}, 1<<20)
				require.Equal(t, sorted(documents), textsOf(t, epochOf(t, c, s, Cursor{})))

				c = open(t, folder, Options{Seed: seed, HeldOut: 1 << 30}, 1<<20)
				require.Equal(t, splitHash, c.split.Kind)
				train := textsOf(t, epochOf(t, c, s, Cursor{}))
				batches := testutil.Must(c.HeldOut(s, 0))(t)
				held := textsOf(t, batches)
				require.Equal(t, sorted(documents), sorted(append(train, held...)))
				require.Equal(t, len(strings.Join(held, " "))+1, c.held.tokens.len())
				if !strings.HasPrefix(name, "numpy") && !strings.HasPrefix(name, "llm.c") {
					if textHeld == nil {
						textHeld = held
					}
					require.Equal(t, textHeld, held)
				}
			})
		}
	}
}
