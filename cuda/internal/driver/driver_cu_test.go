//go:build cu && cgo && linux && (amd64 || arm64)

package driver_test

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// TestCuSharesTheContext asks package cu what this package has made current, and the other way round.
func TestCuSharesTheContext(t *testing.T) {
	d := openGPU(t, 0)
	defer closeAll(t, d)
	ok(t, d.Do(func() error {
		c, err := cu.CurrentContext()
		if err == nil && c != driver.CuContext(d.Context()) {
			t.Errorf("got %v, want %#x", c, d.Context())
		}
		return err
	}))
	dev := must(cu.GetDevice(0))(t)
	c := must(dev.RetainPrimaryCtx())(t)
	if got := driver.FromCuContext(c); got != d.Context() {
		t.Errorf("cu's primary context is %#x, want %#x", got, d.Context())
	}
	ok(t, dev.ReleasePrimaryCtx())
}

// TestKernelOnMemoryAndStreamOfCu launches a kernel of this package's on operands that cu has allocated and filled, in a
// stream of cu's, from where cu copies the sums.
func TestKernelOnMemoryAndStreamOfCu(t *testing.T) {
	d := openGPU(t, 0)
	defer closeAll(t, d)
	mod := must(d.LoadModule([]byte(kernels)))(t)
	f := must(mod.Function("vector_add"))(t)
	const n, bytes = 1000, 4000
	host := must(d.NewHost(bytes))(t)
	ok(t, d.Do(func() error {
		queue := must(cu.MakeStream(cu.NonBlocking))(t)
		var p [3]cu.DevicePtr // out, a, b
		for i := range p {
			p[i] = must(cu.MemAlloc(bytes))(t)
		}
		ok(t, cu.MemsetD32Async(p[1], 0x3f800000, n, queue)) // 1
		ok(t, cu.MemsetD32Async(p[2], 0x40000000, n, queue)) // 2

		s := must(d.BorrowStream(driver.FromCuStream(queue)))(t)
		call := must(f.Prepare("sum", driver.Grid{X: 8}, driver.Block{X: 128}, 0, driver.FromCuDevicePtr(p[0]),
			driver.FromCuDevicePtr(p[1]), driver.FromCuDevicePtr(p[2]), int32(n)))(t)
		ok(t, s.Launch(call))
		ok(t, s.Copy(driver.FromCuDevicePtr(p[1]), driver.FromCuDevicePtr(p[0]), bytes))
		ok(t, s.BeginCapture())
		ok(t, s.Launch(call))
		again := must(s.EndCapture())(t)
		ok(t, s.Replay(again))

		ok(t, cu.MemcpyDtoHAsync(unsafe.Pointer(&host.Bytes()[0]), p[0], bytes, queue))
		ok(t, queue.Synchronize())
		if got := asFloats(host.Bytes()); got[0] != 5 || got[n-1] != 5 { // (1 + 2) + 2
			t.Errorf("got %g and %g, want 5", got[0], got[n-1])
		}
		ok(t, errors.Join(again.Close(), s.Close(), queue.Destroy()))
		for _, p := range p {
			ok(t, cu.MemFree(p))
		}
		return nil
	}))
	ok(t, errors.Join(host.Free(), mod.Unload()))
}

// TestCuOnMemoryAndStreamOfOurs lets cu fill and copy memory of this package's in one of its streams, in order with its own
// launches, and launch a kernel there.
func TestCuOnMemoryAndStreamOfOurs(t *testing.T) {
	d := openGPU(t, 0)
	defer closeAll(t, d)
	s := must(d.NewStream())(t)
	x := newAdder(t, d, s, 1000)
	out, a, b := driver.Address(&x.out), driver.Address(&x.a), driver.Address(&x.b)
	ok(t, d.Do(func() error {
		queue := driver.CuStream(s.Handle())
		ok(t, s.Launch(x.call)) // out = 1000 + i
		ok(t, cu.MemcpyDtoDAsync(driver.CuDevicePtr(a), driver.CuDevicePtr(out), 4000, queue))
		ok(t, cu.MemsetD32Async(driver.CuDevicePtr(b), 0x40000000, 1000, queue)) // 2
		ok(t, s.Launch(x.call))
		if got, want := x.ends(t, s), [2]float32{1002, 2001}; got != want {
			t.Errorf("got %v, want %v", got, want)
		}

		mod := must(cu.LoadData(kernels))(t)
		f := must(mod.Function("vector_add"))(t)
		args := make([]byte, 32) // cu reads eight bytes of each argument
		for i, v := range []uint64{uint64(out), uint64(out), uint64(b), 1000} {
			binary.LittleEndian.PutUint64(args[8*i:], v)
		}
		ok(t, f.Launch(8, 1, 1, 128, 1, 1, 0, queue, []unsafe.Pointer{unsafe.Pointer(&args[0]), unsafe.Pointer(&args[8]),
			unsafe.Pointer(&args[16]), unsafe.Pointer(&args[24])}))
		if got, want := x.ends(t, s), [2]float32{1004, 2003}; got != want {
			t.Errorf("launched by cu: got %v, want %v", got, want)
		}
		return mod.Unload()
	}))
	x.free(t)
	ok(t, s.Close())
}

// TestCuDriverIsTheDefault shows that the conformance table runs on it.
func TestCuDriverIsTheDefault(t *testing.T) {
	d := openGPU(t, 0)
	defer closeAll(t, d)
	got := d.Driver()
	if want := must(driver.NewCuDriver())(t); reflect.TypeOf(got) != reflect.TypeOf(want) {
		t.Errorf("got a %v, want a %v", reflect.TypeOf(got), reflect.TypeOf(want))
	}
	n := testing.AllocsPerRun(100, func() {
		if err := d.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("entering the context: %v allocations", n)
	}
}
