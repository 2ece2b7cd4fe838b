package testutil

import (
	"slices"
	"testing"
)

// Floats returns a copy, in float64, of the numbers in data, which the method Data of a Gorgonia value has returned.
// The test fails if data does not hold numbers.
func Floats(t testing.TB, data any) []float64 {
	t.Helper()
	switch d := data.(type) {
	case float32:
		return []float64{float64(d)}
	case float64:
		return []float64{d}
	case []float32:
		return Convert[float64](d)
	case []float64:
		return slices.Clone(d)
	case []int32:
		return Convert[float64](d)
	case int:
		return []float64{float64(d)}
	case bool:
		return Floats(t, []bool{d})
	case []bool:
		out := make([]float64, len(d))
		for i, v := range d {
			if v {
				out[i] = 1
			}
		}
		return out
	case error:
		t.Fatal(d)
	}
	t.Fatalf("testutil: no numbers but a %T", data)
	return nil
}

// Convert returns x rounded to a floating-point type.
func Convert[To float32 | float64, From float32 | float64 | int32](x []From) []To {
	out := make([]To, len(x))
	for i, v := range x {
		out[i] = To(v)
	}
	return out
}
