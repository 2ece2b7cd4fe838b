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

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// data returns what the script of a page reads, as JSON.
func (r *Report) data() (template.JS, error) {
	var next []string
	for _, token := range r.Next {
		next = append(next, shown([]string{token})...)
	}
	layers := []any{} // those of NSA
	for i, l := range r.Layers {
		if l.Blocks == nil {
			continue
		}
		shares := make([]byte, len(l.Shares)) // in units of 1/255; base64 in JSON
		for i, share := range l.Shares {
			shares[i] = byte(math.Round(255 * min(1, share)))
		}
		layers = append(layers, map[string]any{"layer": i, "groups": l.Groups, "n": l.N, "blocks": l.Blocks, "shares": shares})
	}
	text, err := json.Marshal(map[string]any{ // it escapes <, > and &, so no text ends the script
		"tokens": shown(r.Tokens), "loss": r.Loss, "next": next, "nextShares": r.NextShares, "layers": layers,
		"size": r.Config.SelectBlock, "windowSize": r.Config.Window, "start": r.Start,
	})
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
	defer fault.Name(&err, "inspect", "page")
	if len(r.Layers) == 0 || len(r.Tokens) == 0 {
		return fmt.Errorf("a report of %d layers and %d tokens, want at least 1 of each", len(r.Layers), len(r.Tokens))
	}
	first := r.firstNSA()
	s, layers, groups, tokens := r.Start, len(r.Layers), max(1, r.Layers[first].Groups), len(r.Tokens)
	if min(s.Layer, s.Group, s.Query) < 0 || s.Layer >= layers || s.Group >= groups || s.Query >= tokens {
		return fmt.Errorf("starts at layer %d, group %d, query %d, want them below %d, %d, %d", s.Layer, s.Group,
			s.Query, layers, groups, tokens)
	}
	if r.HasBlocks() && r.Layers[s.Layer].Blocks == nil {
		return fmt.Errorf("starts at layer %d, which selects no blocks: layer %d does", s.Layer, first)
	}
	data, err := r.data()
	if err != nil {
		return err
	}
	t := template.New("page").Funcs(template.FuncMap{
		"firstNSA": func() int { return first },
		"style":    func() template.CSS { return template.CSS(pageStyle) },
		"script":   func() template.JS { return template.JS(pageScript) },
		"data":     func() template.JS { return data }, "printable": tinylm.Printable, "windows": r.windows,
		"percentages": RepeatedWords.percentages, "timesByDistance": r.AllRepeatedWords().timesByDistance,
		"millions": func(n int) float64 { return float64(n) / 1e6 },
		"percent":  func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
		"svg":      svg, "gates": r.plotGates, "distances": r.plotDistances, "losses": r.plotLoss,
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
