package evaluate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// The files of Report.Save.
const (
	resultFile     = "evaluate.json"
	perplexityFile = "perplexity.png"
	needleFile     = "needle.png"
)

// Report has the results of a call, and what they come from. What was not measured is nil.
type Report struct {
	Origin     map[string]string `json:"origin"` // date, commit, device, cores, precision, version of Go, command
	Model      Model             `json:"model"`
	Data       *Text             `json:"data,omitzero"`
	Perplexity *Perplexity       `json:"perplexity,omitzero"`
	Speed      *Speed            `json:"speed,omitzero"`
	Needles    []Needle          `json:"needles,omitzero"`
	Choices    *Choices          `json:"choices,omitzero"`
}

// Model describes a model.
type Model struct {
	Path       string `json:"path"`    // of -model
	Weights    string `json:"weights"` // file or folder of the weights
	Attention  string `json:"attention"`
	Parameters int    `json:"parameters"`
	Layers     int    `json:"layers"`
	Vocab      int    `json:"vocab"`
	Context    int    `json:"context"` // tokens of a window in training
}

// Save writes evaluate.json and, where they were measured, perplexity.png and needle.png into a folder, which it makes.
// It replaces files of these names.
func (r *Report) Save(folder string) (err error) {
	defer fault.Name(&err, "evaluate", "report")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	infinite := json.MarshalToFunc(func(to *jsontext.Encoder, x float64) error { // such as a perplexity of exp(1000)
		if !value.NotFinite(x) {
			return errors.ErrUnsupported // the usual number
		}
		return to.WriteToken(jsontext.String(fmt.Sprint(x)))
	})
	text, err := json.Marshal(r, json.Deterministic(true), json.WithMarshalers(infinite), jsontext.WithIndent("  "),
		jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	if err := files.Write(filepath.Join(folder, resultFile), append(text, '\n')); err != nil {
		return err
	}
	draw := map[string]func() ([]byte, error){}
	if r.Data != nil && r.Perplexity != nil && len(r.Perplexity.Positions) > 0 {
		draw[perplexityFile] = r.plotPerplexity
	}
	if r.Data != nil && len(r.Needles) > 0 {
		draw[needleFile] = r.plotNeedles
	}
	for name, draw := range draw {
		picture, err := draw()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := files.Write(filepath.Join(folder, name), picture); err != nil {
			return err
		}
	}
	return nil
}

// table returns lines whose cells, between tabs, are aligned to the right.
func table(lines ...string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t\n", l)
	}
	_ = w.Flush() // to a strings.Builder
	return b.String()
}

func (p *Perplexity) table() string {
	lines := []string{"tokens before\tnats/token\tperplexity\tbits/byte"}
	row := func(name string, r Position) {
		lines = append(lines, fmt.Sprintf("%s\t%.4f\t%.2f\t%.4f", name, r.Loss, r.Perplexity, r.BitsPerByte))
	}
	for _, r := range p.Positions {
		row(fmt.Sprintf("%d to %d", r.From, r.To-1), r)
	}
	row("all", p.All)
	return fmt.Sprintf("\nperplexity, windows: %d of %d tokens, %.0f tokens/s\n%s", p.Windows, p.Length,
		p.TokensPerSecond, table(lines...))
}

func (s *Speed) table() string {
	return fmt.Sprintf("\nsequences: %d; prefill: %d tokens, %.0f tokens/s; decode behind it: %d tokens, %.1f tokens/s\n",
		s.Sequences, s.Prompt, s.Prefill, s.Decoded, s.Decode)
}

func needleTable(list []Needle) string {
	g := newNeedleGrid(list)
	lines := []string{"depth"}
	for _, length := range g.lengths {
		lines[0] += fmt.Sprintf("\t%d tokens", length)
	}
	for _, depth := range g.depths {
		line := percent(depth)
		for _, n := range list {
			if n.Depth == depth {
				line += fmt.Sprintf("\t%d of %d", n.Found, n.Asked)
			}
		}
		lines = append(lines, line)
	}
	return "\nneedles found\n" + table(lines...)
}

func percent(share float64) string { return fmt.Sprintf("%.4g %%", 100*share) }

func (c *Choices) table() string {
	share := func(right int) string { return percent(float64(right) / float64(max(1, c.Asked))) }
	return fmt.Sprintf("\nchoices: %d of %d right (acc), %s; by character %d (acc_norm), %s; a guess %s\n", c.Right,
		c.Asked, share(c.Right), c.RightNorm, share(c.RightNorm), percent(c.Guess))
}
