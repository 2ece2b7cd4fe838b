// Package chat makes the text of a conversation by the chat template of a model, and its tokens.
//
// What people write must not control a model. A template puts control tokens such as <|im_end|> around messages by
// writing their text, and a message may have the same text in it. There the token is not found: before a template is
// rendered, a character that nothing else uses goes into each text of a control token in a message or the name of a
// role, and afterwards it is taken out and its place is known.
//
// Templates are Jinja (github.com/ardanlabs/jinja), with the values and functions that the library transformers gives
// them. Tools are not supported: a template sees none. Templates are programs of strangers: one that fails, makes a huge
// text or takes long is an error. One that takes long goes on in the background. A macro that calls itself without end,
// or texts that double again and again, end the process: the library bounds neither. A template that takes parts out of
// messages may join the rest to the text of a control token.
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

	"github.com/ardanlabs/jinja"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
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
}

// Template is the chat template of a model. It may be used concurrently.
type Template struct {
	source    string
	parsed    *jinja.Template
	tokens    *tokenizer.Tokenizer
	control   []string // texts of control tokens
	variables map[string]any
}

// Bounds of templates and renderings.
const (
	maxSource   = 256 << 10 // bytes of a template
	maxText     = 64 << 20  // bytes of a conversation
	maxRange    = 1 << 16   // elements of all calls of range
	maxDuration = 10 * time.Second
)

// New reads a template, such as tokenizer.chat_template of a GGUF file. tokens is the tokenizer of the model, of
// tokenizer.OpenFolder or FromGGUF: bos_token and eos_token are the texts of BOS and of the first of Ends, "" without.
func New(source string, tokens *tokenizer.Tokenizer, o Options) (t *Template, err error) {
	defer fault.Name(&err, "chat", "template")
	switch {
	case !utf8.ValidString(source):
		return nil, errors.New("it is not UTF-8")
	case len(source) > maxSource:
		return nil, fmt.Errorf("%d bytes, want at most %d", len(source), maxSource)
	}
	t = &Template{source: source, tokens: tokens, variables: map[string]any{"tools": nil, "documents": nil}}
	for id := range int32(tokens.Vocab()) {
		if text := string(tokens.AppendToken(nil, id)); text != "" && tokens.Special(id) {
			t.control = append(t.control, text)
		}
	}
	eos := int32(-1)
	if ends := tokens.Ends(); len(ends) > 0 {
		eos = ends[0]
	}
	for name, id := range map[string]int32{"bos_token": tokens.BOS(), "eos_token": eos} {
		t.variables[name] = string(tokens.AppendToken(nil, id))
	}
	for name, v := range o.Variables {
		switch v.(type) {
		case nil, bool, int, float64, string:
		default:
			return nil, fmt.Errorf("variable %s of type %T, want nil, bool, int, float64 or string", name, v)
		}
		t.variables[name] = v
	}
	if t.parsed, err = compile(source); err != nil {
		return nil, quote.Error(err)
	}
	return t, nil
}

func compile(source string) (t *jinja.Template, err error) {
	defer recoverTo(&err)
	return jinja.Compile(source)
}

// recoverTo turns a panic of a template into an error.
func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the template fails: %v", r)
	}
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
	written := t.source
	for i, m := range messages {
		if !utf8.ValidString(m.Role) || !utf8.ValidString(m.Content) {
			return nil, fmt.Errorf("message %d is not UTF-8", i)
		}
		written += m.Role + m.Content
	}
	mark := unusedRune(written)
	all := []any{}
	for _, m := range messages {
		all = append(all, map[string]any{"role": t.markControl(m.Role, mark), "content": t.markControl(m.Content, mark)})
	}
	values := maps.Clone(t.variables)
	values["messages"], values["add_generation_prompt"] = all, addGenerationPrompt
	text, err := t.run(values)
	if err != nil {
		return nil, quote.Error(err)
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("a text of %d bytes, want at most %d", len(text), maxText)
	}
	for part := range strings.SplitSeq(text, mark) {
		_, last := utf8.DecodeLastRuneInString(part)
		p = append(p, tokenizer.Span{Text: part[:len(part)-last]}, tokenizer.Span{Text: part[len(part)-last:], Plain: true})
	}
	p[len(p)-1].Plain = false // after the last mark
	return p, nil
}

// unusedRune returns a character of Unicode's private use area that a text does not have.
func unusedRune(text string) string {
	for r := '\ue000'; ; r++ {
		if !strings.ContainsRune(text, r) {
			return string(r)
		}
	}
}

// markControl puts mark behind the first character of each text of a control token.
func (t *Template) markControl(text, mark string) string {
	for _, c := range t.control {
		_, first := utf8.DecodeRuneInString(c)
		text = strings.ReplaceAll(text, c, c[:first]+mark+c[first:])
	}
	return text
}

// run renders the template.
func (t *Template) run(values map[string]any) (text string, err error) {
	left := int64(maxRange)
	all := make(map[string]jinja.Value, len(values)+1)
	for name, v := range values {
		all[name] = jinja.FromGoValue(v)
	}
	all["range"] = jinja.NewCallable("range", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		return boundedRange(args, &left)
	})
	done := make(chan struct{})
	var late string
	var failed error
	go func() {
		defer close(done)
		defer recoverTo(&failed)
		late, failed = t.parsed.RenderValues(all)
	}()
	select {
	case <-done:
		return late, failed
	case <-time.After(maxDuration):
		return "", fmt.Errorf("the template has not ended after %v", maxDuration)
	}
}

// boundedRange is Python's range with at most left elements, which it counts down.
func boundedRange(args []jinja.Value, left *int64) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1} // start, stop, step
	for i, a := range args {
		if !a.IsInt() || len(args) > len(bounds) {
			return jinja.None(), errors.New("range: want one to three whole numbers")
		}
		if bounds[i] = a.AsInt(); len(args) == 1 {
			bounds = [3]int64{0, a.AsInt(), 1}
		}
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 || len(args) == 0 {
		return jinja.None(), errors.New("range: no stop, or steps of 0")
	}
	var list []jinja.Value
	for x := start; step > 0 && x < stop || step < 0 && x > stop; x += step {
		if *left--; *left < 0 {
			return jinja.None(), fmt.Errorf("range: more than %d numbers", maxRange)
		}
		list = append(list, jinja.NewInt(x))
	}
	return jinja.NewList(list), nil
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
