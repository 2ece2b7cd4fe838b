// Package fakenccl is an NCCL library without GPUs, for tests. Its calls move no data. It notes them, checks that they
// come as the library wants them, and makes any of them fail, last, or hang.
package fakenccl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Comm is the handle of the first communicator. The next one has the next number.
const Comm = 77

// The results of calls.
const (
	success    = 0
	failure    = 5 // of Library.Fails
	inProgress = 7
)

// commAt is the place of the communicator among the arguments.
var commAt = map[string]int{"CommGetAsyncError": 0, "CommAbort": 0, "CommFinalize": 0, "CommDestroy": 0, "AllReduce": 5,
	"Reduce": 6, "Broadcast": 5, "AllGather": 4, "ReduceScatter": 5}

// Library is a sharedlib.Library. Its fields are set before use, or by Set.
type Library struct {
	Version int32           // as in 22809
	Lacks   string          // a function that is missing, without "nccl" as all names
	Fails   string          // a function that fails
	State   int32           // of the communicator, when nothing is in progress
	Lasts   map[string]int  // by function: number of polls until what it began has ended; -1: until an abort
	Called  func(string)    // is called at the start of each call with the function, or nil
	Hangs   chan struct{}   // GroupEnd returns when it is closed, unless it is nil; an abort closes it
	Holds   <-chan struct{} // CommAbort returns when it is closed, unless it is nil

	mu     sync.Mutex
	calls  []string
	misuse []error
	comms  []*comm
	group  *comm // of the last collective call
	text   [11]byte
}

// comm is a communicator.
type comm struct {
	polls   int // until nothing is in progress
	running int // calls under way
	freed   bool
}

// New returns a library of version 2.28.9, in which these calls go on while they are polled, as in NCCL.
func New() *Library {
	return &Library{Version: 22809, Lasts: map[string]int{"CommInitRankScalable": 2, "GroupEnd": 2, "CommFinalize": 2}}
}

// Open loads the library in place of a file.
func (l *Library) Open(string) (sharedlib.Library, error) { return l, nil }

// Set changes fields between calls.
func (l *Library) Set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// Calls returns the calls so far with their arguments, without polls, except those that describe errors.
func (l *Library) Calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// Count returns the number of calls of a function.
func (l *Library) Count(function string) (n int) {
	for _, c := range l.Calls() {
		if name, _, _ := strings.Cut(c, " "); name == function {
			n++
		}
	}
	return n
}

// Misuse returns what the library must not be called for: two calls for the communicator at once, a call during what an
// earlier one has begun, and a call for a freed communicator.
func (l *Library) Misuse() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.misuse...)
}

func (l *Library) Find(symbol string) (sharedlib.Code, error) {
	name := strings.TrimPrefix(symbol, "nccl")
	if name == l.Lacks {
		return nil, fmt.Errorf("the fake library has no %s", symbol)
	}
	copy(l.text[:], "went wrong")
	return func(a []uintptr) uintptr {
		if l.Called != nil {
			l.Called(name)
		}
		return uintptr(l.call(name, a))
	}, nil
}

// config is an ncclConfig_v21700.
type config struct {
	size    uintptr
	words   [6]uint32
	netName uintptr
	split   [2]int32
}

func (l *Library) call(name string, a []uintptr) uintptr {
	switch name {
	case "GetErrorString", "GetLastError":
		return uintptr(unsafe.Pointer(&l.text[0]))
	case "GetVersion":
		*sharedlib.PointerTo[int32](a[0]) = l.Version
		if name == l.Fails {
			return failure
		}
		return success
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprint(name, " ", a)
	if name == "CommInitRankScalable" {
		c := sharedlib.PointerTo[config](a[5])
		text = fmt.Sprint(name, " ", a[1:4], sharedlib.PointerTo[[128]byte](a[4])[:3], c.size, c.words, c.netName, c.split[0])
	}
	if name != "CommGetAsyncError" {
		l.calls = append(l.calls, text)
	}
	c := l.comm(name, a)
	if c != nil {
		l.check(name, c)
		c.running++
		defer func() { c.running-- }()
	}
	switch name {
	case "GetUniqueId":
		*sharedlib.PointerTo[[128]byte](a[0]) = [128]byte{1, 2, 3}
	case "GroupEnd":
		if l.Hangs != nil {
			l.mu.Unlock()
			<-l.Hangs
			l.mu.Lock()
		}
	case "CommAbort":
		if c == nil { // none was made
			return success
		}
		if l.Hangs != nil {
			close(l.Hangs)
		}
		if l.Holds != nil {
			l.mu.Unlock()
			<-l.Holds
			l.mu.Lock()
		}
		c.freed, c.polls = true, 0
	case "CommDestroy":
		c.freed = true
	case "CommGetAsyncError":
		state := l.State
		if c.polls != 0 {
			state = inProgress
		}
		if c.polls > 0 {
			c.polls--
		}
		*sharedlib.PointerTo[int32](a[1]) = state
	}
	switch n := l.Lasts[name]; {
	case name == l.Fails:
		return failure
	case c == nil || n == 0:
		return success
	default:
		c.polls = n
		return inProgress
	}
}

// comm returns the communicator that a call is for, or nil. CommInitRankScalable makes one.
func (l *Library) comm(name string, a []uintptr) *comm {
	switch at, ok := commAt[name]; {
	case ok && int(a[at])-Comm < len(l.comms) && a[at] >= Comm:
		l.group = l.comms[a[at]-Comm]
		return l.group
	case name == "GroupEnd":
		return l.group
	case name == "CommInitRankScalable" && name != l.Fails:
		*sharedlib.PointerTo[uintptr](a[0]) = uintptr(Comm + len(l.comms))
		l.comms = append(l.comms, new(comm))
		return l.comms[len(l.comms)-1]
	}
	return nil
}

// check notes a misuse.
func (l *Library) check(name string, c *comm) {
	problem := ""
	switch {
	case c.freed:
		problem = "for a freed communicator"
	case name == "CommAbort" && (c.running == 0 || l.Hangs != nil):
		return
	case c.running > 0:
		problem = "during another call"
	case c.polls != 0 && name != "CommGetAsyncError":
		problem = "while an earlier call is in progress"
	default:
		return
	}
	l.misuse = append(l.misuse, fmt.Errorf("%s %s", name, problem))
}
