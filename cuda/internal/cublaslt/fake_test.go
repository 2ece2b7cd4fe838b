package cublaslt

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
)

// descriptor is what a handle of the library stands for.
type descriptor struct {
	of            object
	compute, typ  int32
	rows, cols, l int64
	values        map[attribute]uint64
}

// fakeCalls is a library that computes column-major products of float64 at once, in memory of its own.
type fakeCalls struct {
	t       *testing.T
	drv     *fakedriver.Driver
	handles uintptr
	open    map[uintptr]*descriptor
	lib     uintptr
	fails   map[string]Status     // by call
	memory  map[uintptr][]float64 // by address
	works   []uint64              // of the algorithms that it proposes; theirs is their index
	asked   descriptor            // the preference of the last heuristic
}

func newFakeCalls(t *testing.T, drv *fakedriver.Driver) *fakeCalls {
	return &fakeCalls{t: t, drv: drv, open: map[uintptr]*descriptor{}, fails: map[string]Status{}, memory: map[uintptr][]float64{}, works: []uint64{1 << 20}}
}

func (c *fakeCalls) next() uintptr { c.handles++; return c.handles }

func (c *fakeCalls) call(name string) Status {
	if _, _, r := c.drv.MemGetInfo(); r != driver.Success {
		c.t.Errorf("%s without the context", name)
	}
	return c.fails[name]
}

func (c *fakeCalls) make(call string, d *descriptor) (uintptr, Status) {
	if s := c.call(call); s != Success {
		return 0, s
	}
	h := c.next()
	d.values = map[attribute]uint64{}
	c.open[h] = d
	return h, Success
}

func (c *fakeCalls) version() int         { return 130100 }
func (c *fakeCalls) name(s Status) string { return fmt.Sprintf("FAKE_STATUS_%d", s) }
func (c *fakeCalls) create() (uintptr, Status) {
	c.lib = c.next()
	return c.lib, c.call("create")
}
func (c *fakeCalls) destroy(lib uintptr) Status {
	if lib != c.lib {
		c.t.Error("another handle is destroyed")
	}
	c.lib = 0
	return c.call("destroy")
}
func (c *fakeCalls) newDescription(compute, scale int32) (uintptr, Status) {
	if scale != real32 {
		c.t.Error("the scale type is", scale)
	}
	return c.make("newDescription", &descriptor{of: description, compute: compute})
}
func (c *fakeCalls) newLayout(typ int32, rows, cols, ld int64) (uintptr, Status) {
	return c.make("newLayout", &descriptor{of: layout, typ: typ, rows: rows, cols: cols, l: ld})
}
func (c *fakeCalls) newPreference() (uintptr, Status) {
	return c.make("newPreference", &descriptor{of: preference})
}
func (c *fakeCalls) set(h uintptr, a attribute, value unsafe.Pointer) Status {
	d := c.open[h]
	if d == nil || d.of != a.of {
		c.t.Fatalf("attribute %v of %v", a, d)
	}
	if a.bytes == 4 {
		d.values[a] = uint64(*(*uint32)(value))
	} else {
		d.values[a] = *(*uint64)(value)
	}
	return c.fails["set"]
}
func (c *fakeCalls) free(h uintptr, of object) Status {
	if d := c.open[h]; d == nil || d.of != of {
		c.t.Fatalf("%v is freed as %v", d, of)
	}
	delete(c.open, h)
	return c.fails["free"]
}
func (c *fakeCalls) heuristic(x *product, prefer uintptr, to []candidate) (int, Status) {
	c.asked = *c.open[prefer]
	n := 0
	for i, w := range c.works {
		to[n] = candidate{algo: algorithm{uint64(i)}, work: w}
		n++
	}
	return n, c.call("heuristic")
}

func (c *fakeCalls) matmul(x *product) Status {
	if s := c.call("matmul"); s != Success {
		return s
	}
	if x.lib != c.lib || x.stream == 0 || x.alpha != 1 || (x.beta != 0) != (x.residual != x.c) {
		c.t.Errorf("arguments %+v", x)
	}
	desc, la, lb, lc := c.open[x.desc], c.open[x.layoutA], c.open[x.layoutB], c.open[x.layoutC]
	if c.memory[x.c] == nil {
		return Success
	}
	at := func(base uintptr, d *descriptor, op attribute, batch, row, col int64) float64 {
		if desc.values[op] == opTransposed {
			row, col = col, row
		}
		if row >= d.rows || col >= d.cols {
			c.t.Fatalf("element %d,%d of %d x %d", row, col, d.rows, d.cols)
		}
		return c.memory[base][batch*int64(d.values[layoutStride])+row+col*d.l]
	}
	k := la.cols
	if desc.values[descTransA] == opTransposed {
		k = la.rows
	}
	for n := range max(1, int64(lc.values[layoutBatch])) {
		for row := range lc.rows {
			for col := range lc.cols {
				sum := 0.0
				for i := range k {
					sum += at(x.a, la, descTransA, n, row, i) * at(x.b, lb, descTransB, n, i, col)
				}
				if desc.values[descEpilogue] == epilogueBias {
					sum += c.memory[uintptr(desc.values[descBiasPointer])][row]
				}
				if x.beta != 0 {
					sum += float64(x.beta) * c.memory[x.residual][n*int64(lc.values[layoutStride])+row+col*lc.l]
				}
				c.memory[x.c][n*int64(lc.values[layoutStride])+row+col*lc.l] = sum
			}
		}
	}
	return Success
}

// fake opens a fake library on a fake driver, both until the end of the test.
func fake(t *testing.T) (*fakeCalls, *Library, *driver.Stream) {
	t.Helper()
	drv := fakedriver.New()
	c := newFakeCalls(t, drv)
	d, err := driver.Open(0, driver.WithDriver(drv))
	require.NoError(t, err)
	l, err := open(d, "", func(name string) (calls, string, error) { return c, "/fake/" + name, nil })
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, errors.Join(l.Close(), l.Close(), s.Close(), d.Close()))
		require.Empty(t, c.open, "descriptors")
		require.Zero(t, c.lib)
		require.Empty(t, drv.Leaks())
	})
	return c, l, s
}
