package inspect

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// configs returns models with different graphs.
func configs() map[string]tinylm.Config {
	mlp := small()
	mlp.Phi, mlp.PhiHidden, mlp.GateActivation = nn.PhiMLP, 8, nn.GateSoftmax
	deep := small()
	deep.Layers = 12
	single := small()
	single.Layers = 1
	return map[string]tinylm.Config{"nsa": small(), "dense": dense(), "mlp": mlp, "deep": deep, "one layer": single}
}

// TestDrawingHasEachNodeOnce: the ops, inputs and weights of the drawing are those of the graph, and all layers are one section.
func TestDrawingHasEachNodeOnce(t *testing.T) {
	for name, c := range configs() {
		d := report(t, c, prose[:40]).Graph
		require.Len(t, d.Sections, 3, name)
		require.Equal(t, c.Layers, d.Sections[1].Times, name)
		nodes := len(c.LearnableParams())
		for _, s := range d.Sections {
			for _, b := range s.Boxes {
				if b.Op != "residual stream" {
					nodes += s.Times
				}
			}
		}
		require.Equal(t, d.Nodes, nodes, name)
	}
}

// TestLayout: edges go down, and no two boxes of a row overlap.
func TestLayout(t *testing.T) {
	for name, c := range configs() {
		for _, s := range report(t, c, prose[:40]).Graph.Sections {
			l := newLayout(s)
			for i, b := range s.Boxes {
				for _, from := range b.From {
					require.Less(t, l.boxes[from].row, l.boxes[i].row, name)
				}
			}
			for _, row := range l.rows {
				for i, p := range row {
					require.True(t, p.x-p.half() >= -1e-6 && p.x+p.half() <= l.width+1e-6, name)
					if i > 0 {
						require.GreaterOrEqual(t, p.x-row[i-1].x, gap(row[i-1], p)-1e-6, name)
					}
				}
			}
		}
	}
}

// TestSVGIsXML checks every picture of the page, and the standalone one.
func TestSVGIsXML(t *testing.T) {
	for name, c := range configs() {
		r := report(t, c, prose)
		pictures := []string{r.Graph.SVG(), r.Graph.svg(), string(lossChart(r))}
		for _, l := range r.Layers {
			pictures = append(pictures, string(gateChart(l)), string(distanceChart(l)))
		}
		for _, text := range pictures {
			d, elements := xml.NewDecoder(strings.NewReader(text)), 0
			for {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err, name)
				if _, ok := token.(xml.StartElement); ok {
					elements++
				}
			}
			require.Positive(t, elements)
			require.NotContains(t, text, "NaN", name)
		}
	}
}
