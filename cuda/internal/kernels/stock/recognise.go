package stock

import (
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// gorgoniaPath is the package whose ops are recognised.
const gorgoniaPath = "gorgonia.org/gorgonia"

// productKinds maps what String returns for an op, without transposes, to the kind of product.
var productKinds = map[string]ProductKind{
	"A × B": MatrixMatrix, "A × b": MatrixVector, "a ⋅ b": VectorVector, "a ⊗ b": OuterProduct, "A ××× B": Batched,
}

// Recognise returns the description of one of Gorgonia's own ops, or nil for an op that is not known here. It never panics. It
// reads unexported types and fields, whose meaning Gorgonia does not promise: a test holds them to v0.9.18.
func Recognise(op G.Op) any {
	v := reflect.Indirect(reflect.ValueOf(op))
	if v.Kind() != reflect.Struct || v.Type().PkgPath() != gorgoniaPath {
		return nil
	}
	r, d := &reader{v, true}, any(nil)
	switch v.Type().Name() {
	case "elemUnaryOp":
		d = Unary{r.oneOf(unaryNames, op.String())}
	case "elemBinOp", "minBetween", "maxBetween": // such as "+ false", the second word being retSame
		symbol, _, _ := strings.Cut(op.String(), " ")
		d = Binary{r.oneOf(binaryNames, symbol)}
	case "linAlgBinOp":
		kind, ok := productKinds[strings.ReplaceAll(op.String(), "ᵀ", "")]
		r.ok = ok
		d = Product{kind, r.bool("transA"), r.bool("transB")}
	case "tensordotOp":
		d = Tensordot{r.ints("aAxes"), r.ints("bAxes")}
	case "sumOp":
		d = Reduce{Axes: r.ints("along")}
	case "maxOp":
		d = Reduce{Max: true, Axes: r.ints("along")}
	case "softmaxOp":
		d = Softmax{r.int("axis"), r.bool("isLog")}
	case "softmaxDiffOp":
		d = SoftmaxGrad{r.int("axis"), r.bool("isLog")}
	case "reshapeOp":
		d = Reshape{}
	case "transposeOp":
		d = Transpose{r.ints("pattern")}
	case "sliceOp":
		d = r.slice(op)
	case "sliceIncrOp":
		d = SliceGrad(r.slice(op))
	case "concatOp":
		d = Concat{r.int("axis")}
	case "repeatOp":
		d = Repeat{r.int("along")}
	case "sizeOp":
		d = Size{r.int("axis")}
	case "atOp":
		d = Element{r.ints("coordinates")}
	}
	if !r.ok {
		return nil
	}
	return d
}

// reader reads the fields of a struct by name. They may be in embedded structs. ok is false once a field was not as expected.
type reader struct {
	v  reflect.Value
	ok bool
}

// field returns a field of a kind, or else the zero value of T.
func field[T any](r *reader, name string, kind reflect.Kind, get func(reflect.Value) T) (value T) {
	at, ok := r.v.Type().FieldByName(name)
	if r.ok = r.ok && ok && at.Type.Kind() == kind; r.ok {
		if f, err := r.v.FieldByIndexErr(at.Index); err == nil {
			return get(f)
		}
		r.ok = false
	}
	return value
}

func (r *reader) bool(name string) bool { return field(r, name, reflect.Bool, reflect.Value.Bool) }

func (r *reader) int(name string) int { return int(field(r, name, reflect.Int, reflect.Value.Int)) }

func (r *reader) ints(name string) []int {
	return field(r, name, reflect.Slice, func(v reflect.Value) []int {
		out := make([]int, v.Len())
		for i := range out {
			if v.Index(i).Kind() != reflect.Int {
				r.ok = false
				return nil
			}
			out[i] = int(v.Index(i).Int())
		}
		return out
	})
}

// oneOf returns name and checks that it is in names.
func (r *reader) oneOf(names []string, name string) string {
	r.ok = r.ok && slices.Contains(names, name)
	return name
}

// slice reads the slice of an op. An empty range stands for the whole axis.
func (r *reader) slice(op G.Op) (s Slice) {
	of, ok := op.(interface{ IsSlice() tensor.Slice })
	s.Axis = r.int("along")
	if r.ok = r.ok && ok; !r.ok {
		return s
	}
	slice := of.IsSlice()
	if slice == nil || slice.End() <= slice.Start() {
		s.Whole = true
		return s
	}
	s.Start, s.End, s.Step = slice.Start(), slice.End(), max(1, slice.Step())
	r.ok = s.Start >= 0
	return s
}
