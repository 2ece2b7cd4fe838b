package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// HostValue returns v in host memory: v itself, or a copy of a device value. For a copy it waits for the value's
// stream.
func HostValue(v G.Value) (G.Value, error) {
	if d, ok := v.(remoteValue); ok {
		return d.HostValue()
	}
	return v, nil
}

var errNoValue = errors.New("no value: it has not been computed, or the machine does not keep it: see WithKeep")

// HostTensor returns the value of a node in host memory. It is an error if the node has no value, or a scalar.
func HostTensor(n *G.Node) (*tensor.Dense, error) {
	if n == nil {
		return nil, errors.New("graph: value of a nil node")
	}
	v, err := HostValue(n.Value())
	switch d, ok := v.(*tensor.Dense); {
	case err == nil && ok:
		return d, nil
	case err == nil && value.IsNil(v):
		err = errNoValue
	case err == nil:
		err = fmt.Errorf("its value is a %T, no tensor", v)
	}
	return nil, fmt.Errorf("graph: %s: %w", describe(n), err)
}

// Resident is a set of values, such as the weights of a model, in the memory of a backend. Several machines and solvers
// may use it. On a backend whose memory is the host's, the values are the host values themselves.
type Resident struct {
	host, device []G.Value
	nodes        []*G.Node // the nodes of MoveInputs
	args         []spec.Arg
	backend      Backend
	memory       Memory
	stream       Stream
	closed       bool
}

// NewResident copies host values to b. Close it before b, and after the machines that use it.
func NewResident(b Backend, host []G.Value) (*Resident, error) {
	host = slices.Clone(host)
	r := &Resident{host: host, device: host, backend: b}
	if value.IsNil(b) {
		return nil, errors.New("graph: resident values: nil backend")
	}
	for i, v := range host {
		if value.IsNil(v) {
			return nil, fmt.Errorf("graph: resident values: value %d is nil", i)
		}
	}
	if b.Device().Host {
		return r, nil
	}
	err := r.place(b)
	if err != nil {
		err = fault.In("graph", "resident values", err)
	} else if err = r.Upload(); err == nil {
		return r, nil
	}
	return nil, errors.Join(err, r.Close())
}

// ReadResident makes tensors of type dt in the memory of b, which is not the host's, and copies what read returns for each
// of them. In host memory there is one at a time; Download makes the others. Close it as that of NewResident.
func ReadResident(b Backend, dt tensor.Dtype, shapes []tensor.Shape,
	read func(i int) (*tensor.Dense, error)) (_ *Resident, err error) {
	defer fault.Name(&err, "graph", "resident values")
	switch {
	case value.IsNil(b) || b.Device().Host:
		return nil, errors.New("no backend with memory of its own")
	case read == nil:
		return nil, errors.New("no function that reads them")
	}
	r := &Resident{host: make([]G.Value, len(shapes)), backend: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for i, s := range shapes {
		if err := r.add(dt, s); err != nil {
			return nil, fmt.Errorf("value %d %w", i, err)
		}
	}
	if err := r.alloc(b); err != nil {
		return nil, err
	}
	for i, a := range r.args {
		v, err := read(i)
		if err == nil && (v == nil || v.Dtype() != dt || !v.Shape().Eq(shapes[i])) {
			err = fmt.Errorf("value %d was read as %v, want %v of shape %v", i, v, dt, shapes[i])
		}
		if err == nil {
			err = errors.Join(r.stream.Upload(a, v), r.stream.Synchronize())
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// add adds the operand of a value.
func (r *Resident) add(dt tensor.Dtype, shape tensor.Shape) error {
	if shape.TotalSize() == 0 {
		return fmt.Errorf("has no elements: its shape is %v", shape)
	}
	r.args = append(r.args, spec.Arg{Operand: spec.Operand{Dtype: dt, Shape: shape.Clone()}, Buf: new(cpu.Buf)})
	return nil
}

func (r *Resident) place(b Backend) error {
	for i, v := range r.host {
		if isRemote(v) {
			return fmt.Errorf("value %d, %v, is on a device already", i, v)
		}
		if err := r.add(v.Dtype(), v.Shape()); err != nil {
			return fmt.Errorf("value %d %w", i, err)
		}
		if j := slices.IndexFunc(r.host[:i], func(o G.Value) bool { return o.Uintptr() == v.Uintptr() }); j >= 0 {
			return fmt.Errorf("values %d and %d share memory: on the device each would have its own", j, i)
		}
	}
	return r.alloc(b)
}

// alloc allocates the memory of the operands.
func (r *Resident) alloc(b Backend) (err error) {
	if r.memory, err = allocArgs(b, r.args); err != nil {
		return err
	}
	if r.stream, err = b.NewStream(); err != nil {
		return err
	}
	r.device = nil
	for _, a := range r.args {
		r.device = append(r.device, r.stream.View(a))
	}
	return nil
}

// MoveInputs copies the values of inputs, such as the weights of a layer, to b and binds the copies to the nodes.
// Machines on b then need no upload in each run, and solvers can change the values there. Close of the result binds the
// host values again; it does not copy: see Download.
func MoveInputs(b Backend, nodes ...*G.Node) (*Resident, error) {
	host := make([]G.Value, len(nodes))
	for i, n := range nodes {
		if n != nil && n.Op() != nil {
			return nil, fmt.Errorf("graph: move inputs: %s is not an input", describe(n))
		}
		if n == nil || value.IsNil(n.Value()) {
			return nil, fmt.Errorf("graph: move inputs: %s has no value", describe(n))
		}
		host[i] = n.Value()
	}
	r, err := NewResident(b, host)
	if err != nil {
		return nil, err
	}
	r.nodes = slices.Clone(nodes)
	if err := r.let(r.device); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Resident) let(values []G.Value) error {
	for i, n := range r.nodes {
		if n.Value() == values[i] {
			continue
		}
		if err := G.UnsafeLet(n, values[i]); err != nil {
			return fmt.Errorf("graph: resident values: %s: %w", describe(n), err)
		}
	}
	return nil
}

// Values returns the values on the device, in the order of the host values.
func (r *Resident) Values() []G.Value {
	if r == nil {
		return nil
	}
	return r.device
}

// Backend returns the backend whose memory holds the values.
func (r *Resident) Backend() Backend {
	if r == nil {
		return nil
	}
	return r.backend
}

// Upload copies the host values to the device again, after the work under way there. Then call Refresh of machines with
// half-precision copies.
func (r *Resident) Upload() error {
	if r != nil && slices.Contains(r.host, nil) {
		return errors.New("graph: resident values: upload: there are no host values before the first Download")
	}
	return r.copyAll("upload", Stream.Upload)
}

// HostValues returns the host values, nil for those of ReadResident before the first Download.
func (r *Resident) HostValues() []G.Value {
	if r == nil {
		return nil
	}
	return r.host
}

// Download copies the device's values to the host values, after the work under way there.
func (r *Resident) Download() error {
	if r != nil && !r.closed && slices.Contains(r.host, nil) {
		total := 0
		for _, a := range r.args {
			total += a.Operand.Bytes()
		}
		if err := memory.CheckTotal(total); err != nil {
			return fmt.Errorf("graph: resident values: download: %w", err)
		}
		for i, a := range r.args {
			r.host[i] = tensor.New(tensor.Of(a.Dtype), tensor.WithShape(a.Shape.Clone()...))
		}
	}
	return r.copyAll("download", func(s Stream, device spec.Arg, host G.Value) error { return s.Download(host, device) })
}

// copyAll calls copyOne for each value. It waits for the backend before and after.
func (r *Resident) copyAll(what string, copyOne func(s Stream, device spec.Arg, host G.Value) error) (err error) {
	defer fault.Name(&err, "graph", "resident values: "+what)
	if r == nil || r.closed {
		return errClosed
	}
	if r.stream == nil {
		return nil
	}
	if err := r.backend.Synchronize(); err != nil {
		return err
	}
	for i, a := range r.args {
		if err := copyOne(r.stream, a, r.host[i]); err != nil {
			return fmt.Errorf("value %d: %w", i, err)
		}
	}
	return r.stream.Synchronize()
}

// Close frees the memory on the device. It binds the host values of MoveInputs to their nodes again.
func (r *Resident) Close() error {
	if r == nil {
		return fmt.Errorf("graph: resident values: %w", errClosed)
	}
	errs := []error{r.let(r.host)}
	r.nodes = nil
	if r.stream != nil {
		errs = append(errs, r.stream.Synchronize(), r.stream.Close())
	}
	if r.memory != nil {
		errs = append(errs, r.memory.Free())
	}
	r.stream, r.memory, r.args, r.device, r.closed = nil, nil, nil, nil, true
	return errors.Join(errs...)
}

// allocArgs allocates one block of memory of b for all operands, aligns each, and points their cells to it.
func allocArgs(b Backend, args []spec.Arg) (Memory, error) {
	align, end := b.Device().Alignment, 0
	for _, a := range args {
		bytes := alignUp(a.Operand.Bytes(), align)
		if bytes < 0 || bytes > math.MaxInt-end {
			return nil, fmt.Errorf("memory for %d operands: too many bytes", len(args))
		}
		end += bytes
	}
	block, err := b.Alloc(end)
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", memory.Size(int64(end)), err)
	}
	end = 0
	for _, a := range args {
		block.Place(a.Buf, end, a.Operand.Bytes())
		end += alignUp(a.Operand.Bytes(), align)
	}
	return block, nil
}
