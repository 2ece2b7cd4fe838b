package matmul

import (
	"math"
	"slices"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// The arguments of matmul_wgmma.cu, and what is in them.
type (
	wgmmaParams struct {
		a, b, c, silu, other, partial [driver.TensorMapBytes]byte
		bias                          kernels.Ref
		m, n, steps                   int32
		down, across                  int32
		whole, sharing, outType       int32
		shares                        [3 * mostClusters]wgmmaShare
		_                             [56]byte // the size is a multiple of 64, the alignment of a tensor map
	}
	sumSharesParams struct {
		partial, bias, other, c, silu kernels.Ref
		m, n, outType, siluGrad       int32
		turned                        int32
		tiles                         [mostClusters]wgmmaTile
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

	// How long a step takes, by measurement: of a tile, and of one with at most 64 rows.
	fullTile = 4
	halfTile = 3

	// wgmmaShared is the shared memory of a block in bytes: five stages, four boxes for each computing warp, barriers.
	wgmmaShared = 5*2*wgmmaDepth*(wgmmaRows/wgmmaCluster+wgmmaCols) + 8*4*128*boxRows + 8*20
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
	work                    int64 // the steps of all tiles, times what they take
	sharing                 int   // clusters that have shares in the list
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
	plan.work = plan.steps * ((plan.down-1)*fullTile + weightOf(p, plan.down-1)) * plan.across
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
		t := new(workTile)
		t.row, t.column = plan.locate(plan.whole + int64(i))
		t.weight = weightOf(p, t.row)
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

// weightOf returns how long a step of the tiles of a row takes. If they have at most 64 rows, each block multiplies half
// of its own.
func weightOf(p kernels.Product, row int64) int64 {
	if p.M-row*wgmmaRows <= 64 {
		return halfTile
	}
	return fullTile
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

// checkWGMMA refuses a complete product that matmul_wgmma.cu does not compute.
func checkWGMMA(c *kernels.Call, p kernels.Product) error {
	const smallest = 1 << 26 // multiplications: fewer do not fill the tiles
	if err := c.GPU.CheckSM90(); err != nil {
		return err
	}
	rowA, rowB := p.Rows()
	switch {
	case c.GPU.EncodeTensorMap == nil:
		return graph.Refuse(graph.ReasonDevice, "the driver has no tensor maps")
	case p.Type != kernels.BF16 || p.TransA && p.TransB:
		return graph.Refuse(graph.ReasonType, "%v, want bf16 and at most one transposed operand", p)
	case rowA%8 != 0 || rowB%8 != 0 || p.N*int64(p.Out.Bytes())%16 != 0:
		return graph.Refuse(graph.ReasonShape, "%v: rows are not multiples of 16 bytes", p)
	case p.Batch != 1 || p.LDA != rowA || p.LDB != rowB || p.LDC != p.N:
		return graph.Refuse(graph.ReasonShape, "%v: a batch, or rows with gaps", p)
	case p.M*p.N < smallest/p.K || max(p.M, p.N, p.K) >= wgmmaDepth*math.MaxUint16:
		return graph.Refuse(graph.ReasonSize, "%v: want 2^26 multiplications or more, and less than 2^22 rows", p)
	}
	return c.CheckShared("wgmma", wgmmaShared)
}

// takesWGMMA reports whether matmul_wgmma.cu computes a complete product that cuBLASLt could compute, too: only if the
// policy says so.
func takesWGMMA(b *kernels.Builder, p kernels.Product) bool {
	return b.Policy.OwnProducts && checkWGMMA(&b.Call, p) == nil
}

// CheckSiLU refuses products that AddProductAndSiLU or AddProductTimesSiLUGrad does not take.
func CheckSiLU(c *kernels.Call, p kernels.Product) error {
	p, err := p.Complete()
	if err != nil {
		return err
	}
	return checkWGMMA(c, p)
}

// AddProductAndSiLU adds c = x yᵀ + bias and silu = silu(c), the SiLU of what is not yet rounded. p is as CheckSiLU
// wants it, and y is transposed. bias is 0 for none.
func AddProductAndSiLU(b *kernels.Builder, p kernels.Product, x, y, bias, c, silu kernels.Ref) {
	addWGMMA(b, p, "_silu", wgmmaOperands{x: x, y: y, bias: bias, c: c, silu: silu})
}

// AddProductTimesSiLUGrad adds c = x y silu'(argument). p is as CheckSiLU wants it, without a transposed operand.
func AddProductTimesSiLUGrad(b *kernels.Builder, p kernels.Product, x, y, argument, c kernels.Ref) {
	addWGMMA(b, p, siluGrad, wgmmaOperands{x: x, y: y, other: argument, c: c})
}

// siluGrad ends the name of a kernel.
const siluGrad = "_silu_grad"

// wgmmaOperands are the operands of a kernel of matmul_wgmma.cu, 0 where there is none.
type wgmmaOperands struct{ x, y, bias, other, c, silu kernels.Ref }

// addWGMMA adds the launches of a product. epilogue ends the name of its kernel.
func addWGMMA(b *kernels.Builder, p kernels.Product, epilogue string, o wgmmaOperands) {
	p, err := p.Complete()
	if err != nil {
		b.Fail(err)
		return
	}
	plan, turned := planWGMMA(p, int64(b.GPU.SMs)), false
	if p.TransA && !p.TransB && o.bias == 0 && epilogue == "" {
		// cᵀ = yᵀ x is a product of the same kind. matmul_sum_shares turns it, if all of its tiles are cut.
		other := p
		other.M, other.N = p.N, p.M
		if x := planWGMMA(other, int64(b.GPU.SMs)); x.whole == 0 && len(x.tiles) == int(x.down*x.across) && x.work < plan.work {
			p, plan, turned = other, x, true
			o.x, o.y = o.y, o.x
		}
	}
	b.Aligned(16)
	arg := wgmmaParams{
		bias: o.bias, m: int32(p.M), n: int32(p.N), steps: int32(plan.steps),
		down: int32(plan.down), across: int32(plan.across), whole: int32(plan.whole), sharing: int32(plan.sharing),
		outType: int32(p.Out),
	}
	copy(arg.shares[:], plan.shares)
	trans := map[bool]string{false: "n", true: "t"}
	name := "matmul_wgmma_" + trans[p.TransA] + trans[p.TransB] + epilogue
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
	addMap(unsafe.Offsetof(arg.a), o.x, rowA, p.M*p.K/rowA, boxA)
	addMap(unsafe.Offsetof(arg.b), o.y, rowB, p.K*p.N/rowB, boxB)
	row := p.N * int64(p.Out.Bytes()/2) // of c
	addMap(unsafe.Offsetof(arg.c), o.c, row, p.M, boxRows)
	if o.silu != 0 {
		addMap(unsafe.Offsetof(arg.silu), o.silu, row, p.M, boxRows)
	}
	if o.other != 0 {
		addMap(unsafe.Offsetof(arg.other), o.other, row, p.M, boxRows)
	}
	if plan.places == 0 {
		return
	}
	partial := b.Scratch(4 * plan.places * wgmmaRows * wgmmaCols)
	addMap(unsafe.Offsetof(arg.partial), partial, 2*wgmmaCols, plan.places*wgmmaRows, boxRows)
	sum := sumSharesParams{
		partial: partial, bias: o.bias, other: o.other, c: o.c, silu: o.silu,
		m: arg.m, n: arg.n, outType: arg.outType, siluGrad: kernels.Flag(epilogue == siluGrad), turned: kernels.Flag(turned),
	}
	copy(sum.tiles[:], plan.tiles)
	const blocks = wgmmaRows * wgmmaCols / 4 / 256 // of a tile
	grid := kernels.Dim{X: blocks, Y: len(plan.tiles), Z: 1}
	b.AddLaunch(p.Type.Name("matmul_sum_shares"), grid, kernels.Threads(), 0, &sum)
}
