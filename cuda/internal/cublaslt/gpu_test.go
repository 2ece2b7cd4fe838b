package cublaslt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// gpu is an open device with the library.
type gpu struct {
	dev    *driver.Device
	lib    *Library
	stream *driver.Stream
}

// openGPU opens the first GPU and the library until the end of the test, or ends it by testutil.NoGPU where one is not there.
func openGPU(t *testing.T) *gpu {
	t.Helper()
	g := new(gpu)
	var err error
	if g.dev, err = driver.Open(0); err == nil {
		t.Cleanup(func() { check(t, g.dev.Close()) })
		if g.lib, err = Open(g.dev); err == nil {
			t.Cleanup(func() { check(t, g.lib.Close()) })
			g.stream, err = g.dev.NewStream()
		}
	}
	var gone *driver.Unavailable
	var missing *Missing
	if errors.As(err, &gone) || errors.As(err, &missing) {
		testutil.NoGPU(t, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { check(t, g.stream.Close()) })
	return g
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// poison fills what is to be written: NaN in every type.
const poison = 0x7fed7fed

// array is memory of the device between guards.
type array struct {
	mem    *driver.Memory
	ptr    driver.DevicePtr
	before []byte
}

const guard = 512

// place puts content on the device.
func (g *gpu) place(t *testing.T, content []byte) *array {
	t.Helper()
	a := &array{before: binary.LittleEndian.AppendUint32(nil, poison)}
	a.before = bytes.Repeat(a.before, (2*guard+len(content)+3)/4)[:2*guard+len(content)]
	copy(a.before[guard:], content)
	var err error
	a.mem, err = g.dev.Alloc(len(a.before))
	require.NoError(t, err)
	t.Cleanup(func() { check(t, a.mem.Free()) })
	a.ptr = a.mem.Ptr() + driver.DevicePtr(guard)
	check(t, g.stream.Upload(a.mem.Ptr(), a.before))
	return a
}

// read returns all of an array, guards included.
func (g *gpu) read(t *testing.T, a *array) []byte {
	t.Helper()
	got := make([]byte, len(a.before))
	check(t, g.stream.Download(got, a.mem.Ptr()))
	check(t, g.stream.Synchronize())
	return got
}

// encode stores values in a type, rounded to nearest even, and returns what is stored too.
func encode(typ kernels.Type, values []float64) ([]byte, []float64) {
	out := make([]byte, 0, len(values)*typ.Bytes())
	for _, v := range values {
		switch b := math.Float32bits(float32(v)); typ {
		case kernels.F32:
			out = binary.LittleEndian.AppendUint32(out, b)
		case kernels.BF16:
			out = binary.LittleEndian.AppendUint16(out, uint16((b+0x7fff+b>>16&1)>>16))
		case kernels.F16: // of normal numbers; smaller ones become 0
			h := uint16(0)
			if r := b + 0xfff + b>>13&1; math.Abs(v) >= 0x1p-14 {
				h = uint16(r&0x7fffffff>>13 - 112<<10)
			}
			out = binary.LittleEndian.AppendUint16(out, h&0x7fff|uint16(b>>16&0x8000))
		}
	}
	return out, decode(typ, out)
}

func decode(typ kernels.Type, data []byte) []float64 {
	out := make([]float64, len(data)/typ.Bytes())
	for i := range out {
		switch at := data[i*typ.Bytes():]; typ {
		case kernels.F32:
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		case kernels.BF16:
			out[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(at)) << 16))
		case kernels.F16:
			b := binary.LittleEndian.Uint16(at)
			v := math.Ldexp(1+float64(b&1023)/1024, int(b>>10&31)-15)
			switch {
			case b>>10&31 == 31:
				v = math.NaN()
			case b>>10&31 == 0:
				v = float64(b&1023) * 0x1p-24
			}
			out[i] = math.Copysign(v, float64(1-2*int(b>>15)))
		}
	}
	return out
}

func TestHalfPrecisionOfTheTests(t *testing.T) {
	for v, want := range map[float64]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 0.1: 0x2e66, 0x1p-14: 0x400, 2047.0 / 2048: 0x3bff} {
		if got, _ := encode(kernels.F16, []float64{v}); binary.LittleEndian.Uint16(got) != want {
			t.Errorf("%v is %#x, want %#x", v, got, want)
		}
	}
	for b := range uint16(0x7c00) {
		if b >= 0x400 {
			two := binary.LittleEndian.AppendUint16(nil, b|0x8000)
			if got, _ := encode(kernels.F16, decode(kernels.F16, two)); !bytes.Equal(got, two) {
				t.Errorf("%#x comes back as %#x", two, got)
			}
		}
	}
}
