//go:build linux && (amd64 || arm64)

package driver

import (
	"bytes"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// libraryFile is the name under which the NVIDIA driver installs itself. It comes with the driver, not with the CUDA toolkit.
const libraryFile = "libcuda.so.1"

// library implements Driver by calls of the CUDA driver library.
type library struct {
	lib              *sharedlib.Library
	fn               functions
	funcGetParamInfo uintptr // 0 before CUDA 12.4
}

// functions are the addresses of the library's functions, by their names without "cu". A suffix is the version that cuda.h of
// CUDA 12 and 13 gives to the plain name.
type functions struct {
	Init, DriverGetVersion, DeviceGetCount, DeviceGet, DeviceGetName, DeviceTotalMem_v2, DeviceGetAttribute,
	DevicePrimaryCtxRetain, DevicePrimaryCtxRelease_v2, CtxSetCurrent, CtxSynchronize, GetErrorName, GetErrorString,
	MemGetInfo_v2, MemAlloc_v2, MemFree_v2, MemHostAlloc, MemFreeHost,
	MemcpyHtoDAsync_v2, MemcpyDtoHAsync_v2, MemcpyDtoDAsync_v2, MemsetD8Async,
	ModuleLoadDataEx, ModuleUnload, ModuleGetFunction, FuncGetAttribute, FuncSetAttribute, LaunchKernel,
	StreamCreate, StreamDestroy_v2, StreamSynchronize,
	EventCreate, EventDestroy_v2, EventRecord, EventSynchronize, EventQuery, EventElapsedTime,
	StreamBeginCapture_v2, StreamIsCapturing, StreamEndCapture,
	GraphInstantiateWithFlags, GraphLaunch, GraphDestroy, GraphExecDestroy uintptr
}

// NewDriver opens the CUDA driver library of this machine, once for the life of the process. The error is an *Unavailable.
func NewDriver() (Driver, error) {
	lib, err := sharedlib.Open(libraryFile)
	if err != nil {
		return nil, unavailable(ReasonDriver, "%v", err)
	}
	d := &library{lib: lib}
	if err := lib.FindAll("cu", &d.fn); err != nil {
		return nil, unavailable(ReasonOldDriver, "%v: want CUDA %s or newer", err, version(minDriver))
	}
	d.funcGetParamInfo, _ = lib.Find("cuFuncGetParamInfo")
	return d, nil
}

// call calls a function and allocates nothing. Its arguments do not point to the stack.
func (d *library) call(fn uintptr, args ...uintptr) Result {
	return Result(int32(d.lib.Call(fn, args...)))
}

// get is sharedlib.Get for functions that return a CUresult.
func get[T any](fn uintptr, args ...uintptr) (T, Result) {
	v, r := sharedlib.Get[T](fn, args...)
	return v, Result(int32(r))
}

// number is get for an int.
func number(fn uintptr, args ...uintptr) (int, Result) {
	v, r := get[int32](fn, args...)
	return int(v), r
}

func (d *library) Init() Result                      { return d.call(d.fn.Init, 0) }
func (d *library) DriverGetVersion() (int, Result)   { return number(d.fn.DriverGetVersion) }
func (d *library) DeviceGetCount() (int, Result)     { return number(d.fn.DeviceGetCount) }
func (d *library) DeviceGet(n int) (Ordinal, Result) { return get[Ordinal](d.fn.DeviceGet, uintptr(n)) }

func (d *library) DeviceGetName(dev Ordinal) (string, Result) {
	b, r := get[[256]byte](d.fn.DeviceGetName, 256, uintptr(dev))
	return terminated(b[:]), r
}

func (d *library) DeviceTotalMem(dev Ordinal) (uint64, Result) {
	return get[uint64](d.fn.DeviceTotalMem_v2, uintptr(dev))
}
func (d *library) DeviceGetAttribute(a Attribute, dev Ordinal) (int, Result) {
	return number(d.fn.DeviceGetAttribute, uintptr(a), uintptr(dev))
}
func (d *library) DevicePrimaryCtxRetain(dev Ordinal) (Context, Result) {
	return get[Context](d.fn.DevicePrimaryCtxRetain, uintptr(dev))
}
func (d *library) DevicePrimaryCtxRelease(dev Ordinal) Result {
	return d.call(d.fn.DevicePrimaryCtxRelease_v2, uintptr(dev))
}
func (d *library) CtxSetCurrent(c Context) Result { return d.call(d.fn.CtxSetCurrent, uintptr(c)) }
func (d *library) CtxSynchronize() Result         { return d.call(d.fn.CtxSynchronize) }
func (d *library) GetErrorName(r Result) string   { return text(d.fn.GetErrorName, r) }
func (d *library) GetErrorString(r Result) string { return text(d.fn.GetErrorString, r) }

// text returns the string that fn has for a result.
func text(fn uintptr, r Result) string {
	var s uintptr
	if e, _, _ := purego.SyscallN(fn, uintptr(r), uintptr(unsafe.Pointer(&s))); e != 0 {
		return ""
	}
	return sharedlib.Text(s)
}

func (d *library) MemGetInfo() (free, total uint64, r Result) {
	var n [2]uint64
	e, _, _ := purego.SyscallN(d.fn.MemGetInfo_v2, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&n[1])))
	return n[0], n[1], Result(int32(e))
}

func (d *library) MemAlloc(bytes int) (DevicePtr, Result) {
	return get[DevicePtr](d.fn.MemAlloc_v2, uintptr(bytes))
}
func (d *library) MemFree(p DevicePtr) Result { return d.call(d.fn.MemFree_v2, uintptr(p)) }
func (d *library) MemHostAlloc(bytes int, flags uint32) (unsafe.Pointer, Result) {
	return get[unsafe.Pointer](d.fn.MemHostAlloc, uintptr(bytes), uintptr(flags))
}
func (d *library) MemFreeHost(p unsafe.Pointer) Result { return d.call(d.fn.MemFreeHost, uintptr(p)) }
func (d *library) MemcpyHtoDAsync(dst DevicePtr, src unsafe.Pointer, bytes int, s StreamHandle) Result {
	return d.call(d.fn.MemcpyHtoDAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s)) // src is pinned
}
func (d *library) MemcpyDtoHAsync(dst unsafe.Pointer, src DevicePtr, bytes int, s StreamHandle) Result {
	return d.call(d.fn.MemcpyDtoHAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s)) // dst is pinned
}
func (d *library) MemcpyDtoDAsync(dst, src DevicePtr, bytes int, s StreamHandle) Result {
	return d.call(d.fn.MemcpyDtoDAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
}
func (d *library) MemsetD8Async(dst DevicePtr, value uint8, count int, s StreamHandle) Result {
	return d.call(d.fn.MemsetD8Async, uintptr(dst), uintptr(value), uintptr(count), uintptr(s))
}

// Options of cuModuleLoadDataEx.
const (
	jitErrorLog      = 5 // CU_JIT_ERROR_LOG_BUFFER: its value is an address
	jitErrorLogBytes = 6 // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: its value is a number in place of an address
)

func (d *library) ModuleLoadData(image []byte) (ModuleHandle, string, Result) {
	if len(image) == 0 {
		return 0, "", InvalidImage
	}
	x := new(struct {
		module  ModuleHandle
		options [2]int32
		values  [2]uintptr
		log     [4096]byte
	}) // on the heap, since SyscallN takes its address: values holds an address within it
	x.options = [2]int32{jitErrorLog, jitErrorLogBytes}
	x.values = [2]uintptr{uintptr(unsafe.Pointer(&x.log)), uintptr(len(x.log))}
	r, _, _ := purego.SyscallN(d.fn.ModuleLoadDataEx, uintptr(unsafe.Pointer(&x.module)), uintptr(unsafe.Pointer(&image[0])), 2,
		uintptr(unsafe.Pointer(&x.options)), uintptr(unsafe.Pointer(&x.values)))
	return x.module, terminated(x.log[:]), Result(int32(r))
}

func (d *library) ModuleUnload(m ModuleHandle) Result { return d.call(d.fn.ModuleUnload, uintptr(m)) }

func (d *library) ModuleGetFunction(m ModuleHandle, name string) (f FunctionHandle, r Result) {
	c := append([]byte(name), 0)
	e, _, _ := purego.SyscallN(d.fn.ModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&c[0])))
	return f, Result(int32(e))
}

func (d *library) FuncGetAttribute(a FunctionAttribute, f FunctionHandle) (int, Result) {
	return number(d.fn.FuncGetAttribute, uintptr(a), uintptr(f))
}
func (d *library) FuncSetAttribute(f FunctionHandle, a FunctionAttribute, value int) Result {
	return d.call(d.fn.FuncSetAttribute, uintptr(f), uintptr(a), uintptr(value))
}

func (d *library) FuncGetParamInfo(f FunctionHandle, index int) (int, Result) {
	if d.funcGetParamInfo == 0 {
		return 0, NotSupported
	}
	var v [2]uintptr // offset, size
	r, _, _ := purego.SyscallN(d.funcGetParamInfo, uintptr(f), uintptr(index), uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])))
	return int(v[1]), Result(int32(r))
}

func (d *library) LaunchKernel(f FunctionHandle, g Grid, b Block, shared int, s StreamHandle, params unsafe.Pointer) Result {
	r := d.call(d.fn.LaunchKernel, uintptr(f), uintptr(g.X), uintptr(g.Y), uintptr(g.Z),
		uintptr(b.X), uintptr(b.Y), uintptr(b.Z), uintptr(shared), uintptr(s), uintptr(params), 0)
	runtime.KeepAlive(params)
	return r
}

func (d *library) StreamCreate(flags uint32) (StreamHandle, Result) {
	return get[StreamHandle](d.fn.StreamCreate, uintptr(flags))
}
func (d *library) StreamDestroy(s StreamHandle) Result {
	return d.call(d.fn.StreamDestroy_v2, uintptr(s))
}
func (d *library) StreamSynchronize(s StreamHandle) Result {
	return d.call(d.fn.StreamSynchronize, uintptr(s))
}
func (d *library) EventCreate(flags uint32) (EventHandle, Result) {
	return get[EventHandle](d.fn.EventCreate, uintptr(flags))
}
func (d *library) EventDestroy(e EventHandle) Result { return d.call(d.fn.EventDestroy_v2, uintptr(e)) }
func (d *library) EventRecord(e EventHandle, s StreamHandle) Result {
	return d.call(d.fn.EventRecord, uintptr(e), uintptr(s))
}
func (d *library) EventSynchronize(e EventHandle) Result {
	return d.call(d.fn.EventSynchronize, uintptr(e))
}
func (d *library) EventQuery(e EventHandle) Result { return d.call(d.fn.EventQuery, uintptr(e)) }
func (d *library) EventElapsedTime(start, end EventHandle) (float32, Result) {
	return get[float32](d.fn.EventElapsedTime, uintptr(start), uintptr(end))
}
func (d *library) StreamBeginCapture(s StreamHandle, mode int32) Result {
	return d.call(d.fn.StreamBeginCapture_v2, uintptr(s), uintptr(mode))
}

func (d *library) StreamIsCapturing(s StreamHandle) (v CaptureStatus, r Result) {
	e, _, _ := purego.SyscallN(d.fn.StreamIsCapturing, uintptr(s), uintptr(unsafe.Pointer(&v)))
	return v, Result(int32(e))
}

func (d *library) StreamEndCapture(s StreamHandle) (g GraphHandle, r Result) {
	e, _, _ := purego.SyscallN(d.fn.StreamEndCapture, uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, Result(int32(e))
}

func (d *library) GraphInstantiate(g GraphHandle) (GraphExecHandle, Result) {
	return get[GraphExecHandle](d.fn.GraphInstantiateWithFlags, uintptr(g))
}
func (d *library) GraphLaunch(e GraphExecHandle, s StreamHandle) Result {
	return d.call(d.fn.GraphLaunch, uintptr(e), uintptr(s))
}
func (d *library) GraphDestroy(g GraphHandle) Result { return d.call(d.fn.GraphDestroy, uintptr(g)) }
func (d *library) GraphExecDestroy(e GraphExecHandle) Result {
	return d.call(d.fn.GraphExecDestroy, uintptr(e))
}

// terminated returns what stands before the first zero byte of b.
func terminated(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
