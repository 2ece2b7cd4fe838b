package nn

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// File is the content of a safetensors file: tensors by name, and free text beside them.
type File struct {
	Tensors  map[string]*tensor.Dense
	Metadata map[string]string
}

// ReadOption is an option of ReadFile and Load.
type ReadOption int

// The options of ReadFile and Load. What they allow is an error without them.
const (
	AllowNaN   ReadOption = iota + 1 // elements that are NaN
	AllowExtra                       // for Load: tensors that no node is named after, which it leaves out
)

// Save writes the values of nodes to path as safetensors, under the names of the nodes, which must differ. Types are
// float32, float64 and int32. Values on a device are copied to the host, which waits for it. The file is written aside and
// renamed.
func Save(path string, nodes G.Nodes) (err error) {
	defer prefix(&err, "save")
	f := File{Tensors: make(map[string]*tensor.Dense, len(nodes))}
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
	return f.write(path)
}

// prefix names what failed in an error. It is to be deferred.
func prefix(err *error, what string) {
	if *err != nil {
		*err = fmt.Errorf("nn: %s: %w", what, *err)
	}
}

// Load reads a file of Save, or any other safetensors file, into the values of inputs of its names. An input without a value gets
// one. Shapes must be equal; float32 and float64 are converted into each other, and float16 and bfloat16 into both. A
// value on a device is an error: load before graph.MoveInputs, or call Resident.Upload afterwards. On an error all values
// are as they were before.
func Load(path string, nodes G.Nodes, opts ...ReadOption) error {
	f, err := ReadFile(path, opts...)
	if err != nil {
		return err
	}
	if err := f.assign(nodes, slices.Contains(opts, AllowExtra)); err != nil {
		return fmt.Errorf("nn: load: %s: %w", path, err)
	}
	return nil
}

// assign writes tensors to the nodes of their names. Others are an error unless extra allows them.
func (f File) assign(nodes G.Nodes, extra bool) error {
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
		if !used[name] && !extra {
			return fmt.Errorf("tensor %s is of no node", name)
		}
	}
	for _, write := range writes {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// ReadFile reads a safetensors file. Tensors are float32, float64, int32 or int64; float16 and bfloat16 come as float32.
func ReadFile(path string, opts ...ReadOption) (f File, err error) {
	defer prefix(&err, "read")
	from, err := safetensors.Read(path)
	if err != nil {
		return f, err
	}
	tensors := make(map[string]*tensor.Dense, len(from.Tensors))
	for name, t := range from.Tensors {
		if slices.Contains(t.Shape, 0) {
			return f, fmt.Errorf("%s: %s has no elements: its shape is %v", path, name, t.Shape)
		}
		if hasNaN(t.Data) && !slices.Contains(opts, AllowNaN) {
			return f, fmt.Errorf("%s: %s has NaN in it: see AllowNaN", path, name)
		}
		tensors[name] = tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(t.Data))
	}
	return File{tensors, from.Metadata}, nil
}

// Write writes f to path as safetensors: tensors of float32, float64 and int32, a view as the elements that it shows. The
// file is written aside and renamed, so that path has all of it or what it had before.
func (f File) Write(path string) (err error) {
	defer prefix(&err, "write")
	return f.write(path)
}

func (f File) write(path string) error {
	to := &safetensors.File{Metadata: f.Metadata, Tensors: make(map[string]*safetensors.Tensor, len(f.Tensors))}
	for name, d := range f.Tensors {
		if d == nil {
			return fmt.Errorf("%s: %s is nil", path, name)
		}
		var b cpu.Buf
		if err := ops.HoldValue(&b, d, ops.Operand{Dtype: d.Dtype(), Shape: d.Shape()}); err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
		t := &safetensors.Tensor{Shape: d.Shape()}
		switch d.Dtype() {
		case tensor.Float32:
			t.Data = cpu.Slice[float32](&b)
		case tensor.Float64:
			t.Data = cpu.Slice[float64](&b)
		case tensor.Int32:
			t.Data = cpu.Slice[int32](&b)
		}
		to.Tensors[name] = t
	}
	return safetensors.Write(path, to)
}

func hasNaN(data any) bool {
	switch x := data.(type) {
	case []float32:
		return slices.ContainsFunc(x, func(v float32) bool { return v != v })
	case []float64:
		return slices.ContainsFunc(x, func(v float64) bool { return v != v })
	}
	return false
}

// Assign writes the elements of src to dst, which is in host memory, row-major and of the same shape. float32 and float64
// are converted into each other; other types must be the same. On an error dst is as it was before.
func Assign(dst G.Value, src *tensor.Dense) (err error) {
	defer prefix(&err, "assign")
	write, err := assignment(dst, src)
	if err == nil {
		write()
	}
	return err
}

// assignment returns what Assign does after its checks.
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
	err = errors.Join(ops.HoldValue(&to, dst, ops.Operand{Dtype: dst.Dtype(), Shape: dst.Shape()}),
		ops.HoldValue(&from, src, ops.Operand{Dtype: src.Dtype(), Shape: src.Shape()}))
	if err != nil {
		return nil, err
	}
	switch d, s := dst.Dtype(), src.Dtype(); {
	case d == tensor.Int32 && s == tensor.Int32:
		return func() { copy(cpu.Slice[int32](&to), cpu.Slice[int32](&from)) }, nil
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
