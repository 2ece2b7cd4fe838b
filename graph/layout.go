package graph

import (
	"cmp"
	"math"
	"slices"
)

// layout gives each value that kernels write, or read from the host, its place in the arena. The value has the place
// from the step that writes it to the last step that reads it. A kept value has it to the end of the run, and one that
// persists has it always.
func (p *plan) layout() error {
	for i, s := range p.steps {
		for _, v := range slices.Concat(s.in, s.out) {
			v.last = i
		}
	}
	p.extendSides()
	var regions []*region
	end := len(p.steps) // after the last step: where kept values are handed out
	for i, s := range p.steps {
		for _, v := range s.out {
			if v.region == nil && (v.kind == fromKernel || v.kind == fromHost && v.kernelReads && !p.device.Host) { // two steps write a sum
				v.region = &region{bytes: v.arg.Operand.Bytes(), first: i, last: v.last}
				if v.persists {
					v.region.first = 0
				}
				if v.persists || v.keep && v.kind == fromKernel {
					v.region.last = end
				}
				regions = append(regions, v.region)
			}
			if v.keep {
				v.last = end
			} else if v.kind == fromHost {
				p.steps[v.last].dead = append(p.steps[v.last].dead, v)
			}
		}
	}
	for _, list := range p.contiguous {
		whole := list[0].region
		for _, v := range list[1:] {
			r := v.region
			regions = slices.DeleteFunc(regions, func(o *region) bool { return o == r })
			whole.bytes = alignUp(whole.bytes, p.device.Alignment) + r.bytes
			whole.first, whole.last = min(whole.first, r.first), max(whole.last, r.last)
		}
	}
	p.arena, p.arenaMin = placeRegions(regions, p.device.Alignment)
	for _, list := range p.contiguous {
		end := list[0].region.offset
		for _, v := range list {
			v.region.offset, v.region.bytes = end, v.arg.Operand.Bytes()
			end = alignUp(end+v.region.bytes, p.device.Alignment)
		}
	}
	return nil
}

// extendSides keeps the operands of a step in the second stream until the first step that reads a result of it, which
// waits for it, or to the end.
func (p *plan) extendSides() {
	for i, s := range p.steps {
		if !s.side {
			continue
		}
		until := len(p.steps)
		for j := len(p.steps) - 1; j > i; j-- {
			reader := p.steps[j]
			if slices.ContainsFunc(s.out, func(v *planValue) bool { return slices.Contains(reader.in, v) }) {
				until, reader.joins = j, true
			}
		}
		for _, v := range slices.Concat(s.in, s.out) {
			v.last = max(v.last, until)
		}
	}
}

func (r *region) overlaps(o *region) bool { return r.first <= o.last && o.first <= r.last }

// placeRegions gives each region an offset, a multiple of align. Regions that live at the same time do not overlap. It
// returns the bytes of the whole and a lower bound of them, the largest sum of bytes that live at once. It places
// larger regions first, each into the smallest gap that holds it; in practice the result is within a few percent of the
// bound.
func placeRegions(regions []*region, align int) (bytes, bound int) {
	order := slices.Clone(regions)
	slices.SortStableFunc(order, func(a, b *region) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.last-b.first, a.last-a.first))
	})
	placed := make([]*region, 0, len(order)) // by offset
	for _, r := range order {
		best, gap := -1, math.MaxInt
		end := 0 // end of the regions so far that live at the same time
		for _, p := range placed {
			if !p.overlaps(r) {
				continue
			}
			if free := p.offset - end; free >= r.bytes && free < gap {
				best, gap = end, free
			}
			end = max(end, p.offset+alignUp(p.bytes, align))
		}
		if best < 0 {
			best = end
		}
		r.offset = best
		bytes = max(bytes, best+alignUp(r.bytes, align))
		at, _ := slices.BinarySearchFunc(placed, r, func(a, b *region) int { return cmp.Compare(a.offset, b.offset) })
		placed = slices.Insert(placed, at, r)
	}
	return bytes, maxLive(regions, align)
}

// maxLive returns the largest sum of the bytes that live at one step.
func maxLive(regions []*region, align int) (most int) {
	end := 0
	for _, r := range regions {
		end = max(end, r.last)
	}
	change := make([]int, end+2) // of the bytes that live, from each step to the next
	for _, r := range regions {
		change[r.first] += alignUp(r.bytes, align)
		change[r.last+1] -= alignUp(r.bytes, align)
	}
	live := 0
	for _, c := range change {
		live += c
		most = max(most, live)
	}
	return most
}

// alignUp rounds n up to a multiple of align, a power of two.
func alignUp(n, align int) int { return (n + align - 1) &^ (align - 1) }
