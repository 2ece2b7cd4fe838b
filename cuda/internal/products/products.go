// Package products has the matrix products of a training step of TinyLM's Base, to time them.
package products

import (
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// Tokens is the number of tokens of a step.
const Tokens = 32768

// Product is one of the three products of a linear layer y [tokens,out] = x [tokens,in] Wᵀ, in bf16; the gradient of the weight
// is float32.
type Product struct {
	Role string // "x Wᵀ", "dy W" or "dyᵀ x"
	kernels.Matmul
}

// Of returns the three products of one layer.
func Of(tokens, out, in int64) [3]Product {
	return [3]Product{
		{"x Wᵀ", kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: out, K: in, TransB: true}},
		{"dy W", kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: in, K: out}},
		{"dyᵀ x", kernels.Matmul{Type: kernels.BF16, Out: kernels.F32, M: out, N: in, K: tokens, TransA: true}},
	}
}

// All returns the products of all sizes of layers.
func All() (list []Product) {
	for _, size := range [][2]int64{{768, 768}, {3072, 768}, {768, 3072}, {256, 768}} {
		of := Of(Tokens, size[0], size[1])
		list = append(list, of[:]...)
	}
	return list
}

// Operands returns memory for a, b, c and the work memory of any of the products, until the end of the test: full of bf16
// numbers, normally distributed.
func Operands(t testing.TB, d *driver.Device, s *driver.Stream) (at [4]driver.DevicePtr) {
	t.Helper()
	var block []byte
	for _, v := range testutil.Normal(1, 1<<20) {
		b := testutil.BFloat16(v)
		block = append(block, byte(b), byte(b>>8))
	}
	for i := range at {
		m, err := d.Alloc(4 * Tokens * 3072)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, m.Free()) })
		at[i] = m.Ptr()
		check(t, s.Upload(m.Ptr(), block))
		for done := len(block); done < m.Bytes(); done += len(block) {
			check(t, s.Copy(m.Ptr()+driver.DevicePtr(done), m.Ptr(), min(len(block), m.Bytes()-done)))
		}
	}
	return at
}

// Ends returns two events to time what is between them, until the end of the test.
func Ends(t testing.TB, d *driver.Device) (ends [2]*driver.Event) {
	t.Helper()
	for i := range ends {
		e, err := d.NewEvent(true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, e.Close()) })
		ends[i] = e
	}
	return ends
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
