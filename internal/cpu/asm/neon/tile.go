package main

import "fmt"

// tileParams are the parameters of tile32 and tile64.
func tileParams(float string) string {
	return fmt.Sprintf("m int, n int, k int, a *%[1]s, ars int, acs int, b *%[1]s, brs int, c *%[1]s, crs int, "+
		"s *%[1]s, srs int", float)
}

// columnBlock is a block of columns of C: some vectors, of which the last has the given number of lanes. Its register
// tiles have at most maxRows rows. Their sums use the registers that one row of B and an element of A leave free.
type columnBlock struct{ vectors, lanes, maxRows int }

// name begins the labels of the block.
func (b columnBlock) name() string { return fmt.Sprintf("v%dl%d", b.vectors, b.lanes) }

func (b columnBlock) cols(vt vectorType) int { return (b.vectors-1)*vt.lanes() + b.lanes }

// columnBlocks returns the blocks, the widest first: whole vectors, then parts of a single one.
func columnBlocks(vt vectorType) []columnBlock {
	l := vt.lanes()
	blocks := []columnBlock{{4, l, 6}, {3, l, 8}, {2, l, 12}, {1, l, 12}}
	for lanes := l - 1; lanes >= 1; lanes-- {
		blocks = append(blocks, columnBlock{1, lanes, 12})
	}
	return blocks
}

// tileWriter writes tile32 or tile64, the micro-kernel. m, n and k are positive:
//
//	for i := range m {
//		for j := range n {
//			var sum float32
//			for p := range k {
//				sum += a[i*ars+p*acs] * b[p*brs+j]
//			}
//			c[i*crs+j] = sum + s[i*srs+j] // s may be nil
//		}
//	}
type tileWriter struct {
	*function
	vt               vectorType
	colsLeft         gp // columns of C that are left
	acs, brs         gp // strides in bytes
	bcol, ccol, scol gp // the block of columns in B, C and S
	m, a, c, s       gp // rows that are left, and where they begin in A, C and S
}

// writeTile cuts C into the widest blocks of columns that fit, and these into register tiles.
func writeTile(f *function, vt vectorType) {
	t := &tileWriter{function: f, vt: vt}
	t.colsLeft, t.acs, t.brs = f.load("n"), f.loadBytes("acs", vt), f.loadBytes("brs", vt)
	t.bcol, t.ccol, t.scol = f.load("b"), f.load("c"), f.load("s")
	t.m, t.a, t.c, t.s = f.gp(), f.gp(), f.gp(), f.gp()
	blocks := columnBlocks(vt)
	f.label("columns")
	for _, b := range blocks {
		f.op("CMP", b.cols(vt), t.colsLeft)
		f.op("BGE", b.name())
	}
	f.op("RET")
	for _, b := range blocks {
		t.rowLoop(b)
	}
}

// rowLoop writes the loop over all rows of C for a block of columns.
func (t *tileWriter) rowLoop(b columnBlock) {
	t.label("%s", b.name())
	t.op("MOVD", t.param("m"), t.m)
	t.op("MOVD", t.param("a"), t.a)
	t.op("MOVD", t.ccol, t.c)
	t.op("MOVD", t.scol, t.s)
	t.label("%s_rows", b.name())
	for rows := b.maxRows; rows >= 1; rows-- {
		t.op("CMP", rows, t.m)
		t.op("BGE", fmt.Sprintf("%s_%d", b.name(), rows))
	}
	t.op("ADD", b.cols(t.vt)*int(t.vt), t.bcol)
	t.op("ADD", b.cols(t.vt)*int(t.vt), t.ccol)
	t.op("CBZ", t.scol, b.name()+"_next")
	t.op("ADD", b.cols(t.vt)*int(t.vt), t.scol)
	t.label("%s_next", b.name())
	t.op("SUB", b.cols(t.vt), t.colsLeft)
	t.op("B", "columns")
	for rows := b.maxRows; rows >= 1; rows-- {
		t.scope(func() { t.registerTile(b, rows) })
		t.op("B", b.name()+"_rows")
	}
}

// registerTile writes one register tile, whose sums stay in registers over all of k, and moves to the rows after it.
func (t *tileWriter) registerTile(b columnBlock, rows int) {
	name := fmt.Sprintf("%s_%d", b.name(), rows)
	t.label("%s", name)
	sums := make([][]vec, rows)
	for i := range sums {
		sums[i] = t.newVecs(b.vectors)
		for _, sum := range sums[i] {
			t.zero(sum)
		}
	}
	k, bRow, step := t.load("k"), t.gp(), t.gp() // step is a stride, or where the next element of a row of A is
	t.scope(func() {
		aRows := []gp{t.a}
		t.op("MOVD", t.param("ars"), step)
		t.op("LSL", t.vt.shift(), step)
		for i := 1; i < rows; i++ {
			aRows = append(aRows, t.gp())
			t.op("ADD", step, aRows[i-1], aRows[i])
		}
		t.op("MOVD", t.bcol, bRow)
		t.op("MOVD", 0, step)
		t.label("%s_k", name)
		t.scope(func() { t.depthStep(b, sums, aRows, bRow, step) })
		t.op("SUBS", 1, k)
		t.op("BNE", name+"_k")
	})
	t.op("CBZ", t.s, name+"_store")
	t.op("MOVD", t.param("srs"), step)
	t.op("LSL", t.vt.shift(), step)
	for _, row := range sums {
		t.scope(func() {
			x := t.newVecs(b.vectors)
			t.loadVectors(t.vt, x, t.s, 0, b.lanes)
			for j, sum := range row {
				t.doAs(t.vt, fadd, sum, sum, x[j])
			}
		})
		t.op("ADD", step, t.s)
	}
	t.label("%s_store", name)
	t.op("MOVD", t.param("crs"), step)
	t.op("LSL", t.vt.shift(), step)
	for _, row := range sums {
		for j, sum := range row {
			lanes := t.vt.lanes()
			if j == len(row)-1 {
				lanes = b.lanes
			}
			t.storeLanes(t.vt, sum, t.c, j*vectorBytes, lanes)
		}
		t.op("ADD", step, t.c)
	}
	// the rows after these
	t.op("MOVD", t.param("ars"), step)
	t.op("LSL", t.vt.shift(), step)
	t.op("MOVD", rows, k)
	t.op("MADD", step, t.a, k, t.a)
	t.op("SUB", rows, t.m)
}

// depthStep adds to the sums the products of one row of B with an element of each row of A, and moves to the next.
func (t *tileWriter) depthStep(b columnBlock, sums [][]vec, aRows []gp, bRow, at gp) {
	row := t.newVecs(b.vectors)
	elements := t.newVecs(min(4, 32-t.vecs)) // of A, in turn
	if b.lanes == 3 {
		elements = elements[1:]
		t.vecs-- // loadLanes takes a register
	}
	t.loadVectors(t.vt, row, bRow, 0, b.lanes)
	t.op("ADD", t.brs, bRow)
	for i, a := range aRows {
		x := elements[i%len(elements)]
		t.op(map[vectorType]string{single: "FMOVS", double: "FMOVD"}[t.vt], fmt.Sprintf("(%v)(%v)", a, at), x)
		for j, sum := range sums[i] {
			t.fmlaFirst(t.vt, sum, row[j], x)
		}
	}
	t.op("ADD", t.acs, at)
}
