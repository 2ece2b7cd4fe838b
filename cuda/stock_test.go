package cuda

import (
	"errors"
	"fmt"
	"hash"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// text is what an op is recognised as.
func (s stockOp) text() string {
	var b strings.Builder
	if s.log {
		b.WriteString("log ")
	}
	b.WriteString(s.kind.String())
	switch s.kind {
	case stockUnary:
		fmt.Fprintf(&b, " %v", s.unary)
	case stockBinary:
		fmt.Fprintf(&b, " %v", s.binary)
	}
	if s.transA {
		b.WriteString("ᵀ")
	}
	if s.transB {
		b.WriteString(" bᵀ")
	}
	if s.axes != nil {
		fmt.Fprintf(&b, " %v", s.axes)
	}
	if s.otherAxes != nil {
		fmt.Fprintf(&b, " %v", s.otherAxes)
	}
	if s.gap > 0 {
		fmt.Fprintf(&b, " %d:%d:%d", s.start, s.end, s.gap)
	}
	return b.String()
}

// TestStockVersion holds what is read of Gorgonia's ops to the version that is linked in. After an upgrade look at each op of
// stockTypes again: its fields, its String, its Do.
func TestStockVersion(t *testing.T) {
	if text, err := os.ReadFile("../go.mod"); err == nil { // beside the sources
		for _, want := range []string{gorgoniaPath + " v0.9.18\n", "gorgonia.org/tensor v0.9.24\n"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("go.mod does not name %s", strings.TrimSpace(want))
			}
		}
	}
	// All fields of the structs, not only those that are read: a new one may change what the op does.
	want := map[string]string{
		"elemUnaryOp": "ʘUnaryOperator argTensor numericResult", "elemBinOp": "ʘBinaryOperator arg0 arg1 retSame",
		"minBetween": "", "maxBetween": "", "linAlgBinOp": "āBinaryOperator transA transB",
		"tensordotOp": "aAxes bAxes aDims bDims retDims", "sumOp": "along d inputShape", "maxOp": "along d",
		"softmaxOp": "shape axis isLog", "softmaxDiffOp": "softmaxOp", "reshapeOp": "from to", "transposeOp": "pattern d",
		"sliceOp": "Slice along a d", "sliceIncrOp": "sliceOp", "concatOp": "axis d children", "repeatOp": "along inputShape",
		"sizeOp": "axis d val", "atOp": "coordinates d",
	}
	seen := map[string]bool{}
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		for _, n := range c.graph(t, tensor.Float32).AllNodes() {
			if n.Op() == nil {
				continue
			}
			typ := reflect.TypeOf(n.Op())
			if typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			fields, ok := want[typ.Name()]
			if !ok || seen[typ.Name()] {
				continue
			}
			seen[typ.Name()] = true
			var names []string
			for i := range typ.NumField() {
				names = append(names, typ.Field(i).Name)
			}
			if got := strings.Join(names, " "); got != fields || typ.PkgPath() != gorgoniaPath {
				t.Errorf("%v has the fields %q, want %q", typ, got, fields)
			}
		}
	}
	for name := range stockTypes {
		if _, ok := want[name]; !ok || !seen[name] {
			t.Errorf("%s is in no case", name)
		}
	}
}

// TestStockRecognition builds every case with its gradients and looks at all of its ops.
func TestStockRecognition(t *testing.T) {
	kinds := map[string]int{}
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			g := c.graph(t, tensor.Float32)
			root, ok := recogniseStock(g.out.Op())
			if !ok || root.text() != c.root {
				t.Errorf("%T %v is recognised as %q", g.out.Op(), g.out.Op(), root.text())
			}
			for _, n := range g.AllNodes() {
				if !isStock(n) {
					continue
				}
				op, ok := recogniseStock(n.Op())
				if !ok {
					t.Errorf("%T %v is not recognised", n.Op(), n.Op())
					continue
				}
				kinds[op.kind.String()]++
				site, in, out := stockPlace(g.ExprGraph, n)
				if _, err := compileStock(site, kernels.GPU{}, in, out); err != nil {
					t.Errorf("%v: %v", n.Op(), err)
				}
			}
		})
	}
	for k := stockUnary; int(k) < len(stockKinds); k++ {
		if kinds[k.String()] == 0 {
			t.Errorf("no case has a %v", k)
		}
	}
	t.Log(kinds)
}

// isStock reports whether n is computed by an op, not given.
func isStock(n *G.Node) bool {
	if n.Op() == nil {
		return false
	}
	_, constant := n.Op().(interface{ Value() G.Value })
	return !constant
}

// stockPlace returns the site of a node, with cells that are not placed.
func stockPlace(g *G.ExprGraph, n *G.Node) (graph.Site, []ops.Arg, []ops.Arg) {
	arg := func(n *G.Node) ops.Arg {
		return ops.Arg{Operand: ops.Operand{Dtype: n.Dtype(), Shape: n.Shape()}, Buf: new(cpu.Buf)}
	}
	site := graph.Site{Op: n.Op(), Out: []ops.Operand{arg(n).Operand}}
	var in []ops.Arg
	for children := g.From(n.ID()); children.Next(); {
		in = append(in, arg(children.Node().(*G.Node)))
		site.In = append(site.In, in[len(in)-1].Operand)
	}
	return site, in, []ops.Arg{arg(n)}
}

// stockBuilders returns the parts of an op, matrix products by our own kernel, and the bytes of work memory that they need.
func stockBuilders(k compiled) (builders []launcher, work int64) {
	scratch := alignUp(k.work)
	work = k.work
	for _, p := range k.all() {
		if p.product == nil {
			builders = append(builders, p.launch)
			continue
		}
		builders = append(builders, p.product.launcher(scratch))
		work = max(work, scratch+p.product.WorkBytes())
	}
	return builders, work
}

// elemUnaryOp has a name of Gorgonia's and is none of its ops.
type elemUnaryOp struct{}

func (elemUnaryOp) Arity() int    { return 1 }
func (elemUnaryOp) Type() hm.Type { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (elemUnaryOp) InferShape(in ...G.DimSizer) (tensor.Shape, error) {
	return in[0].(tensor.Shape), nil
}
func (elemUnaryOp) Do(in ...G.Value) (G.Value, error) { return in[0], nil }
func (elemUnaryOp) ReturnsPtr() bool                  { return false }
func (elemUnaryOp) CallsExtern() bool                 { return false }
func (elemUnaryOp) OverwritesInput() int              { return -1 }
func (elemUnaryOp) WriteHash(h hash.Hash)             { h.Write([]byte("cuda test")) }
func (elemUnaryOp) Hashcode() uint32                  { return 1 }
func (elemUnaryOp) String() string                    { return "exp" }

// TestStockRefusals holds what has no kernel to its reason.
func TestStockRefusals(t *testing.T) {
	vector := func(dt tensor.Dtype, shape ...int) *G.Node {
		return G.NewTensor(G.NewGraph(), dt, len(shape), G.WithShape(shape...), G.WithName("x"))
	}
	x := vector(tensor.Float32, 2, 3)
	image := vector(tensor.Float32, 1, 2, 4, 4)
	for _, c := range []struct {
		node   *G.Node
		err    error
		reason graph.Reason
	}{
		{node: G.Must(G.Exp(vector(tensor.Float64, 2, 3))), reason: graph.ReasonType},
		{node: G.Must(G.Lt(x, G.NewConstant(float32(0)), false)), reason: graph.ReasonType},
		{node: G.Must(G.MaxPool2D(image, tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2})), reason: graph.ReasonMissing},
		{node: G.Must(G.Im2Col(image, tensor.Shape{3, 3}, tensor.Shape{1, 1}, tensor.Shape{1, 1}, tensor.Shape{1, 1})), reason: graph.ReasonMissing},
		{node: G.Must(G.Sum(vector(tensor.Float32, 2, 3, 4, 5), 2)), reason: graph.ReasonShape},
		{node: G.Must(G.Dropout(x, 0.5)), reason: graph.ReasonMissing},
		{node: G.Must(G.ApplyOp(elemUnaryOp{}, x)), reason: graph.ReasonMissing},
	} {
		site, in, out := stockPlace(c.node.Graph(), c.node)
		_, err := compileStock(site, kernels.GPU{}, in, out)
		if u := (*graph.Unsupported)(nil); !errors.As(err, &u) || u.Reason != c.reason {
			t.Errorf("%v: %v, want a refusal for its %v", c.node.Op(), err, c.reason)
		}
	}
	if _, ok := recogniseStock(nil); ok {
		t.Error("no op is recognised")
	}
}

// TestStockLaunchesAllocateNothing binds each op and launches it again.
func TestStockLaunchesAllocateNothing(t *testing.T) {
	room := make([]kernels.Launch, 0, 64)
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		g := c.graph(t, tensor.Float32)
		for _, n := range g.AllNodes() {
			if !isStock(n) {
				continue
			}
			site, in, out := stockPlace(g.ExprGraph, n)
			k, err := compileStock(site, kernels.GPU{}, in, out)
			if err != nil {
				t.Errorf("%v: %v", n.Op(), err)
				continue
			}
			builders, _ := stockBuilders(k)
			for _, build := range builders {
				if a := testing.AllocsPerRun(3, func() { _, err = build(room, 256) }); a > 0 || err != nil {
					t.Errorf("%v: %v allocations, error %v", n.Op(), a, err)
				}
			}
		}
	}
}

// TestStockReductionsOfTensor holds what is left to the host to the reductions that package tensor gets wrong.
func TestStockReductionsOfTensor(t *testing.T) {
	right, wrong := 0, 0
	for rank, n := 3, 27; rank <= 4; rank, n = rank+1, 3*n {
		for code := range n {
			shape := make(tensor.Shape, rank)
			for i := range shape {
				shape[i] = code%3 + 1
				code /= 3
			}
			for mask := 1; mask < 1<<rank; mask++ {
				var axes []int
				for a := range shape {
					if mask>>a&1 == 1 {
						axes = append(axes, a)
					}
				}
				ok := tensorSums(shape, axes)
				if got := tensorReducesRight(shape, axes); got && !ok {
					t.Errorf("the sum along %v of %v is taken for right", axes, shape)
				} else if !got && ok {
					t.Errorf("the sum along %v of %v is taken for wrong", axes, shape)
				}
				if ok {
					right++
				} else {
					wrong++
				}
			}
		}
	}
	t.Logf("%d right, %d wrong", right, wrong)
}

// tensorSums reports whether package tensor adds up powers of 2 rightly.
func tensorSums(shape tensor.Shape, axes []int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	x := make([]float64, shape.TotalSize())
	want := map[int]float64{}
	at := make([]int, len(shape))
	for i := range x {
		x[i] = float64(i*i%101) + 0.5
		kept := 0
		for a := range shape {
			if !slices.Contains(axes, a) {
				kept = kept*shape[a] + at[a]
			}
		}
		want[kept] += x[i]
		for a := len(at) - 1; a >= 0; a-- {
			if at[a]++; at[a] < shape[a] {
				break
			}
			at[a] = 0
		}
	}
	y, err := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x)).Sum(axes...)
	if err != nil {
		return false
	}
	got, isSlice := y.Data().([]float64)
	if !isSlice {
		got = []float64{y.Data().(float64)}
	}
	for i, v := range got {
		if want[i] != v {
			return false
		}
	}
	return len(got) == len(want)
}
