package kernels

type matmulTensorParams struct {
	a, b, bias, c                          Ptr
	m, n, k, lda, ldb, ldc                 int64
	strideA, strideB, strideC, strideSplit int64
	batch, splits, run                     int64
	outType, _                             int32
}

type matmulSumParams struct {
	partial, bias, c          Ptr
	m, n, pitch, ldc, strideC int64
	batch, splits             int64
	outType, biasType         int32
}

// tensorShape is a Shape of matmul_tensor.cu, with what the choice between them rests on. The counts and costs are those of a
// GPU with 132 multiprocessors.
type tensorShape struct {
	kernels  *[4]byType
	side     int64 // of a tile
	threads  int
	shared   int
	resident int64 // tiles that a large GPU works on at once
	cost     int64 // of one element along k of a tile, when so many are in work
}

const tensorDepth = 32 // of k, in one stage: 4 stages of two tiles of 2-byte elements

var tensorShapes = [...]tensorShape{
	{&names.matmulLarge, 128, 128, 4 * 2 * 128 * tensorDepth * 2, 264, 4},
	{&names.matmulSmall, 64, 128, 4 * 2 * 64 * tensorDepth * 2, 396, 3},
}

// tensorPlan is how a product on tensor cores is cut: splits of run each.
type tensorPlan struct {
	shape       *tensorShape
	run, splits int64
}

// tensorPlan estimates the time of each shape of tiles and each number of splits, on a large GPU, and returns the least: tiles
// run in waves, each as long as a run and what begins and ends it, and partial sums are written and read. It depends on the
// sizes alone, and so do the bits.
func (op Matmul) tensorPlan() tensorPlan {
	const (
		start     = 96    // of a tile, in elements along k
		stage     = 600   // cost of a second stage
		perCost   = 12000 // bytes of partial sums that are written, or read, at the cost of 1
		mostSplit = 64
	)
	elements := op.Batch * op.M * op.N
	most := min(pieces(op.K, 4*tensorDepth), max(1, partialBytes/(4*op.Batch*op.M*op.pitch())))
	least := min(most, pieces(op.K, longestRun))
	var best tensorPlan
	lowest := int64(-1)
	for i := range tensorShapes {
		s := &tensorShapes[i]
		tiles := op.Batch * pieces(op.M, s.side) * pieces(op.N, s.side)
		for splits := least; splits <= min(most, max(least, mostSplit)); splits++ {
			run := pieces(pieces(op.K, splits), tensorDepth) * tensorDepth
			p := tensorPlan{s, run, pieces(op.K, run)}
			waves := pieces(tiles*p.splits, s.resident)
			cost := waves * (run + start) * s.cost
			if p.splits > 1 {
				cost += stage + 8*p.splits*elements/perCost
			}
			if lowest < 0 || cost < lowest {
				best, lowest = p, cost
			}
			if splits == least && waves > 16 {
				break // as busy as can be
			}
		}
	}
	return best
}

// pitch is the distance of rows of partial sums.
func (op Matmul) pitch() int64 { return pieces(op.N, 4) * 4 }

func (p tensorPlan) workBytes(op Matmul) int64 {
	if p.splits == 1 {
		return 0
	}
	return align(4 * p.splits * op.Batch * op.M * op.pitch())
}

// tensor appends the product of operands in half precision.
func (op Matmul) tensor(to []Launch, a, b, bias, c, work Ptr) []Launch {
	plan := op.tensorPlan()
	p := matmulTensorParams{
		a: a, b: b, bias: bias, c: c, m: op.M, n: op.N, k: op.K, lda: op.LDA, ldb: op.LDB, ldc: op.LDC,
		strideA: op.StrideA, strideB: op.StrideB, strideC: op.StrideC, batch: op.Batch,
		splits: plan.splits, run: plan.run, outType: int32(op.Out),
	}
	if plan.splits > 1 {
		p.c, p.bias, p.outType = work, 0, int32(F32)
		p.ldc, p.strideC = op.pitch(), op.M*op.pitch()
		p.strideSplit = op.Batch * p.strideC
	}
	s := plan.shape
	items := plan.splits * op.Batch * pieces(op.M, s.side) * pieces(op.N, s.side)
	kernel := s.kernels[2*flag(op.TransA)+flag(op.TransB)][op.Type]
	to = append(to, launch(kernel, Dim{int(min(items, maxItems)), 1, 1}, Dim{s.threads, 1, 1}, s.shared, &p))
	if plan.splits == 1 {
		return to
	}
	sum := matmulSumParams{
		partial: work, bias: bias, c: c, m: op.M, n: op.N, pitch: op.pitch(), ldc: op.LDC, strideC: op.StrideC,
		batch: op.Batch, splits: plan.splits, outType: int32(op.Out), biasType: int32(op.Type),
	}
	return append(to, launch(names.matmulSum, blocks(pieces(p.strideSplit, 4*256)), threads, 0, &sum))
}

// maxItems bounds a grid whose blocks go on with the items that are left.
const maxItems = 1 << 30
