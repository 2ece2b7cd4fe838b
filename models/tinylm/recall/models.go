package recall

import (
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Kind is the attention of a model.
type Kind string

// The kinds of models. Those but Deep and MostlyWindows have one layer.
const (
	NSA             Kind = "nsa"
	WithoutSelected Kind = "nsa-without-selected"
	Dense           Kind = "dense"
	Deep            Kind = "nsa-deep"       // four layers of NSA
	MostlyWindows   Kind = "mostly-windows" // three layers of the window alone, and one of NSA
)

// Kinds returns all kinds.
func Kinds() []Kind { return append(UsualKinds(), Deep, MostlyWindows) }

// UsualKinds returns the kinds that are compared if none are asked for.
func UsualKinds() []Kind { return []Kind{NSA, WithoutSelected, Dense} }

// check returns an error if there is no such kind.
func (k Kind) check() error {
	if !slices.Contains(Kinds(), k) {
		return fault.In("recall", "", fault.Between("Models", "model %q, want some of %v", k, Kinds()))
	}
	return nil
}

// ParseKinds reads a list of kinds separated by commas.
func ParseKinds(list string) (kinds []Kind, err error) {
	for _, name := range strings.Split(list, ",") {
		k := Kind(strings.TrimSpace(name))
		if err := k.check(); err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

// The sizes of the branches. NSA compresses and selects blocks of values tokens.
const (
	values = 16
	window = 32

	// spareBlocks is how many blocks NSA may select besides the forced blocks and as many blocks as have pairs.
	spareBlocks = 3
)

// NewTask returns the task of a context and a number of pairs, a multiple of 16. It suits the models of all kinds. Its
// answers lie outside of what NSA sees without selection: the window, the first block and the two newest blocks.
func NewTask(context, pairs int) (Task, error) {
	t := Task{Context: context, Pairs: pairs, Values: values, Questions: 2 * pairs, Skip: values,
		Gap: max(window, 2*values), Free: pairs/values + spareBlocks}
	return t, t.Validate()
}

// Model returns the configuration of a model. The rotary embedding has a large base, so that it hardly
// rotates most of a key within the context: a query finds keys by their content, not by their position.
func (t Task) Model(k Kind) tinylm.Config {
	c := tinylm.Config{Vocab: t.Vocab(), Context: t.Context, Layers: 1, NSAConfig: nn.NSAConfig{
		Dim: 128, Heads: 2, KVHeads: 1, KeyDim: 64, ValueDim: 64, GateHidden: 16, RoPEBase: 1e18,
		Params: ops.Params{
			BlockLen: t.Values, Stride: t.Values, SelectBlock: t.Values, TopN: spec.ForcedBlocks + t.Free, Window: window,
		},
	}}
	switch k {
	case Dense:
		c.Attention = tinylm.Dense
	case Deep:
		c.Layers = 4
	case MostlyWindows:
		c.Attention, c.Layers = "window,window,window,nsa", 4
	case WithoutSelected:
		c.Without = decode.BranchesOf(decode.Selected)
	}
	return c
}
