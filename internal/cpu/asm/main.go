// Command asm writes the assembly of package cpu with avo. It is a module of its own, so that the main module does not
// depend on avo. Each function is described once, for any vectorType, and written for AVX-512 and for AVX2 with FMA.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64,!purego")
	writeTile(4)
	writeTile(8)
	writeFunction("transpose32", "rows, cols int, dst *float32, drs int, src *float32, srs int)", 4, transpose)
	writeFunction("copyPanel", "rows int, dst, src *byte, stride int)", 4, copyPanel)
	writeFunction("dotRows32", "n, rows int, x, a, y *float32)", 4, dotRows)
	for _, f := range vectorFuncs {
		f.write()
	}
	Generate()
}

// writeFunction writes a function whose first parameter, avx512, chooses between the code for AVX-512 and the code for
// AVX2. signature is the rest of the signature, from the second parameter on. Elements have elemSize bytes.
func writeFunction(name, signature string, elemSize int, code func(vt vectorType)) {
	const noSplit = 4
	TEXT(name, noSplit, "func(avx512 bool, "+signature)
	Pragma("noescape")
	avx512 := GP8()
	Load(Param("avx512"), avx512)
	TESTB(avx512, avx512)
	JZ(LabelRef("avx2"))
	for _, bits := range []int{512, 256} {
		if bits == 256 {
			Label("avx2")
		}
		code(vectorType{bits, elemSize})
		VZEROUPPER()
		RET()
	}
}

// loadParam loads a parameter into a register.
func loadParam(name string) GPVirtual {
	r := GP64()
	Load(Param(name), r)
	return r
}
