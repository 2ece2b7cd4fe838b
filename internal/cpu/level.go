package cpu

import (
	"fmt"
	"os"
)

// level names a set of kernels. A processor that has a level also has the lower ones.
type level int

const (
	generic level = iota // pure Go
	avx2                 // AVX2 and FMA
	avx512               // AVX-512 F, BW, DQ and VL
)

var levelNames = [...]string{"generic", "avx2", "avx512"}

func (l level) String() string { return levelNames[l] }

// active is the level of all kernels. It is chosen once; only tests change it. activeErr is what LevelError returns.
var active, activeErr = choose(os.Getenv("NSA_CPU"), highest())

// choose returns the level that wish names, or highest if wish is empty, unknown or above highest.
func choose(wish string, highest level) (level, error) {
	if wish == "" {
		return highest, nil
	}
	for l, name := range levelNames {
		switch {
		case name != wish:
		case level(l) > highest:
			return highest, fmt.Errorf("cpu: NSA_CPU=%s: this processor has %v at most", wish, highest)
		default:
			return level(l), nil
		}
	}
	return highest, fmt.Errorf("cpu: NSA_CPU=%q: want generic, avx2 or avx512", wish)
}

// Level returns the name of the kernels in use: generic, avx2 or avx512. It is the highest level that the processor has,
// unless the environment variable NSA_CPU names a lower one when the program starts.
func Level() string { return active.String() }

// LevelError returns an error if the environment variable NSA_CPU has an unknown name or a level that the processor lacks. The
// highest level is in use then.
func LevelError() error { return activeErr }

// fast reports whether assembly computes vectors of T.
func fast[T Float]() bool { return active > generic && single[T]() }

// wide reports whether the assembly in use is for AVX-512.
func wide() bool { return active == avx512 }
