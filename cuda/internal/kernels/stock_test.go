package kernels_test

import (
	"errors"
	"fmt"
	"hash"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/stock"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockText is what an op is recognised as.
func stockText(op any) string {
	slice := func(kind string, s stock.Slice) string {
		text := fmt.Sprintf("%s [%d]", kind, s.Axis)
		if s.Step > 0 {
			text += fmt.Sprintf(" %d:%d:%d", s.Start, s.End, s.Step)
		}
		return text
	}
	marked := func(is bool, mark string) string {
		if is {
			return mark
		}
		return ""
	}
	switch op := op.(type) {
	case stock.Unary:
		return fmt.Sprintf("unary %v", op.Function)
	case stock.Binary:
		return fmt.Sprintf("binary %v", op.Function)
	case stock.Product:
		kind := [...]string{"matrix product", "matrix times vector", "dot product", "outer product", "batched matrix product"}[op.Kind]
		return kind + marked(op.TransA, "ᵀ") + marked(op.TransB, " bᵀ")
	case stock.Tensordot:
		return fmt.Sprintf("tensordot %v %v", op.A, op.B)
	case stock.Reduce:
		return fmt.Sprintf("%s %v", map[bool]string{false: "sum", true: "max"}[op.Max], op.Axes)
	case stock.Softmax:
		return fmt.Sprintf("%ssoftmax [%d]", marked(op.Log, "log "), op.Axis)
	case stock.SoftmaxGrad:
		return fmt.Sprintf("%sgradient of softmax [%d]", marked(op.Log, "log "), op.Axis)
	case stock.Reshape:
		return "reshape"
	case stock.Transpose:
		return fmt.Sprintf("transpose %v", op.Axes)
	case stock.Slice:
		return slice("slice", op)
	case stock.SliceGrad:
		return slice("gradient of slice", stock.Slice(op))
	case stock.Concat:
		return fmt.Sprintf("concat [%d]", op.Axis)
	case stock.Repeat:
		return fmt.Sprintf("repeat [%d]", op.Axis)
	case stock.Size:
		return fmt.Sprintf("size [%d]", op.Axis)
	case stock.Element:
		return fmt.Sprintf("element %v", op.At)
	}
	return fmt.Sprintf("%T", op)
}

// gorgoniaPath is the package whose ops are recognised.
const gorgoniaPath = "gorgonia.org/gorgonia"

// TestStockVersion holds what is read of Gorgonia's ops to the version that is linked in. After an upgrade look at each op that
// stock.Recognise reads again: its fields, its String, its Do.
func TestStockVersion(t *testing.T) {
	if text, err := os.ReadFile("../../../go.mod"); err == nil { // beside the sources
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
	for name := range want {
		if !seen[name] {
			t.Errorf("%s is in no case", name)
		}
	}
}

// TestStockRecognition builds every case with its gradients and looks at all of its ops.
func TestStockRecognition(t *testing.T) {
	kinds := map[reflect.Type]int{}
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			g := c.graph(t, tensor.Float32)
			if root := stockText(stock.Recognise(g.out.Op())); root != c.root {
				t.Errorf("%T %v is recognised as %q", g.out.Op(), g.out.Op(), root)
			}
			for _, n := range g.AllNodes() {
				if !isStock(n) {
					continue
				}
				op := stock.Recognise(n.Op())
				if op == nil {
					t.Errorf("%T %v is not recognised", n.Op(), n.Op())
					continue
				}
				kinds[reflect.TypeOf(op)]++
				if _, err := planOf(h200, "", op, stockSite(g.ExprGraph, n)); err != nil {
					t.Errorf("%v: %v", n.Op(), err)
				}
			}
		})
	}
	if len(kinds) != len(stock.Rows()) {
		t.Errorf("cases of %v", kinds)
	}
}

// stockPlans are the plans of all ops of the cases.
func stockPlans(t *testing.T) (plans []*kernels.Plan) {
	for _, c := range stockCases() {
		g := c.graph(t, tensor.Float32)
		for _, n := range g.AllNodes() {
			if isStock(n) {
				p, err := planOf(h200, "", stock.Recognise(n.Op()), stockSite(g.ExprGraph, n))
				if err != nil {
					t.Errorf("%v: %v", n.Op(), err)
					continue
				}
				plans = append(plans, p)
			}
		}
	}
	return plans
}

// isStock reports whether n is computed by an op, not given.
func isStock(n *G.Node) bool {
	if n.Op() == nil {
		return false
	}
	_, constant := n.Op().(interface{ Value() G.Value })
	return !constant
}

// stockSite returns the site of a node.
func stockSite(g *G.ExprGraph, n *G.Node) graph.Site {
	of := func(n *G.Node) ops.Operand { return ops.Operand{Dtype: n.Dtype(), Shape: n.Shape()} }
	site := graph.Site{Op: n.Op(), Out: []ops.Operand{of(n)}}
	for children := g.From(n.ID()); children.Next(); {
		site.In = append(site.In, of(children.Node().(*G.Node)))
	}
	return site
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
		site := stockSite(c.node.Graph(), c.node)
		op := stock.Recognise(c.node.Op())
		if c.reason == graph.ReasonMissing {
			if op != nil {
				t.Errorf("%v is recognised as %v", c.node.Op(), stockText(op))
			}
			continue
		}
		_, err := planOf(h200, "", op, site)
		if u := (*graph.Unsupported)(nil); !errors.As(err, &u) || u.Reason != c.reason {
			t.Errorf("%v: %v, want a refusal for its %v", c.node.Op(), err, c.reason)
		}
	}
	if stock.Recognise(nil) != nil {
		t.Error("no op is recognised")
	}
}
