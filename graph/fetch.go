package graph

import (
	"errors"
	"fmt"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Fetch enqueues a copy of elements of the value that the last run gave to n: those from first on, as many as dst has,
// a row-major tensor of n's type on the host. dst holds them after Synchronize. n must be computed by a kernel and have
// a value after a run: see WithKeep. Fetch allocates nothing once warm.
func (m *Machine) Fetch(dst *tensor.Dense, n *G.Node, first int) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	if err := m.fetch(dst, n, first); err != nil {
		return fmt.Errorf("graph: machine: fetch of %s: %w", describe(n), err)
	}
	return nil
}

func (m *Machine) fetch(dst *tensor.Dense, n *G.Node, first int) error {
	v, ok := m.valueByNode[n]
	switch {
	case !ok || !v.keep || v.kind != fromKernel:
		return errors.New("no kernel computes it, or it has no value after a run: see WithKeep")
	case m.run == 0:
		return errors.New("the machine has not run")
	case dst == nil:
		return errors.New("the destination is nil")
	case dst.Dtype() != v.arg.Dtype:
		return fmt.Errorf("to %s, want %s", value.TypeName(dst.Dtype()), value.TypeName(v.arg.Dtype))
	case first < 0 || first > v.arg.Elements()-dst.Size():
		return fmt.Errorf("%d elements from %d on, it has %d", dst.Size(), first, v.arg.Elements())
	}
	part := spec.Arg{Operand: spec.Operand{Dtype: v.arg.Dtype, Shape: dst.Shape()}, Buf: &m.fetched}
	part.Buf.Set(unsafe.Add(v.arg.Pointer(), first*int(v.arg.Dtype.Size())), part.Operand.Bytes())
	m.transfers.downloads.Add(1)
	return m.stream.Download(dst, part)
}
