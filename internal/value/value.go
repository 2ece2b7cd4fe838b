// Package value has helpers for Gorgonia's values.
package value

import (
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// IsNil reports whether v is nil, or holds a pointer or a function that is nil, such as what came with an error.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	}
	return false
}

// OpName returns the name of an op of Gorgonia: "-" for what it prints as "- false", where the second word says whether
// a comparison returns numbers.
func OpName(op gorgonia.Op) string {
	name := strings.TrimSpace(op.String())
	return strings.TrimSuffix(strings.TrimSuffix(name, " false"), " true")
}

// NotFinite reports whether x is NaN or infinite.
func NotFinite(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }

// TypeName returns the name of an element type, "none" for the zero value.
func TypeName(dt tensor.Dtype) string {
	if dt.Type == nil {
		return "none"
	}
	return dt.Name()
}

// Check returns an error if v has another element type or shape than those given. A scalar also passes for a shape of
// one element.
func Check(v gorgonia.Value, dt tensor.Dtype, shape tensor.Shape) error {
	if got := v.Shape(); v.Dtype() != dt || !got.Eq(shape) && !(got.IsScalar() && shape.TotalSize() == 1) {
		return fmt.Errorf("got %v %v, want %v %v", v.Dtype(), got, dt, shape)
	}
	return nil
}

// NodeType returns the type of a node whose values have this element type and shape. It is the element type for a
// scalar.
func NodeType(dt tensor.Dtype, shape tensor.Shape) hm.Type {
	if shape.IsScalar() {
		return dt
	}
	return gorgonia.TensorType{Dims: shape.Dims(), Of: dt}
}

// Inputs returns the nodes that n reads, in the order of its op.
func Inputs(g *gorgonia.ExprGraph, n *gorgonia.Node) (list gorgonia.Nodes) {
	for it := g.From(n.ID()); it.Next(); {
		list = append(list, it.Node().(*gorgonia.Node))
	}
	return list
}
