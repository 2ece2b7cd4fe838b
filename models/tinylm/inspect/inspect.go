// Package inspect shows how a TinyLM works on a text: which blocks each query selects, the gates, how far back the
// attention of the branches goes, the loss of each token, and the graph. [Inspect] runs a text and returns a [Report].
// [Report.Save] writes one HTML page and pictures.
//
// Kernels do not keep the probabilities of attention. So this package computes them again on the host, from the queries
// and keys of the run.
package inspect

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

//go:embed sample.txt
var sample string

// Sample returns a small Go program, the default text.
func Sample() string { return sample }

// Options are the options of Inspect. With the zero value tokens are bytes and the model runs on the CPU.
type Options struct {
	Title      string
	About      string            // of the text, a sentence for the page
	NoLoss     bool              // the text does not hold what the model has learned to predict: report no losses
	Vocabulary tinylm.Vocabulary // for the text of tokens, at least as many as the model has; nil: tinylm.Bytes
	Backend    graph.Backend     // nil: the CPU's
}

// Inspect runs tokens through a model in windows of Config.Context tokens, or in one shorter window if there are fewer
// tokens. Tokens after the last whole window are not used. Fewer than 2 tokens are an error, as is a model of NSA
// without its selected branch. Inspect does not change the weights.
func Inspect(w *tinylm.Weights, tokens []int32, o Options) (_ *Report, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("inspect: %w", err)
		}
	}()
	if w == nil {
		return nil, errors.New("no weights")
	}
	if err := w.Config.Validate(); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	if w.Config.Without != 0 && w.Config.Attention != tinylm.Dense {
		return nil, errors.New("NSA without one of its branches, want all of them")
	}
	if o.Vocabulary == nil {
		o.Vocabulary = tinylm.Bytes{}
	}
	switch {
	case value.IsNil(o.Vocabulary):
		return nil, errors.New("the vocabulary is a nil pointer")
	case o.Backend != nil && value.IsNil(o.Backend):
		return nil, errors.New("the backend is a nil pointer")
	case o.Vocabulary.Vocab() < w.Config.Vocab:
		return nil, fmt.Errorf("a vocabulary of %d tokens, the model has %d", o.Vocabulary.Vocab(), w.Config.Vocab)
	}
	seq := min(len(tokens), w.Config.Context)
	if seq < 2 {
		return nil, fmt.Errorf("%d tokens in a window, want at least 2", seq)
	}
	for i, id := range tokens {
		if id < 0 || int(id) >= w.Config.Vocab {
			return nil, fmt.Errorf("token %d at %d, want 0 to %d", id, i, w.Config.Vocab-1)
		}
	}
	in := &inspection{vocabulary: o.Vocabulary, words: make([][]wordCounts, w.Config.Layers)}
	in.model, err = tinylm.NewModel(w, 1, seq,
		tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) { return in.machine(m, o.Backend) }))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.model.Close()) }()
	in.report = &Report{
		Title: o.Title, About: o.About, Config: w.Config.WithDefaults(),
		Windows: len(tokens) / seq, Layers: make([]Layer, w.Config.Layers),
	}
	if !o.NoLoss {
		in.report.MeanByPosition = make([]float64, seq)
	}
	for i := range in.report.Windows {
		if err := in.runWindow(i, tokens[i*seq:][:seq]); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	for l, list := range in.branches { // sums over all windows
		layer := &in.report.Layers[l]
		for _, b := range list {
			layer.Distances = append(layer.Distances, b.distances.result(b.name))
		}
		for _, c := range in.words[l] {
			layer.RepeatedWords = append(layer.RepeatedWords, c.result())
		}
	}
	in.report.Graph = drawGraph(in.model, in.roots[0])
	return in.report, nil
}

// inspection is the state of Inspect.
type inspection struct {
	model      *tinylm.Model
	vocabulary tinylm.Vocabulary
	roots      G.Nodes        // of lossAndLogits
	branches   [][]branch     // by layer
	words      [][]wordCounts // by layer and group
	report     *Report
}

// machine makes the machine of a model. It keeps all values that are inspected.
func (in *inspection) machine(m *tinylm.Model, b graph.Backend) (_ G.VM, err error) {
	var keep G.Nodes
	for _, l := range m.Layers() {
		list, err := branchesOf(m.Graph(), l)
		if err != nil {
			return nil, err
		}
		in.branches = append(in.branches, list)
		for _, a := range list {
			keep = append(keep, a.q, a.k)
		}
		if l.Blocks != nil { // NSA
			keep = append(keep, l.Gates, l.Blocks)
		}
	}
	if in.roots, err = lossAndLogits(m.Graph()); err != nil {
		return nil, err
	}
	opts := []graph.Option{graph.WithKeep(append(keep, in.roots...)...)}
	if b != nil {
		opts = append(opts, graph.WithBackend(b))
	}
	return graph.NewMachine(m.Graph(), opts...)
}

func lossAndLogits(g *G.ExprGraph) (G.Nodes, error) {
	for _, n := range g.AllNodes() {
		spec, _ := spec.SpecOf(n.Op())
		if _, ok := spec.(vocab.CrossEntropy); ok {
			return G.Nodes{n, value.Inputs(g, n)[0]}, nil
		}
	}
	return nil, errors.New("the graph has no cross entropy")
}

func (in *inspection) runWindow(i int, tokens []int32) error {
	copy(in.model.Tokens(), tokens)
	in.model.NextTokens()
	if err := in.model.Run(); err != nil {
		return err
	}
	logits, _, err := valuesOf(in.roots[1])
	if err != nil {
		return err
	}
	r := in.report
	loss, next, p := predictions(logits, tokens)
	if at := slices.IndexFunc(loss, value.NotFinite); at >= 0 {
		return fmt.Errorf("the loss of token %d is %v: the weights are not those of a trained model", at, loss[at])
	}
	for t := range r.MeanByPosition {
		r.MeanByPosition[t] += loss[t] / float64(r.Windows)
	}
	texts := in.texts(tokens)
	if i == 0 {
		r.Tokens, r.Next, r.NextShares = texts, in.texts(next), p
		if r.MeanByPosition != nil {
			r.Loss = loss
		}
	}
	var queries []wordQuery
	if slices.ContainsFunc(in.model.Layers(), func(l tinylm.Layer) bool { return l.Blocks != nil }) {
		queries = wordQueries(texts, r.Config.TopN, r.Config.SelectBlock)
	}
	for l := range in.branches {
		if err := in.addLayer(l, queries); err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
	}
	if i > 0 {
		return nil
	}
	r.Start = QueryRef{Layer: r.firstNSA(), Query: len(tokens) - 1}
	if r.Examples = wordExamples(queries, r.Layers); len(r.Examples) > 0 {
		r.Start = r.Examples[0].QueryRef
	}
	return nil
}

// texts returns the text of each token.
func (in *inspection) texts(tokens []int32) []string {
	list := make([]string, len(tokens))
	for t, id := range tokens {
		list[t] = string(in.vocabulary.AppendToken(nil, id))
	}
	return list
}

func (in *inspection) addLayer(l int, queries []wordQuery) error {
	nodes, layer := in.model.Layers()[l], &in.report.Layers[l]
	if nodes.Blocks != nil {
		gates, _, err := valuesOf(nodes.Gates)
		if err != nil {
			return err
		}
		layer.addGates(gates, in.report.Config.Heads, in.report.Windows)
	}
	for i := range in.branches[l] {
		b := &in.branches[l][i]
		a, err := b.read()
		if err != nil {
			return err
		}
		shares := make([]float64, len(a.blocks)) // of the selected branch
		b.distances.add(a, shares)
		if b.blocks == nil {
			continue
		}
		if layer.Blocks == nil { // the first window
			layer.Blocks, layer.Shares, layer.Groups, layer.N = a.blocks, shares, a.groups, a.n
			in.words[l] = make([]wordCounts, a.groups)
		}
		for g := range in.words[l] {
			in.words[l][g].add(queries, a.blocks, shares, g, a.groups, a.n)
		}
	}
	return nil
}
