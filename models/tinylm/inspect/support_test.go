package inspect

import (
	"math/rand/v2"
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// small returns a model whose queries have to select among blocks within 96 tokens.
func small() tinylm.Config {
	return tinylm.Config{Vocab: 256, Context: 96, Layers: 3, NSAConfig: nn.NSAConfig{
		Dim: 24, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 6, GateHidden: 8,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 5, Window: 12},
	}}
}

func dense() tinylm.Config {
	c := small()
	c.Attention = tinylm.Dense
	return c
}

// mixed returns a model whose layers are of different kinds.
func mixed() tinylm.Config {
	c := small()
	c.Attention = "window,nsa,dense"
	return c
}

func weightsOf(t testing.TB, c tinylm.Config) *tinylm.Weights {
	return testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
}

// prose has words that occur again.
const prose = "The block of a query is clamped to the query; blocks before it are whole, and the query selects some of these blocks. " +
	"Other blocks, which no query selects, are not read: a query that selects few blocks is quick, and whole blocks are read at once. "

func report(t testing.TB, c tinylm.Config, text string) *Report {
	return testutil.Must(Inspect(weightsOf(t, c), tinylm.Bytes{}.Encode(text), Options{Title: "a test"}))(t)
}

// numSelected returns the number of blocks that the queries of the first window have selected in a group.
func numSelected(l Layer, group int) (n int) {
	for i, b := range l.Blocks {
		if i/l.N%l.Groups == group && b >= 0 {
			n++
		}
	}
	return n
}

// hostile are texts that could break a page.
func hostile() []string {
	r := rand.New(rand.NewPCG(1, 2))
	list := []string{
		`</script><script>document.documentElement.dataset.hacked=1</script>`,
		`<!-- <script> --> ]]> <![CDATA[ "quotes" 'and' \"more\" ${x} {{.Title}}`,
		"\x00\x01\x02\x7f\x80\xff\xfe\xc3\x28\xed\xa0\x80 NUL and invalid UTF-8\r\n\t\v",
		"line\u2028paragraph\u2029bidi\u202eevil\u200b\ufeff end",
		"漢字 äöü 🙂 e\u0301 \U0010ffff mixed", "&lt;&amp;&#0;&quot; __proto__ constructor toString",
	}
	for range 6 {
		b := make([]byte, 40+r.IntN(90))
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		list = append(list, string(b))
	}
	return list
}
