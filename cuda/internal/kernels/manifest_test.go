package kernels_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestBinariesAreCurrent: the embedded fat binaries are made from the sources in the folders here.
func TestBinariesAreCurrent(t *testing.T) {
	sources := sourcesHere(t)
	m := readManifest(t)
	assert.Equal(t, len(sources), len(m.Units), "units in the manifest")
	for _, file := range sources {
		name := strings.TrimSuffix(file, ".cu")
		const stale = "%s: run go generate ./cuda/internal/kernels"
		if unit, ok := m.Units[name]; assert.True(t, ok, stale, file+" is not in the manifest") {
			sums := testutil.Must(manifest.Sources(".", file))(t)
			assert.Equal(t, unit.Sources, sums, stale, file+" or a header has changed since it was compiled")
			image := testutil.Must(kernels.Image(name))(t)
			assert.Equal(t, unit.Fatbin, manifest.Sum(image), stale, name+".fatbin is not what the manifest names")
		}
	}
	assert.Len(t, testutil.Must(filepath.Glob("*/*.fatbin"))(t), len(sources), "fat binaries")
}

// TestKernelsDoNotSpill: no kernel spills registers to memory.
func TestKernelsDoNotSpill(t *testing.T) {
	for name, k := range compiled(t) {
		assert.NotEmpty(t, k.Registers, name)
		assert.Empty(t, k.Spills, name)
	}
}

func readManifest(t testing.TB) *manifest.Manifest {
	t.Helper()
	return testutil.Must(manifest.Parse(testutil.Must(os.ReadFile(manifest.File))(t)))(t)
}

func compiled(t testing.TB) map[string]manifest.Kernel {
	t.Helper()
	all := map[string]manifest.Kernel{}
	for _, unit := range readManifest(t).Units {
		maps.Copy(all, unit.Kernels)
	}
	return all
}

// sourcesHere returns the .cu files. It skips the test if they are missing: outside the folder of this file.
func sourcesHere(t testing.TB) []string {
	t.Helper()
	list := testutil.Must(filepath.Glob("*/*.cu"))(t)
	if !slices.Contains(list, "optimizer/adamw.cu") { // a host of test binaries may have other .cu files
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	return list
}

// Instructions of sm_90, by the low 12 bits of their 16 bytes (nvdisasm -hex).
var instructions = map[uint16]string{
	0x9f0: "HGMMA", 0xdf0: "HGMMA", // a product of a warpgroup, its left side from shared memory or from registers
	0x983: "LDL", 0x387: "STL", // local memory
}

// TestWGMMAInMachineCode: the wgmma kernels have their products as HGMMA, and they, the walks and linear layers of few
// rows touch no local memory.
func TestWGMMAInMachineCode(t *testing.T) {
	seen := 0
	for name := range readManifest(t).Units {
		if !strings.Contains(name, "wgmma") && !strings.Contains(name, "walk") && !strings.Contains(name, "few") {
			continue
		}
		for kernel, n := range countInstructions(t, machineCode(t, testutil.Must(kernels.Image(name))(t), 90)) {
			if strings.Contains(kernel, "wgmma") {
				seen++
				require.NotZero(t, n["HGMMA"], "%s: products", kernel)
			}
			require.Zero(t, n["LDL"]+n["STL"], "%s: uses of local memory", kernel)
		}
	}
	require.NotZero(t, seen, "wgmma kernels")
}

// fatEntry is the header of one image in a fat binary, as nvcc 13 writes it.
type fatEntry struct {
	Kind, Version uint16 // kind 2 is machine code
	Header        uint32 // bytes from the start of the entry to its content
	Size          uint64 // of the content, with padding
	Compressed    uint32 // of the content, without
	_, _, Arch    uint32
}

// machineCode returns the ELF file of an architecture in a fat binary.
func machineCode(t testing.TB, image []byte, arch uint32) []byte {
	t.Helper()
	decoder := testutil.Must(zstd.NewReader(nil))(t)
	defer decoder.Close()
	for rest := image[16:]; len(rest) > 0; {
		var e fatEntry
		require.NoError(t, binary.Read(bytes.NewReader(rest), binary.LittleEndian, &e))
		if e.Kind == 2 && e.Arch == arch {
			return testutil.Must(decoder.DecodeAll(rest[e.Header:][:e.Compressed], nil))(t)
		}
		rest = rest[uint64(e.Header)+e.Size:]
	}
	require.Fail(t, "no machine code", "sm_%d", arch)
	return nil
}

// countInstructions counts those of `instructions` in each kernel of an ELF file.
func countInstructions(t testing.TB, file []byte) map[string]map[string]int {
	t.Helper()
	counts := map[string]map[string]int{}
	for _, s := range testutil.Must(elf.NewFile(bytes.NewReader(file)))(t).Sections {
		kernel, ok := strings.CutPrefix(s.Name, ".text.")
		if !ok {
			continue
		}
		counts[kernel] = map[string]int{}
		code := testutil.Must(s.Data())(t)
		for at := 0; at+16 <= len(code); at += 16 {
			counts[kernel][instructions[binary.LittleEndian.Uint16(code[at:])&0xfff]]++
		}
	}
	return counts
}
