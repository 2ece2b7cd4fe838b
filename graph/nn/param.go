package nn

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Param is a learnable parameter of a layer: its name, its shape, and how its first value is drawn.
type Param struct {
	Name  string
	Shape tensor.Shape
	Init  Init
}

// Init is the distribution of a parameter's first value. The zero value fills with zeros.
type Init struct {
	Kind  InitKind
	Scale float64
}

// InitKind is a family of distributions.
type InitKind int

// The kinds of Init.
const (
	InitConstant InitKind = iota // every element is Scale
	InitNormal                   // normal, mean 0, standard deviation Scale
	InitUniform                  // uniform over [-Scale, Scale)
)

// Ones fills with ones: the weight of a norm.
func Ones() Init { return Init{InitConstant, 1} }

// Normal draws from the normal distribution of mean 0 and the given standard deviation.
func Normal(std float64) Init { return Init{InitNormal, std} }

// XavierUniform draws from the uniform distribution over [-a, a) with a = sqrt(6/(in+out)) (Glorot and Bengio 2010).
func XavierUniform(in, out int) Init { return Init{InitUniform, math.Sqrt(6 / float64(in+out))} }

// LeCunNormal draws from the normal distribution of variance 1/in, which keeps the variance of a linear layer's input.
func LeCunNormal(in int) Init { return Init{InitNormal, 1 / math.Sqrt(float64(in))} }

// New draws a value of type dt (float32 or float64) for p. The stream depends on seed and on the name alone, so that a
// parameter's first value does not change when others are added, and float32 is float64 rounded.
func (p Param) New(dt tensor.Dtype, seed uint64) (*tensor.Dense, error) {
	if dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("nn: parameter %s: type %s, want float32 or float64", p.Name, value.TypeName(dt))
	}
	n := 1
	for _, d := range p.Shape {
		if d < 1 {
			return nil, fmt.Errorf("nn: parameter %s: shape %v, want axes of at least 1", p.Name, p.Shape)
		}
		if d > math.MaxInt/8/n { // no int counts the bytes
			return nil, fmt.Errorf("nn: parameter %s: shape %v is too large", p.Name, p.Shape)
		}
		n *= d
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	if err := cpu.CheckMemory(n * int(dt.Size())); err != nil {
		return nil, fmt.Errorf("nn: parameter %s: shape %v: %w", p.Name, p.Shape, err)
	}
	v := tensor.New(tensor.Of(dt), tensor.WithShape(p.Shape...))
	for i := range n {
		x := p.Init.Scale
		switch p.Init.Kind {
		case InitNormal:
			x *= r.NormFloat64()
		case InitUniform:
			x *= 2*r.Float64() - 1
		}
		if dt == tensor.Float32 {
			v.Float32s()[i] = float32(x)
		} else {
			v.Float64s()[i] = x
		}
	}
	return v, nil
}

// Source gives the value of a parameter to the layer that is being built. The layer's node holds that very tensor: two
// graphs whose layers got the same tensors share their weights.
type Source func(p Param) (*tensor.Dense, error)

// Random is a Source that draws every value from its Init, see Param.New.
func Random(dt tensor.Dtype, seed uint64) Source {
	return func(p Param) (*tensor.Dense, error) { return p.New(dt, seed) }
}

// Values is a Source of the tensors of m by name. A missing one is an error.
func Values(m map[string]*tensor.Dense) Source {
	return func(p Param) (*tensor.Dense, error) {
		v, ok := m[p.Name]
		if !ok || v == nil {
			return nil, fmt.Errorf("nn: no value for parameter %s", p.Name)
		}
		return v, nil
	}
}

// NewParam adds the node of a parameter to g, with the value that src gives. A value of another shape is an error, and so
// is a name that g has already: Gorgonia takes inputs of one name, type and shape for one.
func NewParam(g *G.ExprGraph, p Param, src Source) (*G.Node, error) {
	switch {
	case g == nil:
		return nil, fmt.Errorf("nn: parameter %s: nil graph", p.Name)
	case src == nil:
		return nil, fmt.Errorf("nn: parameter %s: nil source", p.Name)
	case len(g.ByName(p.Name)) > 0:
		return nil, fmt.Errorf("nn: parameter %s: the graph has a node of that name", p.Name)
	}
	v, err := src(p)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, fmt.Errorf("nn: parameter %s: the source's value is nil", p.Name)
	}
	if !v.Shape().Eq(p.Shape) {
		return nil, fmt.Errorf("nn: parameter %s: value of shape %v, want %v", p.Name, v.Shape(), p.Shape)
	}
	if dt := v.Dtype(); dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("nn: parameter %s: value of type %v, want float32 or float64", p.Name, dt)
	}
	return G.NewTensor(g, v.Dtype(), p.Shape.Dims(), G.WithShape(p.Shape...), G.WithName(p.Name), G.WithValue(v)), nil
}
