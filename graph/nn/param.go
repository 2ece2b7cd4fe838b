package nn

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Param is a learnable parameter of a layer: its name, its shape, and how its first value is drawn.
type Param struct {
	Name  string
	Shape tensor.Shape
	Init  Init
}

// Init draws one element of a parameter's first value. A nil Init means zeros.
type Init func(r *rand.Rand) float64

// Ones sets all elements to one, as for the weight of a norm.
func Ones() Init { return func(*rand.Rand) float64 { return 1 } }

// Normal draws from the normal distribution of mean 0 and the given standard deviation.
func Normal(std float64) Init { return func(r *rand.Rand) float64 { return std * r.NormFloat64() } }

// XavierUniform draws from the uniform distribution over [-a, a) with a = sqrt(6/(in+out)) (Glorot and Bengio 2010).
func XavierUniform(in, out int) Init {
	a := math.Sqrt(6 / float64(in+out))
	return func(r *rand.Rand) float64 { return a * (2*r.Float64() - 1) }
}

// LeCunUniform draws from the uniform distribution over [-a, a) with a = 1/sqrt(in), PyTorch's default for linear layers.
func LeCunUniform(in int) Init {
	a := 1 / math.Sqrt(float64(in))
	return func(r *rand.Rand) float64 { return a * (2*r.Float64() - 1) }
}

// LeCunNormal draws from the normal distribution of variance 1/in, which keeps the variance of a linear layer's input.
func LeCunNormal(in int) Init { return Normal(1 / math.Sqrt(float64(in))) }

// elements returns the number of elements. It is an error if an axis is less than 1, or the bytes overflow an int.
func (p Param) elements() (int, error) {
	n := 1
	for _, d := range p.Shape {
		if d < 1 {
			return 0, fmt.Errorf("nn: parameter %s: shape %v, want axes of at least 1", p.Name, p.Shape)
		}
		if d > math.MaxInt/8/n {
			return 0, fmt.Errorf("nn: parameter %s: shape %v is too large", p.Name, p.Shape)
		}
		n *= d
	}
	return n, nil
}

// New draws a value of type dt (float32 or float64) for p. The random numbers depend only on seed and the name, so that
// a parameter's first value does not change when others are added. The float32 value is the float64 value, rounded. An
// Init that draws NaN or Inf, such as Normal(NaN), is an error.
func (p Param) New(dt tensor.Dtype, seed uint64) (*tensor.Dense, error) {
	if err := checkType("parameter "+p.Name, dt); err != nil {
		return nil, err
	}
	n, err := p.elements()
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	if err := memory.CheckTotal(n * int(dt.Size())); err != nil {
		return nil, fmt.Errorf("nn: parameter %s: shape %v: %w", p.Name, p.Shape, err)
	}
	v := tensor.New(tensor.Of(dt), tensor.WithShape(p.Shape...))
	if p.Init == nil {
		return v, nil
	}
	if dt == tensor.Float32 {
		err = draw(v.Float32s(), p.Init, r)
	} else {
		err = draw(v.Float64s(), p.Init, r)
	}
	if err != nil {
		return nil, fmt.Errorf("nn: parameter %s: %w", p.Name, err)
	}
	return v, nil
}

// draw fills x with what init draws. A number that is not finite in x is an error.
func draw[T float32 | float64](x []T, init Init, r *rand.Rand) error {
	for i := range x {
		x[i] = T(init(r))
		if value.NotFinite(float64(x[i])) {
			return fmt.Errorf("its first value has a %v", x[i])
		}
	}
	return nil
}

// Source gives the value of a parameter to the layer that is being built, which reports a nil value as an error. The
// layer's node holds this tensor, not a copy: two graphs whose layers got the same tensors share their weights.
type Source func(p Param) (*tensor.Dense, error)

// Random is a Source that draws each value from its Init, see Param.New.
func Random(dt tensor.Dtype, seed uint64) Source {
	return func(p Param) (*tensor.Dense, error) { return p.New(dt, seed) }
}

// Values is a Source that returns the tensors of m by name.
func Values(m map[string]*tensor.Dense) Source {
	return func(p Param) (*tensor.Dense, error) { return m[p.Name], nil }
}
