package driver_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// program uses everything that a device has. It stops at the first error, and frees what it has got in any case.
func program(drv *fakedriver.Driver) (d *driver.Device, err error) {
	if d, err = driver.Open(0, driver.WithDriver(drv)); err != nil {
		return nil, err
	}
	var undo []func() error
	defer func() {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
	}()
	var (
		m, big *driver.Memory
		h      *driver.Host
		s      *driver.Stream
		e      *driver.Event
		mod    *driver.Module
		c      *driver.Call
		p      *driver.Replay
	)
	own := func(free func() error, err error) error {
		if err == nil {
			undo = append(undo, free)
		}
		return err
	}
	got := make([]byte, 5<<20)
	launch := func() error { return s.Launch(c) }
	for _, step := range []func() error{
		func() (err error) { m, err = d.Alloc(1024); return own(m.Free, err) },
		func() (err error) { h, err = d.NewHost(64); return own(h.Free, err) },
		func() (err error) { s, err = d.NewStream(); return own(s.Close, err) },
		func() (err error) { e, err = d.NewEvent(true); return own(e.Close, err) },
		func() (err error) { mod, err = d.LoadModule(kernels); return err },
		func() error {
			f, err := mod.Function("shared_last")
			if err == nil {
				c, err = f.Prepare("last word", driver.Dim{X: 1}, driver.Dim{X: 1}, 50<<10, pack(m.Ptr(), int32(8), float32(3)))
			}
			return err
		},
		func() (err error) { big, err = d.Alloc(len(got)); return own(big.Free, err) },
		launch,
		func() error { return s.CopyOut(h, 0, m.Ptr(), 64) },
		func() error { return s.Copy(m.Ptr(), m.Ptr()+512, 8) },
		func() error { return s.Upload(big.Ptr(), got) },
		func() error { return s.Download(got, big.Ptr()) },
		func() error { return s.Record(e) },
		func() error { return e.Synchronize() },
		func() error { _, err := e.Since(e); return err },
		func() error { return s.Synchronize() },
		d.Synchronize,
		func() error { return s.BeginCapture() },
		launch,
		func() (err error) { p, err = s.EndCapture(); return own(p.Close, err) },
		func() error { return s.Replay(p) },
		func() error { return s.BeginCapture() }, // dropped by Close
		launch,
	} {
		if err := step(); err != nil {
			return d, err
		}
	}
	return d, nil
}

// TestEveryCallFailsOnce makes each call that the program makes fail, in turn.
func TestEveryCallFailsOnce(t *testing.T) {
	drv := withKernels(fakedriver.New())
	drv.Record()
	d := testutil.Must(program(drv))(t)
	ok(t, d.Close())
	ok(t, d.Close())
	require.Empty(t, drv.Leaks())
	onlyAfterErrors := []string{"GetErrorName", "GetErrorString", "MemGetInfo", "EventQuery"}
	for f := range reflect.TypeFor[driver.Functions]().Fields() {
		if drv.Calls(f.Name) == 0 && !slices.Contains(onlyAfterErrors, f.Name) {
			t.Errorf("%s is not called", f.Name)
		}
	}
	for _, f := range drv.Failures() {
		t.Run(f.String(), func(t *testing.T) { failOnce(t, f) })
	}
}

func failOnce(t *testing.T, f fakedriver.Failure) {
	drv := withKernels(fakedriver.New())
	drv.Fail(f.Function, f.N, f.Result)
	d, err := program(drv)
	if d != nil {
		if fault := (*driver.Fault)(nil); err != nil && !errors.As(err, &fault) {
			usable(t, d)
		}
		if e := d.Close(); e != nil {
			err = errors.Join(err, e)
			ok(t, d.Close())
		}
		_, e := d.Alloc(1)
		require.Error(t, e, "a closed device gives memory")
		var fault *driver.Fault
		require.Equal(t, f.Result == driver.IllegalAddress && f.Function != "DevicePrimaryCtxRelease", errors.As(err, &fault), "%v", err)
	}
	if none := (*driver.NoMemory)(nil); !errors.As(err, &none) {
		require.ErrorContains(t, err, "cu"+f.Function)
	}
	require.Empty(t, drv.Leaks(), "after %v", err)
}

// usable runs something on d.
func usable(t *testing.T, d *driver.Device) {
	t.Helper()
	s := testutil.Must(d.NewStream())(t)
	m := testutil.Must(d.Alloc(64))(t)
	ok(t, s.Fill8(m.Ptr(), 5, 64))
	require.EqualValues(t, 5, download(t, s, m.Ptr()+63, 1)[0])
	ok(t, errors.Join(m.Free(), s.Close()))
}

// TestOutOfMemory names what was asked for, also where the driver does not tell what is free.
func TestOutOfMemory(t *testing.T) {
	for result, want := range map[driver.Result]string{
		driver.Success: "cuda: cuda:0 (Fake H200): out of memory: asked for 1.00 GiB, 256.0 MiB of 256.0 MiB are free",
		driver.Unknown: "cuda: cuda:0 (Fake H200): out of memory: asked for 1.00 GiB",
	} {
		d, drv := openFake(t)
		drv.Fail("MemGetInfo", 1, result)
		_, err := d.Alloc(1 << 30)
		require.EqualError(t, err, want)
		drv.Fail("MemHostAlloc", 1, driver.OutOfMemory)
		_, err = d.NewHost(1 << 30)
		require.EqualError(t, err, "cuda: out of pinned host memory: asked for 1.00 GiB")
	}
}

// TestFailedCapture shows that a stream goes on after a capture that came to nothing.
func TestFailedCapture(t *testing.T) {
	for name, spoil := range map[string]func(*fakedriver.Driver){
		"invalidated": func(drv *fakedriver.Driver) { drv.BreakCapture() },
		"end fails":   func(drv *fakedriver.Driver) { drv.Fail("StreamEndCapture", 1, driver.Unknown) },
		"ends fail": func(drv *fakedriver.Driver) {
			drv.Fail("StreamEndCapture", 1, 999)
			drv.Fail("StreamEndCapture", 2, 999)
		},
		"no context":    func(drv *fakedriver.Driver) { drv.Fail("CtxSetCurrent", 1, driver.Unknown) },
		"instantiation": func(drv *fakedriver.Driver) { drv.Fail("GraphInstantiateWithFlags", 1, driver.OutOfMemory) },
	} {
		t.Run(name, func(t *testing.T) {
			d, drv := openFake(t)
			s, m := stream(t, d), alloc(t, d, 8)
			ok(t, s.BeginCapture())
			ok(t, s.Fill8(m.Ptr(), 1, 1))
			spoil(drv)
			_, err := s.EndCapture()
			require.Error(t, err)
			require.False(t, s.Capturing())
			ok(t, s.Fill8(m.Ptr(), 2, 1))
			require.EqualValues(t, 2, download(t, s, m.Ptr(), 1)[0])
			captured(t, s, func() {})
		})
	}
}

// TestCloseReportsLeaks counts what was not freed, and frees it.
func TestCloseReportsLeaks(t *testing.T) {
	d, drv := openFake(t)
	testutil.Must(d.Alloc(1 << 20))(t)
	testutil.Must(d.Alloc(1 << 20))(t)
	s := testutil.Must(d.NewStream())(t)
	ok(t, s.Upload(testutil.Must(d.Alloc(8))(t).Ptr(), make([]byte, 8)))
	testutil.Must(d.LoadModule(kernels))(t)
	testutil.Must(d.NewEvent(true))(t)
	testutil.Must(d.NewHost(100))(t)
	ok(t, s.BeginCapture())
	testutil.Must(s.EndCapture())(t)
	require.EqualError(t, d.Close(), "cuda:0: close: not freed before: 1 of captured graph, 1 of event, 1 of pinned memory "+
		"(100 bytes), 1 of stream, 3 of memory (2.0 MiB)")
	require.Empty(t, drv.Leaks())
}

// TestFaultNamesLaunches shows which launches a fault is put down to.
func TestFaultNamesLaunches(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     []driver.Option
		suspects []string // newest first
		text     string
	}{
		{"queued", nil, []string{"copy on the device", "gone wrong", "sum"},
			"an illegal memory access was encountered (CUDA_ERROR_700) in one of 3 launches, newest first: copy on the device, " +
				"gone wrong (kernel poke), sum (kernel vector_add)"},
		{"blocking", []driver.Option{driver.WithBlockingLaunches()}, []string{"gone wrong"},
			"cuda: gone wrong (kernel poke): an illegal memory access"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, drv := openFake(t, c.opts...)
			s := testutil.Must(d.NewStream())(t)
			x := newAdder(t, d, s, 10)
			for range 100 {
				ok(t, s.Launch(x.call))
			}
			ok(t, s.Synchronize())
			bad := poke(t, d)
			bad.Owner = 42
			ok(t, s.Launch(x.call))
			err := s.Launch(bad)
			if err == nil {
				ok(t, s.Copy(driver.Address(&x.a), driver.Address(&x.b), 4))
				err = s.Synchronize()
			}
			var fault *driver.Fault
			require.ErrorAs(t, err, &fault)
			require.ErrorContains(t, err, c.text)
			var got []string
			for _, l := range fault.Suspects {
				got = append(got, l.Op)
				if l.Op == "gone wrong" && l.Owner != 42 {
					t.Error("the owner is lost")
				}
			}
			require.Equal(t, c.suspects, got)
			require.Equal(t, len(got), fault.Count)
			_, err = d.Alloc(1)
			for _, later := range []error{err, d.Synchronize(), s.Launch(x.call), x.mem.Free()} {
				require.ErrorIs(t, later, fault)
			}
			err = d.Close()
			require.ErrorContains(t, err, "not freed before")
			require.NotContains(t, err.Error(), "illegal", "the same fault again")
			require.Empty(t, drv.Leaks())
		})
	}
}

// TestFaultOfReplay names what was captured, and one of another stream is found too.
func TestFaultOfReplay(t *testing.T) {
	d, _ := openFake(t)
	s, other := testutil.Must(d.NewStream())(t), testutil.Must(d.NewStream())(t)
	ok(t, s.BeginCapture())
	ok(t, s.Launch(poke(t, d)))
	p := testutil.Must(s.EndCapture())(t)
	ok(t, s.Replay(p))
	for range 100 {
		ok(t, other.Fill8(testutil.Must(d.Alloc(1))(t).Ptr(), 0, 1))
	}
	err := d.Synchronize()
	require.ErrorContains(t, err, "in one of 101 launches")
	var fault *driver.Fault
	require.ErrorAs(t, err, &fault)
	require.True(t, slices.ContainsFunc(fault.Suspects, func(l *driver.Launched) bool {
		return l.String() == "captured graph (gone wrong (kernel poke))"
	}), "%+v", fault.Suspects)
	require.Error(t, d.Close(), "leaks are not reported")
}
