package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// dotRows writes dotRows32 and dotRowsBF16: y[j] = sum of x[i]*a[j*n+i] over i < n. n and rows are positive, rows is a
// multiple of 4. The code multiplies four rows of a at a time. An iteration takes two vectors of each row, and each has
// an accumulator of its own, so that additions do not wait for each other. At the end of a row horizontal additions put
// the sums of the four rows into one register.
func dotRows(vt vectorType) {
	const group, parts = 4, 2
	n, rows, x, y := loadParam("n"), loadParam("rows"), loadParam("x"), loadParam("y")
	var a [group]GPVirtual // rows j to j+3
	a[0] = loadParam("a")
	for i := 1; i < group; i++ {
		a[i] = GP64()
		LEAQ(Mem{Base: a[i-1], Index: n, Scale: uint8(vt.elemSize)}, a[i])
	}
	// elements past the whole iterations; bytes of these; bytes of a group
	past, whole, groupBytes := GP64(), GP64(), GP64()
	MOVQ(n, past)
	ANDQ(U8(parts*vt.lanes()-1), past)
	MOVQ(n, whole)
	SUBQ(past, whole)
	IMUL3Q(U8(vt.elemSize), whole, whole)
	IMUL3Q(U8(group*vt.elemSize), n, groupBytes)
	mask := vt.masks(past, parts, vt.lanes())

	vt.setLabel("group")
	sums := vt.newAccumulators(group*parts, 0)
	at := GP64() // bytes from the beginning of a row
	XORQ(at, at)
	// multiply multiplies part u of x and of the rows.
	multiply := func(u int, load func(m Mem, v VecVirtual)) {
		part := func(row GPVirtual) VecVirtual {
			v := vt.register()
			load(Mem{Base: row, Index: at, Scale: 1, Disp: u * vt.bytes()}, v)
			return v
		}
		v := part(x)
		for i := range a {
			vt.fma(part(a[i]), v, sums[parts*i+u])
		}
	}
	vt.setLabel("whole")
	CMPQ(at, whole)
	JGE(vt.label("rest"))
	for u := range parts {
		multiply(u, func(m Mem, v VecVirtual) { vt.mov(m, v) })
	}
	ADDQ(U32(parts*vt.bytes()), at)
	JMP(vt.label("whole"))
	vt.setLabel("rest")
	for u := range parts {
		CMPQ(past, U32(u*vt.lanes()))
		JLE(vt.label("fold"))
		multiply(u, func(m Mem, v VecVirtual) { vt.maskedLoad(m, mask(u), v) })
	}

	vt.setLabel("fold")
	// of each row: the sum of its parts, and of the halves of its register if that is 64 bytes long
	var half [group]VecVirtual
	for i := range half {
		sum, other := sums[parts*i], sums[parts*i+1]
		vt.add(other, sum, sum)
		if vt.avx512() {
			VEXTRACTF64X4(U8(1), sum, other.AsY())
			VADDPS(other.AsY(), sum.AsY(), sum.AsY())
		}
		half[i] = sum
	}
	ab, cd, all, upper := YMM(), YMM(), YMM(), XMM()
	VHADDPS(half[1].AsY(), half[0].AsY(), ab)
	VHADDPS(half[3].AsY(), half[2].AsY(), cd)
	VHADDPS(cd, ab, all)
	VEXTRACTF128(U8(1), all, upper)
	VADDPS(upper, all.AsX(), upper)
	VMOVUPS(upper, Mem{Base: y})
	ADDQ(U8(4*group), y)
	for i := range a {
		ADDQ(groupBytes, a[i])
	}
	SUBQ(U8(group), rows)
	JG(vt.label("group"))
}
