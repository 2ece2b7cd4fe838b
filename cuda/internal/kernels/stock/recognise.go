package stock

import (
	"reflect"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// gorgoniaPath is the package whose ops are recognised.
const gorgoniaPath = "gorgonia.org/gorgonia"

// knownTypes are the op types of Gorgonia v0.9.18 that are recognised, with the fields that are read of each: they are not
// exported, and what they mean is not promised. A test holds them to the version that is linked in.
var knownTypes = map[string][]field{
	"elemUnaryOp":   nil,
	"elemBinOp":     {{"retSame", reflect.Bool}},
	"minBetween":    nil,
	"maxBetween":    nil,
	"linAlgBinOp":   {{"transA", reflect.Bool}, {"transB", reflect.Bool}},
	"tensordotOp":   {{"aAxes", reflect.Slice}, {"bAxes", reflect.Slice}},
	"sumOp":         {{"along", reflect.Slice}},
	"maxOp":         {{"along", reflect.Slice}},
	"softmaxOp":     {{"axis", reflect.Int}, {"isLog", reflect.Bool}},
	"softmaxDiffOp": {{"axis", reflect.Int}, {"isLog", reflect.Bool}},
	"reshapeOp":     nil,
	"transposeOp":   {{"pattern", reflect.Slice}},
	"sliceOp":       {{"along", reflect.Int}},
	"sliceIncrOp":   {{"along", reflect.Int}},
	"concatOp":      {{"axis", reflect.Int}},
	"repeatOp":      {{"along", reflect.Int}},
	"sizeOp":        {{"axis", reflect.Int}},
	"atOp":          {{"coordinates", reflect.Slice}},
}

type field struct {
	name string
	kind reflect.Kind
}

// productKinds are the products, by their operators as String writes them, without transposes.
var productKinds = map[string]ProductKind{
	"A × B": MatrixMatrix, "A × b": MatrixVector, "a ⋅ b": VectorVector, "a ⊗ b": OuterProduct, "A ××× B": Batched,
}

// Recognise returns the description of one of Gorgonia's own ops, or nil for one that is not known here. It never panics.
func Recognise(op G.Op) any {
	name, f, ok := fieldsOf(op)
	if !ok {
		return nil
	}
	text := op.String()
	var d any
	switch name {
	case "elemUnaryOp":
		var u Unary
		u.Function, ok = findUnary(text)
		d = u
	case "elemBinOp", "minBetween", "maxBetween": // such as "+ false", the second word being retSame
		symbol, _, _ := strings.Cut(text, " ")
		var u Binary
		u.Function, ok = findBinary(symbol)
		d = u
	case "linAlgBinOp":
		p := Product{TransA: f["transA"].Bool(), TransB: f["transB"].Bool()}
		p.Kind, ok = productKinds[strings.ReplaceAll(text, "ᵀ", "")]
		d = p
	case "tensordotOp":
		d = Tensordot{ints(f["aAxes"]), ints(f["bAxes"])}
	case "sumOp":
		d = Reduce{Axes: ints(f["along"])}
	case "maxOp":
		d = Reduce{Max: true, Axes: ints(f["along"])}
	case "softmaxOp":
		d = Softmax{int(f["axis"].Int()), f["isLog"].Bool()}
	case "softmaxDiffOp":
		d = SoftmaxGrad{int(f["axis"].Int()), f["isLog"].Bool()}
	case "reshapeOp":
		d = Reshape{}
	case "transposeOp":
		d = Transpose{ints(f["pattern"])}
	case "sliceOp":
		d, ok = sliceOf(op, int(f["along"].Int()))
	case "sliceIncrOp":
		var s Slice
		s, ok = sliceOf(op, int(f["along"].Int()))
		d = SliceGrad(s)
	case "concatOp":
		d = Concat{int(f["axis"].Int())}
	case "repeatOp":
		d = Repeat{int(f["along"].Int())}
	case "sizeOp":
		d = Size{int(f["axis"].Int())}
	case "atOp":
		d = Element{ints(f["coordinates"])}
	}
	if !ok {
		return nil
	}
	return d
}

// fieldsOf returns the type's name and the fields of an op, if it is of Gorgonia, has a name of knownTypes and all the fields
// that are listed there. A field may lie in an embedded struct.
func fieldsOf(op G.Op) (string, map[string]reflect.Value, bool) {
	v := reflect.ValueOf(op)
	if !v.IsValid() {
		return "", nil, false
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "", nil, false
		}
		v = v.Elem()
	}
	want, ok := knownTypes[v.Type().Name()]
	if !ok || v.Type().PkgPath() != gorgoniaPath || v.Kind() != reflect.Struct {
		return "", nil, false
	}
	fields := make(map[string]reflect.Value, len(want))
	for _, w := range want {
		at, ok := v.Type().FieldByName(w.name)
		if !ok || at.Type.Kind() != w.kind {
			return "", nil, false
		}
		f, err := v.FieldByIndexErr(at.Index)
		if err != nil {
			return "", nil, false
		}
		fields[w.name] = f
	}
	return v.Type().Name(), fields, true
}

// ints copies a slice of ints.
func ints(v reflect.Value) []int {
	out := make([]int, v.Len())
	for i := range out {
		if v.Index(i).Kind() != reflect.Int {
			return nil
		}
		out[i] = int(v.Index(i).Int())
	}
	return out
}

// sliceOf reads the slice of an op. An empty range stands for the whole axis.
func sliceOf(op G.Op, axis int) (s Slice, ok bool) {
	of, ok := op.(interface{ IsSlice() tensor.Slice })
	if !ok {
		return s, false
	}
	s.Axis = axis
	slice := of.IsSlice()
	if slice == nil || slice.End() <= slice.Start() {
		s.Whole = true
		return s, true
	}
	s.Start, s.End, s.Step = slice.Start(), slice.End(), max(1, slice.Step())
	return s, s.Start >= 0
}
