package graph

import (
	"cmp"
	"math"
	"slices"
)

// layout gives all that kernels write, or read from the host, its place in the arena: from the step that writes it to the
// last one that reads it. What is kept has its place to the end, and what lasts from run to run to itself.
func (p *plan) layout() error {
	for i, s := range p.steps {
		for _, v := range slices.Concat(s.in, s.out) {
			v.last = i
		}
	}
	var regions []*region
	end := len(p.steps) // after the last step: where kept values are handed out
	for i, s := range p.steps {
		for _, v := range s.out {
			if v.kind == fromKernel || v.kernelReads && !p.device.Host {
				v.region = &region{bytes: v.arg.Operand.Bytes(), first: i, last: v.last}
				if v.lasts {
					v.region.first = 0
				}
				if v.lasts || v.keep && v.kind == fromKernel {
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
	p.arena, p.arenaMin = placeRegions(regions, p.device.Alignment)
	return nil
}

// region is a value's memory in the arena: bytes, from the step that writes it to the last one that reads it, both
// included.
type region struct {
	bytes       int
	first, last int
	offset      int // from placeRegions
}

func (r *region) overlaps(o *region) bool { return r.first <= o.last && o.first <= r.last }

// placeRegions gives each region an offset, a multiple of align, such that regions that live at the same time lie apart,
// and returns the bytes of the whole. Larger regions are placed first, each into the smallest gap that holds it: in
// practice within a few percent of the bound, the largest sum of what lives at once.
func placeRegions(regions []*region, align int) (bytes, bound int) {
	order := slices.Clone(regions)
	slices.SortStableFunc(order, func(a, b *region) int {
		if c := cmp.Compare(b.bytes, a.bytes); c != 0 {
			return c
		}
		return cmp.Compare(b.last-b.first, a.last-a.first)
	})
	placed := make([]*region, 0, len(order)) // by offset
	for _, r := range order {
		best, gap := -1, math.MaxInt
		end := 0 // of what conflicts so far
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
func maxLive(regions []*region, align int) int {
	change := map[int]int{}
	for _, r := range regions {
		change[r.first] += alignUp(r.bytes, align)
		change[r.last+1] -= alignUp(r.bytes, align)
	}
	steps := make([]int, 0, len(change))
	for s := range change {
		steps = append(steps, s)
	}
	slices.Sort(steps)
	live, most := 0, 0
	for _, s := range steps {
		live += change[s]
		most = max(most, live)
	}
	return most
}

// alignUp rounds n up to a multiple of align, a power of two.
func alignUp(n, align int) int { return (n + align - 1) &^ (align - 1) }
