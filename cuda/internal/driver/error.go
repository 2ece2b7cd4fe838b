package driver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// Reason says why there is no GPU to use.
type Reason string

// The reasons of an Unavailable.
const (
	ReasonDriver    Reason = "no CUDA driver"
	ReasonNoDevice  Reason = "no CUDA device"
	ReasonOrdinal   Reason = "no such CUDA device"
	ReasonOldDevice Reason = "CUDA device too old" // its compute capability is below 8.0
	ReasonOldDriver Reason = "CUDA driver too old" // it is older than CUDA 12.0
	ReasonStart     Reason = "CUDA driver does not start"
)

// Unavailable is the error of Open if there is no GPU that this package can use. A program that can run elsewhere looks
// for it with errors.As. Any other error of Open is the failure of a GPU that is present.
type Unavailable struct {
	Reason Reason
	Detail string // what was got and what is wanted
}

func (u *Unavailable) Error() string { return fmt.Sprintf("cuda: %s: %s", u.Reason, u.Detail) }

func unavailable(r Reason, format string, args ...any) error {
	return &Unavailable{r, fmt.Sprintf(format, args...)}
}

// Error is the failure of one call of the driver.
type Error struct {
	Call   string // as in "cuMemAlloc"
	Result Result
	Name   string // the driver's name of the result, as in "CUDA_ERROR_INVALID_VALUE"; empty if it has none
	Text   string // the driver's text
}

func (e *Error) Error() string { return e.Call + ": " + e.what() }

// what returns the error text without the call.
func (e *Error) what() string {
	switch {
	case e.Name == "":
		return e.Result.Error()
	case e.Text == "":
		return e.Name
	}
	return fmt.Sprintf("%s (%s)", e.Text, e.Name)
}

func (e *Error) Unwrap() error { return e.Result }

// NoMemory is the error of an allocation on the device, or of pinned memory of the host, that is too large.
type NoMemory struct {
	Asked       int64 // bytes
	Free, Total int64 // bytes of the device, all programs together; 0 if the driver does not tell
	Host        bool  // pinned memory of the host was asked for
	Device      string
}

func (e *NoMemory) Error() string {
	switch {
	case e.Host:
		return fmt.Sprintf("cuda: out of pinned host memory: asked for %s", memory.Size(e.Asked))
	case e.Total == 0:
		return fmt.Sprintf("cuda: %s: out of memory: asked for %s", e.Device, memory.Size(e.Asked))
	}
	return fmt.Sprintf("cuda: %s: out of memory: asked for %s, %s of %s are free", e.Device, memory.Size(e.Asked),
		memory.Size(e.Free), memory.Size(e.Total))
}

// Is makes it a memory.ErrTooMuch.
func (e *NoMemory) Is(target error) bool { return target == memory.ErrTooMuch }

// Launched describes a launch, to name it when the device fails.
type Launched struct {
	Op     string      // the op that the kernel runs for, as given to Prepare
	Kernel string      // its name in the module; empty for a copy, a fill or a captured graph
	Owner  any         // set by the caller; this package only keeps it
	Parts  []*Launched // the launches of a captured graph
}

func (l *Launched) String() string {
	switch {
	case len(l.Parts) > 0:
		return fmt.Sprintf("%s (%s)", l.Op, enumerate(l.Parts, len(l.Parts)))
	case l.Kernel == "" || l.Kernel == l.Op:
		return l.Op
	}
	return fmt.Sprintf("%s (kernel %s)", l.Op, l.Kernel)
}

// Fault is the failure of work that an earlier call enqueued. The device cannot be used after it, and neither can
// another Device of the same GPU in this process.
type Fault struct {
	Err *Error // of the call that reported it
	// Suspects are the launches that may have caused it: those not known to have ended, stream by stream, newest first.
	// It is one launch if the device was opened with WithBlockingLaunches.
	Suspects []*Launched
	Count    int // how many launches may have caused it; Suspects holds the newest of them

	cause error // from the function of WithCause, or nil
}

func (f *Fault) Error() string {
	switch {
	case f.Count == 0:
		return fmt.Sprintf("cuda: %v", f.Err)
	case f.Count == 1 && len(f.Suspects) == 1:
		return fmt.Sprintf("cuda: %v: %s, seen in %s", f.Suspects[0], f.Err.what(), f.Err.Call)
	}
	return fmt.Sprintf("cuda: %s in one of %d launches, newest first: %s; seen in %s. WithBlockingLaunches tells which",
		f.Err.what(), f.Count, enumerate(f.Suspects, f.Count), f.Err.Call)
}

func (f *Fault) Unwrap() []error { return []error{f.Err, f.cause} }

// enumerate names up to 8 launches of l, and says how many of n are not named.
func enumerate(l []*Launched, n int) string {
	l = l[:min(len(l), 8)]
	var names []string
	for _, e := range l {
		names = append(names, e.String())
	}
	text := strings.Join(names, ", ")
	if n > len(l) {
		text += fmt.Sprintf(" and %d more", n-len(l))
	}
	return text
}

// version prints a driver's version as in 12.4.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

var (
	errClosed    = errors.New("closed")
	errForeign   = errors.New("of another device")
	errCapturing = errors.New("a capture is under way")
	errOutside   = errors.New("a capture cannot wait for work outside of it")
)
