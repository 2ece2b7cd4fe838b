// Package ceilings holds kernels that measure what a device can do at most.
package ceilings

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// params is CeilingParams of ceilings.cu.
type params struct {
	array, out    kernels.Ref
	cells, rounds int64
}

const (
	threads      = 512
	arrayBytes   = 16 << 20 // fits the L2 cache of a data centre's GPU
	readRounds   = 8
	expRounds    = 4096
	expChains    = 16
	blocksOfAnSM = 4
)

// Read returns a plan that reads from the L2 cache, and the number of bytes that it reads. The caller fills its work memory with
// zeros.
func Read(gpu kernels.GPU) (plan *kernels.Plan, bytes float64, err error) {
	plan, err = build(gpu, "nsa_ceiling_read", params{cells: arrayBytes / 16, rounds: readRounds})
	return plan, float64(arrayBytes) * readRounds * float64(gpu.SMs) * blocksOfAnSM, err
}

// Exponentials returns a plan that computes exponentials, and their number.
func Exponentials(gpu kernels.GPU) (plan *kernels.Plan, count float64, err error) {
	plan, err = build(gpu, "nsa_ceiling_exp", params{rounds: expRounds})
	return plan, float64(threads) * expChains * expRounds * float64(gpu.SMs) * blocksOfAnSM, err
}

func build(gpu kernels.GPU, kernel string, p params) (*kernels.Plan, error) {
	b := kernels.NewBuilder(gpu, nil, graph.Call{})
	p.array, p.out = b.Work(16*p.cells), b.Work(4)
	b.AddLaunch(kernel, kernels.Line(int64(gpu.SMs)*blocksOfAnSM), kernels.Line(threads), 0, &p)
	return b.Plan()
}
