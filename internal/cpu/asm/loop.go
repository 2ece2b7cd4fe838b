package main

import (
	"fmt"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// kernel describes a loop over n elements of float32 slices.
type kernel struct {
	name    string
	slices  string // the slices, such as "x, y"
	scalars string // the numbers, such as "a", or empty
	result  string // the type of the result, or empty
	is      string // the Go loop that it stands for
	unroll  int    // vectors a turn

	// setup writes what comes before the loop and returns what is written for vector u of a turn, and after the loop.
	setup func(l lanes) (body func(x *turn, u int), finish func())
}

// turn is the code of one turn of a loop: a whole one, or the last with masks.
type turn struct {
	l    lanes
	at   map[string]GPVirtual
	mask func(u int) Op // nil in a whole turn
}

func (x *turn) mem(slice string, u int) Mem {
	return Mem{Base: x.at[slice], Disp: u * x.l.bytes()}
}

// load returns vector u of a slice, with zeros in the lanes that do not exist.
func (x *turn) load(slice string, u int) VecVirtual {
	v := x.l.vec()
	if x.mask == nil {
		x.l.mov(x.mem(slice, u), v)
	} else {
		x.l.movIn(x.mem(slice, u), x.mask(u), v)
	}
	return v
}

func (x *turn) store(v VecVirtual, slice string, u int) {
	if x.mask == nil {
		x.l.mov(v, x.mem(slice, u))
	} else {
		x.l.movOut(v, x.mask(u), x.mem(slice, u))
	}
}

// keep replaces the lanes of v that do not exist by those of other.
func (x *turn) keep(v, other VecVirtual, u int) VecVirtual {
	if x.mask == nil {
		return v
	}
	o := x.l.vec()
	if x.l.wide() {
		VBLENDMPS(v, other, x.mask(u), o)
	} else {
		VBLENDVPS(x.mask(u), v, other, o)
	}
	return o
}

func names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// write writes the kernel for l.
func (k kernel) write(l lanes) {
	sig := "func(n int, " + k.slices + " *float32"
	if k.scalars != "" {
		sig += ", " + k.scalars + " float32"
	}
	sig += ")"
	if k.result != "" {
		sig += " " + k.result
	}
	TEXT(l.fn(k.name), 4, sig)
	Pragma("noescape")
	doc := []string{l.fn(k.name) + " does:", ""}
	for _, line := range strings.Split(strings.TrimSpace(k.is), "\n") {
		doc = append(doc, "\t"+line)
	}
	Doc(doc...)
	at := map[string]GPVirtual{}
	n := GP64()
	Load(Param("n"), n)
	for _, s := range names(k.slices) {
		at[s] = GP64()
		Load(Param(s), at[s])
	}
	body, finish := k.setup(l)
	whole := U32(k.unroll * l.n())
	Label("loop")
	CMPQ(n, whole)
	JL(LabelRef("tail"))
	x := &turn{l: l, at: at}
	for u := range k.unroll {
		body(x, u)
	}
	for _, s := range names(k.slices) {
		ADDQ(U32(k.unroll*l.bytes()), at[s])
	}
	SUBQ(whole, n)
	JMP(LabelRef("loop"))
	Label("tail")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	x.mask = l.masks(n, k.unroll, l.n())
	for u := range k.unroll {
		if u > 0 {
			CMPQ(n, U32(u*l.n()))
			JLE(LabelRef("done"))
		}
		body(x, u)
	}
	Label("done")
	if finish != nil {
		finish()
	}
	VZEROUPPER()
	RET()
}

// param broadcasts a number to all lanes.
func (l lanes) param(name string) VecVirtual {
	v := l.vec()
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	l.broadcast(m.Addr, v)
	return v
}

// table is the memory of a constant in every lane of an AVX2 register.
func table(c float32) Mem {
	bits := math.Float32bits(c)
	name := fmt.Sprintf("c%08x", bits)
	m, ok := tables[name]
	if !ok {
		m = GLOBL(name, 8|16)
		for i := range 8 {
			DATA(4*i, U32(bits))
		}
		tables[name] = m
	}
	return m
}

// constant is c in every lane of a register.
func (l lanes) constant(c float32) VecVirtual {
	v := l.vec()
	VBROADCASTSS(table(c), v)
	return v
}

// cheap is c in every lane: a register where there are many, memory else.
func (l lanes) cheap(c float32) Op {
	if l.wide() {
		return l.constant(c)
	}
	return table(c)
}

// accumulators are count registers that start as all c.
func (l lanes) accumulators(count int, c float32) []VecVirtual {
	vs := make([]VecVirtual, count)
	for i := range vs {
		vs[i] = l.vec()
		if c == 0 {
			l.zero(vs[i])
		} else {
			VBROADCASTSS(table(c), vs[i])
		}
	}
	return vs
}

// fold joins all accumulators and all their lanes by op into the first lane of the result, always in the same order.
func (l lanes) fold(vs []VecVirtual, op func(...Op)) VecVirtual {
	for step := 1; step < len(vs); step *= 2 {
		for i := 0; i+step < len(vs); i += 2 * step {
			op(vs[i+step], vs[i], vs[i])
		}
	}
	v := vs[0]
	if l.wide() {
		h := YMM()
		VEXTRACTF64X4(U8(1), v, h)
		op(h, v.AsY(), h)
		v = h
	}
	x := XMM()
	VEXTRACTF128(U8(1), v.AsY(), x)
	op(x, v.AsX(), x)
	t := XMM()
	VPERMILPD(U8(1), x, t)
	op(t, x, x)
	if l.size == 4 {
		VPERMILPS(U8(1), x, t)
		op(t, x, x)
	}
	return x
}
