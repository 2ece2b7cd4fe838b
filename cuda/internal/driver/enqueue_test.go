package driver_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestEnqueue lets a fill that is enqueued beside the package run at once, and in a captured graph.
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
	require.EqualError(t, s.Enqueue(l, library), "cuda:0: product: the library fails")
	require.Error(t, s.Enqueue(nil, library))
	require.Error(t, s.Enqueue(l, nil))
	ok(t, s.Enqueue(l, library))
	ok(t, s.Close())
	require.ErrorContains(t, s.Enqueue(l, library), "product: the stream is closed")
}

// TestEnqueueNamesFaults puts a fault down to what a library has enqueued, and sees one that makes a library fail.
func TestEnqueueNamesFaults(t *testing.T) {
	fine := func(driver.Handle) error { return nil }
	for name, c := range map[string]struct {
		last func(driver.Handle) error
		want string
	}{
		"later":         {fine, "in one of 2 launches, newest first: product, gone wrong (kernel poke); seen in cuEventSynchronize"},
		"library fails": {func(driver.Handle) error { return errors.New("status 13") }, "gone wrong (kernel poke): an illegal memory access was encountered (CUDA_ERROR_700), seen in cuEventQuery"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := openFake(t)
			s := testutil.Must(d.NewStream())(t)
			ok(t, s.Synchronize()) // leaves an event behind
			ok(t, s.Launch(poke(t, d)))
			if name == "library fails" { // the work has run, and nobody has been told
				testutil.Must(d.Driver().Find("cuCtxSynchronize"))(t)(nil)
			}
			err := s.Enqueue(&driver.Launched{Op: "product"}, c.last)
			if err == nil {
				err = s.Synchronize()
			}
			fault := as[*driver.Fault](t, err)
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, s.Enqueue(&driver.Launched{Op: "product"}, fine), fault)
			_ = d.Close() // reports what the fault has reached
		})
	}
}
