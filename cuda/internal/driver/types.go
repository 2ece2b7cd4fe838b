package driver

import "fmt"

// Handles of the driver. They mean nothing outside of the Driver that has returned them. Zero is none.
type (
	Ordinal         int32 // CUdevice; zero is a device too
	Context         uintptr
	DevicePtr       uintptr // an address in the memory of a device: CUdeviceptr
	ModuleHandle    uintptr
	FunctionHandle  uintptr
	StreamHandle    uintptr // zero is the default stream, which this package does not use
	EventHandle     uintptr
	GraphHandle     uintptr
	GraphExecHandle uintptr
)

// Grid is the number of blocks of a launch along each axis. Zero along Y or Z means one.
type Grid struct{ X, Y, Z int }

// Block is the number of threads of a block along each axis. Zero along Y or Z means one.
type Block struct{ X, Y, Z int }

func (g Grid) String() string  { return fmt.Sprintf("%dx%dx%d", g.X, g.Y, g.Z) }
func (b Block) String() string { return fmt.Sprintf("%dx%dx%d", b.X, b.Y, b.Z) }

// Result is a CUresult: what a call of the driver returns.
type Result int32

// The results that this package or a Driver treats specially.
const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	NotInitialized     Result = 3
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	InvalidImage       Result = 200
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
	NotSupported       Result = 801
	CaptureUnsupported Result = 900
	CaptureInvalidated Result = 901
	Unknown            Result = 999
)

// Fault reports whether r comes from work on the device, after which the context cannot be used.
func (r Result) Fault() bool {
	switch r {
	case ECCUncorrectable, NVLinkError, Contained, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert, TensorMemoryLeak:
		return true
	}
	return r >= hardwareStack && r <= LaunchFailed
}

// Attribute is a CUdevice_attribute.
type Attribute int32

// The attributes that Properties is made of.
const (
	Multiprocessors     Attribute = 16
	CapabilityMajor     Attribute = 75
	CapabilityMinor     Attribute = 76
	MaxSharedPerSM      Attribute = 81
	MaxSharedBlockOptIn Attribute = 97 // with FuncMaxDynamicShared set
)

// FunctionAttribute is a CUfunction_attribute.
type FunctionAttribute int32

// The attributes of a Function.
const (
	FuncMaxThreads       FunctionAttribute = 0 // of a block
	FuncSharedBytes      FunctionAttribute = 1 // static
	FuncRegisters        FunctionAttribute = 4 // of a thread
	FuncMaxDynamicShared FunctionAttribute = 8 // may be set
)

// Flags of the driver's calls.
const (
	HostPortable       uint32 = 1 // CU_MEMHOSTALLOC_PORTABLE: pinned for every context
	StreamNonBlocking  uint32 = 1 // CU_STREAM_NON_BLOCKING: no order with the default stream
	EventBlockingSync  uint32 = 1 // CU_EVENT_BLOCKING_SYNC: a thread that waits sleeps
	EventDisableTiming uint32 = 2 // CU_EVENT_DISABLE_TIMING
	CaptureRelaxed     int32  = 2 // CU_STREAM_CAPTURE_MODE_RELAXED: capture from any thread, unaffected by others
)

// CaptureStatus is a CUstreamCaptureStatus.
type CaptureStatus int32

// Capture states of a stream.
const (
	CaptureNone CaptureStatus = iota
	CaptureActive
	CaptureBroken // StreamEndCapture, which then fails, ends it
)
