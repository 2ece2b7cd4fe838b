package driver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// libraryFile is the name under which the NVIDIA driver installs itself. It comes with the driver, not with the CUDA
// toolkit.
const libraryFile = "libcuda.so.1"

// functions holds the functions of the CUDA driver library that this package calls, named without "cu". cuda.h
// documents their arguments. Most need the context to be current on the calling thread.
type functions struct {
	Init, DriverGetVersion, DeviceGetCount, DeviceGet, DeviceGetName, DeviceGetAttribute, DevicePrimaryCtxRetain,
	CtxSetCurrent, CtxSynchronize, GetErrorName, GetErrorString, MemHostAlloc, MemFreeHost, MemsetD8Async,
	ModuleLoadData, ModuleUnload, ModuleGetFunction, FuncSetAttribute, LaunchKernelEx,
	StreamCreateWithPriority, StreamIsCapturing, StreamEndCapture,
	TensorMapEncodeTiled,
	EventCreate, EventRecord, EventSynchronize, EventQuery, EventElapsedTime, StreamWaitEvent,
	GraphInstantiateWithFlags, GraphLaunch, GraphDestroy, GraphExecDestroy *sharedlib.Func

	// In cuda.h of CUDA 12 and 13 the plain names of these functions stand for their _v2 versions.
	DeviceTotalMem, DevicePrimaryCtxRelease, MemGetInfo, MemAlloc, MemFree, MemcpyHtoDAsync, MemcpyDtoHAsync,
	MemcpyDtoDAsync, StreamDestroy, StreamBeginCapture, EventDestroy *sharedlib.Func `suffix:"_v2"`
}

// call calls f and returns its error. It allocates nothing unless it fails. See sharedlib.Func.Call for arguments that
// are addresses.
func (d *Device) call(f *sharedlib.Func, args ...uintptr) error { return d.check(f, f.Call(args...)) }

// get calls a function whose first argument is the address of its result. Up to three other arguments follow. If the
// call fails,
// *result is zero.
func get[T any](d *Device, f *sharedlib.Func, result *T, args ...uintptr) error {
	var a [3]uintptr
	copy(a[:], args)
	err := d.check(f, f.CallWithPointers(uintptr(unsafe.Pointer(result)), a[0], a[1], a[2]))
	if err != nil {
		*result = *new(T)
	}
	return err
}

// number is get for a C int.
func (d *Device) number(f *sharedlib.Func, args ...uintptr) (int, error) {
	var n int32
	err := get(d, f, &n, args...)
	return int(n), err
}

// check turns the result of a call into an error: nil for Success, a *Fault for a failure of work on the device, else
// an *Error.
func (d *Device) check(f *sharedlib.Func, result uintptr) error {
	r := Result(int32(result))
	if r == Success {
		return nil
	}
	err := d.failure(f, r)
	if !r.Fault() {
		return err
	}
	fault := &Fault{Err: err}
	for _, s := range open[*Stream](d) {
		suspects, n := s.trail.pending()
		fault.Suspects, fault.Count = append(fault.Suspects, suspects...), fault.Count+n
	}
	if d.cause != nil {
		fault.cause = d.cause(fault)
	}
	d.fault.CompareAndSwap(nil, fault) // keep the first fault: later ones are its consequences
	return d.fault.Load()
}

// failure returns the error of a result, with the driver's name and text for it.
func (d *Device) failure(f *sharedlib.Func, r Result) *Error {
	text := func(f *sharedlib.Func) string {
		var s uintptr
		if f.CallWithPointers(uintptr(r), uintptr(unsafe.Pointer(&s))) != 0 {
			return ""
		}
		return sharedlib.GoString(s)
	}
	return &Error{f.Name, r, text(d.fn.GetErrorName), text(d.fn.GetErrorString)}
}
