package corpus

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// readTexts returns the texts of a file with the given content, in order, and what is skipped.
func readTexts(t *testing.T, name string, content []byte, field string) (texts []string, skipped []Skipped) {
	t.Helper()
	path := filepath.Join(writeFiles(t, map[string][]byte{name: content}), name)
	c := testutil.Must(Open(t.Context(), path, Options{TextField: field}))(t)
	for _, u := range c.units {
		for d, err := range c.source.documents(t.Context(), u) {
			require.NoError(t, err)
			if d.skip == "" {
				texts = append(texts, string(d.text))
			}
		}
	}
	return texts, c.Skipped()
}

// TestJSONLReadsTextAlone: what is not read does not decide whether a text is used.
func TestJSONLReadsTextAlone(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 100_000)
	for name, line := range map[string]string{
		"plain":                   `{"title":"ok","text":"good"}`,
		"lone surrogate":          `{"title":"cut \ud83d","text":"good"}`,
		"not UTF-8":               "{\"author\":\"Ren\xe9\",\"text\":\"good\"}",
		"name that is not UTF-8":  "{\"Ren\xe9\":1,\"\\ud800\":2,\"text\":\"good\"}",
		"repeated name":           `{"tag":"a","tag":"b","text":"good"}`,
		"repeated inside":         `{"meta":{"a":1,"a":2},"text":"good"}`,
		"NaN of Python":           `{"a":NaN,"b":-Infinity,"c":[Infinity,NaN],"text":"good"}`,
		"numbers":                 `{"a":1e999999,"b":` + strings.Repeat("9", 5000) + `,"c":0123,"d":+.5,"text":"good"}`,
		"control character":       "{\"a\":\"tab\there\",\"text\":\"good\"}",
		"unknown escape":          `{"a":"\q\u12","text":"good"}`,
		"words":                   `{"a":None,"b":undefined,"text":"good"}`,
		"text inside of another":  `{"a":{"text":"x"},"b":["text","}",{"text":1}],"text":"good"}`,
		"text in a string":        `{"a":"\"text\":\"x\"}","text":"good"}`,
		"deep, closed":            `{"a":` + deep + strings.Repeat(`]}`, 100_000) + `,"text":"good"}`,
		"deep behind":             `{"text":"good","a":` + deep + strings.Repeat(`]}`, 100_000) + `}`,
		"zero byte":               "{\"a\":\"\x00\",\"text\":\"good\"}",
		"white space":             " \t{ \"a\" : [ ] , \"text\" : \"good\" } \r",
		"escaped name":            `{"te\u0078t":"good"}`,
		"the last of two texts":   `{"text":"first","text":"good"}`,
		"the last, not the wrong": `{"text":null,"text":"good"}`,
		"a string":                `"good"`,
	} {
		t.Run(name, func(t *testing.T) {
			texts, skipped := readTexts(t, "a.jsonl", []byte(line+"\n\n"+line+"\r\n \n"+line), "")
			require.Equal(t, []string{"good", "good", "good"}, texts)
			require.Empty(t, skipped)
		})
	}
}

// TestJSONLSkips: a line without a text that can be used is skipped and counted, and the others are read.
func TestJSONLSkips(t *testing.T) {
	for line, want := range map[string]string{
		`{"text":"a\ud83d"}`:        reasonUTF8,
		"{\"text\":\"Ren\xe9\"}":    reasonUTF8,
		`{"text":"a\u0000b"}`:       reasonBinary,
		`{"text":""}`:               reasonEmpty,
		`{"text":[]}`:               reasonEmpty,
		`{"text":null}`:             reasonNull,
		`{"text":"x","text":null}`:  reasonNull,
		`{"text":1}`:                reasonNoText,
		`{"text":{"text":"x"}}`:     reasonNoText,
		`{"text":["x"]}`:            reasonNoText,
		`{"Text":"x"}`:              `without "text"`,
		`{}`:                        `without "text"`,
		`text`:                      reasonJSON,
		`{"text":"a`:                reasonJSON,
		`{"text":"a"`:               reasonJSON,
		`{"text":"a"}}`:             reasonJSON,
		`{"text":"a"} {"text":"b"}`: reasonJSON,
		`{"text" "a"}`:              reasonJSON,
		`{"text":}`:                 reasonJSON,
		`{"a":1 "text":"a"}`:        reasonJSON,
		`{"a":[1,"text":"a"}`:       reasonJSON,
		`{text:"a"}`:                reasonJSON,
		`["a","b"]`:                 reasonJSON,
		`7`:                         reasonJSON,
		`null`:                      reasonJSON,
		`{"text":"\q"}`:             reasonJSON,
		"{\"text\":\"a\tb\"}":       reasonJSON,
		"\ufeff" + `{"text":"a mark behind the start"}`: reasonJSON,
	} {
		t.Run(fmt.Sprintf("%.30q", line), func(t *testing.T) {
			for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
				texts, skipped := readTexts(t, name, []byte("{\"text\":\"one\"}\n"+line+"\n{\"text\":\"two\"}"), "")
				require.Equal(t, []string{"one", "two"}, texts)
				require.Equal(t, []Skipped{{want, 1, name}}, skipped)
			}
		})
	}
}

// TestTooLongLines: a line or value that is too long is skipped, and those behind it are read.
func TestTooLongLines(t *testing.T) {
	testutil.FullOnly(t)
	var b strings.Builder
	for i := 0; b.Len() <= documentBytes; i++ {
		fmt.Fprintf(&b, "%d and more ", i) // which does not expand too much
	}
	long := `{"text":"` + b.String() + `"}`
	for name, format := range map[string]string{
		"a.jsonl": "%s\n%s\n%s", "a.jsonl.gz": "%s\n%s\n%s", "a.json": "[%s,%s,%s]", "a.json.zst": "[%s, %s, %s]",
	} {
		texts, skipped := readTexts(t, name, fmt.Appendf(nil, format, `{"text":"one"}`, long, `{"text":"two"}`), "")
		require.Equal(t, []string{"one", "two"}, texts, name)
		require.Equal(t, []Skipped{{reasonLong, 1, name}}, skipped)
	}
}

// TestTextFields: the option names a field inside of others, or messages, which become text.
func TestTextFields(t *testing.T) {
	for _, c := range []struct{ field, value, want string }{
		{"body", `{"text":"x","body":"good"}`, "good"},
		{"document.body", `{"document":{"title":"x","body":"good"},"body":"x"}`, "good"},
		{"document.body", `{"document.body":"good"}`, "good"},
		{"a.b.c", `{"a":{"b.c":"good"}}`, "good"},
		{"a.b", `{"a":{"b":"first"},"a":{"b":"good"}}`, "good"},
		{"messages", `{"messages":[{"role":"user","content":"Hi\nyou"},{"content":"Hello","x":1,"role":"assistant"}]}`, "user: Hi\nyou\n\nassistant: Hello"},
		{"text", `{"text":[{"from":"human","value":"Hi"}]}`, "human: Hi"},
		{"a.messages", `{"a":{"messages":[{"role":"tool","content":null}]}}`, "tool: "},
		{"messages", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","url":"x"},"b"]}]}`, "user: ab"},
	} {
		for name, content := range map[string]string{
			"a.jsonl": c.value + "\n" + c.value, "a.ndjson": c.value + "\r\n" + c.value,
			"a.JSONL":    c.value + "\n" + c.value + "\n",
			"lines.json": c.value + "\n" + c.value, "list.json": "[" + c.value + ",\n" + c.value + "]",
			"indented.json": indent(t, "["+c.value+","+c.value+"]"), "values.json": indent(t, c.value) + indent(t, c.value),
			"a.json.GZ": "\ufeff [ " + c.value + " , " + c.value + " ] ", "a.NDJSON.zst": c.value + "\n" + c.value,
		} {
			if strings.Contains(c.value, `"a":{"b":"first"}`) && strings.Contains(content, "\n  ") {
				continue // indented without the first one
			}
			texts, skipped := readTexts(t, name, []byte(content), c.field)
			require.Equal(t, []string{c.want, c.want}, texts, "%s %s", name, content)
			require.Empty(t, skipped)
		}
	}
	folder := writeFiles(t, map[string][]byte{"a.txt": []byte("text")})
	require.ErrorContains(t, openError(t, folder, Options{TextField: "body"}), `text field "body", but neither JSON nor`)
	_, skipped := readTexts(t, "a.jsonl", []byte(`{"messages":[{"role":"user"}]}`), "messages")
	require.Equal(t, []Skipped{{reasonNoText, 1, "a.jsonl"}}, skipped)
}

func indent(t *testing.T, text string) string {
	var value any
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	b := testutil.Must(json.MarshalIndent(value, "", "  "))(t)
	return string(b)
}

// TestJSONValues: a list has texts, or objects with the field. What is damaged is skipped and counted.
func TestJSONValues(t *testing.T) {
	for content, want := range map[string]string{
		`["a", "b,]", ""]`:                         "a|b,]",
		`[{"text":"a"},{"text":"b"}]`:              "a|b",
		`[{"text":"a"},{"text":1},{"x":2},["c"]]`:  "a",
		`[{"text":"a"},{"text":"b`:                 "a",
		`[{"text":"a"},7,null,true,{"text":"b"} ]`: "a|b",
		`{"text":"a"}`:                             "a",
		`"a" "b"`:                                  "a|b",
		`// no JSON`:                               "",
		`["a", x:"b", "c"]`:                        "a|c",
		`[]`:                                       "",
		"{\n\"text\":\"a\"\n}\n{\n\"text\":\"b\"\n}":   "a|b",
		"{\"text\":\"a\"}\n{damaged\n{\"text\":\"b\"}": "a|b",
	} {
		texts, _ := readTexts(t, "a.json", []byte(content), "")
		require.Equal(t, want, strings.Join(texts, "|"), "%q", content)
	}
}

// TestMissingField: if no record has the field, the error lists the fields that there are.
func TestMissingField(t *testing.T) {
	for name, content := range map[string][]byte{
		"a.jsonl": []byte(`{"title":"x","doc":{"body":"a b c","id":1}}`),
		"a.json":  []byte(`[{"title":"x","doc":{"body":"a b c","id":1}}]`),
	} {
		path := filepath.Join(writeFiles(t, map[string][]byte{name: content}), name)
		err := openError(t, path, Options{HeldOut: 100})
		require.ErrorIs(t, err, errNothing)
		require.ErrorContains(t, err, `1 skipped as without "text"`)
		require.ErrorContains(t, err, `["title" "doc" "doc.body" "doc.id"]`)
		texts, _ := readTexts(t, name, content, "doc.body")
		require.Equal(t, []string{"a b c"}, texts)
	}
}

// TestLongTexts: a long text is cut like plain text, in any format, and takes little more memory than its line.
func TestLongTexts(t *testing.T) {
	text := strings.Repeat("A line of größer text, some more of it.\n", testutil.Tries(t, 10, 63)<<20/43)
	want, _ := readTexts(t, "a.txt", []byte(text), "")
	require.Greater(t, len(want), 2)
	line := jsonl(t, []string{text})
	var before, after runtime.MemStats
	for name, content := range map[string][]byte{"a.jsonl": line, "a.json": append(append([]byte("["), line...), ']')} {
		path := filepath.Join(writeFiles(t, map[string][]byte{name: content}), name)
		c := testutil.Must(Open(t.Context(), path, Options{}))(t)
		runtime.GC()
		runtime.ReadMemStats(&before)
		i, most := 0, uint64(0)
		for d, err := range c.source.documents(t.Context(), c.units[0]) {
			require.NoError(t, err)
			require.Equal(t, want[i], string(d.text))
			if i++; i%2 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&after)
				most = max(most, after.HeapAlloc-before.HeapAlloc)
			}
		}
		require.Len(t, want, i)
		require.Less(t, int64(most), c.ReaderBytes()-2*blockBytes, name)
	}
}

// TestPipes: a data file that becomes a pipe is an error and blocks nothing.
func TestPipes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no named pipes")
	}
	for _, name := range []string{"a.txt", "a.jsonl", "a.json", "a.parquet", "a.npy", "a.txt.gz"} {
		content := map[string][]byte{"a.parquet": parquetBytes(t, []string{"text"}, 1),
			"a.npy": numpyBytes([]int32{1, 2}, 1)}[name]
		if content == nil {
			content = []byte(`{"text":"a"}`)
		}
		path := filepath.Join(writeFiles(t, map[string][]byte{name: content}), name)
		c := testutil.Must(Open(t.Context(), path, Options{}))(t)
		require.NoError(t, os.Remove(path))
		require.NoError(t, exec.Command("mkfifo", path).Run())
		r := testutil.Must(c.Reader(Shape{Batch: 1, Seq: 4}, Cursor{}))(t)
		require.ErrorContains(t, testutil.Err(r.Next(t.Context())), "not a regular file")
		require.NoError(t, r.Close())
	}
}
