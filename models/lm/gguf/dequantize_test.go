package gguf_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
)

// bits returns n bits of b, of which bit at is the lowest one: bit 0 is the lowest bit of byte 0.
func bits(b []byte, at, n int) (x float64) {
	for i := range n {
		x += math.Ldexp(float64(b[(at+i)/8]>>((at+i)%8)&1), i)
	}
	return x
}

// signed returns byte i of b as a signed number.
func signed(b []byte, i int) float64 { return float64(int8(b[i])) }

// f16 returns the half precision number at byte i.
func f16(b []byte, i int) float64 { return testutil.FromFloat16(uint16(bits(b, 8*i, 16))) }

// scaleAndMin returns the numbers of 6 bits of sub-block s in 12 bytes.
func scaleAndMin(b []byte, s int) (scale, m float64) {
	if s < 4 {
		return bits(b, 8*s, 6), bits(b, 8*(s+4), 6)
	}
	return bits(b, 8*(s+4), 4) + 16*bits(b, 8*(s-4)+6, 2), bits(b, 8*(s+4)+4, 4) + 16*bits(b, 8*s+6, 2)
}

// formats are the types: element e of a block b by the definition of its layout, one by one and in float64.
var formats = []struct {
	name            string
	code            uint32
	elements, bytes int
	value           func(b []byte, e int) float64
}{
	{"F32", 0, 1, 4, func(b []byte, _ int) float64 { return float64(math.Float32frombits(uint32(bits(b, 0, 32)))) }},
	{"F16", 1, 1, 2, func(b []byte, _ int) float64 { return f16(b, 0) }},
	{"BF16", 30, 1, 2, func(b []byte, _ int) float64 { return testutil.FromBFloat16(uint16(bits(b, 0, 16))) }},
	{"Q4_0", 2, 32, 18, func(b []byte, e int) float64 { return f16(b, 0) * (bits(b[2:], 8*(e%16)+4*(e/16), 4) - 8) }},
	{"Q4_1", 3, 32, 20, func(b []byte, e int) float64 {
		return f16(b, 0)*bits(b[4:], 8*(e%16)+4*(e/16), 4) + f16(b, 2)
	}},
	{"Q8_0", 8, 32, 34, func(b []byte, e int) float64 { return f16(b, 0) * signed(b[2:], e) }},
	{"Q4_K", 12, 256, 144, func(b []byte, e int) float64 {
		scale, m := scaleAndMin(b[4:], e/32)
		return f16(b, 0)*scale*bits(b[16:], 8*(e/64*32+e%32)+4*(e/32%2), 4) - f16(b, 2)*m
	}},
	{"Q5_K", 13, 256, 176, func(b []byte, e int) float64 {
		scale, m := scaleAndMin(b[4:], e/32)
		q := bits(b[48:], 8*(e/64*32+e%32)+4*(e/32%2), 4) + 16*bits(b[16:], 8*(e%32)+e/32, 1)
		return f16(b, 0)*scale*q - f16(b, 2)*m
	}},
	{"Q6_K", 14, 256, 210, func(b []byte, e int) float64 {
		q := bits(b, 8*(e/128*64+e%64)+4*(e/64%2), 4) + 16*bits(b[128:], 8*(e/128*32+e%32)+2*(e/32%4), 2)
		return f16(b, 208) * signed(b[192:], e/16) * (q - 32)
	}},
}

// TestTypesMatchDefinition: all numbers of random blocks are those of the definition, rounded once, whatever part of
// the tensor a core reads. Scales are any numbers of half precision, infinities and NaN among them.
func TestTypesMatchDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, format := range formats {
		t.Run(format.name, func(t *testing.T) {
			rows := 1 + 150_000/format.bytes // several pieces
			data := make([]byte, rows*format.bytes)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			f := must(open(t, file(2, nil, []info{{"w", []uint64{uint64(format.elements), uint64(rows)}, format.code, 0}},
				data)))(t)
			require.Equal(t, format.name, f.Type("w"))
			shape, _ := f.Shape("w")
			require.Equal(t, []int{rows, format.elements}, shape)
			for i, got := range read(t, f, "w") {
				block := data[i/format.elements*format.bytes:][:format.bytes]
				want := float32(format.value(block, i%format.elements))
				if got != want && !(got != got && want != want) {
					t.Fatalf("element %d is %g, want %g", i, got, want)
				}
			}
		})
	}
}

// BenchmarkRead reads tensors of 16M elements that are in the page cache.
func BenchmarkRead(b *testing.B) {
	const elements = 16 << 20
	for _, format := range formats {
		b.Run(fmt.Sprintf("type=%s", format.name), func(b *testing.B) {
			f := testutil.Must(open(b, file(3, nil, []info{{"w", []uint64{elements}, format.code, 0}},
				make([]byte, elements/format.elements*format.bytes))))(b)
			dst := make([]float32, elements)
			b.SetBytes(4 * elements)
			for b.Loop() {
				if err := f.Read("w", dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestPythonOracle: the tensors and values of a file that package gguf of Python has written are those that it reads.
func TestPythonOracle(t *testing.T) {
	f := must(gguf.Open("testdata/types.gguf"))(t)
	defer f.Close()
	tested := 0
	for _, name := range f.Names() {
		if f.Type(name) == "F32" {
			continue
		}
		tested++
		got, want := read(t, f, name), read(t, f, name+".float32")
		require.Equal(t, want, got, name)
		shape, _ := f.Shape(name)
		require.Equal(t, []int{2, 256}, shape)
	}
	require.Equal(t, len(formats)-1, tested)

	for i, name := range []string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"} {
		require.Equal(t, []int{100 + i, -100 - i}[i%2], testutil.Must(gguf.Get[int](f, "test."+name))(t))
	}
	require.Equal(t, float64(float32(0.1)), testutil.Must(gguf.Get[float64](f, "test.float32"))(t))
	require.Equal(t, 0.1, testutil.Must(gguf.Get[float64](f, "test.float64"))(t))
	require.True(t, testutil.Must(gguf.Get[bool](f, "test.bool"))(t))
	require.Equal(t, "überall", testutil.Must(gguf.Get[string](f, "test.string"))(t))
	require.Equal(t, []string{"a", "", "日本"}, testutil.Must(gguf.List[string](f, "test.strings"))(t))
	require.Equal(t, []int{1, -2, 3}, testutil.Must(gguf.List[int](f, "test.ints"))(t))
	require.Equal(t, []float64{0.5, -1.5}, testutil.Must(gguf.List[float64](f, "test.floats"))(t))
	require.Equal(t, []bool{true, false}, testutil.Must(gguf.List[bool](f, "test.bools"))(t))
}
