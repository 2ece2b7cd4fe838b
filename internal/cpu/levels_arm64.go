//go:build arm64 && !purego

package cpu

// processorLevels returns the levels of the processor, the lowest first. Every arm64 has NEON.
func processorLevels() []level { return []level{levelGeneric, levelNEON} }
