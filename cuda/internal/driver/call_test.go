package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

func TestPrepareErrors(t *testing.T) {
	drv := fakedriver.New()
	drv.Kernel("k", fakedriver.Kernel{Params: []int{8, 4}, Registers: 128, Shared: 1 << 10})
	d := must(driver.Open(0, driver.WithDriver(drv)))(t)
	mod := must(d.LoadModule([]byte(kernels)))(t)
	f := must(mod.Function("k"))(t)
	one, b := driver.Grid{X: 1}, driver.Block{X: 1}
	var cell cpu.Buf
	for _, c := range []struct {
		name   string
		grid   driver.Grid
		block  driver.Block
		shared int
		args   []any
		want   string // "" for none
	}{
		{"good", driver.Grid{X: 1<<31 - 1, Y: 65535, Z: 65535}, driver.Block{X: 128, Y: 2, Z: 2}, 226 << 10, []any{&cell, int32(1)}, ""},
		{"no blocks", driver.Grid{}, b, 0, []any{&cell, int32(1)}, "got a grid of 0x1x1 blocks"},
		{"grid x", driver.Grid{X: 1 << 31}, b, 0, []any{&cell, int32(1)}, "got a grid of 2147483648x1x1 blocks"},
		{"grid y", driver.Grid{X: 1, Y: 65536}, b, 0, []any{&cell, int32(1)}, "got a grid of 1x65536x1 blocks, want 1 to 2147483647x65535x65535"},
		{"grid z", driver.Grid{X: 1, Z: 65536}, b, 0, []any{&cell, int32(1)}, "got a grid of 1x1x65536 blocks"},
		{"grid below", driver.Grid{X: 1, Y: -1}, b, 0, []any{&cell, int32(1)}, "got a grid of 1x-1x1 blocks"},
		{"no threads", one, driver.Block{}, 0, []any{&cell, int32(1)}, "got a block of 0x1x1 threads"},
		{"threads", one, driver.Block{X: 1024}, 0, []any{&cell, int32(1)}, "got a block of 1024x1x1 threads, want 1 to 512 in all and 1 to 64 along z; the kernel has 128 registers"},
		{"threads z", one, driver.Block{X: 1, Z: 65}, 0, []any{&cell, int32(1)}, "got a block of 1x1x65 threads"},
		{"threads overflow", one, driver.Block{X: 1 << 40, Y: 1 << 40}, 0, []any{&cell, int32(1)}, "got a block of"},
		{"shared", one, b, 226<<10 + 1, []any{&cell, int32(1)}, "got 231425 bytes of dynamic shared memory, want 0 to 231424: a block has 232448 on Fake H200, of which the kernel takes 1024"},
		{"few", one, b, 0, []any{&cell}, "got 1 arguments, want 2"},
		{"many", one, b, 0, []any{&cell, int32(1), int32(1)}, "got 3 arguments, want 2"},
		{"size", one, b, 0, []any{&cell, int64(1)}, "argument 1: got 8 bytes, want 4"},
		{"struct", one, b, 0, []any{driver.Struct("12345678"), driver.Struct("1234")}, ""},
		{"empty struct", one, b, 0, []any{&cell, driver.Struct{}}, "argument 1: got an empty struct"},
		{"type", one, b, 0, []any{&cell, 1}, "argument 1: got int, want *cpu.Buf, a Scalar or a Struct"},
		{"nil", one, b, 0, []any{nil, int32(1)}, "argument 0: got <nil>"},
		{"nil cell", one, b, 0, []any{(*cpu.Buf)(nil), int32(1)}, "argument 0: got a nil cell"},
	} {
		_, err := f.Prepare("test", c.grid, c.block, c.shared, c.args...)
		switch {
		case c.want == "" && err == nil:
		case c.want == "" || err == nil || !strings.HasPrefix(err.Error(), "cuda:0: test (kernel k): "+c.want):
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	c := must(f.Prepare("test", one, b, 0, &cell, int32(1)))(t)
	for name, err := range map[string]error{
		"index": driver.SetArg(c, 2, int32(1)), "below": driver.SetArg(c, -1, int32(1)), "size": driver.SetArg(c, 1, int64(1)),
		"cell": driver.SetArg(c, 0, int64(1)), "struct index": c.SetStruct(2, driver.Struct("1234")),
		"struct below": c.SetStruct(-1, driver.Struct("1234")), "struct size": c.SetStruct(1, driver.Struct("12345")),
		"struct cell": c.SetStruct(0, driver.Struct("12345678")),
	} {
		if err == nil {
			t.Error(name, "is no error")
		}
	}
	ok(t, errors.Join(mod.Unload(), d.Close()))
}

// TestArguments passes every type of argument.
func TestArguments(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		drv := fakedriver.New()
		drv.HideParams = hidden
		ran := false
		drv.Kernel("k", fakedriver.Kernel{Params: []int{8, 4, 4, 8, 12, 8, 4, 8}, Run: func(l *fakedriver.Launch) {
			ran = l.Ptr(0) == 0x1234 && l.Int32(1) == -5 && l.Float32(2) == 0.5 && l.Ptr(3) == 1<<40 &&
				string(l.Bytes(4)) == "twelve bytes" && l.Ptr(5) == 0x3ff0000000000000 && l.Int32(6) == 7 && int64(l.Ptr(7)) == -9 &&
				l.Grid == (driver.Grid{X: 3, Y: 1, Z: 2}) && l.Block == (driver.Block{X: 32, Y: 4, Z: 1}) && l.Shared == 96
		}})
		d := must(driver.Open(0, driver.WithDriver(drv)))(t)
		mod, s := must(d.LoadModule([]byte(kernels)))(t), must(d.NewStream())(t)
		f := must(mod.Function("k"))(t)
		if again := must(mod.Function("k"))(t); again != f || f.Name() != "k" {
			t.Error("a kernel is looked up twice")
		}
		c := must(f.Prepare("all", driver.Grid{X: 3, Z: 2}, driver.Block{X: 32, Y: 4}, 96, driver.DevicePtr(0x1234), int32(-5),
			float32(0.5), uint64(1<<40), driver.Struct("other struct"), float64(1), uint32(7), int64(-9)))(t)
		ok(t, c.SetStruct(4, driver.Struct("twelve bytes")))
		ok(t, s.Launch(c))
		ok(t, s.Synchronize())
		if !ran {
			t.Error("the arguments differ")
		}
		ok(t, errors.Join(s.Close(), mod.Unload(), d.Close()))
	}
}

// TestLaunchError names the op and what was launched.
func TestLaunchError(t *testing.T) {
	drv := withKernels(fakedriver.New())
	d := must(driver.Open(0, driver.WithDriver(drv)))(t)
	s := must(d.NewStream())(t)
	x := newAdder(t, d, s, 500)
	drv.Fail("LaunchKernel", 1, driver.OutOfResources)
	err := s.Launch(x.call)
	want := "cuda:0: sum (kernel vector_add): grid 4x1x1 of blocks 128x1x1 with 0 bytes of shared memory: " +
		"cuLaunchKernel: fake failure 701 (CUDA_ERROR_701)"
	var e *driver.Error
	if err == nil || err.Error() != want || !errors.As(err, &e) || e.Result != driver.OutOfResources {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if s.Launch(nil) == nil {
		t.Error("nothing is launched")
	}
	ok(t, s.Launch(x.call))
	x.free(t)
	ok(t, errors.Join(s.Close(), d.Close()))
}

// TestLaunchesAllocateNothing covers what a training step does, on the fake driver.
func TestLaunchesAllocateNothing(t *testing.T) {
	drv := withKernels(fakedriver.New())
	d := must(driver.Open(0, driver.WithDriver(drv)))(t)
	s := must(d.NewStream())(t)
	e := must(d.NewEvent(false))(t)
	h := must(d.NewHost(64))(t)
	x := newAdder(t, d, s, 100)
	ok(t, s.BeginCapture())
	ok(t, s.Launch(x.call))
	p := must(s.EndCapture())(t)
	data := make([]byte, 40)
	out := driver.Address(&x.out)
	for name, f := range map[string]func() error{
		"launch":   func() error { return s.Launch(x.call) },
		"argument": func() error { return driver.SetArg(x.call, 3, int32(99)) },
		"resize":   func() error { return x.call.Resize(driver.Grid{X: 2}, driver.Block{X: 64}, 0) },
		"pinned launch": func() error {
			err := s.Pin()
			if err == nil {
				err = s.Launch(x.call)
				s.Unpin()
			}
			return err
		},
		"replay":   func() error { return s.Replay(p) },
		"copy in":  func() error { return s.CopyIn(out, h, 0, 64) },
		"copy out": func() error { return s.CopyOut(h, 0, out, 64) },
		"copy":     func() error { return s.Copy(out, driver.Address(&x.a), 64) },
		"fill":     func() error { return s.Fill32(out, 1, 8) },
		"upload":   func() error { return s.Upload(out, data) },
		"download": func() error { return s.Download(data, out) },
		"record":   func() error { return s.Record(e) },
		"wait":     func() error { return s.Wait(e) },
		"event":    e.Synchronize,
	} {
		n := testing.AllocsPerRun(50, func() {
			if err := errors.Join(f(), s.Synchronize()); err != nil {
				t.Fatal(name, err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	x.free(t)
	ok(t, errors.Join(p.Close(), h.Free(), e.Close(), s.Close(), d.Close()))
}
