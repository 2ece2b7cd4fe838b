package ref

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// AdamW holds the constants of the optimizer.
type AdamW struct {
	Beta1, Beta2 float64 // decay of the first and of the second moment
	Eps          float64 // added to the root of the second moment
	Decay        float64 // decoupled weight decay, for tensors with two or more axes whose name does not end in ".pe"
	Clip         float64 // largest global norm of the gradients

	Muon        func(name string) bool // parameters that take steps of Muon, see MuonUpdate; nil: none
	Momentum    float64                // of Muon
	Polynomials [][3]float64           // of Muon
}

// DefaultAdamW returns the constants of the golden training runs.
func DefaultAdamW() AdamW { return AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1} }

// AdamWState is the state of the optimizer between steps. The zero value is the state before the first step.
type AdamWState struct {
	T    int                // steps done
	M, V map[string]*Tensor // moments of each parameter
}

// AdamWStep changes params and state by one step at learning rate lr and returns the global norm of grads before
// clipping. Gradients are scaled by min(1, clip / (norm + 1e-6)). The moments m and v are corrected for their start at
// 0. The update is m / (sqrt(v) + eps) + decay * parameter (arXiv 1711.05101). grads has the names of params.
func AdamWStep(params, grads map[string]*Tensor, state *AdamWState, lr float64, h AdamW) (norm float64) {
	if state.M == nil {
		state.M, state.V = map[string]*Tensor{}, map[string]*Tensor{}
	}
	names := slices.Sorted(maps.Keys(params)) // the sum has a fixed order
	for _, name := range names {
		norm += dot(grads[name].Data, grads[name].Data)
	}
	norm = math.Sqrt(norm)
	scale := min(1, h.Clip/(norm+1e-6))
	state.T++
	c1, c2 := 1-math.Pow(h.Beta1, float64(state.T)), 1-math.Pow(h.Beta2, float64(state.T))
	for _, name := range names {
		p, g := params[name], grads[name]
		if state.M[name] == nil {
			state.M[name], state.V[name] = like(p), like(p)
		}
		m, v := state.M[name].Data, state.V[name].Data
		decay := 0.0
		if len(p.Shape) >= 2 && !strings.HasSuffix(name, ".pe") {
			decay = h.Decay
		}
		if h.Muon != nil && h.Muon(name) {
			u := like(p)
			for i := range p.Data {
				m[i] = h.Momentum*m[i] + (1-h.Momentum)*g.Data[i]*scale
				u.Data[i] = h.Momentum*m[i] + (1-h.Momentum)*g.Data[i]*scale
			}
			for i, o := range MuonUpdate(u, h.Polynomials).Data {
				p.Data[i] -= lr * (o + decay*p.Data[i])
			}
			continue
		}
		for i := range p.Data {
			gi := g.Data[i] * scale
			m[i] = h.Beta1*m[i] + (1-h.Beta1)*gi
			v[i] = h.Beta2*v[i] + (1-h.Beta2)*gi*gi
			update := (m[i] / c1) / (math.Sqrt(v[i]/c2) + h.Eps)
			p.Data[i] -= lr * (update + decay*p.Data[i])
		}
	}
	return norm
}

// MuonUpdate returns the update of Muon for momentum u [rows,cols]: a matrix with the singular vectors of u and other
// singular values (arXiv 2502.16982). The singular values of u are divided by the fourth root of the sum of their
// fourth powers, then mapped by the odd polynomials a x + b x³ + c x⁵ one after the other, then multiplied by 0.2
// sqrt(max(rows, cols)).
func MuonUpdate(u *Tensor, polynomials [][3]float64) *Tensor {
	gram := Linear(u, u, nil) // u uᵀ
	x := scaled(u, 1/math.Sqrt(math.Sqrt(dot(gram.Data, gram.Data))))
	for _, p := range polynomials {
		x3 := product(Linear(x, x, nil), x)
		x5 := product(Linear(x, x, nil), x3)
		x = Add(scaled(x, p[0]), scaled(x3, p[1]), scaled(x5, p[2]))
	}
	return scaled(x, 0.2*math.Sqrt(float64(max(u.Shape[0], u.Shape[1]))))
}

func product(a, b *Tensor) *Tensor {
	y := New(a.Shape[0], b.Shape[1])
	for i := range a.Shape[0] {
		for j, v := range a.Row(i) {
			axpy(v, b.Row(j), y.Row(i))
		}
	}
	return y
}

// scaled returns a*x.
func scaled(x *Tensor, a float64) *Tensor {
	y := like(x)
	axpy(a, x.Data, y.Data)
	return y
}
