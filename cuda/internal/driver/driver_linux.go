//go:build linux && (amd64 || arm64)

package driver

import (
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// library is the name under which the NVIDIA driver installs itself; it comes with the driver, not with the CUDA toolkit.
const library = "libcuda.so.1"

// openLibrary opens the CUDA driver library of this machine. The error is an *Unavailable.
func openLibrary() (Driver, error) {
	lib, err := sharedlib.Open(library)
	if err != nil {
		return nil, unavailable(ReasonDriver, "%v", err)
	}
	d := &pureDriver{lib: lib}
	if err := lib.FindAll("cu", &d.fn); err != nil {
		return nil, unavailable(ReasonOldDriver, "%v: want CUDA %s or newer", err, version(minDriver))
	}
	d.funcGetParamInfo, _ = lib.Find("cuFuncGetParamInfo") // 0 before CUDA 12.4
	return d, nil
}

// pureDriver calls the library.
type pureDriver struct {
	lib              *sharedlib.Library
	fn               functions
	funcGetParamInfo uintptr
}

// functions are the addresses of those functions of the library whose names follow "cu". Names with a version are what cuda.h of
// CUDA 12 and 13 makes of the plain ones.
type functions struct {
	Init, DriverGetVersion, DeviceGetCount, DeviceGet, DeviceGetName, DeviceTotalMem_v2, DeviceGetAttribute,
	DevicePrimaryCtxRetain, DevicePrimaryCtxRelease_v2, CtxSetCurrent, CtxSynchronize, GetErrorName, GetErrorString,
	MemGetInfo_v2, MemAlloc_v2, MemFree_v2, MemHostAlloc, MemFreeHost,
	MemcpyHtoDAsync_v2, MemcpyDtoHAsync_v2, MemcpyDtoDAsync_v2, MemsetD8Async, MemsetD32Async,
	ModuleLoadDataEx, ModuleUnload, ModuleGetFunction, FuncGetAttribute, FuncSetAttribute, LaunchKernel,
	StreamCreate, StreamDestroy_v2, StreamSynchronize, StreamWaitEvent,
	EventCreate, EventDestroy_v2, EventRecord, EventSynchronize, EventQuery, EventElapsedTime,
	StreamBeginCapture_v2, StreamIsCapturing, StreamEndCapture,
	GraphInstantiateWithFlags, GraphLaunch, GraphDestroy, GraphExecDestroy uintptr
}

// The conversions of addresses to uintptr stand in the argument list of purego.SyscallN itself: there they keep what they
// point to alive, and off the stack, which may move.

func result(r1, _, _ uintptr) Result { return Result(int32(r1)) }

// call is Library.Call for functions that return a CUresult.
func (d *pureDriver) call(fn uintptr, args ...uintptr) Result {
	return Result(int32(d.lib.Call(fn, args...)))
}

func (d *pureDriver) Init() Result { return result(purego.SyscallN(d.fn.Init, 0)) }

func (d *pureDriver) DriverGetVersion() (int, Result) {
	var v int32
	r := result(purego.SyscallN(d.fn.DriverGetVersion, uintptr(unsafe.Pointer(&v))))
	return int(v), r
}

func (d *pureDriver) DeviceGetCount() (int, Result) {
	var n int32
	r := result(purego.SyscallN(d.fn.DeviceGetCount, uintptr(unsafe.Pointer(&n))))
	return int(n), r
}

func (d *pureDriver) DeviceGet(n int) (Ordinal, Result) {
	var dev int32
	r := result(purego.SyscallN(d.fn.DeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(n)))
	return Ordinal(dev), r
}

func (d *pureDriver) DeviceGetName(dev Ordinal) (string, Result) {
	buf := make([]byte, 256)
	r := result(purego.SyscallN(d.fn.DeviceGetName, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(dev)))
	return terminated(buf), r
}

func (d *pureDriver) DeviceTotalMem(dev Ordinal) (uint64, Result) {
	var n uintptr
	r := result(purego.SyscallN(d.fn.DeviceTotalMem_v2, uintptr(unsafe.Pointer(&n)), uintptr(dev)))
	return uint64(n), r
}

func (d *pureDriver) DeviceGetAttribute(a Attribute, dev Ordinal) (int, Result) {
	var v int32
	r := result(purego.SyscallN(d.fn.DeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev)))
	return int(v), r
}

func (d *pureDriver) DevicePrimaryCtxRetain(dev Ordinal) (Context, Result) {
	var c uintptr
	r := result(purego.SyscallN(d.fn.DevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(dev)))
	return Context(c), r
}

func (d *pureDriver) DevicePrimaryCtxRelease(dev Ordinal) Result {
	return result(purego.SyscallN(d.fn.DevicePrimaryCtxRelease_v2, uintptr(dev)))
}

func (d *pureDriver) CtxSetCurrent(c Context) Result {
	return d.call(d.fn.CtxSetCurrent, uintptr(c))
}

func (d *pureDriver) CtxSynchronize() Result { return result(purego.SyscallN(d.fn.CtxSynchronize)) }

func (d *pureDriver) GetErrorName(r Result) string   { return d.text(d.fn.GetErrorName, r) }
func (d *pureDriver) GetErrorString(r Result) string { return d.text(d.fn.GetErrorString, r) }

// text returns the string that fn has for a result.
func (d *pureDriver) text(fn uintptr, r Result) string {
	var s uintptr
	if result(purego.SyscallN(fn, uintptr(r), uintptr(unsafe.Pointer(&s)))) != Success {
		return ""
	}
	return sharedlib.Text(s)
}

// terminated returns what stands before the first zero byte of b.
func terminated(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
