package cpu

import (
	"fmt"
	"os"
	"slices"
)

// level is the instruction set that the kernels use.
type level int

const (
	levelGeneric level = iota // pure Go
	levelAVX2                 // AVX2, FMA and BMI2
	levelAVX512               // AVX-512 F, BW, DQ and VL as well
	levelBF16                 // AVX512_BF16 as well; float32 and float64 have the bits of levelAVX512
	levelNEON                 // NEON of arm64
)

// levelNames are the values of NSA_CPU.
var levelNames = [...]string{"generic", "avx2", "avx512", "avx512bf16", "neon"}

func (l level) String() string { return levelNames[l] }

// levelInUse is the level of all kernels, chosen when the program starts. Only tests change it. levelErr is what
// LevelError returns.
var levelInUse, levelErr = chooseLevel(os.Getenv("NSA_CPU"), processorLevels())

// chooseLevel returns the level named want, which must be one of has, the processor's levels, the lowest first. If want
// is empty, it returns the highest of them; if want is unknown or none of them, it returns the highest and an error.
func chooseLevel(want string, has []level) (level, error) {
	highest := has[len(has)-1]
	if want == "" {
		return highest, nil
	}
	switch l := level(slices.Index(levelNames[:], want)); {
	case l < 0:
		return highest, fmt.Errorf("cpu: NSA_CPU=%q: want generic, avx2, avx512, avx512bf16 or neon", want)
	case !slices.Contains(has, l):
		return highest, fmt.Errorf("cpu: NSA_CPU=%s: this processor has %v", want, has)
	default:
		return l, nil
	}
}

// Level returns the name of the level in use: generic, avx2, avx512, avx512bf16 or neon. It is the highest that the
// processor has, unless the environment variable NSA_CPU names a lower one when the program starts.
func Level() string { return levelInUse.String() }

// LevelError returns an error if NSA_CPU has an unknown name or a level that the processor lacks. The highest level of
// the processor is in use then.
func LevelError() error { return levelErr }

// hasVectorAsm reports whether the vector functions on elements of T run in assembly.
func hasVectorAsm[T Float]() bool { return levelInUse > levelGeneric && isFloat32[T]() }

// HasBF16 reports whether the kernels of bf16 run in assembly. At other levels they are much slower than those of
// float32.
func HasBF16() bool { return levelInUse == levelBF16 }

// useAVX512 is the first argument of the assembly functions: true selects their AVX-512 code, false their AVX2 code. The
// functions for arm64 have one code and ignore it.
func useAVX512() bool { return levelInUse == levelAVX512 || levelInUse == levelBF16 }
