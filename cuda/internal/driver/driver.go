package driver

import "unsafe"

// Driver is what this package needs of the CUDA driver: every call of the library that it makes. Each method is the call that
// its name stands for, Init for cuInit, and does nothing else; library_linux.go has the calls of the real one. Calls below the
// first group need the context current on the calling thread. A Driver may be called from several threads at once and keeps
// no pointer that it is given, except for asynchronous copies.
type Driver interface {
	Init() Result
	DriverGetVersion() (int, Result) // 1000 times the major number plus 10 times the minor one
	DeviceGetCount() (int, Result)
	DeviceGet(n int) (Ordinal, Result)
	DeviceGetName(Ordinal) (string, Result)
	DeviceTotalMem(Ordinal) (uint64, Result)
	DeviceGetAttribute(Attribute, Ordinal) (int, Result)
	DevicePrimaryCtxRetain(Ordinal) (Context, Result)
	DevicePrimaryCtxRelease(Ordinal) Result
	CtxSetCurrent(Context) Result
	GetErrorName(Result) string   // as in CUDA_ERROR_OUT_OF_MEMORY; empty for a number unknown to the driver
	GetErrorString(Result) string // as in "out of memory"

	MemGetInfo() (free, total uint64, r Result)
	MemAlloc(bytes int) (DevicePtr, Result)
	MemFree(DevicePtr) Result
	MemHostAlloc(bytes int, flags uint32) (unsafe.Pointer, Result)
	MemFreeHost(unsafe.Pointer) Result
	MemcpyHtoDAsync(dst DevicePtr, src unsafe.Pointer, bytes int, s StreamHandle) Result // src is pinned
	MemcpyDtoHAsync(dst unsafe.Pointer, src DevicePtr, bytes int, s StreamHandle) Result // dst is pinned
	MemcpyDtoDAsync(dst, src DevicePtr, bytes int, s StreamHandle) Result
	MemsetD8Async(dst DevicePtr, value uint8, count int, s StreamHandle) Result

	// ModuleLoadData loads a cubin, a fat binary or PTX, which must be followed by a zero byte. log is what the compiler of
	// PTX says of its errors.
	ModuleLoadData(image []byte) (m ModuleHandle, log string, r Result)
	ModuleUnload(ModuleHandle) Result
	ModuleGetFunction(m ModuleHandle, name string) (FunctionHandle, Result)
	FuncGetAttribute(FunctionAttribute, FunctionHandle) (int, Result)
	FuncSetAttribute(f FunctionHandle, a FunctionAttribute, value int) Result
	// FuncGetParamInfo returns the size of a parameter, InvalidValue behind the last one, and NotSupported where the
	// driver, older than CUDA 12.4, does not tell.
	FuncGetParamInfo(f FunctionHandle, index int) (bytes int, r Result)
	// LaunchKernel enqueues a kernel. params is the address of an array of the addresses of its arguments, which are read
	// before the call returns. It must not allocate.
	LaunchKernel(f FunctionHandle, g Grid, b Block, shared int, s StreamHandle, params unsafe.Pointer) Result

	CtxSynchronize() Result
	StreamCreate(flags uint32) (StreamHandle, Result)
	StreamDestroy(StreamHandle) Result
	StreamSynchronize(StreamHandle) Result
	EventCreate(flags uint32) (EventHandle, Result)
	EventDestroy(EventHandle) Result
	EventRecord(EventHandle, StreamHandle) Result
	EventSynchronize(EventHandle) Result
	EventQuery(EventHandle) Result                                  // NotReady until the work before it has ended
	EventElapsedTime(start, end EventHandle) (ms float32, r Result) // NotReady likewise
	StreamBeginCapture(s StreamHandle, mode int32) Result           // cuStreamBeginCapture_v2
	StreamIsCapturing(StreamHandle) (CaptureStatus, Result)
	StreamEndCapture(StreamHandle) (GraphHandle, Result)
	GraphInstantiate(GraphHandle) (GraphExecHandle, Result) // cuGraphInstantiateWithFlags, flags 0
	GraphLaunch(GraphExecHandle, StreamHandle) Result       // it must not allocate
	GraphDestroy(GraphHandle) Result                        // the executable graph lives on
	GraphExecDestroy(GraphExecHandle) Result
}
