package spec

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// kernelOp makes a Spec a gorgonia.SDOp. It is built for operands of known types and shapes.
type kernelOp struct {
	spec Spec
	in   []Operand
	out  []Operand
	ids  []int64 // IDs of the input nodes: part of the hash, so Gorgonia merges only ops of the same inputs

	// values are the outputs of the last Do, for outputOp. A graph.Machine does not use them.
	values []gorgonia.Value
}

var (
	_ gorgonia.SDOp = (*kernelOp)(nil)
	_ gorgonia.SDOp = (*outputOp)(nil)
	_ gorgonia.ADOp = (*kernelOp)(nil)
	_ gorgonia.ADOp = (*outputOp)(nil)
)

// Apply adds spec to the graph of the inputs and returns the node of its main output. An input that belongs to no
// graph, such as a constant, is added to that graph. The error names the op, what it got and what it wants.
func Apply(spec Spec, inputs ...*gorgonia.Node) (*gorgonia.Node, error) {
	if v := reflect.ValueOf(spec); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("ops: no spec")
	}
	o := &kernelOp{spec: spec}
	var g *gorgonia.ExprGraph
	if i := slices.IndexFunc(inputs, func(n *gorgonia.Node) bool { return n != nil && n.Graph() != nil }); i >= 0 {
		g = inputs[i].Graph()
	}
	inputs = slices.Clone(inputs)
	for i, n := range inputs {
		operand, err := operandOf(n)
		switch {
		case err != nil:
		case g == nil:
			// a constant is named by its value
			err = fmt.Errorf("(%.60s) belongs to no graph, and no other input does", n.Name())
		case n.Graph() == nil:
			inputs[i], err = addConstant(g, n)
		case n.Graph() != g:
			err = fmt.Errorf("(%s) belongs to another graph", n.Name())
		}
		if err != nil {
			return nil, ErrorIn(spec, fmt.Errorf("%s %w", inputName(spec, i), err))
		}
		o.in = append(o.in, operand)
		o.ids = append(o.ids, inputs[i].ID())
	}
	err := CheckSizes("input", o.in)
	if err == nil {
		o.out, err = spec.Infer(o.in)
	}
	if p, ok := spec.(Packable); ok && err == nil {
		if i := slices.IndexFunc(o.in, Operand.IsTable); i >= 0 && !o.in[i].isStart() {
			err = checkDocuments(p, inputs[i])
		}
	}
	if err == nil {
		err = CheckSizes("output", o.out)
	}
	if s, ok := spec.(Inserted); ok && err == nil {
		err = fmt.Errorf("no op of a graph: %s", s.InsertedBy())
	}
	var node *gorgonia.Node
	if err == nil {
		node, err = gorgonia.ApplyOp(o, inputs...)
	}
	if err != nil {
		return nil, ErrorIn(spec, err)
	}
	return node, nil
}

// inputName names an input in errors, as in "k" or "input 1".
func inputName(spec Spec, i int) string {
	if n, ok := spec.(interface{ InputNames() string }); ok {
		if names := strings.Fields(n.InputNames()); i < len(names) {
			return names[i]
		}
	}
	return fmt.Sprint("input ", i)
}

// addConstant adds n, a constant that belongs to no graph, to g and returns its node in g. Gorgonia merges constants of
// the same name. It names a large tensor by its printed form, which omits the middle. Two different constants of one
// name are an error.
func addConstant(g *gorgonia.ExprGraph, n *gorgonia.Node) (*gorgonia.Node, error) {
	c := g.AddNode(n)
	if c.Value() != n.Value() && !gorgonia.ValueEq(c.Value(), n.Value()) {
		return nil, errors.New("has the name of another constant of the graph: give it a name of its own")
	}
	return c, nil
}

func operandOf(n *gorgonia.Node) (Operand, error) {
	if n == nil {
		return Operand{}, errors.New("is nil")
	}
	rank, element := 0, n.Type()
	if t, ok := element.(gorgonia.TensorType); ok {
		rank, element = t.Dims, t.Of
	}
	dt, ok := element.(tensor.Dtype)
	if !ok {
		return Operand{}, fmt.Errorf("(%s) is of type %v, want numbers", n.Name(), n.Type())
	}
	shape := n.Shape()
	if shape.Dims() != rank {
		return Operand{}, fmt.Errorf("(%s) has the shape %v but rank %d", n.Name(), shape, rank)
	}
	return Operand{dt, shape}, nil
}

// Output returns the node of a further output of an op. node is the op's main output, as Apply returned it. Index 1 is
// the first output after the main one.
func Output(node *gorgonia.Node, index int) (*gorgonia.Node, error) {
	if node == nil {
		return nil, errors.New("ops: output of a nil node")
	}
	op, ok := node.Op().(*kernelOp)
	if !ok {
		return nil, fmt.Errorf("ops: output %d of %v: not an op of this package", index, node)
	}
	if index < 1 || index >= len(op.out) {
		return nil, ErrorIn(op.spec, fmt.Errorf("no output %d among %d", index, len(op.out)))
	}
	n, err := gorgonia.ApplyOp(&outputOp{op, index, node.ID()}, node)
	if err != nil {
		return nil, ErrorIn(op.spec, err)
	}
	return n, nil
}

// CheckSizes returns an error if an operand of list has no elements, or so many that an int cannot count their bytes.
// The error names the first such operand. what is the word for an operand in the error: "input" or "output".
func CheckSizes(what string, list []Operand) error {
	for i, o := range list {
		room := math.MaxInt / 8
		for _, s := range o.Shape {
			if s <= 0 {
				return fmt.Errorf("%s %d has a zero size: %v", what, i, o)
			}
			if room /= s; room == 0 {
				return fmt.Errorf("%s %d is too large: %v", what, i, o)
			}
		}
	}
	return nil
}

// ErrorIn puts "ops: " and the op's name before an error.
func ErrorIn(spec Spec, err error) error { return fault.In("ops", spec.Name(), err) }

func (o *kernelOp) Arity() int { return len(o.in) }

func (o *kernelOp) ReturnsPtr() bool { return true }

func (o *kernelOp) CallsExtern() bool { return false }

func (o *kernelOp) OverwritesInput() int { return -1 }

func (o *kernelOp) String() string { return fmt.Sprintf("%s%+v", o.spec.Name(), o.spec) }

func (o *kernelOp) Type() hm.Type {
	types := make([]hm.Type, 0, len(o.in)+1)
	for _, in := range o.in {
		types = append(types, typeOf(in))
	}
	return hm.NewFnType(append(types, typeOf(o.out[0]))...)
}

func typeOf(o Operand) hm.Type { return value.NodeType(o.Dtype, o.Shape) }

func (o *kernelOp) InferShape(ds ...gorgonia.DimSizer) (tensor.Shape, error) {
	shapes, err := gorgonia.DimSizersToShapes(ds)
	if err != nil {
		return nil, ErrorIn(o.spec, err)
	}
	if len(shapes) != len(o.in) {
		return nil, ErrorIn(o.spec, fmt.Errorf("%d inputs, want %d", len(shapes), len(o.in)))
	}
	for i, s := range shapes {
		if !s.Eq(o.in[i].Shape) {
			return nil, ErrorIn(o.spec, fmt.Errorf("input %d has shape %v, want %v", i, s, o.in[i].Shape))
		}
	}
	return o.out[0].Shape.Clone(), nil
}

// WriteHash writes the package, every parameter (floats exactly), the inputs' types and shapes, and the input nodes.
func (o *kernelOp) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "github.com/gorgonia-nsa/nsa/ops %T%x%v%v", o.spec, o.spec, o.in, o.ids)
}

func (o *kernelOp) Hashcode() uint32 { return hashcode(o) }

func hashcode(op interface{ WriteHash(hash.Hash) }) uint32 {
	h := fnv.New32a()
	op.WriteHash(h)
	return h.Sum32()
}

// Do runs the CPU kernel in newly allocated memory. It returns a panic as an error: VMs run ops on goroutines of their
// own, where a panic would end the process.
func (o *kernelOp) Do(inputs ...gorgonia.Value) (_ gorgonia.Value, err error) {
	o.values = nil
	defer func() {
		if r := recover(); r != nil {
			err = ErrorIn(o.spec, fmt.Errorf("panic: %v", r))
		}
	}()
	if len(inputs) != len(o.in) {
		return nil, ErrorIn(o.spec, fmt.Errorf("%d inputs, want %d", len(inputs), len(o.in)))
	}
	in, err := pointAll("input", o.in, inputs)
	if err == nil {
		err = o.checkUpdatedInPlace(inputs)
	}
	if err != nil {
		return nil, ErrorIn(o.spec, err)
	}
	var values []gorgonia.Value
	for i, operand := range o.out {
		if err := memory.CheckTotal(operand.Bytes()); err != nil {
			return nil, ErrorIn(o.spec, fmt.Errorf("output %d: %w", i, err))
		}
		values = append(values, NewValue(operand))
	}
	out, err := pointAll("output", o.out, values)
	var k cpu.Kernel
	if err == nil {
		o.spec.Bind(&k, in, out)
		err = cpu.RunAlone(&k)
	}
	if err != nil {
		return nil, ErrorIn(o.spec, err)
	}
	o.values = values
	return values[0], nil
}

// checkUpdatedInPlace returns an error if the op would write to a copy of an input.
func (o *kernelOp) checkUpdatedInPlace(inputs []gorgonia.Value) error {
	if u, ok := o.spec.(Updating); ok {
		for _, i := range u.UpdatedInputs() {
			if d, ok := inputs[i].(*tensor.Dense); !ok || !IsRowMajor(d) {
				return fmt.Errorf("input %d is updated, want a row-major tensor", i)
			}
		}
	}
	return nil
}

// pointAll returns an Arg for each operand, whose cell points at the memory of the value.
func pointAll(what string, operands []Operand, values []gorgonia.Value) ([]Arg, error) {
	args := make([]Arg, len(operands))
	for i, o := range operands {
		args[i] = Arg{o, new(cpu.Buf)}
		if err := PointAtValue(args[i].Buf, values[i], o); err != nil {
			return nil, fmt.Errorf("%s %d: %w", what, i, err)
		}
	}
	return args, nil
}

// DiffWRT returns true for each input of floats, even if the Spec has no gradient: gorgonia.Grad refuses a graph with
// any op that is no SDOp. Without a gradient SymDiff returns an error; Gorgonia calls it only if a gradient passes
// through the op.
func (o *kernelOp) DiffWRT(int) []bool {
	b := make([]bool, len(o.in))
	for i, in := range o.in {
		b[i] = in.Dtype == tensor.Float32 || in.Dtype == tensor.Float64
	}
	return b
}

func (o *kernelOp) SymDiff(inputs gorgonia.Nodes, output, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	d, ok := o.spec.(Differentiable)
	if !ok {
		return nil, ErrorIn(o.spec, errors.New("has no gradient"))
	}
	grads, err := d.Grad(slices.Repeat([]bool{true}, len(inputs)), inputs, output, grad)
	for err == nil && len(grads) < len(inputs) {
		grads = append(grads, nil) // Gorgonia wants a node or nil for each input
	}
	return grads, err
}

// ApplyOutputs applies spec and returns the nodes of its first n outputs.
func ApplyOutputs(spec Spec, n int, inputs ...*gorgonia.Node) (gorgonia.Nodes, error) {
	main, err := Apply(spec, inputs...)
	if err != nil {
		return nil, err
	}
	nodes := gorgonia.Nodes{main}
	for i := 1; i < n; i++ {
		o, err := Output(main, i)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, o)
	}
	return nodes, nil
}

// outputOp returns a further output of the op that computes its only input.
type outputOp struct {
	main  *kernelOp
	index int
	id    int64 // the input node
}

func (o *outputOp) Arity() int { return 1 }

func (o *outputOp) ReturnsPtr() bool { return true }

func (o *outputOp) CallsExtern() bool { return false }

func (o *outputOp) OverwritesInput() int { return -1 }

func (o *outputOp) Hashcode() uint32 { return hashcode(o) }

func (o *outputOp) String() string { return fmt.Sprintf("output %d of %v", o.index, o.main) }

func (o *outputOp) Type() hm.Type {
	return hm.NewFnType(typeOf(o.main.out[0]), typeOf(o.main.out[o.index]))
}

func (o *outputOp) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) {
	return o.main.out[o.index].Shape.Clone(), nil
}

func (o *outputOp) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "output %d %d ", o.index, o.id)
	o.main.WriteHash(h)
}

// DiffWRT returns true, though SymDiff is always an error, for the reason given at kernelOp.DiffWRT.
func (o *outputOp) DiffWRT(int) []bool { return []bool{true} }

func (o *outputOp) SymDiff(gorgonia.Nodes, *gorgonia.Node, *gorgonia.Node) (gorgonia.Nodes, error) {
	return nil, ErrorIn(o.main.spec, fmt.Errorf("no gradient flows through output %d", o.index))
}

// errLisp is returned by LispMachines, which take gradients while they run.
var errLisp = errors.New("a LispMachine's own gradients are not supported: make it with ExecuteFwdOnly, or take gradients by gorgonia.Grad or graph.Grad and run them on another machine")

// DoDiff implements gorgonia.ADOp. Without it a LispMachine would leave the gradients of the inputs zero, without an
// error.
func (o *kernelOp) DoDiff(gorgonia.ExecutionContext, gorgonia.Nodes, *gorgonia.Node) error {
	return ErrorIn(o.spec, errLisp)
}

func (o *outputOp) DoDiff(gorgonia.ExecutionContext, gorgonia.Nodes, *gorgonia.Node) error {
	return ErrorIn(o.main.spec, errLisp)
}

// Do returns the value that the last Do of the input's op has kept, and removes it from that op.
func (o *outputOp) Do(...gorgonia.Value) (gorgonia.Value, error) {
	if o.main.values == nil || o.main.values[o.index] == nil {
		return nil, ErrorIn(o.main.spec, fmt.Errorf("output %d is read before the op has run", o.index))
	}
	v := o.main.values[o.index]
	o.main.values[o.index] = nil
	return v, nil
}
