package chat

import (
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// conversation is a case of testdata/write_conversations.py, with what transformers makes of it.
type conversation struct {
	Template  string
	BOS, EOS  *string
	Messages  []Message
	Prompt    bool
	Variables map[string]any
	Text      string
	IDs       []int32
	Error     string
}

func conversations(t testing.TB) (file struct {
	Tokenizer     json.RawMessage
	Conversations []conversation
}) {
	f := testutil.Must(os.Open("testdata/conversations.json.gz"))(t)
	defer f.Close()
	require.NoError(t, json.NewDecoder(testutil.Must(gzip.NewReader(f))(t)).Decode(&file))
	return file
}

func writeJSON(t testing.TB, folder, name string, v any) {
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), testutil.Must(json.Marshal(v))(t), 0o644))
}

// open returns the template of a case from a folder that has it, and the small tokenizer.
func (c conversation) open(t testing.TB, content json.RawMessage) *Template {
	folder := t.TempDir()
	source := string(testutil.Must(os.ReadFile(filepath.Join("testdata", c.Template+".jinja")))(t))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), content, 0o644))
	writeJSON(t, folder, "tokenizer_config.json", map[string]any{
		"bos_token": c.BOS, "eos_token": c.EOS, "chat_template": source,
	})
	tokens := testutil.Must(tokenizer.OpenFolder(folder, ""))(t)
	return testutil.Must(Open(folder, tokens, Options{Variables: c.Variables}))(t)
}

// TestLikeTransformers: the text and the tokens of a conversation are those of apply_chat_template, and so are refusals.
func TestLikeTransformers(t *testing.T) {
	file := conversations(t)
	require.Len(t, file.Conversations, 168)
	for _, c := range file.Conversations {
		template := c.open(t, file.Tokenizer)
		p, err := template.Render(c.Messages, c.Prompt)
		if c.Error != "" {
			require.ErrorContains(t, err, "chat: render: line ")
			require.ErrorContains(t, err, c.Error)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.Text, p.String(), "%s %q", c.Template, c.Messages)
		require.Equal(t, c.IDs, testutil.Must(template.Encode(c.Messages, c.Prompt))(t), "%s %q", c.Template, c.Messages)
	}
}

// TestMessagesAreText: whatever messages and roles say, a conversation has the control tokens of one that says nothing,
// and its text is all there.
func TestMessagesAreText(t *testing.T) {
	file := conversations(t)
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"<|im_end|>", "<|im_start|>", "\nassistant\n", "<|eot_id|>", "</s>", "<s>", "[INST]", "[/INST]", "[/IN", "ST]",
		"<|im_", "end|>", "<|endoftext|>", " ", "\n", "a", "<think>", "</think>", "<|start_header_id|>", "é"}
	names := map[string]bool{}
	for _, c := range file.Conversations {
		if c.Error != "" || names[c.Template] {
			continue
		}
		names[c.Template] = true
		template := c.open(t, file.Tokenizer)
		control := func(ids []int32) (all []int32) {
			for _, id := range ids {
				if template.tokens.Special(id) {
					all = append(all, id)
				}
			}
			return all
		}
		for range testutil.Tries(t, 100, 5000) {
			said, silent := []Message{}, []Message{}
			for i := range 1 + r.IntN(4) {
				var content strings.Builder
				for range r.IntN(8) {
					content.WriteString(parts[r.IntN(len(parts))])
				}
				role := []string{"user", "assistant"}[i%2]
				said, silent = append(said, Message{role, content.String()}), append(silent, Message{role, "x"})
			}
			ids := testutil.Must(template.Encode(said, true))(t)
			want := control(testutil.Must(template.Encode(silent, true))(t))
			require.NotEmpty(t, want)
			require.Equal(t, want, control(ids), "%s %q", c.Template, said)
			text := testutil.Must(template.Render(said, true))(t).String()
			require.Equal(t, text, testutil.Must(template.tokens.Decode(ids))(t))
		}
		if c.Template == "smollm2" || c.Template == "llama3" { // which take any role
			role := []Message{{"user<|im_end|><|eot_id|>", "x"}}
			require.Len(t, control(testutil.Must(template.Encode(role, true))(t)),
				len(control(testutil.Must(template.Encode([]Message{{"user", "x"}}, true))(t))), c.Template)
		}
	}
	require.Len(t, names, 5)
}

func TestOpen(t *testing.T) {
	folder := t.TempDir()
	require.ErrorIs(t, testutil.Err(Open(folder, nil, Options{})), ErrNone)
	for _, c := range []struct {
		config    any
		want, err string
	}{
		{map[string]any{"chat_template": nil}, "", ErrNone.Error()},
		{map[string]any{}, "", ErrNone.Error()},
		{map[string]any{"chat_template": "a{{ bos_token }}"}, "a", ""},
		{map[string]any{"chat_template": []any{map[string]any{"name": "tool_use", "template": "t"},
			map[string]any{"name": "default", "template": "d"}}}, "d", ""},
		{map[string]any{"chat_template": []any{map[string]any{"name": "rag", "template": "t"}}}, "", ErrNone.Error()},
		{map[string]any{"chat_template": 5}, "", "neither a string nor a list"},
		{map[string]any{"chat_template": []any{5}}, "", "tokenizer_config.json: "},
		{map[string]any{"chat_template": "{% x %}"}, "", `chat: template: line 1: the statement "x" is not supported`},
		{[]int{}, "", "tokenizer_config.json: "},
	} {
		writeJSON(t, folder, "tokenizer_config.json", c.config)
		template, err := Open(folder, nil, Options{})
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, testutil.Must(template.Render(nil, false))(t).String())
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "chat_template.jinja"), []byte("j{{ strftime_now('%Y') }}"), 0o644))
	now := func() time.Time { return time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) }
	template := testutil.Must(Open(folder, nil, Options{Now: now}))(t)
	require.Equal(t, "j1999", testutil.Must(template.Render(nil, false))(t).String())
	require.ErrorIs(t, testutil.Err(Open(filepath.Join(folder, "absent"), nil, Options{})), ErrNone)
	require.NotErrorIs(t, ErrNone, fs.ErrNotExist)
}

func TestErrors(t *testing.T) {
	require.ErrorContains(t, testutil.Err(New("\xff", nil, Options{})), "chat: template: it is not UTF-8")
	require.ErrorContains(t, testutil.Err(New("", nil, Options{Variables: map[string]any{"v": []int{}}})), "variable v of type []int")
	template := testutil.Must(New("{% for m in messages %}{{ m.content }}{% endfor %}{{ v }}", nil,
		Options{Variables: map[string]any{"v": "w"}}))(t)
	require.Equal(t, "aw", testutil.Must(template.Render([]Message{{"", "a"}}, false))(t).String())
	require.ErrorContains(t, testutil.Err(template.Render([]Message{{}, {"", "\xff"}}, false)), "chat: render: message 1 is not UTF-8")
	require.ErrorContains(t, testutil.Err(template.Encode(nil, false)), "not one of Open")
}
