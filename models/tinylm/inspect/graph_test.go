package inspect

import (
	"encoding/xml"
	"regexp"
	"slices"
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
	return map[string]tinylm.Config{"nsa": small(), "dense": dense(), "mixed": mixed(), "mlp": mlp, "deep": deep, "one layer": single}
}

// TestDrawingHasEachNodeOnce: the ops, inputs and weights of the drawing are those of the graph, and layers of one kind
// that follow each other are one section. Boxes read boxes before them.
func TestDrawingHasEachNodeOnce(t *testing.T) {
	for name, c := range configs() {
		d := report(t, c, prose[:40]).Graph
		if name == "mixed" { // three kinds
			require.Len(t, d.Sections, 5)
		} else {
			require.Len(t, d.Sections, 3, name)
			require.Equal(t, c.Layers, d.Sections[1].Times, name)
		}
		nodes := len(c.LearnableParams())
		for _, s := range d.Sections {
			for i, b := range s.Boxes {
				require.True(t, slices.IsSorted(b.Reads))
				require.True(t, len(b.Reads) == 0 || b.Reads[0] >= 1 && b.Reads[len(b.Reads)-1] <= i, "%s: %v", name, b)
				if b.Op != "residual stream" {
					nodes += s.Times
				}
			}
		}
		require.Equal(t, d.Nodes, nodes, name)
	}
}

// TestChartsOnPage: the pictures of the page are XML. Their colours are those of the page alone.
func TestChartsOnPage(t *testing.T) {
	for name, c := range configs() {
		var page strings.Builder
		require.NoError(t, report(t, c, prose).WriteHTML(&page))
		pictures := regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(page.String(), -1)
		want := 1 + 2*c.Layers // losses, gates of NSA, and distances
		switch name {
		case "dense":
			want = 1 + c.Layers
		case "mixed":
			want = 2 + c.Layers
		}
		require.Len(t, pictures, want, name)
		for _, picture := range pictures {
			require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), name)
			require.NotContains(t, picture, "NaN", name)
			require.Empty(t, regexp.MustCompile(`#[0-9A-Fa-f]{6}`).FindString(picture), name)
		}
	}
}
