package kernels

import "math"

// Matmul is the product c [M,N] = op(a) op(b) + bias, of a batch of matrices or one: matmul.cu in float32 and
// matmul_tensor.cu, on tensor cores, in half precision. It serves where cuBLASLt is missing, and to check it.
type Matmul struct {
	Type           Type // of a, b and the bias
	Out            Type // of c: F32 or Type
	M, N, K        int64
	TransA, TransB bool  // a lies as [K,M], b as [N,K]
	LDA, LDB, LDC  int64 // elements from one row to the next; 0 for rows that lie close

	Batch                     int64 // matrices; 0 is one
	StrideA, StrideB, StrideC int64 // elements from one to the next; 0 repeats a or b
}

type matmulParams struct {
	a, b, bias, c                          Ptr
	m, n, k, lda, ldb, ldc                 int64
	strideA, strideB, strideC, strideSplit int64
	batch, run                             int64
	transA, transB                         int32
}

// matmulPlan is how a product is cut.
type matmulPlan struct {
	side   int64 // of a tile
	tiles  int64 // of one matrix
	run    int64 // of K in one split
	splits int64
}

// Bounds of the sums of one split, where there are several, and of the memory of all.
const (
	longestRun   = 8192
	partialBytes = 256 << 20
)

// plan cuts long sums, where there are few tiles, so that there are about two blocks for each multiprocessor of a large GPU.
// It depends on the sizes alone, and so do the bits.
func (op Matmul) plan() matmulPlan {
	const busy, shortest = 264, 512
	p := matmulPlan{side: 128, tiles: pieces(op.M, 128) * pieces(op.N, 128)}
	if p.tiles*op.Batch < busy/2 {
		p.side, p.tiles = 64, pieces(op.M, 64)*pieces(op.N, 64)
	}
	splits := max(pieces(op.K, longestRun), min(busy/(p.tiles*op.Batch), op.K/shortest), 1)
	if op.LDC != op.N || op.StrideC != op.M*op.N && op.Batch > 1 {
		splits = 1 // the second stage writes c in one piece
	}
	splits = min(splits, max(1, partialBytes/(4*op.Batch*op.M*op.N)), math.MaxUint16)
	p.run = pieces(pieces(op.K, splits), 16) * 16
	p.splits = pieces(op.K, p.run)
	return p
}

// withDefaults fills in what 0 stands for.
func (op Matmul) withDefaults() Matmul {
	fill := func(at *int64, v int64) {
		if *at == 0 {
			*at = v
		}
	}
	if op.TransA {
		fill(&op.LDA, op.M)
	} else {
		fill(&op.LDA, op.K)
	}
	if op.TransB {
		fill(&op.LDB, op.K)
	} else {
		fill(&op.LDB, op.N)
	}
	fill(&op.LDC, op.N)
	fill(&op.Batch, 1)
	return op
}

// WorkBytes returns the work memory of Forward, 0 for sizes that it refuses.
func (op Matmul) WorkBytes() int64 {
	op = op.withDefaults()
	if op.check() != nil {
		return 0
	}
	if op.Type != F32 {
		return op.tensorPlan().workBytes(op)
	}
	if p := op.plan(); p.splits > 1 {
		return align(4 * p.splits * op.Batch * op.M * op.N)
	}
	return 0
}

// Forward appends c. bias [N] is 0 for none.
func (op Matmul) Forward(to []Launch, a, b, bias, c, work Ptr) ([]Launch, error) {
	op = op.withDefaults()
	if err := op.check(); err != nil {
		return to, err
	}
	if op.Type != F32 {
		return op.tensor(to, a, b, bias, c, work), nil
	}
	plan := op.plan()
	p := matmulParams{
		a: a, b: b, bias: bias, c: c, m: op.M, n: op.N, k: op.K, lda: op.LDA, ldb: op.LDB, ldc: op.LDC,
		strideA: op.StrideA, strideB: op.StrideB, strideC: op.StrideC, batch: op.Batch, run: plan.run,
		transA: flag(op.TransA), transB: flag(op.TransB),
	}
	cut := plan.splits > 1
	if cut {
		p.c, p.bias = work, 0
		p.strideC, p.strideSplit = op.M*op.N, op.Batch*op.M*op.N
	}
	kernel := names.matmul64
	if plan.side == 128 {
		kernel = names.matmul128
	}
	grid := Dim{int(plan.tiles), int(plan.splits), int(min(op.Batch, math.MaxUint16))}
	to = append(to, launch(kernel, grid, threads, 0, &p))
	if cut {
		to = sumBlocks{
			partial: work, bias: bias, y: c, blocks: plan.splits, cols: p.strideSplit,
			biasCols: op.N, out: op.Out, biasElements: op.Type,
		}.append(to)
	}
	return to, nil
}

func (op Matmul) check() error {
	const name = "matrix product"
	for _, s := range [][3]size{
		{{"batch", op.Batch}, {"rows", op.M}, {"cols", op.N}},
		{{"batch", op.Batch}, {"rows", op.M}, {"inner size", op.K}},
		{{"batch", op.Batch}, {"cols", op.N}, {"inner size", op.K}},
	} {
		if err := check(name, op.Type, s[:]...); err != nil {
			return err
		}
	}
	if op.Out != F32 && op.Out != op.Type {
		return unsupported(name, "type of the result is %v, want %v or %v", op.Out, F32, op.Type)
	}
	if op.Type != F32 && op.K > math.MaxInt32 {
		return unsupported(name, "inner size is %d, want at most %d", op.K, math.MaxInt32)
	}
	rowA, rowB := op.K, op.N
	if op.TransA {
		rowA = op.M
	}
	if op.TransB {
		rowB = op.K
	}
	if op.LDA < rowA || op.LDB < rowB || op.LDC < op.N {
		return unsupported(name, "rows of %d, %d and %d elements are %d, %d and %d apart", rowA, rowB, op.N, op.LDA, op.LDB, op.LDC)
	}
	if op.StrideA < 0 || op.StrideB < 0 || op.Batch > 1 && op.StrideC < (op.M-1)*op.LDC+op.N {
		return unsupported(name, "matrices of the batch are %d, %d and %d elements apart", op.StrideA, op.StrideB, op.StrideC)
	}
	if tiles := pieces(op.M, 64) * pieces(op.N, 64); tiles > math.MaxInt32 {
		return unsupported(name, "%d x %d elements are too many for one launch", op.M, op.N)
	}
	return nil
}

// flag is a bool as kernels take it.
func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
