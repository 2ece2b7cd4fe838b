// Command asm writes the assembly of package cpu with avo. It is a module of its own so that avo is no dependency of the
// product. Each kernel is described once, over lanes of either width, and written for AVX2 with FMA and for AVX-512.
//
//	go run . -set tile -out ../tile_amd64.s -stubs ../tile_amd64.go -pkg cpu
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	set := flag.String("set", "", "the kernels to write: tile or vec")
	flag.Parse()
	ConstraintExpr("amd64,!purego")
	switch *set {
	case "tile":
		for _, l := range []lanes{{512, 4}, {512, 8}, {256, 4}, {256, 8}} {
			tile(l)
		}
		for _, bits := range []int{512, 256} {
			transpose(lanes{bits, 4})
			panel(lanes{bits, 4})
		}
	case "vec":
		for _, bits := range []int{512, 256} {
			vec(lanes{bits, 4})
		}
	default:
		log.Fatalf("asm: -set %q: want tile or vec", *set)
	}
	Generate()
}
