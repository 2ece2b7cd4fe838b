// Command asm writes the assembly of package cpu with avo. It is a module of its own, so that the main module does not depend
// on avo. Each kernel is described once, for vectors of any width, and written for AVX-512 and for AVX2 with FMA.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64,!purego")
	tile(4)
	tile(8)
	function("transpose32", "rows, cols int, dst *float32, drs int, src *float32, srs int)", 4, transpose)
	function("copyPanel", "rows int, dst, src *byte, stride int)", 4, copyPanel)
	for _, k := range kernels {
		k.write()
	}
	Generate()
}

// function writes a function whose first parameter, wide, chooses between the code for AVX-512 and the code for AVX2. signature
// holds the other parameters. Elements have size bytes.
func function(name, signature string, size int, code func(l lanes)) {
	TEXT(name, 4, "func(wide bool, "+signature) // 4 is NOSPLIT
	Pragma("noescape")
	wide := GP8()
	Load(Param("wide"), wide)
	TESTB(wide, wide)
	JZ(LabelRef("avx2"))
	for _, bits := range []int{512, 256} {
		if bits == 256 {
			Label("avx2")
		}
		code(lanes{bits, size})
		VZEROUPPER()
		RET()
	}
}

// arg loads a parameter into a register.
func arg(name string) GPVirtual {
	r := GP64()
	Load(Param(name), r)
	return r
}
