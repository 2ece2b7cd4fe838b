package inspect

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// pageData is the data that the script of a page reads. Bytes are base64 in JSON.
type pageData struct {
	Tokens []string     `json:"tokens"`     // as they are shown
	Loss   []float64    `json:"loss"`       // none without losses
	Next   []string     `json:"next"`       // after each token, the most likely one
	Sure   []float64    `json:"nextShares"` // probability of Next
	Size   int          `json:"size"`       // of a block
	Window int          `json:"windowSize"`
	Layers []pageBlocks `json:"layers"` // none in dense attention
	Start  QueryRef     `json:"start"`
}

// pageBlocks is the selected blocks of a layer.
type pageBlocks struct {
	Groups int     `json:"groups"`
	N      int     `json:"n"`
	Blocks []int32 `json:"blocks"`
	Shares []byte  `json:"shares"` // in units of 1/255
}

// data returns the data of the script.
func (r *Report) data() (template.JS, error) {
	d := pageData{Tokens: shown(r.Tokens), Loss: r.Loss, Sure: r.NextShares, Size: r.Config.SelectBlock,
		Window: r.Config.Window, Start: r.Start}
	for _, next := range r.Next {
		d.Next = append(d.Next, shown([]string{next})[0])
	}
	for _, l := range r.Layers {
		if !r.HasBlocks() {
			break
		}
		p := pageBlocks{Groups: l.Groups, N: l.N, Blocks: l.Blocks}
		for _, share := range l.Shares {
			p.Shares = append(p.Shares, byte(math.Round(255*min(1, share))))
		}
		d.Layers = append(d.Layers, p)
	}
	text, err := json.Marshal(d) // it escapes <, > and &, so no text ends the script
	return template.JS(text), err
}

// shown returns tokens as a page shows them. If a character is cut into several tokens, the first one shows it. In
// place of a character that tinylm.Printable replaces there is its symbol (U+0000 is ␀) or its number (⟨U+202E⟩), in
// place of a byte that is not UTF-8 its number (⟨C3⟩).
func shown(tokens []string) []string {
	text := strings.Join(tokens, "")
	list := make([]string, len(tokens))
	at, end := 0, 0 // the number of tokens begun, and the end of the last of them
	for i := 0; i < len(text); {
		for i >= end {
			end += len(tokens[at])
			at++
		}
		c, n := utf8.DecodeRuneInString(text[i:])
		s := text[i:][:n]
		switch {
		case c == utf8.RuneError && n == 1:
			s = fmt.Sprintf("⟨%02X⟩", text[i])
		case tinylm.Printable(s) == s:
		case c < ' ':
			s = string('␀' + c)
		case c == 0x7f:
			s = "␡"
		default:
			s = fmt.Sprintf("⟨%U⟩", c)
		}
		list[at-1] += s
		i += n
	}
	return list
}

// WriteHTML writes the report, which has at least a layer and a token, as one page. The page needs no other file and no
// network.
func (r *Report) WriteHTML(w io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("inspect: page: %w", err)
		}
	}()
	if len(r.Layers) == 0 || len(r.Tokens) == 0 {
		return fmt.Errorf("a report of %d layers and %d tokens, want at least 1 of each", len(r.Layers), len(r.Tokens))
	}
	s, layers, groups, tokens := r.Start, len(r.Layers), max(1, r.Layers[0].Groups), len(r.Tokens)
	if min(s.Layer, s.Group, s.Query) < 0 || s.Layer >= layers || s.Group >= groups || s.Query >= tokens {
		return fmt.Errorf("starts at layer %d, group %d, query %d, want them below %d, %d, %d", s.Layer, s.Group,
			s.Query, layers, groups, tokens)
	}
	data, err := r.data()
	if err != nil {
		return err
	}
	t := template.New("page").Funcs(template.FuncMap{
		"style":  func() template.CSS { return template.CSS(pageStyle) },
		"script": func() template.JS { return template.JS(pageScript) },
		"data":   func() template.JS { return data }, "printable": tinylm.Printable, "windows": r.windows,
		"percentages": RepeatedWords.percentages, "timesByDistance": r.AllRepeatedWords().timesByDistance,
		"millions": func(n int) float64 { return float64(n) / 1e6 },
		"percent":  func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
		"gates":    func(layer int) (template.HTML, error) { return svg(r.plotGates(layer)) },
		"distances": func(layer int) (template.HTML, error) {
			return svg(r.plotDistances(layer))
		},
		"losses": func() (template.HTML, error) { return svg(r.plotLoss()) },
	})
	var page bytes.Buffer
	if _, err = t.Parse(pageHTML); err == nil {
		err = t.Execute(&page, r)
	}
	if err == nil {
		_, err = page.WriteTo(w)
	}
	return err
}
