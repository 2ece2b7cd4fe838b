package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
)

// TestEnqueue lets a fill that is enqueued beside the package run at once, and in a captured graph.
func TestEnqueue(t *testing.T) {
	drv := fakedriver.New()
	d := must(driver.Open(0, driver.WithDriver(drv)))(t)
	s, m := must(d.NewStream())(t), must(d.Alloc(8))(t)
	value := uint8(0)
	library := func(h driver.StreamHandle) error {
		if r := drv.MemsetD8Async(m.Ptr(), value, 8, h); r != driver.Success {
			return errors.New("the library fails")
		}
		return nil
	}
	l := &driver.Launched{Op: "product"}
	holds := func(want uint8) {
		t.Helper()
		if got := download(t, s, m.Ptr()+7, 1)[0]; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	value = 1
	ok(t, s.Enqueue(l, library))
	holds(1)
	value = 3
	ok(t, s.BeginCapture())
	ok(t, s.Enqueue(l, library))
	p := must(s.EndCapture())(t)
	holds(1)
	ok(t, s.Replay(p))
	holds(3)
	if n := testing.AllocsPerRun(50, func() { ok(t, errors.Join(s.Enqueue(l, library), s.Synchronize())) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	drv.Fail("MemsetD8Async", 1, driver.InvalidValue)
	if err := s.Enqueue(l, library); err == nil || err.Error() != "cuda:0: product: the library fails" {
		t.Error(err)
	}
	if s.Enqueue(nil, library) == nil || s.Enqueue(l, nil) == nil {
		t.Error("nothing is enqueued")
	}
	ok(t, s.Enqueue(l, library))
	ok(t, errors.Join(p.Close(), m.Free(), s.Close()))
	if err := s.Enqueue(l, library); err == nil || !strings.Contains(err.Error(), "product: the stream is closed") {
		t.Error(err)
	}
	ok(t, d.Close())
}

// TestEnqueueNamesFaults puts a fault down to what a library has enqueued, and sees one that makes a library fail.
func TestEnqueueNamesFaults(t *testing.T) {
	fine := func(driver.StreamHandle) error { return nil }
	for name, c := range map[string]struct {
		last func(driver.StreamHandle) error
		want string
	}{
		"later":         {fine, "in one of 2 launches, newest first: product, gone wrong (kernel poke); seen in cuEventSynchronize"},
		"library fails": {func(driver.StreamHandle) error { return errors.New("status 13") }, "gone wrong (kernel poke): an illegal memory access was encountered (CUDA_ERROR_700), seen in cuEventQuery"},
	} {
		t.Run(name, func(t *testing.T) {
			d := must(driver.Open(0, driver.WithDriver(withKernels(fakedriver.New()))))(t)
			s := must(d.NewStream())(t)
			mod := must(d.LoadModule(kernels))(t)
			f := must(mod.Function("poke"))(t)
			ok(t, s.Synchronize()) // leaves an event behind
			ok(t, s.Launch(must(f.Prepare("gone wrong", driver.Grid{X: 1}, driver.Block{X: 1}, 0, pack(uint64(64))))(t)))
			if name == "library fails" { // the work has run, and nobody has been told
				_ = d.Driver().StreamSynchronize(s.Handle())
			}
			err := s.Enqueue(&driver.Launched{Op: "product"}, c.last)
			if err == nil {
				err = s.Synchronize()
			}
			var fault *driver.Fault
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if !errors.Is(s.Enqueue(&driver.Launched{Op: "product"}, fine), fault) {
				t.Error("the fault is forgotten")
			}
			_ = d.Close() // reports what the fault has reached
		})
	}
}
