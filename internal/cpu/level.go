package cpu

import (
	"fmt"
	"os"
)

// level is the instruction set that the kernels use. A processor that has a level also has the lower ones.
type level int

const (
	levelGeneric level = iota // pure Go
	levelAVX2                 // AVX2, FMA and BMI2
	levelAVX512               // AVX-512 F, BW, DQ and VL as well
	levelBF16                 // AVX512_BF16 as well; float32 and float64 have the bits of levelAVX512
)

// levelNames are the values of NSA_CPU.
var levelNames = [...]string{"generic", "avx2", "avx512", "avx512bf16"}

func (l level) String() string { return levelNames[l] }

// levelInUse is the level of all kernels, chosen when the program starts. Only tests change it. levelErr is what
// LevelError returns.
var levelInUse, levelErr = chooseLevel(os.Getenv("NSA_CPU"), highestLevel())

// chooseLevel returns the level named want. If want is empty, it returns highest; if want is unknown or above highest,
// it returns highest and an error.
func chooseLevel(want string, highest level) (level, error) {
	if want == "" {
		return highest, nil
	}
	for l, name := range levelNames {
		switch {
		case name != want:
		case level(l) > highest:
			return highest, fmt.Errorf("cpu: NSA_CPU=%s: this processor has %v at most", want, highest)
		default:
			return level(l), nil
		}
	}
	return highest, fmt.Errorf("cpu: NSA_CPU=%q: want generic, avx2, avx512 or avx512bf16", want)
}

// Level returns the name of the level in use: generic, avx2, avx512 or avx512bf16. It is the highest that the processor
// has, unless the environment variable NSA_CPU names a lower one when the program starts.
func Level() string { return levelInUse.String() }

// LevelError returns an error if NSA_CPU has an unknown name or a level that the processor lacks. The highest level of
// the processor is in use then.
func LevelError() error { return levelErr }

// hasVectorAsm reports whether the vector functions on elements of T run in assembly.
func hasVectorAsm[T Float]() bool { return levelInUse > levelGeneric && isFloat32[T]() }

// HasBF16 reports whether the kernels of bf16 run in assembly. At other levels they are much slower than those of
// float32.
func HasBF16() bool { return levelInUse >= levelBF16 }

// useAVX512 is the first argument of the assembly functions: true selects their AVX-512 code, false their AVX2 code.
func useAVX512() bool { return levelInUse >= levelAVX512 }
