package driver_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// conformance is what every driver must do.
var conformance = []struct {
	name string
	run  func(*testing.T, *driver.Device)
}{
	{"memory", testMemory},
	{"out of memory", testOutOfMemory},
	{"memory in use", testMemoryUsed},
	{"staged copies", testStaged},
	{"readbacks, copies and fills", testCopies},
	{"borrowed stream", testBorrowed},
	{"events", testEvents},
	{"streams that wait for each other", testAfter},
	{"kernel", testKernel},
	{"dynamic shared memory", testShared},
	{"capture of copies and fills", testCaptureCopies},
	{"capture of kernels", testCaptureKernels},
	{"capture of launches that overlap", testOverlaps},
	{"module errors", testModuleErrors},
	{"tensor maps", testTensorMap},
	{"goroutines", testGoroutines},
	{"contexts", testDo},
}

func ok(t testing.TB, err error) {
	t.Helper()
	require.NoError(t, err)
}

// as returns the error of that type in err.
func as[E error](t testing.TB, err error) E {
	t.Helper()
	e, found := errors.AsType[E](err)
	require.True(t, found, "%v", err)
	return e
}

// alloc returns memory until the end of the test.
func alloc(t testing.TB, d *driver.Device, bytes int) *driver.Memory {
	t.Helper()
	return testutil.Closing(d.Alloc(bytes))(t)
}

// stream returns a stream until the end of the test.
func stream(t testing.TB, d *driver.Device) *driver.Stream {
	t.Helper()
	return testutil.Closing(d.NewStream())(t)
}

// readback returns pinned memory until the end of the test.
func readback(t testing.TB, s *driver.Stream, bytes int) *driver.Readback {
	t.Helper()
	return testutil.Closing(s.NewReadback(bytes))(t)
}

// event returns an event until the end of the test.
func event(t testing.TB, s *driver.Stream) *driver.Event {
	t.Helper()
	return testutil.Closing(s.NewEvent())(t)
}

// captured returns what f enqueues in s, until the end of the test.
func captured(t testing.TB, s *driver.Stream, f func()) *driver.Replay {
	t.Helper()
	ok(t, s.BeginCapture())
	f()
	return testutil.Closing(s.EndCapture())(t)
}

func download(t *testing.T, s *driver.Stream, p driver.DevicePtr, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	ok(t, s.Download(b, p))
	ok(t, s.Synchronize())
	return b
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

func asBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

func asFloats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	copy(asBytes(f), b)
	return f
}

func testMemory(t *testing.T, d *driver.Device) {
	s := stream(t, d)
	for _, n := range []int{0, 1, 255, 1 << 20} {
		m := alloc(t, d, n)
		require.Equal(t, n, m.Bytes())
		require.Zero(t, m.Ptr()%driver.Alignment)
		require.True(t, bytes.Equal(download(t, s, m.Ptr(), n), make([]byte, n)), "%d bytes: not zero", n)
		var b cpu.Buf
		m.Place(&b, n/2, n-n/2)
		require.Equal(t, m.Ptr()+driver.DevicePtr(n/2), driver.Address(&b))
		require.Equal(t, n-n/2, b.Bytes())
		for _, bad := range [][2]int{{-1, 1}, {0, n + 1}, {n + 1, 0}, {1, -1}} {
			m.Place(&b, bad[0], bad[1])
			require.Zero(t, b, "%d bytes: placed %v", n, bad)
		}
		ok(t, m.Free())
	}
	require.Error(t, testutil.Err(d.Alloc(-1)), "memory of -1 bytes")
	ok(t, s.Close())
	require.ErrorContains(t, s.Synchronize(), "closed")
}

func testOutOfMemory(t *testing.T, d *driver.Device) {
	err := testutil.Err(d.Alloc(1 << 46))
	none := as[*driver.NoMemory](t, err)
	require.EqualValues(t, 1<<46, none.Asked)
	require.Positive(t, none.Free)
	require.GreaterOrEqual(t, none.Total, none.Free)
	require.ErrorContains(t, err, "asked for 64.0 TiB")
	alloc(t, d, 16) // the device still works
}

func testMemoryUsed(t *testing.T, d *driver.Device) {
	const n = 64 << 20
	before := testutil.Must(d.MemoryUsed())(t)
	s, m := stream(t, d), alloc(t, d, n)
	ok(t, s.BeginCapture()) // from here on nothing may wait
	during := testutil.Must(d.MemoryUsed())(t)
	ok(t, testutil.Must(s.EndCapture())(t).Close())
	require.InDelta(t, before+n, during, n/2)
	ok(t, m.Free())
	require.InDelta(t, before, testutil.Must(d.MemoryUsed())(t), n/2)
}

func testStaged(t *testing.T, d *driver.Device) {
	s := stream(t, d)
	const half = 4 << 20
	for _, n := range []int{0, 1, 257, half - 1, half, half + 1, 5*half/2 + 3} {
		m := alloc(t, d, n+2)
		src := noise(n)
		want := bytes.Clone(src)
		ok(t, s.Upload(m.Ptr()+1, src))
		clear(src) // src may change now
		got := download(t, s, m.Ptr(), n+2)
		require.True(t, bytes.Equal(got[1:n+1], want) && got[0] == 0 && got[n+1] == 0, "%d bytes differ", n)
	}
	m := alloc(t, d, 64<<8)
	var parts [64][]byte // many small ones, both ways
	for i := range parts {
		ok(t, s.Upload(m.Ptr()+driver.DevicePtr(i<<8), bytes.Repeat([]byte{byte(i + 1)}, 200)))
		parts[i] = make([]byte, 200)
		ok(t, s.Download(parts[i], m.Ptr()+driver.DevicePtr(i<<8)))
	}
	ok(t, s.Synchronize())
	for i, p := range parts {
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, 200), p)
	}
	last := make([]byte, 8)
	ok(t, s.Download(last, m.Ptr()))
	ok(t, s.Close()) // waits
	require.EqualValues(t, 1, last[0], "a download was lost at Close")
}

func testCopies(t *testing.T, d *driver.Device) {
	s, m := stream(t, d), alloc(t, d, 4000)
	r, want := readback(t, s, 500), noise(500)
	require.Len(t, testutil.Must(r.Wait())(t), 500) // nothing has been fetched: nothing to wait for
	ok(t, s.Upload(m.Ptr(), want))
	ok(t, s.Copy(m.Ptr()+1000, m.Ptr(), 500))
	ok(t, r.Fetch(m.Ptr()+1000))
	ok(t, s.Fill8(m.Ptr()+1000, 1, 500))
	ok(t, s.Fill8(m.Ptr()+2000, 7, 3))
	ok(t, s.Fill8(m.Ptr()+3000, 1, 0))
	require.Equal(t, want, testutil.Must(r.Wait())(t))
	got := download(t, s, m.Ptr()+2000, 2000)
	require.Equal(t, []byte{7, 7, 7, 0}, got[:4])
	require.Zero(t, got[1000])
	require.Error(t, s.Copy(m.Ptr(), m.Ptr(), -1), "length")
	require.Error(t, testutil.Err(s.NewReadback(0)), "pinned memory of 0 bytes")
	ok(t, r.Close())
	require.ErrorContains(t, r.Fetch(m.Ptr()), "closed")
	require.ErrorContains(t, testutil.Err(r.Wait()), "closed")
}

// testBorrowed uses a queue that another library has made, here the driver itself.
func testBorrowed(t *testing.T, d *driver.Device) {
	queue := make([]driver.Handle, 1000) // on the heap
	call := func(function string, args ...uintptr) {
		ok(t, d.Do(func() error {
			require.Zero(t, testutil.Must(d.Driver().Find(function))(t)(args))
			return nil
		}))
	}
	call("cuStreamCreateWithPriority", uintptr(unsafe.Pointer(&queue[0])), 1, 0)
	h := queue[0]
	m := alloc(t, d, 64)
	for round := range 2 { // the queue outlives the streams that borrow it
		s := testutil.Must(d.BorrowStream(h))(t)
		require.Equal(t, h, s.Handle())
		ok(t, s.Fill8(m.Ptr(), byte(round+1), 64))
		require.EqualValues(t, round+1, download(t, s, m.Ptr()+63, 1)[0])
		ok(t, s.BeginCapture())
		ok(t, s.Fill8(m.Ptr(), 3, 64))
		ok(t, errors.Join(s.Close(), s.Close())) // drops the capture
	}
	call("cuStreamDestroy_v2", h)
	require.Error(t, testutil.Err(d.BorrowStream(0)), "the default stream")
}

func testEvents(t *testing.T, d *driver.Device) {
	s := stream(t, d)
	start, end, closed := event(t, s), event(t, s), event(t, s)
	m := alloc(t, d, 16<<20)
	ok(t, start.Record())
	for range 20 {
		ok(t, s.Fill8(m.Ptr(), 1, m.Bytes()))
	}
	ok(t, end.Record())
	took := testutil.Must(end.Since(start))(t)
	t.Logf("20 fills of 16 MiB took %v", took)
	require.Positive(t, took)
	require.LessOrEqual(t, took, time.Second)
	ok(t, closed.Close())
	for _, err := range []error{closed.Record(), testutil.Err(closed.Since(start)), testutil.Err(end.Since(closed))} {
		require.ErrorContains(t, err, "closed")
	}
}

// testAfter: what a stream enqueues after it has waited for another one reads what that has written, also in a capture,
// which must join the other stream. After a capture that does not, both streams work.
func testAfter(t *testing.T, d *driver.Device) {
	a, b := stream(t, d), stream(t, d)
	m := alloc(t, d, 32<<20)
	half := m.Bytes() / 2
	middle := m.Ptr() + driver.DevicePtr(half)
	both := func(x byte) {
		ok(t, a.Fill8(m.Ptr(), x, half))
		ok(t, b.After(a))
		ok(t, b.Copy(middle, m.Ptr(), half))
		ok(t, a.After(b))
		ok(t, a.Copy(m.Ptr(), middle+1, half-1))
	}
	for x := byte(1); x < 4; x++ {
		both(x)
		require.Equal(t, []byte{x}, download(t, a, m.Ptr(), 1))
	}
	p := captured(t, a, func() { both(9) })
	require.Equal(t, []byte{3}, download(t, b, m.Ptr(), 1))
	for range 2 {
		ok(t, a.Fill8(m.Ptr(), 5, m.Bytes()))
		ok(t, a.Replay(p))
		require.Equal(t, []byte{9, 9}, append(download(t, a, m.Ptr(), 1), download(t, a, middle, 1)...))
	}
	ok(t, a.BeginCapture())
	ok(t, b.After(a))
	ok(t, b.Fill8(m.Ptr(), 7, half))
	require.Error(t, testutil.Err(b.EndCapture()), "of another stream")
	require.ErrorIs(t, testutil.Err(a.EndCapture()), driver.CaptureUnjoined)
	both(4)
	p = captured(t, a, func() { // neither work from before the capture nor another capture can be waited for
		require.ErrorContains(t, a.After(b), "a capture cannot wait for work outside of it")
		captured(t, b, func() { require.ErrorContains(t, a.After(b), "outside") })
		both(6)
		ok(t, errors.Join(a.After(b), a.After(a)))
		require.ErrorContains(t, b.Synchronize(), "a capture is under way", "b is in the capture to its end")
	})
	ok(t, a.Replay(p))
	require.Equal(t, []byte{6}, download(t, a, m.Ptr(), 1))
	both(4)
	require.Equal(t, []byte{4}, download(t, b, m.Ptr(), 1))
	closed := testutil.Must(d.NewStream())(t)
	ok(t, closed.Close())
	for _, s := range []*driver.Stream{nil, closed} {
		require.Error(t, a.After(s))
	}
	e := event(t, a)
	ok(t, e.Record())
	require.Eventually(t, func() bool { return testutil.Must(e.Done())(t) }, 10*time.Second, time.Millisecond)
}

func testTensorMap(t *testing.T, d *driver.Device) {
	at, to := alloc(t, d, 4096).Ptr(), make([]byte, driver.TensorMapBytes+1)
	ok(t, d.EncodeTensorMap(to, at, [4]int64{72, 2, 10, 1}, [2]int64{2, 112}))
	require.NotEqual(t, make([]byte, len(to)), to)
	require.Zero(t, to[driver.TensorMapBytes])
	require.ErrorIs(t, d.EncodeTensorMap(to, at+2, [4]int64{72, 2, 10, 1}, [2]int64{2, 112}), driver.InvalidValue)
}

// TestMain: no test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
