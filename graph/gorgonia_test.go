package graph_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// noGradient is the reason for comparing values only: Gorgonia has no gradient of the op.
const noGradient = "no gradient"

type build = func(n []*G.Node) (*G.Node, error)

// on returns the test graph of an op whose inputs are named a, b and so on.
func on(name string, f build, in ...operand) stock {
	for i := range in {
		in[i].name = string(rune('a' + i))
	}
	return stock{name: name, in: in, build: f}
}

// one and two build graphs of functions of one and two nodes.
func one(f func(*G.Node) (*G.Node, error)) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0]) }
}

func two(f func(a, b *G.Node) (*G.Node, error)) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1]) }
}

// along builds the graph of a reduction. Gorgonia may change the slice of axes.
func along(f func(*G.Node, ...int) (*G.Node, error), axes ...int) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0], slices.Clone(axes)...) }
}

// onlyValues marks c: why says what is wrong with upstream's gradients. Grad refuses them. Those of noGradient are not
// asked for.
func onlyValues(why string, c stock) stock {
	c.wrong = why
	return c
}

// corrected marks c: why says what is wrong with upstream's gradients, if it is not empty. Those of Grad are right.
func corrected(why string, c stock) stock {
	c.wrong, c.corrected = why, why != ""
	return c
}

// without marks c: why says what is wrong with TapeMachine on c. Only central differences are compared.
func without(why string, c stock) stock {
	c.tape = why
	return c
}

// inEval makes c run in evaluation mode.
func inEval(c stock) stock {
	c.eval = true
	return c
}

// fixed is an input of the graph of n with fixed values. No gradient is taken by it.
func fixed(n *G.Node, name string, backing any, shape ...int) *G.Node {
	return G.NodeFromAny(n.Graph(), tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing)), G.WithName(name))
}

// weighted is an input of random numbers in the shape and the type of n.
func weighted(n *G.Node, name string, seed uint64) *G.Node {
	o := operand{shape: n.Shape()}
	return G.NodeFromAny(n.Graph(), o.value(n.Dtype(), o.values(seed)), G.WithName(name))
}

func number(n *G.Node, v float64) *G.Node {
	if n.Dtype() == tensor.Float32 {
		return G.NewConstant(float32(v))
	}
	return G.NewConstant(v)
}

// ofTests are the rows of referencedOps with the ops and shapes of Gorgonia v0.9.18's own tests.
var ofTests = regexp.MustCompile("^(" + strings.Join([]string{
	// functions; a TapeMachine has no MinBetween of scalars
	`\w+( true| false)? \[(3 5|1)\]$`, `[^M]\w+( true| false)? \[\]$`,
	`(Sum|Mean|Max) \[(1|3 1|1 1|1 4|5|3 4|2 3 2|2 3 2 2)\]`, `(SoftMax|LogSoftMax) \[(5|3 4|2 3 2)\]`,
	`Broadcast \w+ {\[(2|2 1|3 1|1 1 2|2 3 2|2 3 4 2)\] `, `(Mul|Tensordot|OuterProd|BatchedMatMul .*->\w+jl$)`,
	`(Concat|Reshape|DiagFlat|SizeOf|Norm|Global|Upsample2D|Conv1d|MaxPool1D|LeakyRelu|Rectify|Mish|Dropout)`,
	`Slice \[(5|4 3)\]`, `Transpose \[(3 4|2 3 4)\]`, `ByIndices \[3 4\] \d \[0 `,
	`(Im2Col|Conv2d|MaxPool2D|AveragePool2D) .*\[1 2 5 7\]`, `(BatchNorm|GroupNorm) \[(3 2 2 2|4 3|2 4 2 2)\]`,
}, "|") + ")")

// gorgonias are graphs of Gorgonia's own tests. Every kind of its ops is among them.
func gorgonias() (rows []stock) {
	x, p := normal, positive
	add := func(c ...stock) { rows = append(rows, c...) }
	for _, r := range referencedOps() {
		if ofTests.MatchString(r.name) {
			add(r.stock)
		}
	}
	for _, c := range functions(2) {
		mixed := []stock{on(c.name+" of a scalar and a vector", c.op, x(), x(2)),
			on(c.name+" of a vector and a scalar", c.op, x(2), x())}
		if c.values {
			add(onlyValues(noGradient, mixed[0]), onlyValues(noGradient, mixed[1]))
			continue
		}
		add(on(c.name+" of itself", func(n []*G.Node) (*G.Node, error) {
			y := G.Must(G.Exp(n[0]))
			return c.op(G.Nodes{y, y})
		}, p(3)))
	}
	add(on("Div", two(func(a, b *G.Node) (*G.Node, error) { return G.Div(a, b) }), p(2, 3), p(2, 3)))
	add(on("Broadcast of nothing", two(func(a, b *G.Node) (*G.Node, error) {
		a, b, err := G.Broadcast(a, b, G.NewBroadcastPattern(nil, nil))
		if err != nil {
			return nil, err
		}
		return G.Add(a, b)
	}), x(2, 3), x(2, 3)))
	// TestAuto
	for _, s := range [][2][]int{{{12, 1}, {12, 3}}, {{1, 12}, {3, 12}}, {{2, 3, 5}, {2, 3, 1}},
		{{2, 1, 5}, {2, 3, 5}}, {{2, 1, 1}, {2, 5, 3}}} {
		auto := func(a, b *G.Node) (*G.Node, error) { return G.Auto(G.BroadcastHadamardProd, a, b) }
		add(on(fmt.Sprintf("Auto %v", s), two(auto), x(s[0]...), x(s[1]...)))
	}
	for _, by := range [][]tensor.Slice{{G.S(0)}, {G.S(0, 2)}, {nil, G.S(0)}, {G.S(0), nil, G.S(0)},
		{G.S(1, 2), G.S(0, 2)}} {
		slice := func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }
		add(on(fmt.Sprintf("Slice of rank 3 %v", by), one(slice), x(2, 3, 4)),
			on(fmt.Sprintf("Slice of a result %v", by),
				one(func(x *G.Node) (*G.Node, error) { return chain(x, G.Tanh, slice, G.Exp) }), x(2, 3, 4)))
	}
	add(on("Reshape by a length", one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{-1, 2}) }),
		x(2, 2)))
	for _, shape := range [][]int{{3, 3}, {2, 3}, {2, 1, 3}, {1, 1, 1}} {
		add(on(fmt.Sprintf("Ravel %v", shape), one(G.Ravel), x(shape...)))
	}
	for axis := range 3 {
		add(on(fmt.Sprintf("Unconcat %d", axis), two(func(a, b *G.Node) (*G.Node, error) {
			parts, err := G.Unconcat(G.Must(G.Concat(axis, a, b)), axis, 2)
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(parts[0], parts[1])
		}), x(2, 3, 2), x(2, 3, 2)), on(fmt.Sprintf("KeepDims %d", axis), one(func(x *G.Node) (*G.Node, error) {
			return G.KeepDims(x, axis == 0, func(x *G.Node) (*G.Node, error) { return G.Mean(x, axis) })
		}), x(2, 3, 2)))
	}
	add(
		without("another value", onlyValues(noGradient, on("At",
			one(func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) }), x(2, 3)))),
		on("SliceBNConcat", func(n []*G.Node) (*G.Node, error) {
			var parts G.Nodes
			for i, w := range n[1:3] {
				y, _, _, _, err := G.BatchNorm(G.Must(G.Slice(n[0], G.S(2-2*i, 4-2*i))), n[3], n[4], 0.1, 1e-5)
				if err != nil {
					return nil, err
				}
				parts = append(parts, G.Must(G.Mul(G.Must(G.Reshape(y, tensor.Shape{2, 8})), G.Must(G.Transpose(w, 1, 0)))))
			}
			return G.Concat(0, parts...)
		}, x(4, 2, 2, 2), x(2, 8), x(2, 8), x(1, 2, 1, 1), x(1, 2, 1, 1)),
	)
	// TapeMachine's ops return one element as a scalar, which the next op refuses
	for _, shape := range [][]int{{1}, {1, 1}, {1, 1, 1}} {
		add(without("an error", on(fmt.Sprintf("One element %v", shape), one(func(x *G.Node) (*G.Node, error) {
			y := G.Must(G.Exp(G.Must(G.HadamardProd(x, x))))
			part, pair := G.Must(G.Slice(y, G.S(0, 1))), G.Must(G.Concat(0, y, x))
			return G.Add(G.Must(G.Sum(part)), G.Must(G.Add(G.Must(G.Sum(y)), G.Must(G.Sum(pair)))))
		}), x(shape...))))
	}
	add(on("Mul scalars", two(G.Mul), x(), x()), on("Mul vector and scalar", two(G.Mul), x(4), x()),
		on("Scalar times matrix", two(G.HadamardProd), x(), x(2, 3)),
		on("Matrix minus scalar", two(G.Sub), x(2, 3), x()), on("Vector over scalar", two(G.HadamardDiv), x(4), p()),
		on("Sum of one element", two(G.Add), x(1, 1), x(1, 1)),
		on("Issue182", two(func(a, b *G.Node) (*G.Node, error) {
			return G.Mul(G.Must(G.Mul(a, fixed(a, "twos", tensor.Ones(a.Dtype(), 3).Data(), 3))), b)
		}), x(3), x()))
	four := []int{1, 1, 0, 0} // pads
	add(
		on("MaxPool2D with four pads",
			one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, []int{2, 2}, four, []int{2, 2}) }), x(1, 2, 4, 4)),
		onlyValues("wrong", on("AveragePool2D with four pads", one(func(x *G.Node) (*G.Node, error) {
			return G.AveragePool2D(x, []int{2, 2}, four, []int{2, 2})
		}), x(1, 2, 4, 4))),
		on("AveragePool1D", one(func(x *G.Node) (*G.Node, error) { return G.AveragePool1D(x, 2, 0, 2) }), x(1, 2, 1, 6)),
	)
	for _, shape := range [][]int{{3, 2, 2, 2}, {4, 3}} {
		channels := []int{1, shape[1], 1, 1}[:len(shape)]
		bn := func(n []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(n[0], n[1], n[2], 0.9, 1e-5)
			return y, err
		}
		add(inEval(on(fmt.Sprintf("BatchNorm in evaluation %v", shape), bn, x(shape...), x(channels...), x(channels...))),
			on(fmt.Sprintf("BatchNormStacked %v", shape), func(n []*G.Node) (*G.Node, error) {
				y := G.Must(bn(n))
				return bn(append([]*G.Node{y}, n[3:]...))
			}, x(shape...), x(channels...), x(channels...), x(channels...), x(channels...)))
	}
	add(
		on("Sparsemax", along(G.Sparsemax), x(2, 3)), on("Sparsemax 1", along(G.Sparsemax, 1), x(2, 3)),
		without("NaN", corrected("of another axis", on("Sparsemax 0", along(G.Sparsemax, 0), x(3, 2)))),
		on("Sparsemax of a vector", along(G.Sparsemax), x(4)),
		on("Sparsemax of a row", along(G.Sparsemax), x(1, 4)), on("Sparsemax of a column", along(G.Sparsemax), x(4, 1)),
		on("SoftMax of a class", one(func(x *G.Node) (*G.Node, error) {
			return G.Slice(G.Must(G.Neg(G.Must(G.Log(G.Must(G.SoftMax(x)))))), G.S(2))
		}), x(5)),
		on("BinaryXent", two(func(p, y *G.Node) (*G.Node, error) {
			return G.BinaryXent(G.Must(G.Sigmoid(p)),
				G.Must(G.Sigmoid(y)))
		}), x(4), x(4)),
		on("Log of a sigmoid", one(func(x *G.Node) (*G.Node, error) { return G.Log(G.Must(G.Sigmoid(x))) }), x(4)),
		on("Exp minus one", one(func(x *G.Node) (*G.Node, error) { return G.Sub(G.Must(G.Exp(x)), number(x, 1)) }), x(4)),
		on("Neg of Neg", one(func(x *G.Node) (*G.Node, error) { return G.Neg(G.Must(G.Neg(G.Must(G.Sin(x))))) }), x(4)),
		on("Issue363", two(func(a, b *G.Node) (*G.Node, error) { return G.Neg(G.Must(G.Add(a, b))) }), x(), x()),
		on("Misha", func(n []*G.Node) (*G.Node, error) { return G.Add(G.Must(G.Mish(n[0])), G.Must(G.Mish(n[1]))) },
			x(), x()),
		on("ReduceAdd", func(n []*G.Node) (*G.Node, error) { return G.ReduceAdd(G.Nodes(n)) }, x(2, 3), x(2, 3),
			x(2, 3), x(2, 3)),
		on("ReduceMul", func(n []*G.Node) (*G.Node, error) { return G.ReduceMul(G.Nodes(n)) }, x(2, 2), x(2, 2), x(2, 2)),
		corrected("it turns the softmax into its log", on("Pow of a SoftMax",
			two(func(a, b *G.Node) (*G.Node, error) { return G.Pow(G.Must(G.SoftMax(a)), b) }), x(2, 3), p(2, 3))),
		on("Sum is no root", one(func(x *G.Node) (*G.Node, error) { return G.Add(G.Must(G.Sum(x)), number(x, 2)) }), x(4, 3)),
		// Not Gorgonia's: x + reshape(reshape(x) w). TapeMachine's gradient is wrong, since Reshape aliases and Add
		// works in place.
		without("wrong gradients", on("Residual", two(func(a, w *G.Node) (*G.Node, error) {
			y := G.Must(G.Mul(G.Must(G.Reshape(a, tensor.Shape{6, 4})), w))
			return G.Add(a, G.Must(G.Reshape(y, tensor.Shape{2, 3, 4})))
		}), x(2, 3, 4), x(4, 4))),
		on("MLP with cross entropy", func(n []*G.Node) (*G.Node, error) {
			h := G.Must(G.Rectify(G.Must(G.BroadcastAdd(G.Must(G.Mul(n[0], n[1])), n[2], nil, []byte{0}))))
			return G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(n[4], G.Must(G.LogSoftMax(G.Must(G.Mul(h, n[3])))))))))
		}, x(3, 4), x(4, 5), x(5), x(5, 3), p(3, 3)),
		on("GRU cell", gru, x(3), x(4), x(4, 3), x(4, 4), x(4, 3), x(4, 4), x(4, 3), x(4, 4)),
		on("Linear regression", func(n []*G.Node) (*G.Node, error) {
			return G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Add(G.Must(G.Mul(n[0], n[1])), n[2])), n[3])))))
		}, x(6), x(), x(), x(6)),
	)
	// op_by_indices_test.go, op_ctc_loss_test.go, op_yolo_test.go
	for why, reduction := range map[string]G.Reduction{"wrong for the mean": G.ReductionMean, "": G.ReductionSum} {
		add(onlyValues(why, on(fmt.Sprint("CTCLoss ", reduction), one(func(x *G.Node) (*G.Node, error) {
			return G.CTCLoss(G.Must(G.LogSoftMax(x, 2)), fixed(x, "targets", []int{1, 2, 2, 1}, 2, 2),
				fixed(x, "lengths", []int{4, 4}, 2), fixed(x, "sizes", []int{2, 1}, 2), reduction)
		}), x(4, 2, 3))))
	}
	add(onlyValues(noGradient, on("YOLOv3", one(func(x *G.Node) (*G.Node, error) { // YOLOv3 overwrites its input
		x = fixed(x, "image", testutil.Convert[float32](testutil.Normal(1, 84)), 1, 21, 2, 2)
		return G.YOLOv3(G.Must(G.Tanh(x)), []float32{10, 13, 16, 30, 33, 23}, []int{0, 1, 2}, 32, 2, 0.7)
	}), x())))
	return rows
}

// gru returns the next state of a gated recurrent unit.
func gru(n []*G.Node) (*G.Node, error) {
	x, h := n[0], n[1]
	gate := func(w, u, h *G.Node) *G.Node { return G.Must(G.Add(G.Must(G.Mul(w, x)), G.Must(G.Mul(u, h)))) }
	z := G.Must(G.Sigmoid(gate(n[2], n[3], h)))
	r := G.Must(G.Sigmoid(gate(n[4], n[5], h)))
	c := G.Must(G.Tanh(gate(n[6], n[7], G.Must(G.HadamardProd(r, h)))))
	return G.Add(h, G.Must(G.HadamardProd(z, G.Must(G.Sub(c, h)))))
}

// TestGorgonia runs the graphs of Gorgonia's own tests and compares them with TapeMachine and with central differences.
func TestGorgonia(t *testing.T) {
	log.SetOutput(io.Discard) // GroupNorm prints its gradients
	defer log.SetOutput(os.Stderr)
	rows := gorgonias()
	require.GreaterOrEqual(t, len(rows), 100)
	for _, c := range rows {
		t.Run(c.name, c.test)
	}
}
