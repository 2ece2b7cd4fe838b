package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/stock"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestStockOpsMatchGorgonia runs every op of every case, gradients included, on the GPU.
func TestStockOpsMatchGorgonia(t *testing.T) {
	dev := openGPU(t)
	compareStock(t, dev, func(stockCase) bool { return true }, func(*kernels.Plan) bool { return true })
}

// compareStock runs each op of the cases on dev, once for the same shapes, from the values that Gorgonia computes in float32
// before it, where dev takes the plan, and compares the result with that of the same op in float64. The op's own result in float32 must have the same
// elements.
func compareStock(t *testing.T, dev device, chosen func(stockCase) bool, takes func(*kernels.Plan) bool) {
	ran, seen := map[string]int{}, map[string]bool{}
	for _, c := range stockCases() {
		if !chosen(c) {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			g, wide := c.graph(t, tensor.Float32), c.graph(t, tensor.Float64)
			nodes, twins := g.AllNodes(), wide.AllNodes()
			if len(nodes) != len(twins) {
				t.Fatalf("%d nodes in float32, %d in float64", len(nodes), len(twins))
			}
			values := map[int64]G.Value{}
			for i, n := range nodes {
				if !isStock(n) {
					values[n.ID()] = n.Value()
					continue
				}
				if twins[i].Op() == nil || n.Op().String() != twins[i].Op().String() {
					t.Fatalf("node %d is %v in float32, %v in float64", i, n.Op(), twins[i].Op())
				}
				var in, twin []G.Value
				for children := g.From(n.ID()); children.Next(); {
					v := values[children.Node().ID()]
					in = append(in, v)
					twin = append(twin, stockValue(tensor.Float64, v.Shape(), stockFloats(t, v)))
				}
				want := stockDo(t, twins[i], twin)
				values[n.ID()] = stockDo(t, n, in)
				if t.Failed() {
					return
				}
				kind := stockText(stock.Recognise(n.Op()))
				key := kind
				for _, v := range append(in, values[n.ID()]) {
					key += fmt.Sprint(v.Shape())
				}
				if seen[key] {
					continue
				}
				seen[key] = true
				site := stockSite(g.ExprGraph, n)
				plan, err := planOf(h200, "", stock.Recognise(n.Op()), site)
				if err != nil {
					t.Errorf("%v: %v", n.Op(), err)
				} else if takes(plan) {
					compareStockOp(t, dev, plan, site, n, in, want)
					ran[strings.Fields(kind)[0]]++
				}
			}
		})
	}
	t.Log(ran)
}

// stockDo runs the op of n as a machine does, and returns its result in the shape of the node.
func stockDo(t *testing.T, n *G.Node, in []G.Value) G.Value {
	t.Helper()
	var v G.Value
	var err error
	op := n.Op()
	if p, ok := op.(G.UsePreallocDoer); ok && op.CallsExtern() && op.ReturnsPtr() && !n.IsScalar() {
		v, err = p.UsePreallocDo(tensor.New(tensor.Of(n.Dtype()), tensor.WithShape(n.Shape()...)), in...)
	} else {
		v, err = op.Do(in...)
	}
	if err != nil {
		t.Errorf("%v: %v", op, err)
		return nil
	}
	if v.Shape().TotalSize() != n.Shape().TotalSize() {
		t.Errorf("%v: result %v of a node %v", op, v.Shape(), n.Shape())
	}
	switch data := v.Data().(type) {
	case []float64: // the scalar value of a float64 node loses nothing here: it is only compared
		if n.IsScalar() {
			return G.NewF64(data[0])
		}
		return tensor.New(tensor.WithShape(n.Shape()...), tensor.WithBacking(append([]float64(nil), data...)))
	case float64:
		if !n.IsScalar() {
			return tensor.New(tensor.WithShape(n.Shape()...), tensor.WithBacking([]float64{data}))
		}
		return G.NewF64(data)
	}
	return stockValue(tensor.Float32, n.Shape(), stockFloats(t, v))
}

// stockFloats returns the elements of a float32 value.
func stockFloats(t testing.TB, v G.Value) []float32 {
	t.Helper()
	switch data := v.Data().(type) {
	case []float32:
		return data
	case float32:
		return []float32{data}
	}
	t.Fatalf("value %v of type %v", v.Shape(), v.Dtype())
	return nil
}

// compareStockOp runs one op twice, over poison.
func compareStockOp(t *testing.T, dev device, plan *kernels.Plan, site graph.Site, n *G.Node, in []G.Value, want G.Value) {
	t.Helper()
	var args []arg
	for i, o := range site.In {
		v := stockFloats(t, in[i])
		args = append(args, arg{o, dev.put(t, unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)))})
	}
	defer dev.reset(t)
	size := site.Out[0].Bytes()
	var runs [2][]byte
	for i := range runs {
		dev.otherOrder()
		y := output(t, dev, size)
		work := dev.put(t, bytes.Repeat([]byte{0xff, byte(0x7f + i)}, int(plan.WorkBytes()+1)/2))
		bindPlan(t, plan, work, append(args[:len(args):len(args)], arg{site.Out[0], y.at})...).run(t, dev)
		runs[i] = y.bytes(t, dev)
	}
	if !bytes.Equal(runs[0], runs[1]) {
		t.Errorf("%v: two runs differ", n.Op())
	}
	got := testutil.Convert[float64](unsafe.Slice((*float32)(unsafe.Pointer(&runs[1][0])), size/4))
	wanted := testutil.Floats(t, want.Data())
	tolerance := 1e-5
	if sum, ok := stock.Recognise(n.Op()).(stock.Reduce); ok && !sum.Max && len(wanted) == 1 { // terms may cancel: then they are the scale
		terms := 0.0
		for _, v := range stockFloats(t, in[0]) {
			terms += math.Abs(float64(v))
		}
		tolerance = max(tolerance, 1e-6*terms/math.Abs(wanted[0]))
	}
	testutil.Within(t, n.Op().String(), got, wanted, tolerance)
}
