//go:build linux && (amd64 || arm64)

package driver

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

func (d *pureDriver) MemGetInfo() (free, total uint64, r Result) {
	var n [2]uintptr
	r = result(purego.SyscallN(d.fn.MemGetInfo_v2, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&n[1]))))
	return uint64(n[0]), uint64(n[1]), r
}

func (d *pureDriver) MemAlloc(bytes int) (DevicePtr, Result) {
	var p uintptr
	r := result(purego.SyscallN(d.fn.MemAlloc_v2, uintptr(unsafe.Pointer(&p)), uintptr(bytes)))
	return DevicePtr(p), r
}

func (d *pureDriver) MemFree(p DevicePtr) Result {
	return result(purego.SyscallN(d.fn.MemFree_v2, uintptr(p)))
}

func (d *pureDriver) MemHostAlloc(bytes int, flags uint32) (unsafe.Pointer, Result) {
	var p unsafe.Pointer
	r := result(purego.SyscallN(d.fn.MemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), uintptr(flags)))
	return p, r
}

func (d *pureDriver) MemFreeHost(p unsafe.Pointer) Result {
	return result(purego.SyscallN(d.fn.MemFreeHost, uintptr(p)))
}

func (d *pureDriver) MemcpyHtoDAsync(dst DevicePtr, src unsafe.Pointer, bytes int, s StreamHandle) Result {
	r := d.call(d.fn.MemcpyHtoDAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
	runtime.KeepAlive(src)
	return r
}

func (d *pureDriver) MemcpyDtoHAsync(dst unsafe.Pointer, src DevicePtr, bytes int, s StreamHandle) Result {
	r := d.call(d.fn.MemcpyDtoHAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
	runtime.KeepAlive(dst)
	return r
}

func (d *pureDriver) MemcpyDtoDAsync(dst, src DevicePtr, bytes int, s StreamHandle) Result {
	return d.call(d.fn.MemcpyDtoDAsync_v2, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
}

func (d *pureDriver) MemsetD8Async(dst DevicePtr, value uint8, count int, s StreamHandle) Result {
	return d.call(d.fn.MemsetD8Async, uintptr(dst), uintptr(value), uintptr(count), uintptr(s))
}

func (d *pureDriver) MemsetD32Async(dst DevicePtr, value uint32, count int, s StreamHandle) Result {
	return d.call(d.fn.MemsetD32Async, uintptr(dst), uintptr(value), uintptr(count), uintptr(s))
}

// Options of cuModuleLoadDataEx.
const (
	jitErrorLog      = 5 // CU_JIT_ERROR_LOG_BUFFER: its value is an address
	jitErrorLogBytes = 6 // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: its value is a number in place of an address
)

type jit struct {
	module  uintptr
	options [2]int32
	values  [2]uintptr
	log     [4096]byte
}

func (d *pureDriver) ModuleLoadData(image []byte) (ModuleHandle, string, Result) {
	if len(image) == 0 {
		return 0, "", InvalidImage
	}
	x := new(jit) // on the heap, which does not move: values holds an address within
	x.options = [2]int32{jitErrorLog, jitErrorLogBytes}
	x.values = [2]uintptr{uintptr(unsafe.Pointer(&x.log)), uintptr(len(x.log))}
	r := result(purego.SyscallN(d.fn.ModuleLoadDataEx, uintptr(unsafe.Pointer(&x.module)), uintptr(unsafe.Pointer(&image[0])), 2,
		uintptr(unsafe.Pointer(&x.options)), uintptr(unsafe.Pointer(&x.values))))
	return ModuleHandle(x.module), terminated(x.log[:]), r
}

func (d *pureDriver) ModuleUnload(m ModuleHandle) Result {
	return result(purego.SyscallN(d.fn.ModuleUnload, uintptr(m)))
}

func (d *pureDriver) ModuleGetFunction(m ModuleHandle, name string) (FunctionHandle, Result) {
	var f uintptr
	c := append([]byte(name), 0)
	r := result(purego.SyscallN(d.fn.ModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&c[0]))))
	return FunctionHandle(f), r
}

func (d *pureDriver) FuncGetAttribute(a FunctionAttribute, f FunctionHandle) (int, Result) {
	var v int32
	r := result(purego.SyscallN(d.fn.FuncGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(f)))
	return int(v), r
}

func (d *pureDriver) FuncSetAttribute(f FunctionHandle, a FunctionAttribute, value int) Result {
	return result(purego.SyscallN(d.fn.FuncSetAttribute, uintptr(f), uintptr(a), uintptr(value)))
}

func (d *pureDriver) FuncGetParamInfo(f FunctionHandle, index int) (int, Result) {
	if d.funcGetParamInfo == 0 {
		return 0, NotSupported
	}
	var v [2]uintptr // offset, size
	r := result(purego.SyscallN(d.funcGetParamInfo, uintptr(f), uintptr(index), uintptr(unsafe.Pointer(&v[0])),
		uintptr(unsafe.Pointer(&v[1]))))
	return int(v[1]), r
}

func (d *pureDriver) LaunchKernel(f FunctionHandle, g Grid, b Block, shared int, s StreamHandle, params unsafe.Pointer) Result {
	r := d.call(d.fn.LaunchKernel, uintptr(f), uintptr(g.X), uintptr(g.Y), uintptr(g.Z),
		uintptr(b.X), uintptr(b.Y), uintptr(b.Z), uintptr(shared), uintptr(s), uintptr(params), 0)
	runtime.KeepAlive(params)
	return r
}

func (d *pureDriver) StreamCreate(flags uint32) (StreamHandle, Result) {
	var s uintptr
	r := result(purego.SyscallN(d.fn.StreamCreate, uintptr(unsafe.Pointer(&s)), uintptr(flags)))
	return StreamHandle(s), r
}

func (d *pureDriver) StreamDestroy(s StreamHandle) Result {
	return result(purego.SyscallN(d.fn.StreamDestroy_v2, uintptr(s)))
}

func (d *pureDriver) StreamSynchronize(s StreamHandle) Result {
	return d.call(d.fn.StreamSynchronize, uintptr(s))
}

func (d *pureDriver) StreamWaitEvent(s StreamHandle, e EventHandle) Result {
	return d.call(d.fn.StreamWaitEvent, uintptr(s), uintptr(e), 0)
}

func (d *pureDriver) EventCreate(flags uint32) (EventHandle, Result) {
	var e uintptr
	r := result(purego.SyscallN(d.fn.EventCreate, uintptr(unsafe.Pointer(&e)), uintptr(flags)))
	return EventHandle(e), r
}

func (d *pureDriver) EventDestroy(e EventHandle) Result {
	return result(purego.SyscallN(d.fn.EventDestroy_v2, uintptr(e)))
}

func (d *pureDriver) EventRecord(e EventHandle, s StreamHandle) Result {
	return d.call(d.fn.EventRecord, uintptr(e), uintptr(s))
}

func (d *pureDriver) EventSynchronize(e EventHandle) Result {
	return d.call(d.fn.EventSynchronize, uintptr(e))
}

func (d *pureDriver) EventQuery(e EventHandle) Result {
	return d.call(d.fn.EventQuery, uintptr(e))
}

func (d *pureDriver) EventElapsedTime(start, end EventHandle) (float32, Result) {
	var ms float32
	r := result(purego.SyscallN(d.fn.EventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(end)))
	return ms, r
}

func (d *pureDriver) StreamBeginCapture(s StreamHandle, mode int32) Result {
	return result(purego.SyscallN(d.fn.StreamBeginCapture_v2, uintptr(s), uintptr(mode)))
}

func (d *pureDriver) StreamIsCapturing(s StreamHandle) (CaptureStatus, Result) {
	var v int32
	r := result(purego.SyscallN(d.fn.StreamIsCapturing, uintptr(s), uintptr(unsafe.Pointer(&v))))
	return CaptureStatus(v), r
}

func (d *pureDriver) StreamEndCapture(s StreamHandle) (GraphHandle, Result) {
	var g uintptr
	r := result(purego.SyscallN(d.fn.StreamEndCapture, uintptr(s), uintptr(unsafe.Pointer(&g))))
	return GraphHandle(g), r
}

func (d *pureDriver) GraphInstantiate(g GraphHandle) (GraphExecHandle, Result) {
	var e uintptr
	r := result(purego.SyscallN(d.fn.GraphInstantiateWithFlags, uintptr(unsafe.Pointer(&e)), uintptr(g), 0))
	return GraphExecHandle(e), r
}

func (d *pureDriver) GraphLaunch(e GraphExecHandle, s StreamHandle) Result {
	return d.call(d.fn.GraphLaunch, uintptr(e), uintptr(s))
}

func (d *pureDriver) GraphDestroy(g GraphHandle) Result {
	return result(purego.SyscallN(d.fn.GraphDestroy, uintptr(g)))
}

func (d *pureDriver) GraphExecDestroy(e GraphExecHandle) Result {
	return result(purego.SyscallN(d.fn.GraphExecDestroy, uintptr(e)))
}
