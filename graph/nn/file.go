package nn

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Save writes the values of nodes to path as safetensors, under the names of the nodes, which must differ. It writes
// float32, float64, int32, and int64, which Load does not read. It copies values on a device to the host, which waits for
// the device. path is replaced only by a complete file.
func Save(path string, nodes G.Nodes) (err error) {
	defer fault.Name(&err, "nn", "save")
	f := safetensors.File{Tensors: make(map[string]*tensor.Dense, len(nodes))}
	for _, n := range nodes {
		if n == nil {
			return errors.New("nil node")
		}
		if f.Tensors[n.Name()] != nil {
			return fmt.Errorf("two nodes are named %s", n.Name())
		}
		if value.IsNil(n.Value()) {
			return fmt.Errorf("%s has no value", n.Name())
		}
		v, err := graph.HostValue(n.Value())
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name(), err)
		}
		d, ok := v.(*tensor.Dense)
		if !ok {
			d = tensor.New(tensor.FromScalar(v.Data()))
		}
		f.Tensors[n.Name()] = d
	}
	return f.Write(path)
}

// Load reads a file of Save, or another safetensors file with these names, into the values of inputs. An input without a
// value gets one. A tensor without a node is an error: to load a part of a file, use safetensors.Read and Assign. Shapes
// must be equal; float32 and float64 are converted into each other. A value on a device is an error: load before
// graph.MoveInputs. After a Load into the host values of a graph.Resident, call its Upload. On an error no value changes.
func Load(path string, nodes G.Nodes, opts ...safetensors.Option) (err error) {
	defer fault.Name(&err, "nn", "load "+path)
	f, err := safetensors.Read(path, opts...)
	if err != nil {
		return err
	}
	var writes []func() error
	used := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if n == nil || n.Op() != nil {
			return fmt.Errorf("node %v is not an input", n)
		}
		name := n.Name()
		d := f.Tensors[name]
		if d == nil {
			return fmt.Errorf("no tensor %s", name)
		}
		v := n.Value()
		if value.IsNil(v) {
			v = ops.NewValue(ops.Operand{Dtype: n.Dtype(), Shape: n.Shape()})
			writes = append(writes, func() error { return G.Let(n, v) })
		}
		write, err := assignment(v, d)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		writes, used[name] = append(writes, func() error { write(); return nil }), true
	}
	for name := range f.Tensors {
		if !used[name] {
			return fmt.Errorf("no node is named %s, as a tensor of the file is", name)
		}
	}
	for _, write := range writes {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// Assign writes the elements of src to dst, which must be in host memory, row-major and of the same shape. float32 and
// float64 are converted into each other; any other type must be that of dst. On an error dst does not change.
func Assign(dst G.Value, src *tensor.Dense) (err error) {
	defer fault.Name(&err, "nn", "assign")
	write, err := assignment(dst, src)
	if err == nil {
		write()
	}
	return err
}

// assignment makes the checks of Assign and returns a function that writes.
func assignment(dst G.Value, src *tensor.Dense) (write func(), err error) {
	if value.IsNil(dst) || src == nil {
		return nil, errors.New("nil value")
	}
	if d, ok := dst.(*tensor.Dense); ok && !ops.IsRowMajor(d) {
		return nil, errors.New("the value is a view or not row-major, which cannot be written to")
	}
	if !slices.Equal(dst.Shape(), src.Shape()) {
		return nil, fmt.Errorf("got shape %v, want %v", src.Shape(), dst.Shape())
	}
	var to, from cpu.Buf
	err = cmp.Or(ops.PointAtValue(&to, dst, ops.Operand{Dtype: dst.Dtype(), Shape: dst.Shape()}),
		ops.PointAtValue(&from, src, ops.Operand{Dtype: src.Dtype(), Shape: src.Shape()}))
	if err != nil {
		return nil, err
	}
	switch d, s := dst.Dtype(), src.Dtype(); {
	case d == tensor.Int32 && s == tensor.Int32:
		return func() { copy(cpu.Slice[int32](&to), cpu.Slice[int32](&from)) }, nil
	case d == tensor.Int && s == tensor.Int:
		return func() { copy(cpu.Slice[int](&to), cpu.Slice[int](&from)) }, nil
	case d == tensor.Float32 && s == tensor.Float32:
		return func() { convert[float32, float32](&to, &from) }, nil
	case d == tensor.Float32 && s == tensor.Float64:
		return func() { convert[float32, float64](&to, &from) }, nil
	case d == tensor.Float64 && s == tensor.Float32:
		return func() { convert[float64, float32](&to, &from) }, nil
	case d == tensor.Float64 && s == tensor.Float64:
		return func() { convert[float64, float64](&to, &from) }, nil
	}
	return nil, fmt.Errorf("got type %v, want %v", src.Dtype(), dst.Dtype())
}

func convert[D, S cpu.Float](to, from *cpu.Buf) {
	dst := cpu.Slice[D](to)
	for i, x := range cpu.Slice[S](from) {
		dst[i] = D(x)
	}
}
