//go:build amd64 && !purego

package cpu

import "golang.org/x/sys/cpu"

//go:generate go -C asm run . -pkg cpu -out ../asm_amd64.s -stubs ../asm_amd64.go

// highest returns the highest level of this processor and system.
func highest() level {
	x := &cpu.X86
	switch {
	case !(x.HasAVX2 && x.HasFMA && x.HasBMI2):
		return generic
	case !(x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL):
		return avx2
	}
	return avx512
}
