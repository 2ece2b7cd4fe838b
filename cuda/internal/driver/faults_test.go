package driver_test

import (
	"cmp"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func must[T any](v T, err error) T {
	try(err)
	return v
}

// try panics with an error.
func try(err error) {
	if err != nil {
		panic(err)
	}
}

// everything uses every feature of a device and frees all objects. It stops at the first error; what it has got by then
// is freed with the device.
func everything(drv *fakedriver.Driver) (d *driver.Device, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = why.(error)
		}
	}()
	d = must(driver.Open(0, driver.WithDriver(drv)))
	m := must(d.Alloc(1024))
	s := must(d.NewStream())
	r := must(s.NewReadback(64))
	e := must(s.NewEvent())
	f := must(must(d.LoadModule(kernels)).Function("shared_last"))
	c := must(f.Prepare("last word", one, one, 50<<10, pack(m.Ptr(), int32(8), float32(3))))
	got := make([]byte, 5<<20)
	big := must(d.Alloc(len(got)))
	must(d.MemoryUsed())
	try(d.EncodeTensorMap(make([]byte, driver.TensorMapBytes), m.Ptr(), [4]int64{8, 1, 4, 1}, [2]int64{1, 8}))
	try(s.Launch(c))
	try(r.Fetch(m.Ptr()))
	must(r.Wait())
	try(s.Copy(m.Ptr(), m.Ptr()+512, 8))
	try(s.Upload(big.Ptr(), got))
	try(s.Download(got, big.Ptr()))
	try(e.Record())
	must(e.Since(e))
	try(s.Synchronize())
	try(d.Synchronize())
	try(s.BeginCapture())
	try(s.Launch(c))
	overlapping := must(f.Prepare("last word", one, one, 50<<10, pack(m.Ptr(), int32(8), float32(3))))
	overlapping.Overlaps = true
	try(s.Launch(overlapping))
	side := must(d.NewStream())
	try(side.After(s))
	try(side.Launch(c))
	try(s.After(side))
	p := must(s.EndCapture())
	try(s.Replay(p))
	must(e.Done())
	try(s.BeginCapture()) // dropped by Close
	try(s.Launch(c))
	try(side.After(s))
	for _, x := range []io.Closer{p, big, e, r, s, side, m} {
		try(x.Close())
	}
	return d, nil
}

// TestEveryCallFailsOnce makes each call of everything fail, in turn.
func TestEveryCallFailsOnce(t *testing.T) {
	drv := withKernels(fakedriver.New())
	drv.Record = true
	d := testutil.Must(everything(drv))(t)
	ok(t, errors.Join(d.Close(), d.Close()))
	require.Empty(t, drv.Leaks())
	onlyAfterErrors := []string{"GetErrorName", "GetErrorString"}
	for f := range reflect.TypeFor[driver.Functions]().Fields() {
		if drv.Calls(f.Name) == 0 && !slices.Contains(onlyAfterErrors, f.Name) {
			t.Errorf("%s is not called", f.Name)
		}
	}
	for _, f := range drv.Failures() {
		if f.Function == "EventQuery" && f.N > 1 { // how often a thread polls depends on the time
			continue
		}
		t.Run(f.String(), func(t *testing.T) { failOnce(t, f) })
	}
}

func failOnce(t *testing.T, f fakedriver.Failure) {
	drv := withKernels(fakedriver.New())
	drv.Fail(f.Function, f.N, f.Result)
	d, err := everything(drv)
	if d != nil {
		if _, fault := errors.AsType[*driver.Fault](err); err != nil && !fault {
			usable(t, d)
		}
		if e := d.Close(); e != nil {
			err = errors.Join(err, e)
			ok(t, d.Close())
		}
		require.Error(t, testutil.Err(d.Alloc(1)), "a closed device gives memory")
		_, fault := errors.AsType[*driver.Fault](err)
		require.Equal(t, f.Result == driver.IllegalAddress && f.Function != "DevicePrimaryCtxRelease", fault, "%v", err)
	}
	if _, none := errors.AsType[*driver.NoMemory](err); !none {
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

// TestOutOfMemory: the error names the bytes asked for, even if the driver does not tell the free bytes.
func TestOutOfMemory(t *testing.T) {
	for result, want := range map[driver.Result]string{
		driver.Success: "cuda: cuda:0 (Fake H200): out of memory: asked for 1.0 GiB, 256.0 MiB of 256.0 MiB are free",
		driver.Unknown: "cuda: cuda:0 (Fake H200): out of memory: asked for 1.0 GiB",
	} {
		d, drv := openFake(t)
		drv.Fail("MemGetInfo", 1, result)
		require.EqualError(t, testutil.Err(d.Alloc(1<<30)), want)
		drv.Fail("MemHostAlloc", 1, driver.OutOfMemory)
		require.EqualError(t, testutil.Err(stream(t, d).NewReadback(1<<30)),
			"cuda: out of pinned host memory: asked for 1.0 GiB")
	}
}

// TestFailedCapture: a stream works as before after a failed capture.
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
			require.Error(t, testutil.Err(s.EndCapture()))
			require.False(t, s.Capturing())
			ok(t, s.Fill8(m.Ptr(), 2, 1))
			require.EqualValues(t, 2, download(t, s, m.Ptr(), 1)[0])
			captured(t, s, func() {})
		})
	}
}

// TestCloseReportsLeaks: Close counts the objects that were not freed, and frees them.
func TestCloseReportsLeaks(t *testing.T) {
	d, drv := openFake(t)
	testutil.Must(d.Alloc(1 << 20))(t)
	testutil.Must(d.Alloc(1 << 20))(t)
	s := testutil.Must(d.NewStream())(t)
	ok(t, s.Upload(testutil.Must(d.Alloc(8))(t).Ptr(), make([]byte, 8)))
	testutil.Must(d.LoadModule(kernels))(t)
	testutil.Must(s.NewEvent())(t)
	testutil.Must(s.NewReadback(100))(t)
	ok(t, s.BeginCapture())
	testutil.Must(s.EndCapture())(t)
	require.EqualError(t, d.Close(),
		"cuda:0: close: not freed before: 1 of captured graph, 1 of event, 1 of pinned memory "+
			"(100 bytes), 1 of stream, 3 of memory (2.0 MiB)")
	require.Empty(t, drv.Leaks())
}

// TestFaults: a fault lists the launches that may have caused it, those of other libraries and of replays included.
// Then the device cannot be used, and Close does not report the fault again.
func TestFaults(t *testing.T) {
	type run = func(t *testing.T, d *driver.Device, s *driver.Stream, x *adder) error
	product := &driver.Launched{Op: "product"}
	queued := func(t *testing.T, d *driver.Device, s *driver.Stream, x *adder) error {
		for range 100 {
			ok(t, s.Launch(x.call))
		}
		ok(t, s.Synchronize())
		ok(t, s.Launch(x.call))
		return cmp.Or(s.Launch(poke(t, d)), s.Copy(driver.Address(&x.a), driver.Address(&x.b), 4), s.Synchronize())
	}
	for _, c := range []struct {
		name     string
		opts     []driver.Option
		run      run
		count    int
		suspects []string // newest first
		text     string
	}{
		{"queued", nil, queued, 3, []string{"copy on the device", "gone wrong (kernel poke)",
			"sum (kernel vector_add)"},
			"an illegal memory access was encountered (CUDA_ERROR_700) in one of 3 launches, newest first: copy on the device, " +
				"gone wrong (kernel poke), sum (kernel vector_add)"},
		{"blocking", []driver.Option{driver.WithBlockingLaunches()}, queued, 1, []string{"gone wrong (kernel poke)"},
			"cuda: gone wrong (kernel poke): an illegal memory access"},
		{"work of a library", nil, func(t *testing.T, d *driver.Device, s *driver.Stream, _ *adder) error {
			ok(t, s.Launch(poke(t, d)))
			ok(t, s.Enqueue(product, func(driver.Handle) error { return nil }))
			return s.Synchronize()
		}, 2, []string{"product", "gone wrong (kernel poke)"},
			"in one of 2 launches, newest first: product, gone wrong (kernel poke); seen in cuEventQuery"},
		{"a library fails", nil, func(t *testing.T, d *driver.Device, s *driver.Stream, _ *adder) error {
			ok(t, s.Launch(poke(t, d)))
			testutil.Must(d.Driver().Find("cuCtxSynchronize"))(t)(nil) // the work runs, and no call reports the fault
			return s.Enqueue(product, func(driver.Handle) error { return errors.New("status 13") })
		}, 1, []string{"gone wrong (kernel poke)"},
			"gone wrong (kernel poke): an illegal memory access was encountered (CUDA_ERROR_700), seen in cuEventQuery"},
		{"a replay, beside much other work", nil, func(t *testing.T, d *driver.Device, s *driver.Stream, x *adder) error {
			other := testutil.Must(d.NewStream())(t)
			ok(t, s.BeginCapture())
			ok(t, s.Launch(poke(t, d)))
			ok(t, s.Replay(testutil.Must(s.EndCapture())(t)))
			for range 100 {
				ok(t, other.Fill8(x.mem.Ptr(), 0, 1))
			}
			return d.Synchronize()
		}, 101, []string{"captured graph (gone wrong (kernel poke))"}, "in one of 101 launches"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, drv := openFake(t, c.opts...)
			s := testutil.Must(d.NewStream())(t)
			x := newAdder(t, d, s, 10)
			ok(t, s.Synchronize())
			err := c.run(t, d, s, x)
			fault := as[*driver.Fault](t, err)
			require.ErrorContains(t, err, c.text)
			var got []string
			for _, l := range fault.Suspects {
				got = append(got, l.String())
				require.Equal(t, l.Op == "gone wrong", l.Owner == 42, "the owner")
			}
			require.Subset(t, got, c.suspects)
			require.True(t, c.count > len(got) || slices.Equal(c.suspects, got), "%v", got)
			require.Equal(t, c.count, fault.Count)
			for _, later := range []error{
				testutil.Err(d.Alloc(1)), d.Synchronize(), s.Launch(x.call),
				s.Enqueue(product, func(driver.Handle) error { return nil }), x.mem.Free(),
			} {
				require.ErrorIs(t, later, fault)
			}
			err = d.Close()
			require.ErrorContains(t, err, "not freed before")
			require.NotContains(t, err.Error(), "illegal", "the same fault again")
			require.Empty(t, drv.Leaks())
		})
	}
}
