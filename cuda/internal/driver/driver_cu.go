//go:build cu && cgo && linux && (amd64 || arm64)

package driver

import (
	"reflect"
	"unsafe"

	"gorgonia.org/cu"
)

// NewDriver returns the driver on package cu: -tags cu makes it the default. The error is an *Unavailable.
func NewDriver() (Driver, error) { return NewCuDriver() }

// NewCuDriver returns a driver that makes its calls through package gorgonia.org/cu, for programs that use that package, or
// Gorgonia on it, beside this module: both work in the primary context, and memory, streams and contexts of one side are
// good on the other.
//
// cu starts the CUDA driver when the program starts, and ends the process where there is no GPU.
func NewCuDriver() (Driver, error) {
	lib, err := openLibrary()
	if err != nil {
		return nil, err
	}
	return cuDriver{lib}, nil
}

// CuDevicePtr returns p as package cu's: the same address.
func CuDevicePtr(p DevicePtr) cu.DevicePtr { return cu.DevicePtr(p) }

// FromCuDevicePtr returns memory of package cu as a launch takes it. Who has allocated it frees it.
func FromCuDevicePtr(p cu.DevicePtr) DevicePtr { return DevicePtr(p) }

// CuStream returns a stream as package cu's, within Stream.Enqueue, say. It is not to be destroyed there.
func CuStream(s StreamHandle) cu.Stream { return wrap[cu.Stream](uintptr(s)) }

// FromCuStream returns a stream of package cu. Device.BorrowStream makes a Stream of it.
func FromCuStream(s cu.Stream) StreamHandle { return StreamHandle(unwrap(s)) }

// CuContext returns a context, such as Device.Context, as package cu's. It is not to be destroyed there.
func CuContext(c Context) cu.CUContext { return wrap[cu.CUContext](uintptr(c)) }

// FromCuContext returns a context of package cu. That of cu.Device.RetainPrimaryCtx is the one of Open.
func FromCuContext(c cu.CUContext) Context { return Context(unwrap(c)) }

// handle is a struct of package cu whose only field is a handle of the driver: a pointer to what no header declares.
type handle interface {
	cu.CUContext | cu.Event | cu.Function | cu.Module | cu.Stream | cu.Graph | cu.ExecGraph
}

func wrap[T handle](h uintptr) T { return *(*T)(unsafe.Pointer(&h)) }

func unwrap[T handle](h T) uintptr { return *(*uintptr)(unsafe.Pointer(&h)) }

// A handle that is not the size of a pointer is an error here.
var (
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Event{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Function{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Module{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Graph{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.ExecGraph{})]byte{}
)

// cuResult returns the CUresult of an error of package cu, whose type is a number that cu does not export.
func cuResult(err error) Result {
	if err == nil {
		return Success
	}
	if v := reflect.ValueOf(err); v.CanInt() {
		return Result(v.Int())
	}
	return Unknown
}

// cuDriver calls package cu. The embedded driver has opened the library that cu is linked with, and makes the calls that cu
// lacks (pinned memory, function attributes to be set, sizes of parameters, captures, launches of graphs, names of errors) or
// has in a form that does not serve: cu.Function.Launch reads eight bytes of each argument, whatever its size;
// cu.LoadDataEx passes the buffer of the compiler's log as a number, which keeps nothing alive; cu.Event.Query allocates an
// error each time that it answers "not yet".
type cuDriver struct{ Driver }

func (d cuDriver) DeviceGetCount() (int, Result) {
	n, err := cu.NumDevices()
	return n, cuResult(err)
}

func (d cuDriver) DeviceGet(n int) (Ordinal, Result) {
	dev, err := cu.GetDevice(n)
	return Ordinal(dev), cuResult(err)
}

func (d cuDriver) DeviceGetName(o Ordinal) (string, Result) {
	name, err := cu.Device(o).Name()
	return name, cuResult(err)
}

func (d cuDriver) DeviceTotalMem(o Ordinal) (uint64, Result) {
	n, err := cu.Device(o).TotalMem()
	return uint64(n), cuResult(err)
}

func (d cuDriver) DeviceGetAttribute(a Attribute, o Ordinal) (int, Result) {
	v, err := cu.Device(o).Attribute(cu.DeviceAttribute(a))
	return v, cuResult(err)
}

func (d cuDriver) DevicePrimaryCtxRetain(o Ordinal) (Context, Result) {
	c, err := cu.Device(o).RetainPrimaryCtx()
	return FromCuContext(c), cuResult(err)
}

func (d cuDriver) DevicePrimaryCtxRelease(o Ordinal) Result {
	return cuResult(cu.Device(o).ReleasePrimaryCtx())
}

func (d cuDriver) CtxSetCurrent(c Context) Result {
	return cuResult(cu.SetCurrentContext(CuContext(c)))
}

func (d cuDriver) CtxSynchronize() Result { return cuResult(cu.Synchronize()) }

func (d cuDriver) MemGetInfo() (free, total uint64, r Result) {
	f, t, err := cu.MemInfo()
	return uint64(f), uint64(t), cuResult(err)
}

func (d cuDriver) MemAlloc(bytes int) (DevicePtr, Result) {
	p, err := cu.MemAlloc(int64(bytes))
	return FromCuDevicePtr(p), cuResult(err)
}

func (d cuDriver) MemFree(p DevicePtr) Result { return cuResult(cu.MemFree(CuDevicePtr(p))) }

func (d cuDriver) MemcpyHtoDAsync(dst DevicePtr, src unsafe.Pointer, bytes int, s StreamHandle) Result {
	return cuResult(cu.MemcpyHtoDAsync(CuDevicePtr(dst), src, int64(bytes), CuStream(s)))
}

func (d cuDriver) MemcpyDtoHAsync(dst unsafe.Pointer, src DevicePtr, bytes int, s StreamHandle) Result {
	return cuResult(cu.MemcpyDtoHAsync(dst, CuDevicePtr(src), int64(bytes), CuStream(s)))
}

func (d cuDriver) MemcpyDtoDAsync(dst, src DevicePtr, bytes int, s StreamHandle) Result {
	return cuResult(cu.MemcpyDtoDAsync(CuDevicePtr(dst), CuDevicePtr(src), int64(bytes), CuStream(s)))
}

func (d cuDriver) MemsetD8Async(dst DevicePtr, value uint8, count int, s StreamHandle) Result {
	return cuResult(cu.MemsetD8Async(CuDevicePtr(dst), value, int64(count), CuStream(s)))
}

func (d cuDriver) MemsetD32Async(dst DevicePtr, value uint32, count int, s StreamHandle) Result {
	return cuResult(cu.MemsetD32Async(CuDevicePtr(dst), uint(value), int64(count), CuStream(s)))
}

func (d cuDriver) ModuleUnload(m ModuleHandle) Result {
	return cuResult(wrap[cu.Module](uintptr(m)).Unload())
}

func (d cuDriver) ModuleGetFunction(m ModuleHandle, name string) (FunctionHandle, Result) {
	f, err := wrap[cu.Module](uintptr(m)).Function(name)
	return FunctionHandle(unwrap(f)), cuResult(err)
}

func (d cuDriver) FuncGetAttribute(a FunctionAttribute, f FunctionHandle) (int, Result) {
	v, err := wrap[cu.Function](uintptr(f)).Attribute(cu.FunctionAttribute(a))
	return v, cuResult(err)
}

func (d cuDriver) StreamCreate(flags uint32) (StreamHandle, Result) {
	s, err := cu.MakeStream(cu.StreamFlags(flags))
	return FromCuStream(s), cuResult(err)
}

func (d cuDriver) StreamDestroy(s StreamHandle) Result {
	c := CuStream(s)
	return cuResult(c.Destroy())
}

func (d cuDriver) StreamSynchronize(s StreamHandle) Result {
	return cuResult(CuStream(s).Synchronize())
}

func (d cuDriver) StreamWaitEvent(s StreamHandle, e EventHandle) Result {
	return cuResult(CuStream(s).Wait(wrap[cu.Event](uintptr(e)), 0))
}

func (d cuDriver) EventCreate(flags uint32) (EventHandle, Result) {
	e, err := cu.MakeEvent(cu.EventFlags(flags))
	return EventHandle(unwrap(e)), cuResult(err)
}

func (d cuDriver) EventDestroy(e EventHandle) Result {
	c := wrap[cu.Event](uintptr(e))
	return cuResult(cu.DestroyEvent(&c))
}

func (d cuDriver) EventRecord(e EventHandle, s StreamHandle) Result {
	return cuResult(wrap[cu.Event](uintptr(e)).Record(CuStream(s)))
}

func (d cuDriver) EventSynchronize(e EventHandle) Result {
	return cuResult(wrap[cu.Event](uintptr(e)).Synchronize())
}

func (d cuDriver) EventElapsedTime(start, end EventHandle) (float32, Result) {
	ms, err := wrap[cu.Event](uintptr(start)).Elapsed(wrap[cu.Event](uintptr(end)))
	return float32(ms), cuResult(err)
}

func (d cuDriver) GraphDestroy(g GraphHandle) Result {
	return cuResult(wrap[cu.Graph](uintptr(g)).Destroy())
}

func (d cuDriver) GraphExecDestroy(e GraphExecHandle) Result {
	return cuResult(wrap[cu.ExecGraph](uintptr(e)).Destroy())
}
