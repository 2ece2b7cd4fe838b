package graph_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// rnn is 20 steps of a recurrent network.
var rnn = stock{name: "rnn", in: []operand{normal("x", 8, 16), normal("h", 8, 32), normal("wx", 16, 32), normal("wh", 32, 32), normal("b", 1, 32)},
	build: func(n []*G.Node) (*G.Node, error) {
		h := n[1]
		for range 20 {
			sum := G.Must(G.Add(G.Must(G.Mul(n[0], n[2])), G.Must(G.Mul(h, n[3]))))
			h = G.Must(G.Tanh(G.Must(G.BroadcastAdd(sum, n[4], nil, []byte{0}))))
		}
		return h, nil
	}}

// sliced is 16 slices of a matrix, joined again.
var sliced = stock{name: "slices", in: []operand{normal("x", 64, 32)}, build: func(n []*G.Node) (*G.Node, error) {
	var parts G.Nodes
	for i := range 16 {
		parts = append(parts, G.Must(G.Tanh(G.Must(G.Slice(n[0], G.S(4*i, 4*i+4))))))
	}
	return G.Concat(0, parts...)
}}

// BenchmarkAgainstTapeMachine runs graphs of stock ops with gradients on both machines in turns, and reports how many times
// as long as a TapeMachine's run the Machine's takes.
func BenchmarkAgainstTapeMachine(b *testing.B) {
	for _, c := range []stock{rnn, sliced} {
		for name, grad := range gradients {
			b.Run(c.name+" by "+name, func(b *testing.B) {
				ours, theirs := c.graphOf(b, tensor.Float32), c.graphOf(b, tensor.Float32)
				_, err := grad(ours.cost, ours.in...)
				require.NoError(b, err)
				_, err = G.Grad(theirs.cost, theirs.in...)
				require.NoError(b, err)
				ours.let(b, c.inputs(1))
				theirs.let(b, c.inputs(1))
				m, tape := newMachine(b, ours.graph), G.NewTapeMachine(theirs.graph)
				defer tape.Close()
				var took [2]time.Duration
				b.ReportAllocs()
				for b.Loop() {
					for i, vm := range []G.VM{m, tape} {
						start := time.Now()
						for range 10 {
							if err := vm.RunAll(); err != nil {
								b.Fatal(err)
							}
							vm.Reset()
						}
						took[i] += time.Since(start)
					}
				}
				b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "of-tape")
				b.ReportMetric(float64(took[0].Microseconds())/float64(10*b.N), "us/run")
			})
		}
	}
}
