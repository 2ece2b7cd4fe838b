package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// stockDevice runs launches.
type stockDevice interface {
	takes(launches []kernels.Launch) bool
	alloc(t testing.TB, bytes int) kernels.Ptr
	upload(t testing.TB, to kernels.Ptr, data []byte)
	run(t testing.TB, launches []kernels.Launch)
	download(t testing.TB, data []byte, from kernels.Ptr)
	reset(t testing.TB)
}

// openGPU is cudatest.Open, which tests inside this package cannot import.
func openGPU(t *testing.T) *Backend {
	t.Helper()
	b, err := Open(0)
	if u := (*driver.Unavailable)(nil); errors.As(err, &u) {
		testutil.NoGPU(t, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// stockGPU is a GPU with what a case has allocated.
type stockGPU struct {
	*Backend
	stream *driver.Stream
	memory []*driver.Memory
}

func openStockGPU(t *testing.T) *stockGPU {
	t.Helper()
	b := openGPU(t)
	s, err := b.dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &stockGPU{Backend: b, stream: s}
}

func (g *stockGPU) takes([]kernels.Launch) bool { return true }

func (g *stockGPU) alloc(t testing.TB, bytes int) kernels.Ptr {
	t.Helper()
	m, err := g.dev.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	g.memory = append(g.memory, m)
	return kernels.Ptr(m.Ptr())
}

func (g *stockGPU) upload(t testing.TB, to kernels.Ptr, data []byte) {
	t.Helper()
	if err := g.stream.Upload(driver.DevicePtr(to), data); err != nil {
		t.Fatal(err)
	}
}

func (g *stockGPU) download(t testing.TB, data []byte, from kernels.Ptr) {
	t.Helper()
	if err := errors.Join(g.stream.Download(data, driver.DevicePtr(from)), g.stream.Synchronize()); err != nil {
		t.Fatal(err)
	}
}

func (g *stockGPU) reset(t testing.TB) {
	for _, m := range g.memory {
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}
	g.memory = nil
}

func (g *stockGPU) run(t testing.TB, launches []kernels.Launch) {
	t.Helper()
	st := stage{launches: launches}
	require.NoError(t, st.bind(g.Backend, "case", nil))
	for _, c := range st.calls {
		require.NoError(t, g.stream.Launch(c))
	}
}

// TestStockOpsMatchGorgonia runs every op of every case, gradients included, on the GPU.
func TestStockOpsMatchGorgonia(t *testing.T) {
	compareStock(t, openStockGPU(t), func(stockCase) bool { return true })
}

// compareStock runs each op of the cases on dev, once for the same shapes, from the values that Gorgonia computes in float32
// before it, and compares the result with that of the same op in float64. The op's own result in float32 must have the same
// elements.
func compareStock(t *testing.T, dev stockDevice, chosen func(stockCase) bool) {
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
				op, _ := recogniseStock(n.Op())
				key := op.text()
				for _, v := range append(in, values[n.ID()]) {
					key += fmt.Sprint(v.Shape())
				}
				if seen[key] {
					continue
				}
				seen[key] = true
				if compareStockOp(t, dev, g.ExprGraph, n, in, want) {
					ran[op.kind.String()]++
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

// stockGuard is the number of bytes before and behind a result that must stay as they are.
const stockGuard = 256

// compareStockOp runs one op twice, over poison, and reports whether dev could.
func compareStockOp(t *testing.T, dev stockDevice, g *G.ExprGraph, n *G.Node, in []G.Value, want G.Value) bool {
	t.Helper()
	site, args, out := stockPlace(g, n)
	k, err := compileStock(site, kernels.GPU{}, args, out)
	if err != nil {
		t.Errorf("%v: %v", n.Op(), err)
		return false
	}
	defer dev.reset(t)
	for i, a := range args {
		v := stockFloats(t, in[i])
		data := unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v))
		p := dev.alloc(t, len(data))
		dev.upload(t, p, data)
		placeStock(a.Buf, p, len(data))
	}
	size := out[0].Operand.Bytes()
	poison := bytes.Repeat([]byte{0xed, 0x7f}, (size+2*stockGuard)/2)
	base := dev.alloc(t, len(poison))
	placeStock(out[0].Buf, base+stockGuard, size)
	builders, room := stockBuilders(k)
	work := kernels.Ptr(0)
	if room > 0 {
		work = dev.alloc(t, int(room))
	}
	var runs [2][]byte
	for i := range runs {
		dev.upload(t, base, poison)
		if room > 0 {
			dev.upload(t, work, bytes.Repeat([]byte{0xff, byte(0x7f + i)}, int(room)/2))
		}
		var launches []kernels.Launch
		for _, build := range builders {
			if launches, err = build(launches, work); err != nil {
				t.Fatal(err)
			}
		}
		if !dev.takes(launches) {
			return false
		}
		dev.run(t, launches)
		runs[i] = make([]byte, len(poison))
		dev.download(t, runs[i], base)
	}
	if !bytes.Equal(runs[0], runs[1]) {
		t.Errorf("%v: two runs differ", n.Op())
	}
	end := stockGuard + size
	if !bytes.Equal(runs[1][:stockGuard], poison[:stockGuard]) || !bytes.Equal(runs[1][end:], poison[end:]) {
		t.Errorf("%v: written to outside of the result", n.Op())
	}
	got := testutil.Convert[float64](unsafe.Slice((*float32)(unsafe.Pointer(&runs[1][stockGuard])), size/4))
	wanted := testutil.Floats(t, want.Data())
	tolerance := 1e-5
	if op, _ := recogniseStock(n.Op()); op.kind == stockSum && len(wanted) == 1 { // terms may cancel: then they are the scale
		terms := 0.0
		for _, v := range stockFloats(t, in[0]) {
			terms += math.Abs(float64(v))
		}
		tolerance = max(tolerance, 1e-6*terms/math.Abs(wanted[0]))
	}
	testutil.Within(t, n.Op().String(), got, wanted, tolerance)
	return true
}

// placeStock makes a cell hold device memory.
func placeStock(b interface {
	Set(p unsafe.Pointer, bytes int)
}, p kernels.Ptr, bytes int) {
	b.Set(*(*unsafe.Pointer)(unsafe.Pointer(&p)), bytes)
}
