package driver

import "fmt"

// Handle is the driver's handle of a context, module, function, stream, event or graph. Zero is none.
type Handle = uintptr

// DevicePtr is an address in the memory of a device.
type DevicePtr uintptr

// Dim is the size of a grid, in blocks, or of a block, in threads. Zero along Y or Z means one.
type Dim struct{ X, Y, Z int }

// Threads returns the number of threads of a block.
func (d Dim) Threads() int64 { return int64(d.X) * int64(d.Y) * int64(d.Z) }

func (d Dim) String() string { return fmt.Sprintf("%dx%dx%d", d.X, d.Y, d.Z) }

// Result is a CUresult: what a function of the driver returns. errors.Is finds it in an error of this package.
type Result int32

// The results that this package or a driver in Go treats specially.
const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	NotInitialized     Result = 3
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	InvalidContext     Result = 201
	NoBinary           Result = 209 // the image holds nothing for this GPU
	ECCUncorrectable   Result = 214
	NVLinkError        Result = 220
	Contained          Result = 226
	InvalidHandle      Result = 400
	NotFound           Result = 500
	NotReady           Result = 600
	IllegalAddress     Result = 700
	OutOfResources     Result = 701
	LaunchTimeout      Result = 702
	ContextDestroyed   Result = 709
	Assert             Result = 710
	hardwareStack      Result = 714
	LaunchFailed       Result = 719
	TensorMemoryLeak   Result = 721
	CaptureInvalidated Result = 901
	CaptureMerge       Result = 902 // two captures would become one
	CaptureUnjoined    Result = 904 // at its end, another stream has work that the first one has not waited for
	CaptureIsolation   Result = 905 // captured work would wait for work outside of the capture
	CapturedEvent      Result = 907 // the event was recorded in a capture, and the call is outside of that
	Unknown            Result = 999
)

func (r Result) Error() string { return fmt.Sprintf("error %d", int32(r)) }

// Fault reports whether r is a failure of work on the device. After such a failure the context cannot be used.
func (r Result) Fault() bool {
	switch r {
	case ECCUncorrectable, NVLinkError, Contained, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert,
		TensorMemoryLeak:
		return true
	}
	return r >= hardwareStack && r <= LaunchFailed
}

// Attributes of a device, from which Properties is filled: values of CUdevice_attribute.
const (
	Multiprocessors     = 16
	CapabilityMajor     = 75
	CapabilityMinor     = 76
	MaxSharedPerSM      = 81
	MaxSharedBlockOptIn = 97 // with FuncMaxDynamicShared set
)

// FuncMaxDynamicShared is an attribute of a kernel: a value of CUfunction_attribute.
const FuncMaxDynamicShared = 8

// Flags of the driver's functions.
const (
	hostPortable       = 1 // CU_MEMHOSTALLOC_PORTABLE: pinned for every context
	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING: no order with the default stream
	eventBlockingSync  = 1 // CU_EVENT_BLOCKING_SYNC: a thread that waits sleeps
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING
	captureRelaxed     = 2 // CU_STREAM_CAPTURE_MODE_RELAXED: capture from any thread, unaffected by others
)

// Capture states of a stream: values of CUstreamCaptureStatus.
const (
	CaptureNone int32 = iota
	CaptureActive
	CaptureBroken // cuStreamEndCapture fails, and ends the capture
)
