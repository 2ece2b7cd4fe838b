package graph

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// cpuCollective is the implementation of the ops of package collective on the CPU, and their kernel: each rank gets the
// operands of all and computes its own results. It is made for tests, not for speed.
type cpuCollective struct {
	op      collective.Collective
	group   Group
	in, out []spec.Arg
}

func (cpuCollective) Name() string { return "cpu" }

// Guard implements Implementation.
func (c cpuCollective) Guard(s Call) error { return cpuImplementation{}.Guard(s) }

// Bind implements Implementation.
func (c cpuCollective) Bind(_ Call, in, out []spec.Arg) (Kernel, error) {
	c.in, c.out = in, out
	return &c, nil
}

func (c *cpuCollective) WorkBytes() int                 { return 0 }
func (c *cpuCollective) Prepare(Stream, *cpu.Buf) error { return nil }

// Launch implements Kernel.
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
	for rank, theirs := range all {
		if len(theirs) != len(data) {
			return fmt.Errorf("rank %d sent %d bytes, rank %d %d", rank, len(theirs), c.group.Rank(), len(data))
		}
		all[rank] = append(cpu.AlignedBytes(len(data))[:0], theirs...)
	}
	for i, y := range c.out {
		var x []spec.Arg
		for _, theirs := range all {
			part := theirs[offsets[i]:][:c.in[i].Operand.Bytes()]
			x = append(x, spec.Arg{Operand: c.in[i].Operand, Buf: cpu.NewBuf(part)})
		}
		c.op.Combine(c.group.Rank(), x, y)
	}
	return nil
}
