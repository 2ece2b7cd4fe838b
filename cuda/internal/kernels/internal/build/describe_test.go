package main

import (
	"reflect"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

const ptxOfTwoKernels = `
.visible .entry nsa_a(
	.param .align 8 .b8 nsa_a_param_0[32]
)
.maxntid 256, 1, 1
.visible .entry nsa_b(
	.param .u64 .ptr .align 1 nsa_b_param_0,
	.param .u32 nsa_b_param_1,
	.param .f32 nsa_b_param_2
)
`

const outputForTwoKernels = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'nsa_b' for 'sm_80'
ptxas info    : Function properties for nsa_b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 392 bytes cmem[0]
ptxas info    : Compiling entry function 'nsa_a' for 'sm_80'
ptxas info    : Function properties for nsa_a
    16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
ptxas info    : Compiling entry function 'nsa_a' for 'sm_90a'
ptxas info    : Function properties for nsa_a
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 254 registers
x.cu(3): warning: something
`

func TestDescribeReadsCompilerOutput(t *testing.T) {
	kernels, warnings, err := describe(outputForTwoKernels, ptxOfTwoKernels)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]manifest.Kernel{
		"nsa_a": {
			Params:    []int{32},
			Registers: map[string]int{"sm_80": 255, "sm_90a": 254},
			Spills:    map[string]int{"sm_80": 16},
		},
		"nsa_b": {Params: []int{8, 4, 4}, Registers: map[string]int{"sm_80": 10}, Spills: map[string]int{}},
	}
	if !reflect.DeepEqual(kernels, want) {
		t.Errorf("got %+v, want %+v", kernels, want)
	}
	if len(warnings) != 1 {
		t.Errorf("warnings %q, want one", warnings)
	}
	if _, _, err := describe(outputForTwoKernels, ".entry nsa_a()"); err == nil {
		t.Error("no error for a kernel that is not in the PTX")
	}
	for _, code := range []string{"C7508", "C7510", "C7514"} {
		output := outputForTwoKernels + "ptxas info    : (" + code + ") Potential Performance Loss: in the function 'nsa_a'\n"
		if _, _, err := describe(output, ptxOfTwoKernels); err == nil {
			t.Error("no error for " + code)
		}
	}
}
