package driver_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestPrepareErrors(t *testing.T) {
	d, drv := openFake(t)
	drv.Kernel("k", fakedriver.Kernel{Args: 16, Shared: 1 << 10})
	mod := testutil.Must(d.LoadModule(kernels))(t)
	f := testutil.Must(mod.Function("k"))(t)
	require.Same(t, f, testutil.Must(mod.Function("k"))(t), "a kernel is looked up once")
	for _, c := range []struct {
		grid, block driver.Dim
		shared      int
		args        int
		want        string // "" for none
	}{
		{driver.Dim{X: 1<<31 - 1, Y: 65535, Z: 65535}, driver.Dim{X: 128, Y: 2, Z: 2}, 226 << 10, 16, ""},
		{driver.Dim{}, one, 0, 16, "grid 0x1x1 of blocks 1x1x1"},
		{driver.Dim{X: 1 << 31}, one, 0, 16, "grid 2147483648x1x1 of"},
		{driver.Dim{X: 1, Y: -1}, one, 0, 16, "grid 1x-1x1 of"},
		{one, driver.Dim{}, 0, 16, "of blocks 0x1x1"},
		{one, driver.Dim{X: 1 << 40, Y: 1 << 40}, 0, 16, "of blocks 1099511627776x1099511627776x1"},
		{one, one, -1, 16, "with -1 bytes of shared memory"},
		{one, one, 226<<10 + 1, 16, "cuFuncSetAttribute"},
		{one, one, 0, 0, "and 0 of arguments"},
	} {
		_, err := f.Prepare("test", c.grid, c.block, c.shared, make([]byte, c.args))
		if c.want == "" {
			ok(t, err)
			continue
		}
		require.ErrorContains(t, err, "cuda:0: test (kernel k): ")
		require.ErrorContains(t, err, c.want)
	}
}

// TestArguments: a kernel gets grid, block, shared memory and arguments. Later changes to the caller's bytes have no
// effect.
func TestArguments(t *testing.T) {
	d, drv := openFake(t)
	var got fakedriver.Launch
	var args []string
	drv.Kernel("k", fakedriver.Kernel{Args: 12, Run: func(l *fakedriver.Launch) {
		got, args = *l, append(args, string(l.Args))
	}})
	s, mine := stream(t, d), []byte("twelve bytes")
	c := testutil.Must(function(t, d, "k").Prepare("all", driver.Dim{X: 3, Z: 2}, driver.Dim{X: 32, Y: 4}, 96, mine))(t)
	clear(mine)
	ok(t, s.Launch(c))
	copy(c.Args(), "other values")
	ok(t, s.Launch(c))
	ok(t, s.Synchronize())
	c.Overlaps = true
	ok(t, s.Launch(c))
	require.Zero(t, drv.Overlaps(), "outside of captures launches wait for each other")
	p := captured(t, s, func() { ok(t, s.Launch(c)) })
	require.Equal(t, 1, drv.Overlaps())
	ok(t, s.Replay(p))
	ok(t, s.Synchronize())
	require.Equal(t, []string{"twelve bytes", "other values", "other values", "other values"}, args)
	require.Equal(t, driver.Dim{X: 3, Y: 1, Z: 2}, got.Grid)
	require.Equal(t, driver.Dim{X: 32, Y: 4, Z: 1}, got.Block)
	require.Equal(t, 96, got.Shared)
}

// TestLaunchError: the error names the op and the launch.
func TestLaunchError(t *testing.T) {
	d, drv := openFake(t)
	s := stream(t, d)
	x := newAdder(t, d, s, 500)
	drv.Fail("LaunchKernelEx", 1, driver.OutOfResources)
	err := s.Launch(x.call)
	require.EqualError(t, err, "cuda:0: sum (kernel vector_add): grid 4x1x1 of blocks 128x1x1 with 0 bytes of shared memory: "+
		"cuLaunchKernelEx: fake failure 701 (CUDA_ERROR_701)")
	require.ErrorIs(t, err, driver.OutOfResources)
	require.Error(t, s.Launch(nil))
	ok(t, s.Launch(x.call))
}

// TestLaunchesAllocateNothing covers what a training step does, on the fake driver.
func TestLaunchesAllocateNothing(t *testing.T) {
	d, _ := openFake(t)
	s := stream(t, d)
	e, r, x := event(t, s), readback(t, s, 64), newAdder(t, d, s, 100)
	p := captured(t, s, func() { ok(t, s.Launch(x.call)) })
	data := make([]byte, 40)
	out := driver.Address(&x.out)
	for name, f := range map[string]func() error{
		"launch":   func() error { return s.Launch(x.call) },
		"replay":   func() error { return s.Replay(p) },
		"fetch":    func() error { return errors.Join(r.Fetch(out), testutil.Err(r.Wait())) },
		"copy":     func() error { return s.Copy(out, driver.Address(&x.a), 64) },
		"fill":     func() error { return s.Fill8(out, 1, 8) },
		"upload":   func() error { return s.Upload(out, data) },
		"download": func() error { return s.Download(data, out) },
		"record":   e.Record,
	} {
		n := testing.AllocsPerRun(50, func() {
			if err := errors.Join(f(), s.Synchronize()); err != nil {
				t.Fatal(name, err)
			}
		})
		require.Zero(t, n, name)
	}
}

// TestEnqueue runs a fill that is enqueued outside this package, at once and in a captured graph.
func TestEnqueue(t *testing.T) {
	d, drv := openFake(t)
	s, m := stream(t, d), alloc(t, d, 8)
	value := uint8(0)
	memset, args := testutil.Must(drv.Find("cuMemsetD8Async"))(t), make([]uintptr, 4)
	library := func(h driver.Handle) error {
		copy(args, []uintptr{uintptr(m.Ptr()), uintptr(value), 8, h})
		if memset(args) != 0 {
			return errors.New("the library fails")
		}
		return nil
	}
	l := &driver.Launched{Op: "product"}
	holds := func(want uint8) {
		t.Helper()
		require.Equal(t, want, download(t, s, m.Ptr()+7, 1)[0])
	}
	value = 1
	ok(t, s.Enqueue(l, library))
	holds(1)
	value = 3
	p := captured(t, s, func() { ok(t, s.Enqueue(l, library)) })
	holds(1)
	ok(t, s.Replay(p))
	holds(3)
	require.Zero(t, testing.AllocsPerRun(50, func() { ok(t, errors.Join(s.Enqueue(l, library), s.Synchronize())) }))
	drv.Fail("MemsetD8Async", 1, driver.InvalidValue)
	require.ErrorContains(t, s.Enqueue(l, library), "product: the library fails")
	require.Error(t, s.Enqueue(nil, library))
	require.Error(t, s.Enqueue(l, nil))
	ok(t, s.Enqueue(l, library))
	ok(t, s.Close())
	require.ErrorContains(t, s.Enqueue(l, library), "product: the stream is closed")
}
