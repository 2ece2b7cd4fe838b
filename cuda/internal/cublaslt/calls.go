package cublaslt

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Status is a cublasStatus_t: what a call of the library returns.
type Status int32

// The statuses that this package treats specially.
const (
	Success        Status = 0
	NotInitialized Status = 1 // the library's CUDA runtime does not start: the driver is too old for it
	NotSupported   Status = 15
)

// Error is the failure of one call of the library.
type Error struct {
	Call   string // as in "cublasLtMatmul"
	Status Status
	Name   string // the library's name of the status, as in "CUBLAS_STATUS_INVALID_VALUE"
	What   string // "cublaslt", and the product that the call was for
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s (status %d)", e.What, e.Call, e.Name, e.Status)
}

// Values of cudaDataType_t, cublasComputeType_t and cublasOperation_t.
const (
	real32   = 0  // CUDA_R_32F
	real16   = 2  // CUDA_R_16F
	realBF16 = 14 // CUDA_R_16BF

	compute32     = 68 // CUBLAS_COMPUTE_32F
	computeTF32   = 77 // CUBLAS_COMPUTE_32F_FAST_TF32
	opTransposed  = 1  // CUBLAS_OP_T; 0 is none
	epilogueBias  = 4  // CUBLASLT_EPILOGUE_BIAS
	configTile    = 1  // CUBLASLT_ALGO_CONFIG_TILE_ID
	tile128x128   = 20 // CUBLASLT_MATMUL_TILE_128x128
	tile128x160   = 29 // CUBLASLT_MATMUL_TILE_128x160
	reduceCompute = 2  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; algorithms without a reduction are always allowed
)

// attribute is a property of a descriptor, with the size of its value.
type attribute struct {
	id    int32
	bytes int
}

// Attributes: cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t.
var (
	descTransA       = attribute{3, 4}
	descTransB       = attribute{4, 4}
	descEpilogue     = attribute{7, 4}
	descBiasPointer  = attribute{8, 8}
	descBiasType     = attribute{26, 4}
	layoutBatch      = attribute{5, 4}
	layoutStride     = attribute{6, 8}
	preferWork       = attribute{1, 8}
	preferReduction  = attribute{3, 4}
	preferAlignments = [4]attribute{{5, 4}, {6, 4}, {7, 4}, {8, 4}} // A, B, C, D
)

// algorithm is a cublasLtMatmulAlgo_t.
type algorithm [8]uint64

// candidate is a cublasLtMatmulHeuristicResult_t.
type candidate struct {
	algo  algorithm
	work  uint64 // bytes
	state Status
	waves float32
	_     [4]int32
}

// arguments holds the arguments of cublasLtMatmul, and other data whose address the library gets. It lies on the heap.
// a and b are the operands of the library, which is column-major.
type arguments struct {
	desc, layoutA, layoutB, layoutC, preference uintptr // c is the library's D, the residual its C
	a, b, residual, c, work                     uintptr // without a residual, residual is c
	alpha, beta                                 float32
	workBytes                                   uintptr
	algo                                        algorithm
	value                                       uint64 // of the attribute that is being set
}

// functions holds the functions of the library, named without "cublasLt".
type functions struct {
	GetVersion, GetStatusName, Create, Destroy, MatmulAlgoGetHeuristic, MatmulAlgoConfigGetAttribute,
	Matmul *sharedlib.Func

	MatmulDesc, MatrixLayout, MatmulPreference descriptor
}

// descriptor holds the functions of one kind of descriptor, named without "cublasLt" and the kind.
type descriptor struct{ Create, SetAttribute, Destroy *sharedlib.Func }
