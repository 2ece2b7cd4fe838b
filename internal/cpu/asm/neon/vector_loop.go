package main

import (
	"fmt"
	"strings"
)

// vectorFunc describes a vector function of package cpu: a loop over the n elements of float32 slices.
type vectorFunc struct {
	name    string // without the 32 at its end
	slices  string // names of the slices, such as "x, y"
	scalars string // names of the numbers, such as "a", or empty
	result  string // type of the result, or empty
	unroll  int    // vectors of each slice in one iteration
	usesExp bool   // the function uses iteration.exp

	// accumulators is the number of registers that hold sums across iterations. Their lanes begin as start.
	accumulators int
	start        float32

	setup  func(it *iteration)        // writes the code before the loop, or nil
	body   func(it *iteration, u int) // writes the code for vector u of an iteration
	finish func(it *iteration) vec    // writes the code after the loop; the first lane of what it returns is the result
}

// iteration is the code of one iteration of a loop.
type iteration struct {
	*function
	address  map[string]gp  // of each slice
	scalar   map[string]vec // the numbers, each in every lane
	acc      []vec          // the accumulators
	accStart vec            // their initial value
	exp      *exponential
	lanes    int // of the vector that the body is written for; 4 unless the slices end in it
}

// load returns vector u of a slice, with zeros in the lanes past its end.
func (it *iteration) load(slice string, u int) vec {
	v := it.vec()
	it.loadLanes(single, v, it.address[slice], u*vectorBytes, it.lanes)
	return v
}

// store stores v as vector u of a slice, without the lanes past its end.
func (it *iteration) store(v vec, slice string, u int) {
	it.storeLanes(single, v, it.address[slice], u*vectorBytes, it.lanes)
}

// fillPastEnd returns v with its lanes past the end of the slices replaced by the initial value of the accumulators.
func (it *iteration) fillPastEnd(v vec) vec {
	if it.lanes == single.lanes() {
		return v
	}
	filled := it.vec()
	it.copy(filled, it.accStart)
	for i := range it.lanes {
		it.op("VMOV", v.lane(i), filled.lane(i))
	}
	return filled
}

// splitNames splits a list such as "x, y".
func splitNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// params returns the parameters of the function, but for the first.
func (v vectorFunc) params() string {
	params := "n int"
	for _, s := range splitNames(v.slices) {
		params += ", " + s + " *float32"
	}
	for _, s := range splitNames(v.scalars) {
		params += ", " + s + " float32"
	}
	return params
}

// write writes the function. The elements past the whole iterations are those of whole vectors and of one that ends
// with the slices. They go to the accumulators that they would have in a longer slice.
func (v vectorFunc) write(f *function) {
	it := &iteration{function: f, address: map[string]gp{}, scalar: map[string]vec{}, lanes: single.lanes()}
	n := f.gp()
	f.op("MOVD", f.param("n"), n)
	for _, s := range splitNames(v.slices) {
		it.address[s] = f.gp()
		f.op("MOVD", f.param(s), it.address[s])
	}
	if v.usesExp {
		it.exp = newExponential(f)
	}
	for _, s := range splitNames(v.scalars) {
		it.scalar[s] = f.broadcastParam(s)
	}
	if v.accumulators > 0 {
		it.accStart, it.acc = f.constant(v.start), f.newVecs(v.accumulators)
		for _, acc := range it.acc {
			f.copy(acc, it.accStart)
		}
	}
	if v.setup != nil {
		v.setup(it)
	}
	body := func(u int) { f.scope(func() { v.body(it, u) }) }
	loop := func(label, end string, vectors int) {
		f.label("%s", label)
		f.op("CMP", vectors*single.lanes(), n)
		f.op("BLT", end)
		for u := range vectors {
			body(u)
		}
		for _, s := range splitNames(v.slices) {
			f.op("ADD", vectors*vectorBytes, it.address[s])
		}
		f.op("SUB", vectors*single.lanes(), n)
		f.op("B", label)
	}
	loop("loop", "vector0", v.unroll)
	if v.accumulators == 0 {
		loop("vector0", "rest0", 1)
		v.writeRest(it, n, 0, body)
	} else {
		for u := range v.unroll {
			f.label("vector%d", u)
			if u < v.unroll-1 {
				f.op("CMP", single.lanes(), n)
				f.op("BLT", fmt.Sprintf("rest%d", u))
				body(u)
				f.op("SUB", single.lanes(), n)
				f.op("B", fmt.Sprintf("vector%d", u+1))
			}
			v.writeRest(it, n, u, body)
		}
	}
	f.label("done")
	if v.finish != nil {
		f.op(map[string]string{"float32": "FMOVS", "float64": "FMOVD"}[v.result], v.finish(it), f.param("ret"))
	}
	f.op("RET")
}

// writeRest writes the code for vector u if at most three of its elements are left.
func (v vectorFunc) writeRest(it *iteration, n gp, u int, body func(u int)) {
	it.label("rest%d", u)
	it.op("CBZ", n, "done")
	for lanes := single.lanes() - 1; lanes >= 1; lanes-- {
		if lanes > 1 {
			it.op("CMP", lanes, n)
			it.op("BLT", fmt.Sprintf("rest%d_%d", u, lanes-1))
		}
		it.lanes = lanes
		body(u)
		it.op("B", "done")
		if lanes > 1 {
			it.label("rest%d_%d", u, lanes-1)
		}
	}
	it.lanes = single.lanes()
}

// reduce combines the accumulators with the instruction all, and the lanes of the total with the instruction pairs,
// always in the same order. The first lane of the result holds the total.
func (it *iteration) reduce(all, pairs instruction) vec {
	total := it.combine(single, all)
	it.do(pairs, total, total, total)
	it.do(pairs, total, total, total)
	return total
}

// combine returns the total of the accumulators, in the first of them.
func (it *iteration) combine(vt vectorType, all instruction) vec {
	for step := 1; step < len(it.acc); step *= 2 {
		for i := 0; i+step < len(it.acc); i += 2 * step {
			it.doAs(vt, all, it.acc[i], it.acc[i], it.acc[i+step])
		}
	}
	return it.acc[0]
}
