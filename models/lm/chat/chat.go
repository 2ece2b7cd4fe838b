// Package chat makes the text of a conversation by the chat template of a model, and its tokens.
//
// What people write must not control a model. A template puts control tokens such as <|im_end|> around messages by
// writing their text, and a message may have the same text in it. So each character of a rendered conversation knows
// whether it comes from the template or from a message (package internal/jinja marks the characters of messages, and
// the marks stay with them when a template trims, cuts, replaces or joins texts). A control token is found only where
// all of its text comes from the template; in a message its text is encoded like any other. Names of roles count as
// messages. A template thus sees messages as they are, and its conditions on their text hold.
//
// Templates are Jinja, with the values and functions that the library transformers gives them. Tools are not
// supported: a template sees none. Templates are programs of strangers. One that fails, does not end or makes a huge
// text is an error.
package chat

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/jinja"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// Message is what one side of a conversation has said.
type Message struct {
	Role    string // usually system, user or assistant
	Content string
}

// Options change what a template sees. The zero Options are for most models.
type Options struct {
	// Variables are further ones by name, such as enable_thinking of Qwen3: nil, bool, int, float64 or string.
	Variables map[string]any
	Now       func() time.Time // of strftime_now; nil: time.Now
}

// Template is the chat template of a model. It may be used concurrently.
type Template struct {
	parsed    *jinja.Template
	tokens    *tokenizer.Tokenizer
	variables map[string]any
	now       func() time.Time
}

// New reads a template, such as tokenizer.chat_template of a GGUF file. tokens is the tokenizer of the model, of
// tokenizer.OpenFolder or FromGGUF: bos_token and eos_token are the texts of BOS and of the first of Ends, "" without.
func New(source string, tokens *tokenizer.Tokenizer, o Options) (t *Template, err error) {
	defer fault.Name(&err, "chat", "template")
	if !utf8.ValidString(source) {
		return nil, errors.New("it is not UTF-8")
	}
	t = &Template{tokens: tokens, variables: map[string]any{"tools": nil, "documents": nil}, now: o.Now}
	if t.now == nil {
		t.now = time.Now
	}
	eos := int32(-1)
	if ends := tokens.Ends(); len(ends) > 0 {
		eos = ends[0]
	}
	for name, id := range map[string]int32{"bos_token": tokens.BOS(), "eos_token": eos} {
		t.variables[name] = jinja.Text(string(tokens.AppendToken(nil, id)))
	}
	for name, v := range o.Variables {
		switch s := v.(type) {
		case nil, bool, int, float64:
		case string:
			v = jinja.Text(s)
		default:
			return nil, fmt.Errorf("variable %s of type %T, want nil, bool, int, float64 or string", name, v)
		}
		t.variables[name] = v
	}
	if t.parsed, err = jinja.Parse(source); err != nil {
		return nil, quote.Error(err)
	}
	return t, nil
}

// ErrNone says that a folder has no chat template: its model has not been trained on conversations.
var ErrNone = errors.New("no chat template")

// maxBytes bounds a file, of which large ones list all added tokens.
const maxBytes = 64 << 20

// Open reads the template of a Hugging Face folder: chat_template.jinja, else chat_template in tokenizer_config.json, of
// several the one called default. tokens and o are as for New.
func Open(folder string, tokens *tokenizer.Tokenizer, o Options) (*Template, error) {
	source, err := read(folder)
	if err != nil {
		return nil, fault.In("chat", "", quote.Error(err))
	}
	return New(source, tokens, o)
}

func read(folder string) (source string, err error) {
	b, err := files.ReadFile(filepath.Join(folder, "chat_template.jinja"), maxBytes)
	if !errors.Is(err, fs.ErrNotExist) {
		return string(b), err
	}
	path := filepath.Join(folder, "tokenizer_config.json")
	b, err = files.ReadFile(path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", folder, ErrNone)
	}
	if err != nil {
		return "", err
	}
	var config struct {
		Template jsontext.Value `json:"chat_template"`
	}
	var several []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	err = json.Unmarshal(b, &config)
	switch {
	case err == nil && config.Template.Kind() == '"':
		err = json.Unmarshal(config.Template, &source)
		return source, err
	case err == nil && config.Template.Kind() == '[':
		err = json.Unmarshal(config.Template, &several)
	case err == nil && len(config.Template) > 0 && config.Template.Kind() != 'n':
		err = errors.New("chat_template is neither a string nor a list")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	for _, t := range several {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", fmt.Errorf("%s: %w", folder, ErrNone)
}

// Prompt is a rendered conversation: spans that come from a template and plain ones that come from messages.
type Prompt []tokenizer.Span

// String returns the text, in which a reader cannot tell control tokens from what a message says.
func (p Prompt) String() string {
	var b strings.Builder
	for _, s := range p {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Render returns the text of a conversation. With addGenerationPrompt it ends where the model's answer begins. A
// conversation that the template refuses, such as one whose roles do not alternate, is an error with its reason.
func (t *Template) Render(messages []Message, addGenerationPrompt bool) (p Prompt, err error) {
	defer fault.Name(&err, "chat", "render")
	values := maps.Clone(t.variables)
	var all jinja.List
	for i, m := range messages {
		if !utf8.ValidString(m.Role) || !utf8.ValidString(m.Content) {
			return nil, fmt.Errorf("message %d is not UTF-8", i)
		}
		d := &jinja.Dict{}
		d.Set(jinja.Text("role"), jinja.Mark(m.Role))
		d.Set(jinja.Text("content"), jinja.Mark(m.Content))
		all = append(all, d)
	}
	values["messages"], values["add_generation_prompt"] = all, addGenerationPrompt
	text, err := t.parsed.Render(values, t.now())
	if err != nil {
		return nil, quote.Error(err)
	}
	text.Runs(func(s string, marked bool) { p = append(p, tokenizer.Span{Text: s, Plain: marked}) })
	return p, nil
}

// Encode returns the tokens of a rendered conversation, with control tokens of the template alone. The tokens that a
// tokenizer puts before other texts are not added: a template writes them itself.
func (t *Template) Encode(messages []Message, addGenerationPrompt bool) ([]int32, error) {
	p, err := t.Render(messages, addGenerationPrompt)
	if err != nil {
		return nil, err
	}
	return t.tokens.EncodeSpans(p)
}
