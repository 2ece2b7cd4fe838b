package matmul

import (
	"math"
	"slices"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// The arguments of matmul_wgmma.cu, and what is in them.
type (
	wgmmaParams struct {
		a, b, c, partial        [driver.TensorMapBytes]byte
		bias, residual          kernels.Ref
		m, n, steps             int32
		down, across            int32
		whole, sharing, outType int32
		shares                  [3 * mostClusters]wgmmaShare
		_                       [48]byte // the size is a multiple of 64, the alignment of a tensor map
	}
	sumSharesParams struct {
		partial, bias, residual, c kernels.Ref
		m, n, outType, _           int32
		tiles                      [mostClusters]wgmmaTile
	}
	wgmmaShare struct {
		row, column, first, count uint16
		place, next               int16
	}
	wgmmaTile struct{ row, column, first, count uint16 }
)

const (
	wgmmaCluster  = 2   // blocks of a cluster
	wgmmaRows     = 256 // of a cluster's tile
	wgmmaCols     = 128
	wgmmaDepth    = 64 // elements of k in a step
	wgmmaThreads  = 384
	boxRows       = 16 // of a box of c
	mostClusters  = 72
	shortestShare = 4 // steps, unless the tile has fewer

	// wgmmaShared is the shared memory of a block in bytes: six stages, two boxes for each computing warp, barriers.
	wgmmaShared = 6*2*wgmmaDepth*(wgmmaRows/wgmmaCluster+wgmmaCols) + 8*2*128*boxRows + 8*14
)

// workTile is a tile while its steps are shared out.
type workTile struct {
	row, column, weight int64
	first               int64        // step that is not shared out yet
	shares              []wgmmaShare // of it
	clusters            []int        // that have the shares
}

// share gives a cluster steps of a tile.
func (t *workTile) share(cluster int, steps int64) {
	t.shares = append(t.shares, wgmmaShare{
		row: uint16(t.row), column: uint16(t.column), first: uint16(t.first), count: uint16(steps),
	})
	t.clusters = append(t.clusters, cluster)
	t.first += steps
}

// wgmmaPlan says which tiles and shares of tiles the clusters compute: see matmul_wgmma.cu.
type wgmmaPlan struct {
	steps, down, across     int64
	clusters, whole, places int64
	sharing                 int // clusters that have shares in the list
	shares                  []wgmmaShare
	tiles                   []wgmmaTile // that are cut
}

// planWGMMA returns the plan for a GPU with so many multiprocessors. Clusters compute whole tiles in rounds. If that left
// more than a tenth of the time unused, the tiles of the last round are shared out by their steps.
func planWGMMA(p kernels.Product, sms int64) wgmmaPlan {
	plan := wgmmaPlan{
		steps: kernels.CeilDiv(p.K, wgmmaDepth), down: kernels.CeilDiv(p.M, wgmmaRows), across: kernels.CeilDiv(p.N, wgmmaCols),
		clusters: min(max(1, sms/wgmmaCluster), mostClusters),
	}
	tiles := plan.down * plan.across
	last := tiles % plan.clusters // tiles of the last round
	if 10*tiles >= 9*plan.clusters*kernels.CeilDiv(tiles, plan.clusters) {
		last = 0
	}
	plan.whole = tiles - last
	if last == 0 {
		plan.clusters = min(plan.clusters, tiles)
		return plan
	}
	cut, total := make([]*workTile, last), int64(0)
	for i := range cut {
		t := &workTile{weight: 2}
		t.row, t.column = plan.locate(plan.whole + int64(i))
		if p.M-t.row*wgmmaRows <= 64 { // then each block multiplies half of its rows
			t.weight = 1
		}
		cut[i], total = t, total+t.weight
	}
	if plan.whole == 0 {
		plan.clusters = min(plan.clusters, max(1, last*plan.steps/shortestShare))
	}
	shareOut(cut, plan.steps, plan.clusters, kernels.CeilDiv(total*plan.steps, plan.clusters))
	plan.link(cut)
	if plan.whole == 0 {
		plan.clusters = int64(plan.sharing)
	}
	return plan
}

// locate returns the place of a tile: Shares::next.
func (plan *wgmmaPlan) locate(tile int64) (row, column int64) {
	const bandRows = 8
	band, inBand := tile/(bandRows*plan.across), tile%(bandRows*plan.across)
	rows := min(bandRows, plan.down-band*bandRows)
	return band*bandRows + inBand%rows, inBand / rows
}

// shareOut shares out the steps of all tiles among clusters, about `budget` steps times weight for each. First each tile
// gets a cluster for its first steps, then one for those that follow, and so on: so clusters read the same part of k at
// the same time, and memory is read once.
func shareOut(tiles []*workTile, steps, clusters, budget int64) {
	left := slices.Repeat([]int64{budget}, int(clusters))
	var ready []int
	for waiting := slices.Clone(tiles); len(waiting) > 0; {
		if len(ready) == 0 {
			for c := range left {
				ready = append(ready, c)
			}
		}
		t, c := waiting[0], ready[0]
		waiting, ready = waiting[1:], ready[1:]
		n := max(kernels.CeilDiv(left[c], t.weight), shortestShare)
		if steps-t.first < n+shortestShare {
			n = steps - t.first
		}
		t.share(c, n)
		if left[c] -= n * t.weight; left[c] >= shortestShare*t.weight {
			ready = append(ready, c)
		}
		if t.first < steps {
			waiting = append(waiting, t)
		}
	}
}

// link makes the lists of tiles that are shared out. Clusters get their first shares in order.
func (plan *wgmmaPlan) link(tiles []*workTile) {
	lists := make([][]wgmmaShare, plan.clusters)
	for _, t := range tiles {
		n := len(t.shares)
		for i, x := range t.shares {
			x.place = -1
			if n > 1 {
				x.place = int16(plan.places) + int16(i)
			}
			plan.sharing = max(plan.sharing, t.clusters[i]+1)
			lists[t.clusters[i]] = append(lists[t.clusters[i]], x)
		}
		if n > 1 {
			plan.tiles = append(plan.tiles, wgmmaTile{uint16(t.row), uint16(t.column), uint16(plan.places), uint16(n)})
			plan.places += int64(n)
		}
	}
	plan.shares = make([]wgmmaShare, plan.sharing)
	for c, list := range lists[:plan.sharing] {
		slices.SortStableFunc(list, func(x, y wgmmaShare) int { return int(x.first) - int(y.first) })
		at := c
		for i, x := range list {
			x.next = -1
			if i+1 < len(list) {
				x.next = int16(len(plan.shares))
				plan.shares = append(plan.shares, wgmmaShare{})
			}
			plan.shares[at], at = x, int(x.next)
		}
	}
}

// takesWGMMA reports whether matmul_wgmma.cu computes a product, which must be complete: only if the policy says so.
func takesWGMMA(b *kernels.Builder, p kernels.Product) bool {
	const smallest = 1 << 26 // multiplications: fewer do not fill the tiles
	rowA, rowB := p.Rows()
	aligned := rowA%8 == 0 && rowB%8 == 0 && p.N*int64(p.Out.Bytes())%16 == 0
	dense := p.Batch == 1 && p.LDA == rowA && p.LDB == rowB && p.LDC == p.N
	return b.Policy.OwnProducts && b.GPU.CheckSM90() == nil && b.GPU.EncodeTensorMap != nil && p.Type == kernels.BF16 && aligned && dense &&
		!(p.TransA && p.TransB) && p.M*p.N >= smallest/p.K && max(p.M, p.N, p.K) < wgmmaDepth*math.MaxUint16 &&
		b.CheckShared("wgmma", wgmmaShared) == nil
}

// addWGMMA adds c = op(x) op(y) + bias + residual; at least one of the last two is 0.
func addWGMMA(b *kernels.Builder, p kernels.Product, x, y, bias, residual, c kernels.Ref) {
	plan := planWGMMA(p, int64(b.GPU.SMs))
	b.Aligned(16)
	arg := wgmmaParams{
		bias: bias, residual: residual, m: int32(p.M), n: int32(p.N), steps: int32(plan.steps),
		down: int32(plan.down), across: int32(plan.across), whole: int32(plan.whole), sharing: int32(plan.sharing),
		outType: int32(p.Out),
	}
	copy(arg.shares[:], plan.shares)
	trans := map[bool]string{false: "n", true: "t"}
	name := "matmul_wgmma_" + trans[p.TransA] + trans[p.TransB]
	if residual != 0 {
		name += "_residual"
	}
	b.AddClusters(p.Type.Name(name), kernels.Dim{X: wgmmaCluster, Y: int(plan.clusters), Z: 1},
		kernels.Line(wgmmaThreads), wgmmaShared, &arg)
	// An operand with its rows along k has boxes of rows, the other one of wgmmaDepth elements along k.
	rowA, rowB := p.Rows()
	boxA, boxB := int64(wgmmaRows/wgmmaCluster), int64(wgmmaDepth)
	if p.TransA {
		boxA = wgmmaDepth
	}
	if p.TransB {
		boxB = wgmmaCols / wgmmaCluster
	}
	addMap := func(offset uintptr, ref kernels.Ref, row, rows, box int64) {
		encode := b.GPU.EncodeTensorMap
		b.Encode(offset, ref, func(to []byte, at kernels.Ptr) error {
			return encode(to, at, [4]int64{row, 1, rows, 1}, [2]int64{1, box})
		})
	}
	addMap(unsafe.Offsetof(arg.a), x, rowA, p.M*p.K/rowA, boxA)
	addMap(unsafe.Offsetof(arg.b), y, rowB, p.K*p.N/rowB, boxB)
	addMap(unsafe.Offsetof(arg.c), c, p.N*int64(p.Out.Bytes()/2), p.M, boxRows)
	if plan.places == 0 {
		return
	}
	partial := b.Scratch(4 * plan.places * wgmmaRows * wgmmaCols)
	addMap(unsafe.Offsetof(arg.partial), partial, 2*wgmmaCols, plan.places*wgmmaRows, boxRows)
	sum := sumSharesParams{
		partial: partial, bias: bias, residual: residual, c: c, m: arg.m, n: arg.n, outType: arg.outType,
	}
	copy(sum.tiles[:], plan.tiles)
	const blocks = wgmmaRows * wgmmaCols / 4 / 256 // of a tile
	grid := kernels.Dim{X: blocks, Y: len(plan.tiles), Z: 1}
	b.AddLaunch(p.Type.Name("matmul_sum_shares"), grid, kernels.Threads(), 0, &sum)
}
