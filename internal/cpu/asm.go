//go:build amd64 && !purego

package cpu

import "golang.org/x/sys/cpu"

//go:generate go -C asm run . -pkg cpu -out ../asm_amd64.s -stubs ../asm_amd64.go

// highestLevel returns the highest level that the processor has and the operating system supports.
func highestLevel() level {
	has := &cpu.X86
	switch {
	case !(has.HasAVX2 && has.HasFMA && has.HasBMI2):
		return levelGeneric
	case !(has.HasAVX512F && has.HasAVX512BW && has.HasAVX512DQ && has.HasAVX512VL):
		return levelAVX2
	case !has.HasAVX512BF16:
		return levelAVX512
	}
	return levelBF16
}
