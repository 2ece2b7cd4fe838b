package kernels_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	. "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// gpu is an open device with the modules that tests have asked for.
type gpu struct {
	dev     *driver.Device
	stream  *driver.Stream
	modules map[string]*driver.Module
}

// underSanitizer says that compute-sanitizer looks on, for which NSA_SANITIZER=1 stands: it is slow to open a device and to load
// kernels, so all tests share one, and what the large attention cases compute is not compared with the oracle.
var underSanitizer = os.Getenv("NSA_SANITIZER") == "1"

// shared is the device of all tests under a sanitizer, which the end of the process closes.
var shared = sync.OnceValues(newGPU)

// openGPU opens the first GPU until the end of the test, or ends it by testutil.NoGPU where there is none.
func openGPU(t *testing.T) *gpu {
	t.Helper()
	open := newGPU
	if underSanitizer {
		open = shared
	}
	g, err := open()
	if u := (*driver.Unavailable)(nil); errors.As(err, &u) {
		testutil.NoGPU(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !underSanitizer {
		t.Cleanup(func() { check(t, g.close()) })
	}
	return g
}

func newGPU() (*gpu, error) {
	dev, err := driver.Open(0)
	if err != nil {
		return nil, err
	}
	g := &gpu{dev: dev, modules: map[string]*driver.Module{}}
	if g.stream, err = dev.NewStream(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return g, nil
}

func (g *gpu) close() error {
	return errors.Join(g.stream.Close(), g.dev.Close())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// call returns a launch ready to be made.
func (g *gpu) call(t testing.TB, l *Launch, argument []byte) *driver.Call {
	t.Helper()
	name, err := ImageOf(l.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	if g.modules[name] == nil {
		image, err := Image(name)
		if err != nil {
			t.Fatal(err)
		}
		if g.modules[name], err = g.dev.LoadModule(image); err != nil {
			t.Fatal(err)
		}
	}
	f, err := g.modules[name].Function(l.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Prepare(l.Kernel, driver.Grid(l.Grid), driver.Block(l.Block), l.Shared, driver.Struct(argument))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// launch enqueues a launch.
func (g *gpu) launch(t testing.TB, l *Launch, argument []byte) {
	t.Helper()
	if err := g.stream.Launch(g.call(t, l, argument)); err != nil {
		t.Fatal(err)
	}
}

// properties are those of the device.
func (g *gpu) properties() GPU {
	p := g.dev.Properties()
	return GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs}
}

// guard is the number of bytes before and behind an array that must stay as they are.
const guard = 512

// array is an array on the device between guards.
type array struct {
	ptr    Ptr
	mem    *driver.Memory
	before []byte // what lies there before a run, guards included
	offset int
	typ    Type
	ints   bool
	values []float64 // of an input, as stored
	output bool
}

// suite is one case: arrays and a run.
type suite struct {
	*testing.T
	g      *gpu
	typ    Type // of what in and out make
	skew   int  // elements by which arrays lie off their alignment
	arrays []*array
	ops    []bound // to run, in this order
}

// cases runs f for each storage type, on aligned arrays and on arrays that are not.
func cases(t *testing.T, f func(s *suite)) {
	g := openGPU(t)
	for _, typ := range []Type{F32, BF16, F16} {
		for skew, name := range []string{"aligned", "skewed"} {
			t.Run(typ.String()+"/"+name, func(t *testing.T) {
				s := &suite{T: t, g: g, typ: typ, skew: skew}
				t.Cleanup(s.reset)
				f(s)
			})
		}
	}
}

// reset frees the arrays of the case before.
func (s *suite) reset() {
	for _, a := range s.arrays {
		check(s.T, a.mem.Free())
	}
	s.arrays, s.ops = nil, nil
}

func (s *suite) place(typ Type, content []byte, skew int, output bool) *array {
	s.Helper()
	a := &array{typ: typ, offset: guard + skew, output: output}
	var poison [4]byte
	binary.LittleEndian.PutUint32(poison[:], 0x7fed7fed)
	a.before = bytes.Repeat(poison[:], (2*guard+skew+len(content)+3)/4)
	if !output {
		copy(a.before[a.offset:], content)
	}
	a.before = a.before[:2*guard+skew+len(content)]
	mem, err := s.g.dev.Alloc(max(1, len(a.before)))
	if err != nil {
		s.Fatal(err)
	}
	a.mem, a.ptr = mem, Ptr(mem.Ptr())+Ptr(a.offset)
	s.arrays = append(s.arrays, a)
	return a
}

// in stores values in the case's type; in32 as float32.
func (s *suite) in(values []float64) *array   { return s.input(s.typ, values) }
func (s *suite) in32(values []float64) *array { return s.input(F32, values) }

func (s *suite) input(typ Type, values []float64) *array {
	s.Helper()
	content := encode(typ, values)
	a := s.place(typ, content, s.skew*typ.Bytes(), false)
	a.values = decode(typ, content)
	return a
}

// ints stores integers.
func (s *suite) ints(values []int32) *array {
	s.Helper()
	a := s.place(F32, ints(values), 4*s.skew, false)
	a.ints = true
	return a
}

// of returns the array as an operand.
func (a *array) of(shape ...int) arg {
	if a.ints {
		return argOf(tensor.Int32, a.ptr, shape...)
	}
	return argOf(dtypes[a.typ], a.ptr, shape...)
}

// raw stores bytes at an aligned place.
func (s *suite) raw(content []byte) *array { return s.place(F32, content, 0, false) }

// out is an output of n elements in the case's type, outAs in another, room one of bytes.
func (s *suite) out(n int) *array { return s.outAs(s.typ, n) }
func (s *suite) outAs(typ Type, n int) *array {
	return s.place(typ, make([]byte, n*typ.Bytes()), s.skew*typ.Bytes(), true)
}
func (s *suite) room(bytes int64) *array { return s.place(F32, make([]byte, bytes), 0, true) }

// op adds an op to what is run, by the first row that takes it.
func (s *suite) op(op any, in, out []arg) {
	s.Helper()
	p, err := planOf(s.g.properties(), "", op, siteOf(in, out))
	s.add(p, err, slices.Concat(in, out)...)
}

// build adds the launches that f builds for operands.
func (s *suite) build(f func(b *Builder) error, in, out []arg) {
	s.Helper()
	b := NewBuilder(s.g.properties(), nil, siteOf(in, out))
	b.Type = s.typ
	b.Fail(f(b))
	p, err := b.Plan()
	s.add(p, err, slices.Concat(in, out)...)
}

func (s *suite) add(p *Plan, err error, args ...arg) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	s.ops = append(s.ops, bindPlan(s, p, s.room(p.WorkBytes()).ptr, args...))
}

// run runs the ops twice, over poison, and holds both runs to the same bits and to the guards. Arrays that are inputs
// are written back before each run.
func (s *suite) run() {
	s.Helper()
	var first [][]byte
	for range 2 {
		for _, a := range s.arrays {
			if err := s.g.stream.Upload(a.mem.Ptr(), a.before); err != nil {
				s.Fatal(err)
			}
		}
		for _, op := range s.ops {
			op.run(s, s.g, func(to Ptr, data []byte) { check(s.T, s.g.stream.Upload(to, data)) })
		}
		var all [][]byte
		for _, a := range s.arrays {
			all = append(all, s.download(a))
		}
		if first == nil {
			first = all
			continue
		}
		for i, a := range s.arrays {
			if !bytes.Equal(first[i], all[i]) {
				s.Errorf("array %d: two runs differ", i)
			}
			end := len(a.before) - guard
			if !bytes.Equal(all[i][:a.offset], a.before[:a.offset]) || !bytes.Equal(all[i][end:], a.before[end:]) {
				s.Errorf("array %d: written to outside of its %d bytes", i, end-a.offset)
			}
		}
	}
}

func (s *suite) download(a *array) []byte {
	s.Helper()
	got := make([]byte, len(a.before))
	if err := s.g.stream.Download(got, a.mem.Ptr()); err != nil {
		s.Fatal(err)
	}
	if err := s.g.stream.Synchronize(); err != nil {
		s.Fatal(err)
	}
	return got
}

// bytesOf returns the content of an array.
func (s *suite) bytesOf(a *array) []byte {
	s.Helper()
	got := s.download(a)
	return got[a.offset : len(got)-guard]
}

// get returns the values of an array.
func (s *suite) get(a *array) []float64 {
	s.Helper()
	return decode(a.typ, s.bytesOf(a))
}

// tolerance of one result, over the largest magnitude M of its array: 1e-5 in float32. In half precision it follows from
// the rounding of results alone, which no implementation that stores them in the type escapes. With the unit roundoff u,
// 2^-8 for the 8 significant bits of bfloat16 and 2^-11 for the 11 of float16, half a unit in the last place of M is
// between uM/2 and uM, so that twice the error of a naive implementation is at least between uM and 2uM. bfloat16 has
// the lower end u, float16 the upper one 2u: beside its u the error of sums in float32 would count.
func tolerance(t Type) float64 {
	return map[Type]float64{F32: 1e-5, BF16: 1. / 256, F16: 1. / 1024}[t]
}

// want compares an output with what is wanted.
func (s *suite) want(what string, a *array, want []float64) {
	s.Helper()
	s.wantRounded(what, a, want, 1)
}

// wantRounded is want for an output that was stored, and so rounded, times times on its way.
func (s *suite) wantRounded(what string, a *array, want []float64, times int) {
	s.Helper()
	testutil.Within(s.T, what, s.get(a), want, float64(times)*tolerance(a.typ))
}

// encode stores values in a type, rounded to nearest even.
func encode(typ Type, values []float64) []byte {
	out := make([]byte, 0, len(values)*typ.Bytes())
	for _, v := range values {
		switch typ {
		case F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		case BF16:
			out = binary.LittleEndian.AppendUint16(out, testutil.BFloat16(v))
		case F16:
			out = binary.LittleEndian.AppendUint16(out, testutil.Float16(v))
		}
	}
	return out
}

func decode(typ Type, data []byte) []float64 {
	out := make([]float64, len(data)/typ.Bytes())
	for i := range out {
		switch at := data[i*typ.Bytes():]; typ {
		case F32:
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		case BF16:
			out[i] = testutil.FromBFloat16(binary.LittleEndian.Uint16(at))
		case F16:
			out[i] = testutil.FromFloat16(binary.LittleEndian.Uint16(at))
		}
	}
	return out
}
