//go:build linux && (amd64 || arm64)

package cublaslt

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// load opens the library of a file, or of a name that the loader looks for, and returns the file.
func load(name string) (calls, string, error) {
	lib, err := sharedlib.Open(name)
	if err != nil {
		return nil, "", err
	}
	c := &pureCalls{lib: lib}
	if err := lib.FindAll("cublasLt", &c.fn); err != nil {
		return nil, "", err
	}
	for o := range objects {
		if err := lib.FindAll("cublasLt"+o.String(), &c.of[o]); err != nil {
			return nil, "", err
		}
	}
	file := mapped(c.fn.Create)
	if file == "" {
		file = name
	}
	return c, file, nil
}

// mapped returns the file that the code at an address comes from, or "".
func mapped(address uintptr) string {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to uintptr
		line := lines.Text() // from-to permissions offset device inode file
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 && from <= address && address < to {
			if i := strings.IndexByte(line, '/'); i >= 0 {
				return line[i:]
			}
		}
	}
	return ""
}

// pureCalls calls the library. It holds the addresses of functions by their names behind "cublasLt", or behind that and the
// kind of a descriptor.
type pureCalls struct {
	lib *sharedlib.Library
	fn  struct{ GetVersion, GetStatusName, Create, Destroy, MatmulAlgoGetHeuristic, Matmul uintptr }
	of  [objects]struct{ Create, SetAttribute, Destroy uintptr }
}

// call is Library.Call for functions that return a status.
func (c *pureCalls) call(fn uintptr, args ...uintptr) Status {
	return Status(int32(c.lib.Call(fn, args...)))
}

func (c *pureCalls) version() int { return int(c.lib.Call(c.fn.GetVersion)) }

func (c *pureCalls) name(s Status) string {
	return sharedlib.Text(c.lib.Call(c.fn.GetStatusName, uintptr(s)))
}

// handle is sharedlib.Get for functions that make a handle.
func handle(fn uintptr, args ...uintptr) (uintptr, Status) {
	h, r := sharedlib.Get[uintptr](fn, args...)
	return h, Status(int32(r))
}

func (c *pureCalls) create() (uintptr, Status) { return handle(c.fn.Create) }

func (c *pureCalls) destroy(lib uintptr) Status { return c.call(c.fn.Destroy, lib) }

func (c *pureCalls) newDescription(compute, scale int32) (uintptr, Status) {
	return handle(c.of[description].Create, uintptr(compute), uintptr(scale))
}

func (c *pureCalls) newLayout(typ int32, rows, cols, ld int64) (uintptr, Status) {
	return handle(c.of[layout].Create, uintptr(typ), uintptr(rows), uintptr(cols), uintptr(ld))
}

func (c *pureCalls) newPreference() (uintptr, Status) { return handle(c.of[preference].Create) }

func (c *pureCalls) set(h uintptr, a attribute, value unsafe.Pointer) Status {
	s := c.call(c.of[a.of].SetAttribute, h, uintptr(a.id), uintptr(value), uintptr(a.bytes))
	runtime.KeepAlive(value)
	return s
}

func (c *pureCalls) free(h uintptr, of object) Status { return c.call(c.of[of].Destroy, h) }

func (c *pureCalls) heuristic(x *product, prefer uintptr, to []candidate) (int, Status) {
	var n int32
	r, _, _ := purego.SyscallN(c.fn.MatmulAlgoGetHeuristic, x.lib, x.desc, x.layoutA, x.layoutB, x.layoutC, x.layoutC, prefer, uintptr(len(to)),
		uintptr(unsafe.Pointer(&to[0])), uintptr(unsafe.Pointer(&n)))
	return int(n), Status(int32(r))
}

func (c *pureCalls) matmul(x *product) Status {
	s := c.call(c.fn.Matmul, x.lib, x.desc, uintptr(unsafe.Pointer(&x.alpha)), x.a, x.layoutA, x.b, x.layoutB,
		uintptr(unsafe.Pointer(&x.beta)), x.residual, x.layoutC, x.c, x.layoutC, uintptr(unsafe.Pointer(&x.algo)), x.work, x.workBytes, x.stream)
	runtime.KeepAlive(x)
	return s
}
