package driver_test

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// kernels is the image that the tests load.
//
//go:embed testdata/kernels.ptx
var kernels []byte

// withKernels gives d the tests' kernels, written in Go.
func withKernels(d *fakedriver.Driver) *fakedriver.Driver {
	d.Kernel("vector_add", fakedriver.Kernel{Args: 32, Run: func(l *fakedriver.Launch) {
		n := min(int(fakedriver.Arg[int32](l, 24)), l.Grid.X*l.Block.X)
		out, a, b := l.Floats(0, n), l.Floats(8, n), l.Floats(16, n)
		for i := range out {
			out[i] = a[i] + b[i]
		}
	}})
	d.Kernel("shared_last", fakedriver.Kernel{Args: 16, Run: func(l *fakedriver.Launch) {
		if fakedriver.Arg[int32](l, 8) > int32(l.Shared) {
			l.Fault(driver.IllegalAddress)
			return
		}
		l.Floats(0, 1)[0] = fakedriver.Arg[float32](l, 12)
	}})
	d.Kernel("poke", fakedriver.Kernel{Args: 8, Run: func(l *fakedriver.Launch) {
		l.Floats(0, 1)[0] = 1e-45
	}})
	return d
}

// openFake opens a device of a fake driver with the kernels of the tests. It is closed at the end, without leaks.
func openFake(t testing.TB, opts ...driver.Option) (*driver.Device, *fakedriver.Driver) {
	t.Helper()
	drv := withKernels(fakedriver.New())
	d := testutil.Must(driver.Open(0, append(opts, driver.WithDriver(drv))...))(t)
	t.Cleanup(func() {
		ok(t, d.Close())
		require.Empty(t, drv.Leaks())
	})
	return d, drv
}

// one is a grid of one block, and a block of one thread.
var one = driver.Dim{X: 1}

func function(t testing.TB, d *driver.Device, name string) *driver.Function {
	t.Helper()
	return testutil.Must(testutil.Must(d.LoadModule(kernels))(t).Function(name))(t)
}

// poke returns a launch that writes where there is no memory.
func poke(t testing.TB, d *driver.Device) *driver.Call {
	t.Helper()
	c := testutil.Must(function(t, d, "poke").Prepare("gone wrong", one, one, 0, pack(uint64(64))))(t)
	c.Owner = 42
	return c
}

// pack lays the members of a struct out as a kernel's compiler does, if none of them needs padding before it.
func pack(members ...any) []byte {
	var b []byte
	for _, m := range members {
		if p, ok := m.(driver.DevicePtr); ok {
			m = uint64(p)
		}
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, m); err != nil {
			panic(err)
		}
	}
	return append(b, make([]byte, -len(b)&7)...)
}

// openGPU opens GPU 0 until the end of the test, or without one ends the test by testutil.NoGPU.
func openGPU(t *testing.T, opts ...driver.Option) *driver.Device {
	t.Helper()
	d, err := driver.Open(0, opts...)
	if _, none := errors.AsType[*driver.Unavailable](err); none {
		testutil.NoGPU(t, err)
	}
	return testutil.Closing(d, err)(t)
}

// TestOpenGPU logs the properties of this machine's GPU.
func TestOpenGPU(t *testing.T) {
	d := openGPU(t)
	p := d.Properties()
	t.Logf("%v: %+v", d, p)
	if p.Name == "" || p.Capability < 80 || p.SMs < 1 || p.Memory < 1<<30 || p.SharedPerBlock < 96<<10 ||
		p.Driver < 12000 {
		t.Error("implausible properties")
	}
	for _, n := range []int{-1, 1 << 20} {
		require.Equal(t, driver.ReasonOrdinal, as[*driver.Unavailable](t, testutil.Err(driver.Open(n))).Reason, n)
	}
}

// TestConformance runs the same table on the fake driver and on a GPU.
func TestConformance(t *testing.T) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) {
			t.Run("fake", func(t *testing.T) {
				d, _ := openFake(t)
				c.run(t, d)
			})
			t.Run("gpu", func(t *testing.T) { c.run(t, openGPU(t)) })
			t.Run("gpu blocking", func(t *testing.T) { c.run(t, openGPU(t, driver.WithBlockingLaunches())) })
		})
	}
}

// TestFaultOnGPU lets a kernel write where it must not. It does so in a process of its own, since CUDA cannot be used
// in a process after a fault.
func TestFaultOnGPU(t *testing.T) {
	const child = "DRIVER_TEST_FAULT"
	if os.Getenv(child) == "" {
		ok(t, openGPU(t).Close())
		for _, mode := range []string{"queued", "blocking"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFaultOnGPU$", "-test.v")
			cmd.Env = append(os.Environ(), child+"="+mode)
			out, err := cmd.CombinedOutput()
			t.Logf("%s: %s", mode, out)
			assert.NoError(t, err, mode)
		}
		return
	}
	var opts []driver.Option
	if os.Getenv(child) == "blocking" {
		opts = append(opts, driver.WithBlockingLaunches())
	}
	d := openGPU(t, opts...)
	s := testutil.Must(d.NewStream())(t)
	x := newAdder(t, d, s, 10)
	ok(t, s.Launch(x.call))
	ok(t, s.Synchronize())
	err := s.Launch(poke(t, d))
	if err == nil {
		err = s.Synchronize()
	}
	t.Log(err)
	fault := as[*driver.Fault](t, err)
	require.Equal(t, 1, fault.Count)
	require.Equal(t, "gone wrong", fault.Suspects[0].Op)
	require.Equal(t, driver.IllegalAddress, fault.Err.Result)
	require.ErrorIs(t, s.Launch(x.call), fault)
	require.ErrorIs(t, x.mem.Free(), fault)
	t.Log(d.Close()) // leaks
	ok(t, d.Close())
}
