package cuda_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// naive is the naive implementation of half precision: each op by the float32 kernel of the CPU, its operands stored where
// cuda.Backend stores them, rounded once when they are stored. Within an op nothing is rounded, but in the MLP of compression, which is several.
type naive struct {
	graph.Backend
	stored map[G.Op][]tensor.Dtype // outputs of what has been planned
}

func newNaive() naive { return naive{graph.NewCPU(1), map[G.Op][]tensor.Dtype{}} }

// Device implements graph.Backend.
func (n naive) Device() graph.Device {
	d := n.Backend.Device()
	d.Half = true
	return d
}

// Storage implements graph.Backend.
func (n naive) Storage(s graph.Site, half tensor.Dtype) (in, out []tensor.Dtype) {
	in, out = new(cuda.Backend).Storage(s, half)
	if s.Spec != nil && s.Op != nil { // ops of Gorgonia compute in float32
		n.stored[s.Op] = out
	}
	return in, out
}

// storedAs returns the type in which the value of a node lies.
func (n naive) storedAs(g *G.ExprGraph, node *G.Node) tensor.Dtype {
	if node.Op() == nil { // an input
		return node.Dtype()
	}
	i, further := ops.OutputIndex(node.Op())
	if further {
		it := g.From(node.ID())
		it.Next()
		node = it.Node().(*G.Node)
	}
	if _, ok := ops.SpecOf(node.Op()); !ok {
		return node.Dtype()
	}
	return n.stored[node.Op()][i]
}

// Offers implements graph.Backend.
func (n naive) Offers(s graph.Site) []graph.Implementation {
	if s.Spec == nil {
		return nil
	}
	return []graph.Implementation{naiveOp{n.Backend}}
}

type naiveOp struct{ cpu graph.Backend }

func (naiveOp) Cost(s graph.Site) graph.Cost { return graph.CostOf(s) }

func (naiveOp) Name() string           { return "naive" }
func (naiveOp) Guard(graph.Site) error { return nil }

// Bind binds the kernel of the CPU to float32 copies of what lies in half precision.
func (op naiveOp) Bind(s graph.Site, in, out []ops.Arg) (graph.Kernel, error) {
	k := &naiveKernel{in: in, out: out, wideIn: widened(in), wideOut: widened(out)}
	if k.Kernel = mlpOf(s, k.wideIn, k.wideOut); k.Kernel != nil {
		return k, nil
	}
	if _, ok := s.Spec.(ops.CastOp); ok {
		return k, nil
	}
	wide := s
	wide.In, wide.Out = operands(k.wideIn), operands(k.wideOut)
	var err error
	k.Kernel, err = op.cpu.Offers(wide)[0].Bind(wide, k.wideIn, k.wideOut)
	return k, err
}

// mlpOf returns the kernel of an MLP, and nil for other ops, and where there is no block.
func mlpOf(s graph.Site, in, out []ops.Arg) graph.Kernel {
	m := &naiveMLP{half: s.In[0].Dtype, in: in, out: out}
	switch op := s.Spec.(type) {
	case ops.CompressMLPOp:
		m.l, m.stride = op.BlockLen, op.Stride
	case ops.CompressMLPGradOp:
		m.l, m.stride, m.backward = op.BlockLen, op.Stride, true
	default:
		return nil
	}
	if ops.NumCompressed(s.In[0].Shape[1], m.l, m.stride) == 0 {
		return nil
	}
	return m
}

func widened(args []ops.Arg) []ops.Arg {
	var list []ops.Arg
	for _, a := range args {
		if ops.IsHalf(a.Dtype) {
			a = ops.Arg{
				Operand: ops.Operand{Dtype: tensor.Float32, Shape: a.Shape}, Buf: cpu.NewBuf(make([]float32, a.Elements())),
			}
		}
		list = append(list, a)
	}
	return list
}

type naiveKernel struct {
	graph.Kernel    // nil for a cast
	in, out         []ops.Arg
	wideIn, wideOut []ops.Arg
}

// WorkBytes implements graph.Kernel.
func (k *naiveKernel) WorkBytes() int {
	if k.Kernel == nil {
		return 0
	}
	return k.Kernel.WorkBytes()
}

// Prepare implements graph.Kernel.
func (*naiveKernel) Prepare(graph.Stream, *cpu.Buf) error { return nil }

// Launch implements graph.Kernel.
func (k *naiveKernel) Launch(s graph.Stream, work *cpu.Buf) error {
	for i, a := range k.in {
		if ops.IsHalf(a.Dtype) {
			x := cpu.Slice[float32](k.wideIn[i].Buf)
			for j, h := range halves(a) {
				x[j] = float32(fromHalf(a.Dtype, h))
			}
		}
	}
	if k.Kernel == nil {
		copy(cpu.Slice[float32](k.wideOut[0].Buf), cpu.Slice[float32](k.wideIn[0].Buf))
	} else if err := k.Kernel.Launch(s, work); err != nil {
		return err
	}
	for i, a := range k.out {
		if ops.IsHalf(a.Dtype) {
			h := halves(a)
			for j, x := range cpu.Slice[float32](k.wideOut[i].Buf) {
				h[j] = toHalf(a.Dtype, float64(x))
			}
		}
	}
	return nil
}

// halves returns the memory of an operand in half precision.
func halves(a ops.Arg) []uint16 { return unsafe.Slice((*uint16)(a.Pointer()), a.Elements()) }

func toHalf(dt tensor.Dtype, x float64) uint16 {
	if dt == ops.BFloat16 {
		return testutil.BFloat16(x)
	}
	return testutil.Float16(x)
}

func fromHalf(dt tensor.Dtype, h uint16) float64 {
	if dt == ops.BFloat16 {
		return testutil.FromBFloat16(h)
	}
	return testutil.FromFloat16(h)
}

// roundInputs rounds the inputs of a float64 graph to half precision.
func roundInputs(t testing.TB, g *G.ExprGraph, half tensor.Dtype) {
	for _, n := range g.Inputs() {
		if v, ok := n.Value().(*tensor.Dense); ok && v.Dtype() == tensor.Float64 {
			for i, x := range v.Float64s() {
				v.Float64s()[i] = fromHalf(half, toHalf(half, x))
			}
		} else {
			require.Equal(t, tensor.Int32, n.Dtype())
		}
	}
}
