package main

import "fmt"

// writeDotRows writes dotRows32: y[j] = sum of x[i]*a[j*n+i] over i < n. n and rows are positive, rows is a multiple of
// 4. The code multiplies four rows of a at a time. An iteration takes four vectors of each row, and each has an
// accumulator of its own, so that additions do not wait for each other.
func writeDotRows(f *function) {
	const group, parts = 4, 4
	rows, y := f.load("rows"), f.load("y")
	n, x := f.gp(), f.gp() // elements that are left, and where they begin in x
	var a [group]gp        // rows j to j+3
	a[0] = f.load("a")
	rowBytes := f.loadBytes("n", single)
	for i := 1; i < group; i++ {
		a[i] = f.gp()
		f.op("ADD", rowBytes, a[i-1], a[i])
	}
	f.op("ADD", rowBytes, rowBytes, x)
	f.op("ADD", x, rowBytes) // from the end of a row to the same row of the next group

	f.label("group")
	f.op("MOVD", f.param("n"), n)
	f.op("MOVD", f.param("x"), x)
	var sums [group][]vec
	for i := range sums {
		sums[i] = f.newVecs(parts)
		for _, sum := range sums[i] {
			f.zero(sum)
		}
	}
	// step multiplies the given vectors, whose last has the given number of lanes, and moves past them.
	step := func(vectors, lanes int) {
		f.scope(func() {
			v, row := f.newVecs(vectors), f.newVecs(vectors)
			f.loadVectors(single, v, x, 0, lanes)
			for i := range a {
				f.loadVectors(single, row, a[i], 0, lanes)
				for u := range vectors {
					f.do(fmla, sums[i][u], row[u], v[u])
				}
			}
		})
		elements := (vectors-1)*single.lanes() + lanes
		for _, r := range append(a[:], x) {
			f.op("ADD", elements*int(single), r)
		}
		f.op("SUB", elements, n)
	}
	f.label("whole")
	f.op("CMP", parts*single.lanes(), n)
	f.op("BLT", "vector")
	step(parts, single.lanes())
	f.op("B", "whole")
	f.label("vector")
	f.op("CMP", single.lanes(), n)
	f.op("BLT", "rest")
	step(1, single.lanes())
	f.op("B", "vector")
	f.label("rest")
	for lanes := single.lanes() - 1; lanes >= 1; lanes-- {
		f.op("CMP", lanes, n)
		f.op("BEQ", fmt.Sprintf("lanes%d", lanes))
	}
	f.op("B", "fold")
	for lanes := single.lanes() - 1; lanes >= 1; lanes-- {
		f.label("lanes%d", lanes)
		step(1, lanes)
		f.op("B", "fold")
	}
	f.label("fold")
	for _, s := range sums {
		f.do(fadd, s[0], s[0], s[1])
		f.do(fadd, s[2], s[2], s[3])
		f.do(fadd, s[0], s[0], s[2])
	}
	f.do(faddp, sums[0][0], sums[0][0], sums[1][0])
	f.do(faddp, sums[2][0], sums[2][0], sums[3][0])
	f.do(faddp, sums[0][0], sums[0][0], sums[2][0])
	f.op("FMOVQ", sums[0][0], mem(y, 0))
	f.op("ADD", vectorBytes, y)
	for _, r := range a {
		f.op("ADD", rowBytes, r)
	}
	f.op("SUBS", group, rows)
	f.op("BGT", "group")
	f.op("RET")
}
