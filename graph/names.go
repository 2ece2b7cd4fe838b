package graph

import (
	"fmt"
	"reflect"
	"slices"

	"gorgonia.org/tensor"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// describe names a node in errors, with id and shape: an input by its name, any other node by its op.
func describe(n *G.Node) string {
	switch {
	case n == nil:
		return "nil node"
	case n.Op() == nil:
		return fmt.Sprintf("input %q (node %d, shape %v)", n.Name(), n.ID(), n.Shape())
	}
	return fmt.Sprintf("op %s (node %d, shape %v)", opName(n.Op()), n.ID(), n.Shape())
}

// gorgoniaType returns the name of the type of op if op is of package gorgonia, else "".
func gorgoniaType(op G.Op) string {
	if op == nil {
		return ""
	}
	t := reflect.TypeOf(op)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != reflect.TypeFor[G.ExprGraph]().PkgPath() {
		return ""
	}
	return t.Name()
}

// forNode calls f and adds the name of the node to its error. A panic of an op becomes an error, too.
func forNode(n *G.Node, f func() error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", describe(n), err)
		}
	}()
	defer recoverAsError(&err)
	return f()
}

// recoverAsError turns a panic into an error. Use it with defer.
func recoverAsError(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %v", r)
	}
}

// opName returns the name of an op: that of its Spec, or Gorgonia's.
func opName(op G.Op) string {
	if s, ok := spec.SpecOf(op); ok {
		return s.Name()
	}
	return value.OpName(op)
}

// fieldOf returns a field of an op that Gorgonia does not export.
func fieldOf(op G.Op, name string) reflect.Value {
	return reflect.Indirect(reflect.ValueOf(op)).FieldByName(name)
}

// intField panics if there is no such integer, and so do boolField and intsField for theirs.
func intField(op G.Op, name string) int {
	return int(fieldOf(op, name).Convert(reflect.TypeFor[int]()).Int())
}

func boolField(op G.Op, name string) bool { return fieldOf(op, name).Bool() }

// allZero reports whether x, a float or a slice of floats, is zero.
func allZero(x any) bool {
	switch x := x.(type) {
	case float64:
		return x == 0
	case float32:
		return x == 0
	case []float64:
		return !slices.ContainsFunc(x, func(e float64) bool { return e != 0 })
	case []float32:
		return !slices.ContainsFunc(x, func(e float32) bool { return e != 0 })
	}
	return false
}

// graphTypes returns the types of the graph that types stand for: float32 for half precision.
func graphTypes(types []tensor.Dtype) (list []tensor.Dtype) {
	for _, dt := range types {
		list = append(list, graphType(dt))
	}
	return list
}

func graphType(dt tensor.Dtype) tensor.Dtype {
	if spec.IsHalf(dt) {
		return tensor.Float32
	}
	return dt
}
