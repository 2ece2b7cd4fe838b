package inspect

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Report describes how a model worked on a text. Statistics are over all windows; texts and blocks are those of the
// first window.
type Report struct {
	Title, About   string
	Config         tinylm.Config
	Windows        int       // of the text
	Tokens         []string  // text of each token of the first window, S of them; a token may be a part of a character
	Next           []string  // [S], after each token of the first window, the most likely token
	NextShares     []float64 // [S], probability of Next
	Loss           []float64 // [S], nats, of the tokens of the first window, 0 for the first; nil with Options.NoLoss
	MeanByPosition []float64 // [S], nats: mean of Loss over all windows
	Layers         []Layer
	Examples       []WordExample // of the first window, one a word, the largest share first
	Graph          Drawing       // of the model
	Start          QueryRef      // the query that the page shows first
}

// QueryRef names a query in a group of a layer.
type QueryRef struct {
	Layer int `json:"layer"`
	Group int `json:"group"`
	Query int `json:"query"`
}

// Layer describes how a layer of attention worked.
type Layer struct {
	Gates     []tinylm.GateStatistics // by head; only of NSA
	Distances []BranchDistance        // by branch: those of compressed, selected and window that the layer has, or causal

	// Selected blocks of the first window; nil but in NSA. The entries of query t in a group begin at (t*Groups
	// + group)*N.
	Blocks []int32   // [S,Groups,N], ascending, padded with -1
	Shares []float64 // [S,Groups,N], of the selected branch's probability on each block, mean over the group's heads
	Groups int
	N      int

	RepeatedWords []RepeatedWords // by group; only of NSA
}

// addGates adds the gates [S,Hq,3] of one of n windows.
func (l *Layer) addGates(gates []float64, heads, n int) {
	if l.Gates == nil {
		l.Gates = make([]tinylm.GateStatistics, heads)
	}
	weight := float64(heads) / float64(len(gates)/decode.NumBranches*n) // of a query in the means
	for i := 0; i < len(gates); i += decode.NumBranches {
		l.Gates[i/decode.NumBranches%heads].Add([decode.NumBranches]float64(gates[i:]), weight)
	}
}

// HasBlocks reports whether a layer of the model selects blocks: one of NSA.
func (r *Report) HasBlocks() bool { return r.Layers[r.firstNSA()].Blocks != nil }

// firstNSA returns the first layer that selects blocks, 0 if none does.
func (r *Report) firstNSA() int {
	return max(0, slices.IndexFunc(r.Layers, func(l Layer) bool { return l.Blocks != nil }))
}

// HasLoss reports whether the report has losses.
func (r *Report) HasLoss() bool { return r.Loss != nil }

// Forced reports whether query t selects block b whatever the scores are: b is the first block or one of the two
// newest.
func (r *Report) Forced(t int, b int32) bool { return spec.IsForced(t, int(b), r.Config.SelectBlock) }

// MeanLoss returns the loss in nats a token: the mean over all windows and all tokens except the first of each window.
func (r *Report) MeanLoss() float64 {
	return floats.Sum(r.MeanByPosition) / float64(len(r.MeanByPosition)-1)
}

// windows describes how much text was read.
func (r *Report) windows() string {
	if r.Windows == 1 {
		return fmt.Sprintf("one window of %d tokens", len(r.Tokens))
	}
	return fmt.Sprintf("%d windows of %d tokens", r.Windows, len(r.Tokens))
}

// Summary returns, for a terminal of 60 columns, the loss and how far the selection of blocks follows the text.
func (r *Report) Summary() string {
	text := r.windows()
	if r.HasLoss() {
		text = fmt.Sprintf("loss %.4f nats a token over %s", r.MeanLoss(), text)
	}
	w := r.AllRepeatedWords()
	if w.Queries == 0 {
		return text
	}
	p := w.percentages()
	return text + fmt.Sprintf("\nblocks where the word of a query stood before\n"+
		"  selected:  %5.1f %%, by distance alone %.1f %%\n"+
		"  attention: %5.1f %%, if it were even %.1f %%", p[0], p[1], p[2], p[3])
}

// predictions returns, from the logits [S,V] of a window, -ln p of each token given those before it (0 for the first),
// the most likely token after each token, and its probability.
func predictions(logits []float64, tokens []int32) (loss []float64, next []int32, p []float64) {
	v := len(logits) / len(tokens)
	loss = make([]float64, len(tokens))
	for t := range tokens {
		row := logits[t*v:][:v]
		lse, best := floats.LogSumExp(row), floats.MaxIdx(row)
		next, p = append(next, int32(best)), append(p, math.Exp(row[best]-lse))
		if t+1 < len(tokens) {
			loss[t+1] = lse - row[tokens[t+1]]
		}
	}
	return loss, next, p
}
