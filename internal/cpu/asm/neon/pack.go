package main

import "fmt"

// writeTranspose writes transpose32, which packs a transposed operand: dst[p*drs+j] = src[j*srs+p]. rows is a positive
// multiple of 8, cols of 4. The code reads blocks of eight rows, four elements of each row at a time, and transposes
// them as two matrices of 4 x 4.
func writeTranspose(f *function) {
	const height, part = 8, 4
	rows, dst, drs := f.load("rows"), f.load("dst"), f.loadBytes("drs", single)
	src, srs := f.load("src"), f.loadBytes("srs", single)
	cols, dstRow := f.gp(), f.gp()
	f.label("block")
	f.op("MOVD", f.param("cols"), cols)
	f.op("MOVD", dst, dstRow)
	var srcRows [height]gp
	for i := range srcRows {
		srcRows[i] = f.gp()
		f.op("MOVD", src, srcRows[i])
		f.op("ADD", srs, src)
	}
	f.label("columns")
	var out [height / part][part]vec
	for h := range out {
		var in, pairs [part]vec
		for i := range in {
			in[i], pairs[i], out[h][i] = f.vec(), f.vec(), f.vec()
			f.op("FMOVQ.P", mem(srcRows[part*h+i], vectorBytes), in[i])
		}
		for i := range 2 {
			f.do(trn1, pairs[2*i], in[2*i], in[2*i+1]) // elements 0 and 2 of the two rows
			f.do(trn2, pairs[2*i+1], in[2*i], in[2*i+1])
		}
		for p := range part {
			f.zipHalves(out[h][p], pairs[p%2], pairs[p%2+2], p >= 2)
		}
	}
	for p := range part {
		f.op("FSTPQ", fmt.Sprintf("(%v, %v)", out[0][p], out[1][p]), mem(dstRow, 0))
		f.op("ADD", drs, dstRow)
	}
	f.op("SUBS", part, cols)
	f.op("BGT", "columns")
	f.op("ADD", height*int(single), dst)
	f.op("SUBS", height, rows)
	f.op("BGT", "block")
	f.op("RET")
}

// writeCopyPanel writes copyPanel, which packs a panel of an operand that is not transposed. rows is positive. The rows
// of src are as wide as a panel, and begin stride bytes apart.
func writeCopyPanel(f *function) {
	const width = 64 // bytes: panelRowBytes of package cpu
	rows, dst, src, stride := f.load("rows"), f.load("dst"), f.load("src"), f.load("stride")
	row := f.newVecs(width / vectorBytes)
	f.label("row")
	f.loadVectors(single, row, src, 0, single.lanes())
	for i := 0; i < len(row); i += 2 {
		f.op("FSTPQ", fmt.Sprintf("(%v, %v)", row[i], row[i+1]), mem(dst, i*vectorBytes))
	}
	f.op("ADD", stride, src)
	f.op("ADD", width, dst)
	f.op("SUBS", 1, rows)
	f.op("BGT", "row")
	f.op("RET")
}
