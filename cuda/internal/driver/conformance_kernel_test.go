package driver_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// adder is vector_add with operands: out = a + b.
type adder struct {
	mod       *driver.Module
	mem       *driver.Memory
	out, a, b cpu.Buf
	n         int
	call      *driver.Call
}

func newAdder(t *testing.T, d *driver.Device, s *driver.Stream, n int) *adder {
	t.Helper()
	x := &adder{mod: must(d.LoadModule(kernels))(t), n: n}
	x.mem = alloc(t, d, 3*4*n)
	x.mem.Place(&x.out, 0, 4*n)
	x.mem.Place(&x.a, 4*n, 4*n)
	x.mem.Place(&x.b, 8*n, 4*n)
	f := must(x.mod.Function("vector_add"))(t)
	x.call = must(f.Prepare("sum", driver.Grid{X: (n + 127) / 128}, driver.Block{X: 128}, 0, x.args(n)))(t)
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	ok(t, s.Upload(driver.Address(&x.a), asBytes(v)))
	for i := range v {
		v[i] = 1000
	}
	ok(t, s.Upload(driver.Address(&x.b), asBytes(v)))
	return x
}

// args returns the argument for the first n sums.
func (x *adder) args(n int) driver.Struct {
	return pack(driver.Address(&x.out), driver.Address(&x.a), driver.Address(&x.b), int32(n))
}

// ends returns the first and the last sum.
func (x *adder) ends(t *testing.T, s *driver.Stream) [2]float32 {
	t.Helper()
	v := asFloats(download(t, s, driver.Address(&x.out), 4*x.n))
	return [2]float32{v[0], v[x.n-1]}
}

func (x *adder) free(t *testing.T) {
	t.Helper()
	ok(t, errors.Join(x.mem.Free(), x.mod.Unload(), x.mod.Unload()))
}

func testKernel(t *testing.T, d *driver.Device) {
	s := must(d.NewStream())(t)
	x := newAdder(t, d, s, 1000)
	ok(t, s.Launch(x.call))
	if got, want := x.ends(t, s), [2]float32{1000, 1999}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	x.a, x.b, x.out = x.out, x.a, x.b
	ok(t, x.call.SetArgs(x.args(x.n)))
	ok(t, s.Launch(x.call))
	if got, want := x.ends(t, s), [2]float32{1000, 2998}; got != want {
		t.Errorf("other operands: got %v, want %v", got, want)
	}
	ok(t, x.call.SetArgs(x.args(999)))
	ok(t, s.Fill8(driver.Address(&x.out), 0, 4*x.n))
	ok(t, s.Launch(x.call))
	if got, want := x.ends(t, s), [2]float32{1000, 0}; got != want {
		t.Errorf("one sum less: got %v, want %v", got, want)
	}
	x.free(t)
	if err := s.Launch(x.call); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Error("kernel of an unloaded module:", err)
	}
	ok(t, s.Close())
}

func testShared(t *testing.T, d *driver.Device) {
	s := must(d.NewStream())(t)
	mod := must(d.LoadModule(kernels))(t)
	m := alloc(t, d, 4)
	f := must(mod.Function("shared_last"))(t)
	most := d.Properties().SharedPerBlock
	for _, n := range []int{4, 48 << 10, 48<<10 + 4, most, 8} {
		c := must(f.Prepare("last word", driver.Grid{X: 1}, driver.Block{X: 1}, n, pack(m.Ptr(), uint32(n), float32(n))))(t)
		ok(t, s.Launch(c))
		if got := asFloats(download(t, s, m.Ptr(), 4))[0]; got != float32(n) {
			t.Errorf("%d bytes of shared memory: got %g", n, got)
		}
	}
	for _, n := range []int{-1, most + 1} {
		_, err := f.Prepare("last word", driver.Grid{X: 1}, driver.Block{X: 1}, n, pack(m.Ptr(), uint32(n), float32(n)))
		if err == nil || !strings.Contains(err.Error(), "last word (kernel shared_last): ") {
			t.Errorf("%d bytes of shared memory: %v", n, err)
		}
	}
	ok(t, errors.Join(m.Free(), mod.Unload(), s.Close()))
}

func testCaptureCopies(t *testing.T, d *driver.Device) {
	s := must(d.NewStream())(t)
	h := must(d.NewHost(64))(t)
	m := alloc(t, d, 128)
	ok(t, s.BeginCapture())
	ok(t, s.Copy(m.Ptr()+64, m.Ptr(), 32))
	ok(t, s.Fill8(m.Ptr()+64, 9, 1))
	ok(t, s.CopyOut(h, 32, m.Ptr()+64, 32))
	e := must(d.NewEvent(false))(t)
	for what, err := range map[string]error{
		"upload": s.Upload(m.Ptr(), []byte{1}), "download": s.Download([]byte{1}, m.Ptr()), "synchronize": s.Synchronize(),
		"capture": s.BeginCapture(), "record": s.Record(e),
	} {
		if err == nil || !strings.Contains(err.Error(), "a capture is under way") {
			t.Errorf("%s within a capture: %v", what, err)
		}
	}
	p := must(s.EndCapture())(t)
	for round := range 3 {
		for i := range 32 {
			h.Bytes()[i] = byte(10*round + i)
		}
		ok(t, s.Upload(m.Ptr(), h.Bytes()[:32]))
		ok(t, s.Replay(p))
		ok(t, s.Synchronize())
		if got := h.Bytes()[32:]; got[0] != 9 || got[1] != byte(10*round+1) || got[31] != byte(10*round+31) {
			t.Errorf("round %d: %v", round, got)
		}
	}
	ok(t, errors.Join(p.Close(), p.Close(), e.Close()))
	if s.Replay(p) == nil || s.Replay(nil) == nil {
		t.Error("a closed graph is replayed")
	}
	if _, err := s.EndCapture(); err == nil {
		t.Error("the end of no capture")
	}
	ok(t, s.BeginCapture())
	ok(t, s.Fill8(m.Ptr(), 1, 1))
	ok(t, s.Close()) // drops the capture
	ok(t, errors.Join(h.Free(), m.Free()))
}

func testCaptureKernels(t *testing.T, d *driver.Device) {
	s, other := must(d.NewStream())(t), must(d.NewStream())(t)
	x := newAdder(t, d, s, 300)
	ok(t, s.Synchronize())
	ok(t, s.BeginCapture())
	for range 3 { // out = a + b; a = out
		ok(t, s.Launch(x.call))
		ok(t, s.Copy(driver.Address(&x.a), driver.Address(&x.out), 4*x.n))
	}
	m := alloc(t, d, 100) // others may go on meanwhile
	ok(t, m.Free())
	p := must(s.EndCapture())(t)
	if got := x.ends(t, s); got != [2]float32{} {
		t.Errorf("a capture has run: %v", got)
	}
	for round := 1; round <= 2; round++ {
		ok(t, other.Replay(p))
		ok(t, other.Synchronize())
		want := [2]float32{float32(3000 * round), float32(3000*round + 299)}
		if got := x.ends(t, s); got != want {
			t.Errorf("round %d: got %v, want %v", round, got, want)
		}
	}
	ok(t, p.Close())
	x.free(t)
	ok(t, errors.Join(s.Close(), other.Close()))
}

func testModuleErrors(t *testing.T, d *driver.Device) {
	if _, err := d.LoadModule(nil); err == nil {
		t.Error("an empty image")
	}
	mod := must(d.LoadModule(kernels))(t)
	if _, err := mod.Function("vector_sub"); err == nil || !strings.Contains(err.Error(), "kernel vector_sub: cuModuleGetFunction") {
		t.Error(err)
	}
	ok(t, mod.Unload())
	if _, err := mod.Function("vector_add"); err == nil {
		t.Error("a kernel of an unloaded module")
	}
}

// testGoroutines uses a device from many goroutines, each with a stream.
func testGoroutines(t *testing.T, d *driver.Device) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 10 {
				m, err := d.Alloc(1000 + i)
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 3)
				err = errors.Join(s.Fill8(m.Ptr(), byte(i), 1000), s.Download(got, m.Ptr()+997), s.Synchronize(), m.Free())
				if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 3)) {
					t.Error(got, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ok(t, d.Synchronize())
}

func testDo(t *testing.T, d *driver.Device) {
	ran := errors.New("ran")
	err := d.Do(func() error {
		if _, _, r := d.Driver().MemGetInfo(); r != driver.Success || d.Context() == 0 {
			t.Error("no context is current")
		}
		return ran
	})
	if err != ran {
		t.Error(err)
	}
}
