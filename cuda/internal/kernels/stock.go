package kernels

import "fmt"

// UnaryFunction is an elementwise function of one operand, as Gorgonia's op of that name computes it: stock_elementwise.cu.
type UnaryFunction int32

// The functions, in the order of stock_unary. Sign is that of a tensor, where 0 has the sign 0; SignBit is that of a scalar,
// where 0 has the sign 1 and -0 the sign -1.
const (
	Abs UnaryFunction = iota
	Sign
	Ceil
	Floor
	Sin
	Cos
	Exp
	Log
	Log2
	Neg
	Square
	Sqrt
	Inverse
	InverseSqrt
	Cube
	Tanh
	Sigmoid
	Log1p
	Expm1
	Softplus
	SignBit
	unaryFunctions // their number
)

// BinaryFunction is an elementwise function of two operands: stock_elementwise.cu. Comparisons give 1 or 0.
type BinaryFunction int32

// The functions, in the order of stock_binary.
const (
	Add BinaryFunction = iota
	Sub
	Mul
	Div
	Pow
	Less
	Greater
	LessOrEqual
	GreaterOrEqual
	Equal
	NotEqual
	Smaller
	Larger
	binaryFunctions // their number
)

// stockNames are the kernels of this file's ops.
var stockNames = struct{ unary, binary, copying, transpose, reduce, softmax, softmaxGrad string }{
	"nsa_stock_unary_f32", "nsa_stock_binary_f32", "nsa_stock_copy_f32", "nsa_stock_transpose_f32",
	"nsa_stock_reduce_f32", "nsa_stock_softmax_f32", "nsa_stock_softmax_grad_f32",
}

// Unary is y = f(x) of N elements, float32.
type Unary struct {
	Function UnaryFunction
	N        int64
}

type stockUnaryParams struct {
	x, y        Ptr
	n           int64
	function, _ int32
}

// Forward appends y = f(x).
func (op Unary) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	if err := check("unary function", F32, size{"n", op.N}); err != nil {
		return to, err
	}
	if op.Function < 0 || op.Function >= unaryFunctions {
		return to, unsupported("unary function", "no function %d", op.Function)
	}
	p := stockUnaryParams{x: x, y: y, n: op.N, function: int32(op.Function)}
	return append(to, launch(stockNames.unary, elements(F32, op.N), threads, 0, &p)), nil
}

// Binary is y = f(a, b) of N elements, float32. An operand of one element meets every element of the other.
type Binary struct {
	Function         BinaryFunction
	N                int64
	ScalarA, ScalarB bool // a, or b, is one element
}

type stockBinaryParams struct {
	a, b, y           Ptr
	n                 int64
	function, scalars int32
}

// Forward appends y = f(a, b).
func (op Binary) Forward(to []Launch, a, b, y Ptr) ([]Launch, error) {
	if err := check("binary function", F32, size{"n", op.N}); err != nil {
		return to, err
	}
	if op.Function < 0 || op.Function >= binaryFunctions {
		return to, unsupported("binary function", "no function %d", op.Function)
	}
	p := stockBinaryParams{a, b, y, op.N, int32(op.Function), flag(op.ScalarA) | flag(op.ScalarB)<<1}
	return append(to, launch(stockNames.binary, elements(F32, op.N), threads, 0, &p)), nil
}

// Reduce is the sum or the maximum of x [Outer,Along,Inner], float32, along its middle axis: stock_reduce.cu.
type Reduce struct {
	Max                 bool
	Outer, Along, Inner int64
}

type stockReduceParams struct {
	x, weights, y                    Ptr
	outer, along, inner, run, splits int64
	max, share                       int32
}

// stockBusy is a number of blocks of 256 threads that keeps a large GPU busy.
const stockBusy = 1056

// stockShare is how blocks of 256 threads are shared out over lines: see stock_lines.cuh. Lines that cannot be cut get narrow
// blocks where there are few.
func stockShare(outer, along, inner int64, cut bool) int64 {
	switch {
	case inner == 1 && along > 1024:
		return -256
	case inner == 1:
		lanes := int64(1)
		for lanes < 32 && 8*lanes < along {
			lanes *= 2
		}
		return -lanes
	case along <= 32 || outer*inner >= stockBusy*256:
		return -1
	}
	columns := int64(4)
	for columns < inner && columns < 32 {
		columns *= 2
	}
	for !cut && columns > 8 && outer*pieces(inner, columns) < stockBusy { // 8 floats are what memory gives at once
		columns /= 2
	}
	return columns
}

// stockBlocks is the number of blocks for all lines.
func stockBlocks(outer, inner, share int64) int64 {
	if share < 0 {
		return pieces(outer*inner, 256/-share)
	}
	return outer * pieces(inner, share)
}

// plan cuts long lines where there are few. It depends on the sizes alone, and so do the bits.
func (op Reduce) plan() (run, splits int64) {
	share := stockShare(op.Outer, op.Along, op.Inner, true)
	shortest := int64(4096)
	if share > 0 {
		shortest = 16 * 256 / share
	}
	splits = max(1, min(stockBusy/stockBlocks(op.Outer, op.Inner, share), op.Along/shortest))
	run = pieces(pieces(op.Along, splits), 4) * 4
	return run, pieces(op.Along, run)
}

func (op Reduce) check() error {
	return check("reduction", F32, size{"outer", op.Outer}, size{"along", op.Along}, size{"inner", op.Inner})
}

// WorkBytes returns the work memory of Forward and of Product.
func (op Reduce) WorkBytes() int64 {
	if op.check() != nil {
		return 0
	}
	if _, splits := op.plan(); splits > 1 {
		return align(4 * op.Outer * splits * op.Inner)
	}
	return 0
}

// Forward appends y [Outer,Inner].
func (op Reduce) Forward(to []Launch, x, y, work Ptr) ([]Launch, error) {
	return op.append(to, x, 0, y, work)
}

// Product appends y [Outer,Inner] = the sum along the middle axis of x times weights [Along]: the product of a matrix, or its
// transpose, and a vector. Max has no product.
func (op Reduce) Product(to []Launch, x, weights, y, work Ptr) ([]Launch, error) {
	if op.Max {
		return to, unsupported("reduction", "the maximum has no weights")
	}
	return op.append(to, x, weights, y, work)
}

func (op Reduce) append(to []Launch, x, weights, y, work Ptr) ([]Launch, error) {
	if err := op.check(); err != nil {
		return to, err
	}
	run, splits := op.plan()
	p := stockReduceParams{x, weights, y, op.Outer, op.Along, op.Inner, run, splits, flag(op.Max), 0}
	if splits > 1 {
		p.y = work
	}
	to = p.append(to)
	if splits > 1 {
		p = stockReduceParams{work, 0, y, op.Outer, splits, op.Inner, splits, 1, p.max, 0}
		to = p.append(to)
	}
	return to, nil
}

func (p *stockReduceParams) append(to []Launch) []Launch {
	share := stockShare(p.outer*p.splits, p.run, p.inner, true)
	p.share = int32(share)
	return append(to, launch(stockNames.reduce, blocks(stockBlocks(p.outer*p.splits, p.inner, share)), threads, 0, p))
}

// AxisSoftmax is the softmax of x [Outer,Along,Inner], float32, along its middle axis, or its logarithm, and their gradients:
// stock_softmax.cu.
type AxisSoftmax struct {
	Log                 bool
	Outer, Along, Inner int64
}

type stockSoftmaxParams struct {
	x, y                Ptr
	outer, along, inner int64
	log, share          int32
}

type stockSoftmaxGradParams struct {
	y, dy, dx           Ptr
	outer, along, inner int64
	log, share          int32
}

// Forward appends y.
func (op AxisSoftmax) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	grid, share, err := op.plan()
	if err != nil {
		return to, err
	}
	p := stockSoftmaxParams{x, y, op.Outer, op.Along, op.Inner, flag(op.Log), share}
	return append(to, launch(stockNames.softmax, grid, threads, 0, &p)), nil
}

// Backward appends dx from the result y and dy.
func (op AxisSoftmax) Backward(to []Launch, y, dy, dx Ptr) ([]Launch, error) {
	grid, share, err := op.plan()
	if err != nil {
		return to, err
	}
	p := stockSoftmaxGradParams{y, dy, dx, op.Outer, op.Along, op.Inner, flag(op.Log), share}
	return append(to, launch(stockNames.softmaxGrad, grid, threads, 0, &p)), nil
}

func (op AxisSoftmax) plan() (Dim, int32, error) {
	if err := check("softmax", F32, size{"outer", op.Outer}, size{"along", op.Along}, size{"inner", op.Inner}); err != nil {
		return Dim{}, 0, err
	}
	share := stockShare(op.Outer, op.Along, op.Inner, false)
	return blocks(stockBlocks(op.Outer, op.Inner, share)), int32(share), nil
}

var unaryNames = [unaryFunctions]string{
	"abs", "sign", "ceil", "floor", "sin", "cos", "exp", "ln", "log2", "neg", "square", "sqrt", "inv", "invSqrt", "cube", "tanh",
	"sigmoid", "log1p", "expm1", "softplus", "sign bit",
}

// String returns the name that Gorgonia gives the function.
func (f UnaryFunction) String() string {
	if f < 0 || f >= unaryFunctions {
		return fmt.Sprintf("UnaryFunction(%d)", int32(f))
	}
	return unaryNames[f]
}

var binaryNames = [binaryFunctions]string{"+", "-", "⊙", "÷", "^", "<", ">", "<=", ">=", "==", "!=", "MinBetween", "MaxBetween"}

// String returns the name that Gorgonia gives the function.
func (f BinaryFunction) String() string {
	if f < 0 || f >= binaryFunctions {
		return fmt.Sprintf("BinaryFunction(%d)", int32(f))
	}
	return binaryNames[f]
}

// FindUnary returns the function of that name.
func FindUnary(name string) (UnaryFunction, bool) {
	for f, n := range unaryNames {
		if n == name {
			return UnaryFunction(f), true
		}
	}
	return 0, false
}

// FindBinary returns the function of that name.
func FindBinary(name string) (BinaryFunction, bool) {
	for f, n := range binaryNames {
		if n == name {
			return BinaryFunction(f), true
		}
	}
	return 0, false
}
