//go:build linux && (amd64 || arm64)

package cublaslt

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// load opens the library of a file, or of a name that the loader looks for, and returns the file.
func load(name string) (calls, string, error) {
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, "", err
	}
	c := new(pureCalls)
	for _, s := range c.symbols() {
		if *s.at, err = purego.Dlsym(lib, s.name); err != nil {
			return nil, "", fmt.Errorf("%s has no %s", name, s.name)
		}
	}
	file := mapped(c.fnCreate)
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

// pureCalls holds the addresses of the library's functions.
type pureCalls struct {
	fnVersion, fnName, fnCreate, fnDestroy, fnHeuristic, fnMatmul uintptr
	fnNew, fnSet, fnFree                                          [objects]uintptr

	frames sync.Pool // *frame
}

type symbol struct {
	at   *uintptr
	name string
}

func (c *pureCalls) symbols() []symbol {
	list := []symbol{
		{&c.fnVersion, "cublasLtGetVersion"},
		{&c.fnName, "cublasLtGetStatusName"},
		{&c.fnCreate, "cublasLtCreate"},
		{&c.fnDestroy, "cublasLtDestroy"},
		{&c.fnHeuristic, "cublasLtMatmulAlgoGetHeuristic"},
		{&c.fnMatmul, "cublasLtMatmul"},
	}
	for o := range objects {
		list = append(list, symbol{&c.fnNew[o], "cublasLt" + o.String() + "Create"},
			symbol{&c.fnSet[o], "cublasLt" + o.String() + "SetAttribute"}, symbol{&c.fnFree[o], "cublasLt" + o.String() + "Destroy"})
	}
	return list
}

// frame holds the arguments of a call, of which cublasLtMatmul has most.
type frame [16]uintptr

// call calls fn without allocating, as purego.SyscallN by itself does for its arguments. Callers keep alive what these point
// to, and point to nothing on the stack.
func (c *pureCalls) call(fn uintptr, args ...uintptr) Status {
	f, _ := c.frames.Get().(*frame)
	if f == nil {
		f = new(frame)
	}
	r, _, _ := purego.SyscallN(fn, f[:copy(f[:], args)]...)
	c.frames.Put(f)
	return Status(int32(r))
}

func (c *pureCalls) version() int {
	v, _, _ := purego.SyscallN(c.fnVersion)
	return int(v)
}

func (c *pureCalls) name(s Status) string {
	// The text is constant in the library; a conversion of the result itself would look like arithmetic on addresses.
	r, _, _ := purego.SyscallN(c.fnName, uintptr(s))
	text := *(**byte)(unsafe.Pointer(&r))
	if text == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(text), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(text, n))
}

func (c *pureCalls) create() (uintptr, Status) {
	var h uintptr
	r, _, _ := purego.SyscallN(c.fnCreate, uintptr(unsafe.Pointer(&h)))
	return h, Status(int32(r))
}

func (c *pureCalls) destroy(lib uintptr) Status { return c.call(c.fnDestroy, lib) }

func (c *pureCalls) newDescription(compute, scale int32) (uintptr, Status) {
	var h uintptr
	r, _, _ := purego.SyscallN(c.fnNew[description], uintptr(unsafe.Pointer(&h)), uintptr(compute), uintptr(scale))
	return h, Status(int32(r))
}

func (c *pureCalls) newLayout(typ int32, rows, cols, ld int64) (uintptr, Status) {
	var h uintptr
	r, _, _ := purego.SyscallN(c.fnNew[layout], uintptr(unsafe.Pointer(&h)), uintptr(typ), uintptr(rows), uintptr(cols), uintptr(ld))
	return h, Status(int32(r))
}

func (c *pureCalls) newPreference() (uintptr, Status) {
	var h uintptr
	r, _, _ := purego.SyscallN(c.fnNew[preference], uintptr(unsafe.Pointer(&h)))
	return h, Status(int32(r))
}

func (c *pureCalls) set(h uintptr, a attribute, value unsafe.Pointer) Status {
	s := c.call(c.fnSet[a.of], h, uintptr(a.id), uintptr(value), uintptr(a.bytes))
	runtime.KeepAlive(value)
	return s
}

func (c *pureCalls) free(h uintptr, of object) Status { return c.call(c.fnFree[of], h) }

func (c *pureCalls) heuristic(x *product, prefer uintptr, to []candidate) (int, Status) {
	var n int32
	r, _, _ := purego.SyscallN(c.fnHeuristic, x.lib, x.desc, x.layoutA, x.layoutB, x.layoutC, x.layoutC, prefer, uintptr(len(to)),
		uintptr(unsafe.Pointer(&to[0])), uintptr(unsafe.Pointer(&n)))
	return int(n), Status(int32(r))
}

func (c *pureCalls) matmul(x *product) Status {
	s := c.call(c.fnMatmul, x.lib, x.desc, uintptr(unsafe.Pointer(&x.alpha)), x.a, x.layoutA, x.b, x.layoutB,
		uintptr(unsafe.Pointer(&x.beta)), x.c, x.layoutC, x.c, x.layoutC, uintptr(unsafe.Pointer(&x.algo)), x.work, x.workBytes, x.stream)
	runtime.KeepAlive(x)
	return s
}
