package main

import (
	"fmt"
	"io"
	"log"
	"math"
	"strings"
)

// function writes one function of Go's assembly. It needs no stack and calls nothing.
type function struct {
	out                  io.Writer
	name, params, result string
	offsets              map[string]int // of the parameters and of ret, in the caller's frame
	gps, vecs            int            // registers in use
}

// gp is a general register, vec a vector register.
type (
	gp  int
	vec int
)

// gpRegisters are the general registers that a function may use: not R16 to R18, which belong to the linker and the
// platform, nor R27 and above, which Go's assembler and runtime need.
var gpRegisters = []gp{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25, 26}

// Go's assembly calls a vector register F in instructions of scalars and of memory, V in others.

func (r gp) String() string  { return fmt.Sprintf("R%d", int(r)) }
func (v vec) String() string { return fmt.Sprintf("F%d", int(v)) }

// lane returns Go's name of a lane of elements of 32 bits.
func (v vec) lane(i int) string { return fmt.Sprintf("V%d.S[%d]", int(v), i) }

// newFunction begins a function whose first parameter is avx512, which NEON ignores. params are the others, such as
// "n int, x *float32"; result is the type of the result or empty.
func newFunction(out io.Writer, name, params, result string) *function {
	f := &function{out: out, name: name, params: "avx512 bool, " + params, result: result, offsets: map[string]int{}}
	size := 0
	place := func(name string, bytes int) {
		size = (size + bytes - 1) / bytes * bytes
		f.offsets[name] = size
		size += bytes
	}
	for p := range strings.SplitSeq(f.params, ", ") {
		name, kind, _ := strings.Cut(p, " ")
		place(name, sizeOf(kind))
	}
	if result != "" {
		size = (size + 7) / 8 * 8
		place("ret", sizeOf(result))
	}
	fmt.Fprintf(out, "\n// %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", f.declaration(), name, size)
	return f
}

func (f *function) declaration() string {
	return strings.TrimSpace(fmt.Sprintf("func %s(%s) %s", f.name, f.params, f.result))
}

// sizeOf returns the size of a parameter in bytes.
func sizeOf(kind string) int {
	switch kind {
	case "bool":
		return 1
	case "float32":
		return 4
	}
	return 8
}

// op writes an instruction of Go's assembly, the destination last.
func (f *function) op(name string, operands ...any) {
	words := make([]string, len(operands))
	for i, o := range operands {
		words[i] = fmt.Sprint(o)
		if n, ok := o.(int); ok {
			words[i] = fmt.Sprintf("$%d", n)
		}
	}
	fmt.Fprintf(f.out, "\t%s\n", strings.TrimSpace(name+" "+strings.Join(words, ", ")))
}

// label puts a label in front of the next instruction.
func (f *function) label(format string, args ...any) { fmt.Fprintf(f.out, format+":\n", args...) }

// mem is the memory disp bytes after r.
func mem(r gp, disp int) string { return fmt.Sprintf("%d(%v)", disp, r) }

// param is the memory of a parameter or of ret.
func (f *function) param(name string) string {
	offset, ok := f.offsets[name]
	if !ok {
		log.Fatalf("%s has no parameter %s", f.name, name)
	}
	return fmt.Sprintf("%s+%d(FP)", name, offset)
}

// gp returns a register that is not in use.
func (f *function) gp() gp {
	if f.gps == len(gpRegisters) {
		log.Fatalf("%s: no general register left", f.name)
	}
	f.gps++
	return gpRegisters[f.gps-1]
}

// vec returns a vector register that is not in use.
func (f *function) vec() vec {
	if f.vecs == 32 {
		log.Fatalf("%s: no vector register left", f.name)
	}
	f.vecs++
	return vec(f.vecs - 1)
}

// newVecs returns count vector registers.
func (f *function) newVecs(count int) []vec {
	vs := make([]vec, count)
	for i := range vs {
		vs[i] = f.vec()
	}
	return vs
}

// scope runs code and frees the registers that it took.
func (f *function) scope(code func()) {
	gps, vecs := f.gps, f.vecs
	code()
	f.gps, f.vecs = gps, vecs
}

// load returns a register with a parameter.
func (f *function) load(name string) gp {
	r := f.gp()
	f.op("MOVD", f.param(name), r)
	return r
}

// loadBytes returns a register with a parameter, a number of elements, in bytes.
func (f *function) loadBytes(name string, vt vectorType) gp {
	r := f.load(name)
	f.op("LSL", vt.shift(), r)
	return r
}

// constant returns a register with c in every lane.
func (f *function) constant(c float32) vec {
	v := f.vec()
	f.scope(func() {
		r := f.gp()
		f.op("MOVD", int(math.Float32bits(c)), r)
		f.op("VDUP", r, fmt.Sprintf("V%d.S4", int(v)))
	})
	return v
}

// broadcastParam returns a register with a parameter of type float32 in every lane.
func (f *function) broadcastParam(name string) vec {
	v := f.vec()
	f.op("FMOVS", f.param(name), v)
	f.op("VDUP", v.lane(0), fmt.Sprintf("V%d.S4", int(v)))
	return v
}
