package graph

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// cpuCollective is the implementation of the ops of package collective on the CPU, and their kernel: each rank gets the
// operands of all ranks of the group and computes its own results. It is made for tests, not for speed.
type cpuCollective struct {
	op      collective.Collective
	group   Group
	in, out []spec.Arg
}

func (cpuCollective) Name() string { return "cpu" }

func (c cpuCollective) Guard(s Call) error { return cpuImplementation{}.Guard(s) }

func (c cpuCollective) Bind(_ Call, in, out []spec.Arg) (Kernel, error) {
	c.in, c.out = in, out
	return &c, nil
}

func (c *cpuCollective) WorkBytes() int                 { return 0 }
func (c *cpuCollective) Prepare(Stream, *cpu.Buf) error { return nil }

func (c *cpuCollective) Launch(Stream, *cpu.Buf) error {
	var data []byte
	offsets := make([]int, len(c.in))
	for i, x := range c.in {
		data = append(data, make([]byte, alignUp(len(data), cpuAlignment)-len(data))...)
		offsets[i] = len(data)
		data = append(data, hostBytes(x.Buf)...)
	}
	all, err := c.group.AllGather(c.op.Name(), data)
	if err != nil {
		return err
	}
	ranks, _ := c.op.Of()
	own := c.group.Rank() % ranks // among those that run the op together
	first := c.group.Rank() - own
	all = all[first : first+ranks]
	for rank, theirs := range all {
		if len(theirs) != len(data) {
			return fmt.Errorf("rank %d sent %d bytes, rank %d %d", first+rank, len(theirs), c.group.Rank(), len(data))
		}
		all[rank] = append(cpu.AlignedBytes(len(data))[:0], theirs...)
	}
	for i, y := range c.out {
		var x, wide []spec.Arg
		for _, theirs := range all {
			part := theirs[offsets[i]:][:c.in[i].Operand.Bytes()]
			x = append(x, spec.Arg{Operand: c.in[i].Operand, Buf: cpu.NewBuf(part)})
		}
		if y.Dtype != spec.BFloat16 {
			c.op.Combine(own, x, y)
			continue
		}
		for _, part := range x {
			wide = append(wide, widened(part))
		}
		sum := widened(y)
		c.op.Combine(own, wide, sum)
		cpu.RoundBF16(cpu.Slice[cpu.BFloat16](y.Buf), cpu.Slice[float32](sum.Buf))
	}
	return nil
}

// widened returns a copy in float32 of an operand in bfloat16.
func widened(x spec.Arg) spec.Arg {
	y := make([]float32, x.Elements())
	cpu.WidenBF16(y, cpu.Slice[cpu.BFloat16](x.Buf))
	return spec.Arg{Operand: spec.Operand{Dtype: tensor.Float32, Shape: x.Shape}, Buf: cpu.NewBuf(y)}
}
