// Command asm writes the assembly of package cpu with avo. It is a module of its own, so that the main module does not
// depend on avo. Each function is described once, for any vectorType, and written for AVX-512 and for AVX2 with FMA.
package main

import (
	"flag"

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
	writeTileBF16()
	writeFunctionBF16("dotRowsBF16", "n, rows int, x, a *uint16, y *float32)", 2, dotRows)
	writeFunctionBF16("interleaveBF16", "n int, dst *float32, x, y *uint16)", 4, interleave)
	writeFunctionBF16("roundBF16", "n int, dst *uint16, x *float32)", 4, round)
	writeFunctionBF16("widenBF16", "n int, dst *float32, x *uint16)", 4, widen)
	Generate()
	encodeBF16(flag.Lookup("out").Value.String())
}

// writeFunction writes a function whose first parameter, avx512, chooses between the code for AVX-512 and the code for
// AVX2. signature is the rest of the signature, from the second parameter on. Elements have elemSize bytes.
func writeFunction(name, signature string, elemSize int, code func(vt vectorType)) {
	beginFunction(name, "func(avx512 bool, "+signature)
	avx512 := GP8()
	Load(Param("avx512"), avx512)
	TESTB(avx512, avx512)
	JZ(LabelRef("avx2"))
	for _, bits := range []int{512, 256} {
		if bits == 256 {
			Label("avx2")
		}
		code(vectorType{bits: bits, elemSize: elemSize})
		VZEROUPPER()
		RET()
	}
}

// writeFunctionBF16 writes a function for processors with AVX512_BF16 alone. signature is its whole signature.
func writeFunctionBF16(name, signature string, elemSize int, code func(vt vectorType)) {
	beginFunction(name, "func("+signature)
	code(vectorType{bits: 512, elemSize: elemSize, bf16: true})
	VZEROUPPER()
	RET()
}

func beginFunction(name, signature string) {
	const noSplit = 4
	TEXT(name, noSplit, signature)
	Pragma("noescape")
}

// loadParam loads a parameter into a register.
func loadParam(name string) GPVirtual {
	r := GP64()
	Load(Param(name), r)
	return r
}
