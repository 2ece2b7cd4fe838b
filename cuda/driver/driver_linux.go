//go:build linux && (amd64 || arm64)

package driver

import (
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is the name under which the NVIDIA driver installs itself; it comes with the driver, not with the CUDA toolkit.
const library = "libcuda.so.1"

// openLibrary opens the CUDA driver library of this machine. It is never closed: threads of its own may run in it. The error
// is an *Unavailable.
func openLibrary() (Driver, error) {
	lib, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, unavailable(ReasonDriver, "%v", err)
	}
	d := new(pureDriver)
	for _, s := range d.symbols() {
		*s.at, err = purego.Dlsym(lib, s.name)
		if err != nil && !s.optional {
			return nil, unavailable(ReasonOldDriver, "%s has no %s: want CUDA %s or newer", library, s.name, version(minDriver))
		}
	}
	return d, nil
}

// pureDriver holds the addresses of the library's functions. Those with a version in their name are what cuda.h of CUDA 12
// and 13 makes of the plain names.
type pureDriver struct {
	init, driverGetVersion, deviceGetCount, deviceGet, deviceGetName, deviceTotalMem, deviceGetAttribute,
	primaryCtxRetain, primaryCtxRelease, ctxSetCurrent, ctxSynchronize, getErrorName, getErrorString,
	memGetInfo, memAlloc, memFree, memHostAlloc, memFreeHost, memcpyHtoD, memcpyDtoH, memcpyDtoD, memsetD8, memsetD32,
	moduleLoadDataEx, moduleUnload, moduleGetFunction, funcGetAttribute, funcSetAttribute, funcGetParamInfo, launchKernel,
	streamCreate, streamDestroy, streamSynchronize, streamWaitEvent, eventCreate, eventDestroy, eventRecord,
	eventSynchronize, eventQuery, eventElapsedTime, streamBeginCapture, streamIsCapturing, streamEndCapture,
	graphInstantiate, graphLaunch, graphDestroy, graphExecDestroy uintptr

	frames sync.Pool // *frame
}

type symbol struct {
	at       *uintptr
	name     string
	optional bool
}

func (d *pureDriver) symbols() []symbol {
	return []symbol{
		{&d.init, "cuInit", false},
		{&d.driverGetVersion, "cuDriverGetVersion", false},
		{&d.deviceGetCount, "cuDeviceGetCount", false},
		{&d.deviceGet, "cuDeviceGet", false},
		{&d.deviceGetName, "cuDeviceGetName", false},
		{&d.deviceTotalMem, "cuDeviceTotalMem_v2", false},
		{&d.deviceGetAttribute, "cuDeviceGetAttribute", false},
		{&d.primaryCtxRetain, "cuDevicePrimaryCtxRetain", false},
		{&d.primaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", false},
		{&d.ctxSetCurrent, "cuCtxSetCurrent", false},
		{&d.ctxSynchronize, "cuCtxSynchronize", false},
		{&d.getErrorName, "cuGetErrorName", false},
		{&d.getErrorString, "cuGetErrorString", false},
		{&d.memGetInfo, "cuMemGetInfo_v2", false},
		{&d.memAlloc, "cuMemAlloc_v2", false},
		{&d.memFree, "cuMemFree_v2", false},
		{&d.memHostAlloc, "cuMemHostAlloc", false},
		{&d.memFreeHost, "cuMemFreeHost", false},
		{&d.memcpyHtoD, "cuMemcpyHtoDAsync_v2", false},
		{&d.memcpyDtoH, "cuMemcpyDtoHAsync_v2", false},
		{&d.memcpyDtoD, "cuMemcpyDtoDAsync_v2", false},
		{&d.memsetD8, "cuMemsetD8Async", false},
		{&d.memsetD32, "cuMemsetD32Async", false},
		{&d.moduleLoadDataEx, "cuModuleLoadDataEx", false},
		{&d.moduleUnload, "cuModuleUnload", false},
		{&d.moduleGetFunction, "cuModuleGetFunction", false},
		{&d.funcGetAttribute, "cuFuncGetAttribute", false},
		{&d.funcSetAttribute, "cuFuncSetAttribute", false},
		{&d.funcGetParamInfo, "cuFuncGetParamInfo", true},
		{&d.launchKernel, "cuLaunchKernel", false},
		{&d.streamCreate, "cuStreamCreate", false},
		{&d.streamDestroy, "cuStreamDestroy_v2", false},
		{&d.streamSynchronize, "cuStreamSynchronize", false},
		{&d.streamWaitEvent, "cuStreamWaitEvent", false},
		{&d.eventCreate, "cuEventCreate", false},
		{&d.eventDestroy, "cuEventDestroy_v2", false},
		{&d.eventRecord, "cuEventRecord", false},
		{&d.eventSynchronize, "cuEventSynchronize", false},
		{&d.eventQuery, "cuEventQuery", false},
		{&d.eventElapsedTime, "cuEventElapsedTime", false},
		{&d.streamBeginCapture, "cuStreamBeginCapture_v2", false},
		{&d.streamIsCapturing, "cuStreamIsCapturing", false},
		{&d.streamEndCapture, "cuStreamEndCapture", false},
		{&d.graphInstantiate, "cuGraphInstantiateWithFlags", false},
		{&d.graphLaunch, "cuGraphLaunch", false},
		{&d.graphDestroy, "cuGraphDestroy", false},
		{&d.graphExecDestroy, "cuGraphExecDestroy", false},
	}
}

// The conversions of addresses to uintptr stand in the argument list of purego.SyscallN itself: there they keep what they
// point to alive, and off the stack, which may move.

func result(r1, _, _ uintptr) Result { return Result(int32(r1)) }

// frame holds the arguments of a call, of which cuLaunchKernel has most.
type frame [11]uintptr

// call calls fn without allocating, as purego.SyscallN by itself does for its arguments. Callers keep alive what these point
// to, and point to nothing on the stack.
func (d *pureDriver) call(fn uintptr, args ...uintptr) Result {
	f, _ := d.frames.Get().(*frame)
	if f == nil {
		f = new(frame)
	}
	r := result(purego.SyscallN(fn, f[:copy(f[:], args)]...))
	d.frames.Put(f)
	return r
}

func (d *pureDriver) Init() Result { return result(purego.SyscallN(d.init, 0)) }

func (d *pureDriver) DriverGetVersion() (int, Result) {
	var v int32
	r := result(purego.SyscallN(d.driverGetVersion, uintptr(unsafe.Pointer(&v))))
	return int(v), r
}

func (d *pureDriver) DeviceGetCount() (int, Result) {
	var n int32
	r := result(purego.SyscallN(d.deviceGetCount, uintptr(unsafe.Pointer(&n))))
	return int(n), r
}

func (d *pureDriver) DeviceGet(n int) (Ordinal, Result) {
	var dev int32
	r := result(purego.SyscallN(d.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(n)))
	return Ordinal(dev), r
}

func (d *pureDriver) DeviceGetName(dev Ordinal) (string, Result) {
	buf := make([]byte, 256)
	r := result(purego.SyscallN(d.deviceGetName, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(dev)))
	return terminated(buf), r
}

func (d *pureDriver) DeviceTotalMem(dev Ordinal) (uint64, Result) {
	var n uintptr
	r := result(purego.SyscallN(d.deviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev)))
	return uint64(n), r
}

func (d *pureDriver) DeviceGetAttribute(a Attribute, dev Ordinal) (int, Result) {
	var v int32
	r := result(purego.SyscallN(d.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev)))
	return int(v), r
}

func (d *pureDriver) DevicePrimaryCtxRetain(dev Ordinal) (Context, Result) {
	var c uintptr
	r := result(purego.SyscallN(d.primaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(dev)))
	return Context(c), r
}

func (d *pureDriver) DevicePrimaryCtxRelease(dev Ordinal) Result {
	return result(purego.SyscallN(d.primaryCtxRelease, uintptr(dev)))
}

func (d *pureDriver) CtxSetCurrent(c Context) Result {
	return d.call(d.ctxSetCurrent, uintptr(c))
}

func (d *pureDriver) CtxSynchronize() Result { return result(purego.SyscallN(d.ctxSynchronize)) }

func (d *pureDriver) GetErrorName(r Result) string   { return d.text(d.getErrorName, r) }
func (d *pureDriver) GetErrorString(r Result) string { return d.text(d.getErrorString, r) }

// text returns the string, constant in the library, that fn has for a result.
func (d *pureDriver) text(fn uintptr, r Result) string {
	var s *byte
	if result(purego.SyscallN(fn, uintptr(r), uintptr(unsafe.Pointer(&s)))) != Success || s == nil {
		return ""
	}
	return terminated(unsafe.Slice(s, length(s)))
}

// length returns the number of bytes before the zero byte.
func length(s *byte) int {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return n
}

// terminated returns what stands before the first zero byte of b.
func terminated(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
