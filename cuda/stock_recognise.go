package cuda

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// stockKind is what one of Gorgonia's own ops does.
type stockKind int

const (
	stockUnary       stockKind = iota + 1 // y = unary(x)
	stockBinary                           // y = binary(a, b)
	stockMatMul                           // matrix times matrix, with transposes
	stockMatVec                           // matrix, or its transpose, times vector
	stockDot                              // vector times vector
	stockOuter                            // vector times vector, as a matrix
	stockBatched                          // batches of matrices, with transposes
	stockTensordot                        // the sum over axes of a with otherAxes of b
	stockSum                              // along axes
	stockMax                              // along axes
	stockSoftmax                          // along axes[0], or where -1 as the op chooses
	stockSoftmaxDiff                      // from the argument, the result and its gradient
	stockReshape
	stockTranspose // axis i of the result is axis axes[i]
	stockSlice     // slice along axes[0]
	stockSliceIncr // zeros, and the second operand in the slice
	stockConcat    // along axes[0]
	stockRepeat    // each index along axes[0], as often as the shape of the result says
	stockSize      // number of elements along axes[0]
	stockAt        // the element at axes
)

var stockKinds = [...]string{
	"", "unary", "binary", "matrix product", "matrix times vector", "dot product", "outer product", "batched matrix product",
	"tensordot", "sum", "max", "softmax", "gradient of softmax", "reshape", "transpose", "slice", "gradient of slice", "concat",
	"repeat", "size", "element",
}

func (k stockKind) String() string {
	if k < 1 || int(k) >= len(stockKinds) {
		return fmt.Sprintf("stockKind(%d)", int(k))
	}
	return stockKinds[k]
}

// stockOp is one of Gorgonia's own ops as data.
type stockOp struct {
	kind            stockKind
	unary           kernels.UnaryFunction
	binary          kernels.BinaryFunction
	transA, transB  bool
	log             bool // softmax: its logarithm
	all             bool // slice: the whole axis
	start, end, gap int  // slice: gap is the step, at least 1
	axes            []int
	otherAxes       []int
}

// gorgoniaPath is the package whose ops are recognised.
const gorgoniaPath = "gorgonia.org/gorgonia"

// stockTypes are the op types of Gorgonia v0.9.18 that are recognised, with the fields that are read of each: they are not
// exported, and what they mean is not promised. A test holds them to the version that is linked in.
var stockTypes = map[string][]stockField{
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

type stockField struct {
	name string
	kind reflect.Kind
}

// stockProducts are the linear products, by their operators as String writes them, without transposes.
var stockProducts = map[string]stockKind{
	"A × B": stockMatMul, "A × b": stockMatVec, "a ⋅ b": stockDot, "a ⊗ b": stockOuter, "A ××× B": stockBatched,
}

// recogniseStock returns what op is, if it is one of Gorgonia's own ops that are known here. It never panics.
func recogniseStock(op G.Op) (stockOp, bool) {
	name, f, ok := stockFields(op)
	if !ok {
		return stockOp{}, false
	}
	text := op.String()
	s := stockOp{}
	switch name {
	case "elemUnaryOp":
		s.kind = stockUnary
		s.unary, ok = kernels.FindUnary(text)
	case "elemBinOp": // such as "+ false", the second word being retSame
		s.kind = stockBinary
		symbol, _, _ := strings.Cut(text, " ")
		s.binary, ok = kernels.FindBinary(symbol)
	case "minBetween", "maxBetween":
		s.kind = stockBinary
		s.binary, ok = kernels.FindBinary(text)
	case "linAlgBinOp":
		s.kind, ok = stockProducts[strings.ReplaceAll(text, "ᵀ", "")]
		s.transA, s.transB = f["transA"].Bool(), f["transB"].Bool()
	case "tensordotOp":
		s.kind, s.axes, s.otherAxes = stockTensordot, stockInts(f["aAxes"]), stockInts(f["bAxes"])
	case "sumOp":
		s.kind, s.axes = stockSum, stockInts(f["along"])
	case "maxOp":
		s.kind, s.axes = stockMax, stockInts(f["along"])
	case "softmaxOp":
		s.kind, s.axes, s.log = stockSoftmax, stockInts(f["axis"]), f["isLog"].Bool()
	case "softmaxDiffOp":
		s.kind, s.axes, s.log = stockSoftmaxDiff, stockInts(f["axis"]), f["isLog"].Bool()
	case "reshapeOp":
		s.kind = stockReshape
	case "transposeOp":
		s.kind, s.axes = stockTranspose, stockInts(f["pattern"])
	case "sliceOp":
		s.kind, s.axes = stockSlice, stockInts(f["along"])
		ok = s.setSlice(op)
	case "sliceIncrOp":
		s.kind, s.axes = stockSliceIncr, stockInts(f["along"])
		ok = s.setSlice(op)
	case "concatOp":
		s.kind, s.axes = stockConcat, stockInts(f["axis"])
	case "repeatOp":
		s.kind, s.axes = stockRepeat, stockInts(f["along"])
	case "sizeOp":
		s.kind, s.axes = stockSize, stockInts(f["axis"])
	case "atOp":
		s.kind, s.axes = stockAt, stockInts(f["coordinates"])
	}
	return s, ok
}

// stockFields returns the type's name and the fields of an op, if it is of Gorgonia, has a name of stockTypes and all the fields
// that are listed there. A field may lie in an embedded struct.
func stockFields(op G.Op) (string, map[string]reflect.Value, bool) {
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
	want, ok := stockTypes[v.Type().Name()]
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

// stockInts copies an int, or a slice of ints.
func stockInts(v reflect.Value) []int {
	if v.Kind() == reflect.Int {
		return []int{int(v.Int())}
	}
	out := make([]int, v.Len())
	for i := range out {
		if v.Index(i).Kind() != reflect.Int {
			return nil
		}
		out[i] = int(v.Index(i).Int())
	}
	return out
}

// setSlice reads the slice of an op. An empty range stands for the whole axis.
func (s *stockOp) setSlice(op G.Op) bool {
	of, ok := op.(interface{ IsSlice() tensor.Slice })
	if !ok {
		return false
	}
	slice := of.IsSlice()
	if slice == nil || slice.End() <= slice.Start() {
		s.all = true
		return true
	}
	s.start, s.end, s.gap = slice.Start(), slice.End(), max(1, slice.Step())
	return s.start >= 0
}

// distinctAxes reports whether axes are in [0,rank), each one at most once.
func distinctAxes(axes []int, rank int) bool {
	for i, a := range axes {
		if a < 0 || a >= rank || slices.Contains(axes[:i], a) {
			return false
		}
	}
	return true
}
