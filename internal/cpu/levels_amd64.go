//go:build amd64 && !purego

package cpu

import "golang.org/x/sys/cpu"

// processorLevels returns the levels that the processor has and the operating system supports, the lowest first.
func processorLevels() []level {
	has := &cpu.X86
	switch {
	case !(has.HasAVX2 && has.HasFMA && has.HasBMI2):
		return []level{levelGeneric}
	case !(has.HasAVX512F && has.HasAVX512BW && has.HasAVX512DQ && has.HasAVX512VL):
		return []level{levelGeneric, levelAVX2}
	case !has.HasAVX512BF16:
		return []level{levelGeneric, levelAVX2, levelAVX512}
	}
	return []level{levelGeneric, levelAVX2, levelAVX512, levelBF16}
}
