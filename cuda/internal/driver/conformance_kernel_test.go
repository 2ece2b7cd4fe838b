package driver_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// adder is vector_add with operands: out = a + b.
type adder struct {
	mem       *driver.Memory
	out, a, b cpu.Buf
	n         int
	call      *driver.Call
}

func newAdder(t *testing.T, d *driver.Device, s *driver.Stream, n int) *adder {
	t.Helper()
	x := &adder{n: n}
	x.mem = alloc(t, d, 3*4*n)
	x.mem.Place(&x.out, 0, 4*n)
	x.mem.Place(&x.a, 4*n, 4*n)
	x.mem.Place(&x.b, 8*n, 4*n)
	x.call = testutil.Must(function(t, d, "vector_add").Prepare("sum", driver.Dim{X: (n + 127) / 128},
		driver.Dim{X: 128}, 0, x.args(n)))(t)
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
func (x *adder) args(n int) []byte {
	return pack(driver.Address(&x.out), driver.Address(&x.a), driver.Address(&x.b), int32(n))
}

// ends returns the first and the last sum.
func (x *adder) ends(t *testing.T, s *driver.Stream) [2]float32 {
	t.Helper()
	v := asFloats(download(t, s, driver.Address(&x.out), 4*x.n))
	return [2]float32{v[0], v[x.n-1]}
}

func testKernel(t *testing.T, d *driver.Device) {
	s := stream(t, d)
	x := newAdder(t, d, s, 1000)
	ok(t, s.Launch(x.call))
	require.Equal(t, [2]float32{1000, 1999}, x.ends(t, s))
	x.a, x.b, x.out = x.out, x.a, x.b
	copy(x.call.Args(), x.args(x.n))
	ok(t, s.Launch(x.call))
	require.Equal(t, [2]float32{1000, 2998}, x.ends(t, s), "other operands")
	copy(x.call.Args(), x.args(999))
	ok(t, s.Fill8(driver.Address(&x.out), 0, 4*x.n))
	ok(t, s.Launch(x.call))
	require.Equal(t, [2]float32{1000, 0}, x.ends(t, s), "one sum less")
}

func testShared(t *testing.T, d *driver.Device) {
	s, m, f := stream(t, d), alloc(t, d, 4), function(t, d, "shared_last")
	prepare := func(n int) (*driver.Call, error) {
		return f.Prepare("last word", one, one, n, pack(m.Ptr(), uint32(n), float32(n)))
	}
	most := d.Properties().SharedPerBlock
	for _, n := range []int{4, 48 << 10, 48<<10 + 4, most, 8} {
		ok(t, s.Launch(testutil.Must(prepare(n))(t)))
		require.Equal(t, float32(n), asFloats(download(t, s, m.Ptr(), 4))[0])
	}
	for _, n := range []int{-1, most + 1} {
		require.ErrorContains(t, testutil.Err(prepare(n)), "last word (kernel shared_last): ", n)
	}
}

func testCaptureCopies(t *testing.T, d *driver.Device) {
	s, m := stream(t, d), alloc(t, d, 128)
	r, e := readback(t, s, 8), event(t, s)
	p := captured(t, s, func() {
		ok(t, s.Copy(m.Ptr()+64, m.Ptr(), 32))
		ok(t, s.Fill8(m.Ptr()+64, 9, 1))
		for what, err := range map[string]error{
			"upload": s.Upload(m.Ptr(), []byte{1}), "download": s.Download([]byte{1}, m.Ptr()), "synchronize": s.Synchronize(),
			"capture": s.BeginCapture(), "record": e.Record(), "fetch": r.Fetch(m.Ptr()),
		} {
			require.ErrorContains(t, err, "a capture is under way", what)
		}
	})
	for round := range byte(3) {
		ok(t, s.Upload(m.Ptr(), bytes.Repeat([]byte{round}, 32)))
		ok(t, s.Replay(p))
		got := download(t, s, m.Ptr()+64, 32)
		require.Equal(t, []byte{9, round, round}, []byte{got[0], got[1], got[31]})
	}
	ok(t, p.Close())
	require.Error(t, s.Replay(p), "a closed graph")
	require.Error(t, s.Replay(nil))
	require.Error(t, testutil.Err(s.EndCapture()), "no capture")
	ok(t, s.BeginCapture())
	ok(t, s.Fill8(m.Ptr(), 1, 1))
	ok(t, s.Close()) // drops the capture
}

func testCaptureKernels(t *testing.T, d *driver.Device) {
	s, other := stream(t, d), stream(t, d)
	x := newAdder(t, d, s, 300)
	ok(t, s.Synchronize())
	p := captured(t, s, func() {
		for range 3 { // out = a + b; a = out
			ok(t, s.Launch(x.call))
			ok(t, s.Copy(driver.Address(&x.a), driver.Address(&x.out), 4*x.n))
		}
		ok(t, alloc(t, d, 100).Free()) // other work may go on during the capture
	})
	require.Zero(t, x.ends(t, s), "a capture has run")
	for round := 1; round <= 2; round++ {
		ok(t, other.Replay(p))
		ok(t, other.Synchronize())
		require.Equal(t, [2]float32{float32(3000 * round), float32(3000*round + 299)}, x.ends(t, s))
	}
}

// testOverlaps: launches that overlap run in a capture, as the first launch and after another one, and outside a
// capture.
func testOverlaps(t *testing.T, d *driver.Device) {
	s := stream(t, d)
	first, second := newAdder(t, d, s, 300), newAdder(t, d, s, 500)
	first.call.Overlaps, second.call.Overlaps = true, true
	ok(t, s.Launch(first.call))
	require.Equal(t, [2]float32{1000, 1299}, first.ends(t, s))
	ok(t, s.Fill8(driver.Address(&first.out), 0, 4*first.n))
	ok(t, s.Synchronize())
	p := captured(t, s, func() {
		ok(t, s.Launch(first.call))
		ok(t, s.Launch(second.call)) // they have nothing in common
	})
	for range 3 {
		ok(t, s.Replay(p))
		require.Equal(t, [2]float32{1000, 1299}, first.ends(t, s))
		require.Equal(t, [2]float32{1000, 1499}, second.ends(t, s))
		ok(t, s.Fill8(driver.Address(&first.out), 0, 4*first.n))
	}
}

func testModuleErrors(t *testing.T, d *driver.Device) {
	require.Error(t, testutil.Err(d.LoadModule(nil)), "an empty image")
	mod := testutil.Must(d.LoadModule(kernels))(t)
	require.ErrorContains(t, testutil.Err(mod.Function("vector_sub")), "kernel vector_sub: cuModuleGetFunction")
}

// testGoroutines uses a device from many goroutines, each with a stream.
func testGoroutines(t *testing.T, d *driver.Device) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := d.NewStream()
			for i := 0; i < 100 && err == nil; i++ {
				var m *driver.Memory
				if m, err = d.Alloc(1000 + i); err == nil {
					got := make([]byte, 3)
					err = errors.Join(s.Fill8(m.Ptr(), byte(i), 1000), s.Download(got,
						d.MemoryAt(m.Ptr()+999).Ptr()+997), s.Synchronize(), m.Free())
					assert.Equal(t, bytes.Repeat([]byte{byte(i)}, 3), got)
				}
			}
			if assert.NoError(t, err) {
				assert.NoError(t, s.Close())
			}
		})
	}
	wg.Wait()
	ok(t, d.Synchronize())
}

func testDo(t *testing.T, d *driver.Device) {
	ran := errors.New("ran")
	require.Equal(t, ran, d.Do(func() error {
		require.Zero(t, testutil.Must(d.Driver().Find("cuCtxSynchronize"))(t)(nil), "no context is current")
		require.NotZero(t, d.Context())
		return ran
	}))
}
