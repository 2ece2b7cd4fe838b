package kernels

// Elementwise is an op on n elements of any shape: elementwise.cu.
type Elementwise struct {
	Type Type
	N    int64
}

type unaryParams struct {
	x, y Ptr
	n    int64
}

type binaryParams struct {
	a, b, y Ptr
	n       int64
}

// MaxTerms is the number of terms that one launch adds up.
const MaxTerms = 8

type addParams struct {
	x     [MaxTerms]Ptr
	y     Ptr
	n     int64
	terms int32
	_     int32
}

// SiLU appends y = x sigmoid(x).
func (op Elementwise) SiLU(to []Launch, x, y Ptr) ([]Launch, error) {
	return op.unary(to, "silu", names.silu, x, y)
}

// SiLUGrad appends dx from the argument x and dy.
func (op Elementwise) SiLUGrad(to []Launch, x, dy, dx Ptr) ([]Launch, error) {
	return op.binary(to, "gradient of silu", names.siluGrad, x, dy, dx)
}

// Sigmoid appends y = 1/(1+exp(-x)).
func (op Elementwise) Sigmoid(to []Launch, x, y Ptr) ([]Launch, error) {
	return op.unary(to, "sigmoid", names.sigmoid, x, y)
}

// SigmoidGrad appends dx from the result y and dy.
func (op Elementwise) SigmoidGrad(to []Launch, y, dy, dx Ptr) ([]Launch, error) {
	return op.binary(to, "gradient of sigmoid", names.sigmoidGrad, y, dy, dx)
}

// Add appends y = the sum of xs, one or more, in their order. Beyond MaxTerms of them the sum goes through y, rounded to the
// storage type every 7 terms; then y must not be one of xs but the first.
func (op Elementwise) Add(to []Launch, y Ptr, xs ...Ptr) ([]Launch, error) {
	if err := check("add", op.Type, size{"n", op.N}, size{"terms", int64(len(xs))}); err != nil {
		return to, err
	}
	p := addParams{y: y, n: op.N}
	for i, x := range xs {
		if p.terms == MaxTerms {
			to = append(to, launch(names.add[op.Type], elements(op.Type, op.N), threads, 0, &p))
			p.x[0], p.terms = y, 1
		}
		if i > 0 && x == y && len(xs) > MaxTerms {
			return to, unsupported("add", "term %d of %d is the result", i, len(xs))
		}
		p.x[p.terms] = x
		p.terms++
	}
	return append(to, launch(names.add[op.Type], elements(op.Type, op.N), threads, 0, &p)), nil
}

func (op Elementwise) unary(to []Launch, name string, kernel byType, x, y Ptr) ([]Launch, error) {
	if err := check(name, op.Type, size{"n", op.N}); err != nil {
		return to, err
	}
	return append(to, launch(kernel[op.Type], elements(op.Type, op.N), threads, 0, &unaryParams{x, y, op.N})), nil
}

func (op Elementwise) binary(to []Launch, name string, kernel byType, a, b, y Ptr) ([]Launch, error) {
	if err := check(name, op.Type, size{"n", op.N}); err != nil {
		return to, err
	}
	return append(to, launch(kernel[op.Type], elements(op.Type, op.N), threads, 0, &binaryParams{a, b, y, op.N})), nil
}
