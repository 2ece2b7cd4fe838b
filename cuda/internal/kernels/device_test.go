package kernels_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// gpu is an open device with the modules that tests have asked for, and the memory that reset frees.
type gpu struct {
	dev     *driver.Device
	stream  *driver.Stream
	modules *kernels.Modules
	memory  []*driver.Memory
}

// underSanitizer reports whether the tests run under compute-sanitizer, which NSA_SANITIZER=1 says. Opening a device
// and loading kernels is slow there, so all tests share one device. The results of attention are not compared with the
// oracle.
var underSanitizer = os.Getenv("NSA_SANITIZER") == "1"

// shared is the device of all tests under a sanitizer, which the end of the process closes.
var shared = sync.OnceValues(newGPU)

// openGPU opens the first GPU until the end of the test. Without a GPU it ends the test by testutil.NoGPU.
func openGPU(t *testing.T) *gpu {
	t.Helper()
	open := newGPU
	if underSanitizer {
		open = shared
	}
	g, err := open()
	if u := (*driver.Unavailable)(nil); errors.As(err, &u) {
		testutil.NoGPU(t, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		g.reset(t)
		if !underSanitizer {
			require.NoError(t, g.close())
		}
	})
	return g
}

func newGPU() (*gpu, error) {
	dev, err := driver.Open(0)
	if err != nil {
		return nil, err
	}
	g := &gpu{dev: dev, modules: kernels.NewModules(dev)}
	if g.stream, err = dev.NewStream(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return g, nil
}

func (g *gpu) close() error {
	return errors.Join(g.stream.Close(), g.dev.Close())
}

func (g *gpu) call(t testing.TB, l *kernels.Launch, argument []byte) *driver.Call {
	t.Helper()
	f := testutil.Must(g.modules.Function(l.Kernel))(t)
	c := testutil.Must(f.Prepare(l.Kernel, l.Grid, l.Block, l.Shared, argument))(t)
	c.Overlaps = l.Overlaps
	return c
}

func (g *gpu) launch(t testing.TB, l *kernels.Launch, argument []byte) {
	t.Helper()
	require.NoError(t, g.stream.Launch(g.call(t, l, argument)))
}

func (g *gpu) properties() kernels.GPU {
	p := g.dev.Properties()
	return kernels.GPU{
		Capability: p.Capability, SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs,
		EncodeTensorMap: g.dev.EncodeTensorMap,
	}
}

// variants returns the kernels that the device gets, those that it gets with one multiprocessor, those for devices of
// any capability, and the general kernels with each size of tiles.
func (g *gpu) variants() []variant {
	p := g.properties()
	one := p
	one.SMs = 1
	return []variant{
		{"", p},
		{"", one},
		{"", kernels.GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs}},
		{"cuda", p},
		{"cuda", kernels.GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: 1 << 20, SMs: 1}},
		{"cuda", kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: p.SharedPerSM, SMs: 1 << 30}},
	}
}

func (g *gpu) room(t testing.TB, bytes int64) kernels.Ptr {
	t.Helper()
	m := testutil.Must(g.dev.Alloc(int(max(1, bytes))))(t)
	g.memory = append(g.memory, m)
	return kernels.Ptr(m.Ptr())
}

func (g *gpu) put(t testing.TB, data []byte) kernels.Ptr {
	p := g.room(t, int64(len(data)))
	if len(data) > 0 {
		g.copyTo(t, p, data)
	}
	return p
}

func (g *gpu) copyTo(t testing.TB, to kernels.Ptr, data []byte) {
	require.NoError(t, g.stream.Upload(driver.DevicePtr(to), data))
}

func (g *gpu) get(t testing.TB, p kernels.Ptr, n int) []byte {
	out := make([]byte, n)
	require.NoError(t, g.stream.Download(out, driver.DevicePtr(p)))
	require.NoError(t, g.stream.Synchronize())
	return out
}

func (g *gpu) reset(t testing.TB) {
	for _, m := range g.memory {
		require.NoError(t, m.Free())
	}
	g.memory = nil
}

func (*gpu) otherOrder() {}

func (*gpu) budget() *budget { return nil }
