package cublaslt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// fakeDescriptor is what a handle of the library refers to.
type fakeDescriptor struct {
	kind   string
	args   []uintptr // of its Create
	values map[attribute]uint64
}

// fakeLibrary computes column-major products of float64 at once, in memory of its own.
type fakeLibrary struct {
	t       *testing.T
	drv     *fakedriver.Driver
	handles uintptr
	open    map[uintptr]*fakeDescriptor
	lib     uintptr
	fails   map[string]Status     // by function
	memory  map[uintptr][]float64 // by address
	works   []uint64              // work bytes of the algorithms that it proposes; an algorithm holds its index here
	tiles   []uint32              // tiles of the algorithms that it proposes, or 0
	asked   fakeDescriptor        // the preference of the last heuristic
	texts   [][]byte              // that callers have got, to keep them alive
}

func newFake(t *testing.T, drv *fakedriver.Driver) *fakeLibrary {
	return &fakeLibrary{t: t, drv: drv, open: map[uintptr]*fakeDescriptor{}, fails: map[string]Status{},
		memory: map[uintptr][]float64{}, works: []uint64{1 << 20}}
}

func (c *fakeLibrary) Find(name string) (sharedlib.Code, error) {
	name = strings.TrimPrefix(name, "cublasLt")
	f := map[string]func(a []uintptr){
		"Create": func(a []uintptr) { c.lib = c.next(a) },
		"Destroy": func(a []uintptr) {
			require.Equal(c.t, c.lib, a[0], "another handle is destroyed")
			c.lib = 0
		},
		"MatmulAlgoGetHeuristic": func(a []uintptr) {
			c.asked = *c.open[a[6]]
			for i, w := range c.works {
				sharedlib.PointerTo[[maxCandidates]candidate](a[8])[i] = candidate{algo: algorithm{uint64(i)}, work: w}
			}
			*sharedlib.PointerTo[int32](a[9]) = int32(len(c.works))
		},
		"MatmulAlgoConfigGetAttribute": func(a []uintptr) {
			require.EqualValues(c.t, []uintptr{configTile, 4}, []uintptr{a[1], a[3]})
			if i := sharedlib.PointerTo[algorithm](a[0])[0]; i < uint64(len(c.tiles)) {
				*sharedlib.PointerTo[uint32](a[2]) = c.tiles[i]
			}
		},
		"Matmul": c.matmul,
	}[name]
	switch name {
	case "GetVersion":
		return func([]uintptr) uintptr { return 130100 }, nil
	case "GetStatusName":
		return func(a []uintptr) uintptr {
			text := fmt.Appendf(nil, "FAKE_STATUS_%d\x00", a[0])
			c.texts = append(c.texts, text)
			return uintptr(unsafe.Pointer(&text[0]))
		}, nil
	}
	for _, kind := range []string{"MatmulDesc", "MatrixLayout", "MatmulPreference"} {
		switch name {
		case kind + "Create":
			f = func(a []uintptr) {
				c.open[c.next(a)] = &fakeDescriptor{kind, slices.Clone(a[1:]), map[attribute]uint64{}}
			}
		case kind + "SetAttribute":
			f = func(a []uintptr) { c.set(kind, a) }
		case kind + "Destroy":
			f = func(a []uintptr) {
				require.Equal(c.t, kind, c.open[a[0]].kind)
				delete(c.open, a[0])
			}
		}
	}
	if f == nil {
		return nil, fmt.Errorf("the fake library has no %s", name)
	}
	anywhere := strings.HasSuffix(name, "SetAttribute") || strings.HasSuffix(name, "Destroy") && name != "Destroy"
	return func(a []uintptr) uintptr {
		if !anywhere && !c.drv.Current() {
			c.t.Errorf("%s without the context", name)
		}
		if c.fails[name] == Success || strings.HasSuffix(name, "Destroy") {
			f(a)
		}
		return uintptr(c.fails[name])
	}, nil
}

// next returns a new handle, and stores it where the first argument says.
func (c *fakeLibrary) next(a []uintptr) uintptr {
	c.handles++
	*sharedlib.PointerTo[uintptr](a[0]) = c.handles
	return c.handles
}

func (c *fakeLibrary) set(kind string, a []uintptr) {
	d, id := c.open[a[0]], attribute{int32(a[1]), int(a[3])}
	require.True(c.t, kind == d.kind)
	if id.bytes == 4 {
		d.values[id] = uint64(*sharedlib.PointerTo[uint32](a[2]))
	} else {
		d.values[id] = *sharedlib.PointerTo[uint64](a[2])
	}
}

func (c *fakeLibrary) matmul(a []uintptr) {
	desc, la, lb, lc := c.open[a[1]], c.open[a[4]], c.open[a[6]], c.open[a[11]]
	alpha, beta, residual, out := *sharedlib.PointerTo[float32](a[2]), *sharedlib.PointerTo[float32](a[7]),
		c.memory[a[8]], c.memory[a[10]]
	if a[0] != c.lib || a[15] == 0 || alpha != 1 || (beta != 0) != (a[8] != a[10]) || a[9] != a[11] ||
		desc.args[1] != real32 {
		c.t.Errorf("arguments %x", a)
	}
	if out == nil {
		return
	}
	index := func(d *fakeDescriptor, batch, row, col int) int {
		if row >= int(d.args[1]) || col >= int(d.args[2]) {
			c.t.Fatalf("element %d,%d of %v", row, col, d.args)
		}
		return batch*int(d.values[layoutStride]) + row + col*int(d.args[3])
	}
	at := func(base uintptr, d *fakeDescriptor, op attribute, batch, row, col int) float64 {
		if desc.values[op] == opTransposed {
			row, col = col, row
		}
		return c.memory[base][index(d, batch, row, col)]
	}
	k := la.args[2]
	if desc.values[descTransA] == opTransposed {
		k = la.args[1]
	}
	for n := range max(1, int(lc.values[layoutBatch])) {
		for row := range int(lc.args[1]) {
			for col := range int(lc.args[2]) {
				sum := 0.0
				for i := range int(k) {
					sum += at(a[3], la, descTransA, n, row, i) * at(a[5], lb, descTransB, n, i, col)
				}
				if desc.values[descEpilogue] == epilogueBias {
					sum += c.memory[uintptr(desc.values[descBiasPointer])][row]
				}
				if beta != 0 {
					sum += float64(beta) * residual[index(lc, n, row, col)]
				}
				out[index(lc, n, row, col)] = sum
			}
		}
	}
}

// openFake opens a library on a device, both until the end of the test.
func openFake(t *testing.T) (*fakeLibrary, *Library, *driver.Stream) {
	t.Helper()
	drv := fakedriver.New()
	c := newFake(t, drv)
	d := testutil.Must(driver.Open(0, driver.WithDriver(drv)))(t)
	l := testutil.Must(open(d, "", func(string) (sharedlib.Library, error) { return c, nil }))(t)
	s := testutil.Must(d.NewStream())(t)
	t.Cleanup(func() {
		require.NoError(t, errors.Join(l.Close(), l.Close(), s.Close(), d.Close()))
		require.Empty(t, c.open, "descriptors")
		require.Zero(t, c.lib)
		require.Empty(t, drv.Leaks())
	})
	return c, l, s
}
