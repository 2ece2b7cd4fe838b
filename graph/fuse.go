package graph

import (
	"cmp"
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// fuser is the plan with what the rules look up in it.
type fuser struct {
	*plan
	rule    string
	index   map[*step]int          // index in plan.steps
	writer  map[*planValue]*step   // no entry for inputs and constants
	readers map[*planValue][]*step // sorted by index; a step that reads a value twice is in the list twice
	trains  bool                   // whether the plan has derivatives of inputs
}

// put makes s the step with index i.
func (f *fuser) put(i int, s *step) {
	f.steps[i], f.index[s] = s, i
	for _, v := range s.in {
		f.addReader(v, s)
	}
	for _, v := range s.out {
		f.writer[v] = s
	}
}

func (f *fuser) addReader(v *planValue, s *step) {
	at, _ := slices.BinarySearchFunc(f.readers[v], s, func(a, b *step) int { return cmp.Compare(f.index[a], f.index[b]) })
	f.readers[v] = slices.Insert(f.readers[v], at, s)
}

// remove takes s out of the plan.
func (f *fuser) remove(s *step) {
	f.steps[f.index[s]] = nil
	for _, v := range s.in {
		f.readers[v] = slices.DeleteFunc(f.readers[v], func(r *step) bool { return r == s })
	}
}

// replace replaces the old steps by one step of spec, at the index of the last old step that comes before all readers
// of the outputs. It reports whether it has done so. It does not if another result of the old steps is kept or read, if
// an input is computed too late, or if the backend has no implementation (under a strict policy: none but a fallback).
func (f *fuser) replace(old []*step, spec spec.Spec, in, out []*planValue) (bool, error) {
	at, ok := f.insertionIndex(old, in, out)
	s := &step{node: old[0].node, spec: spec, in: in, out: out, rule: f.rule}
	call := f.call(s)
	if !ok || call.Check() != nil {
		return false, nil
	}
	impl, refused, err := firstGuarded(f.backend, call)
	if impl == nil || f.policy.Strict && slices.ContainsFunc(refused, Refusal.fallback) {
		f.unfused[f.rule+": "+cmp.Or(joinRefusals(refused), "no implementation")]++
		return false, err
	}
	for _, o := range old {
		f.remove(o)
		if o.replaces == nil {
			o.replaces = append(o.replaces, o.node)
		}
		s.replaces = append(s.replaces, o.replaces...)
		for _, v := range o.out {
			if v.boundary && !slices.Contains(out, v) { // the new results stay in memory instead
				for _, w := range out {
					w.boundary = true
				}
			}
		}
	}
	f.put(at, s)
	return true, nil
}

// insertionIndex returns the index of the last old step that comes after the writers of in and before the readers of
// out: a new step may stand there. ok is false if there is none, if an old step computes one of in, or if another
// result of the old steps is kept or read.
func (f *fuser) insertionIndex(old []*step, in, out []*planValue) (at int, ok bool) {
	from, to := -1, len(f.steps)
	for _, v := range in {
		if w := f.writer[v]; slices.Contains(old, w) {
			return 0, false
		} else if w != nil {
			from = max(from, f.index[w])
		}
	}
	for _, o := range old {
		for _, v := range o.out {
			if !slices.Contains(out, v) && !f.readOnlyBy(v, old...) {
				return 0, false
			}
		}
	}
	for _, v := range out {
		for _, r := range f.readers[v] {
			if !slices.Contains(old, r) {
				to = min(to, f.index[r])
			}
		}
	}
	for _, o := range old {
		if i := f.index[o]; from < i && i < to {
			at, ok = max(at, i), true
		}
	}
	return at, ok
}

// readOnlyBy reports whether v is not kept and is read by none but the given steps.
func (f *fuser) readOnlyBy(v *planValue, steps ...*step) bool {
	return !v.keep && !slices.ContainsFunc(f.readers[v], func(r *step) bool { return !slices.Contains(steps, r) })
}

func sameType(list ...*planValue) bool {
	return !slices.ContainsFunc(list, func(v *planValue) bool { return v.arg.Dtype != list[0].arg.Dtype })
}

// written returns the step that writes v, and its Spec; ok reports whether the Spec is an S.
func written[S spec.Spec](f *fuser, v *planValue) (s *step, spec S, ok bool) {
	if s = f.writer[v]; s != nil {
		spec, ok = s.spec.(S)
	}
	return s, spec, ok
}

// removeCopies removes steps that copy a result of an op of package ops: readers of the copy read the original.
// Gradients of sums are such copies, because Gorgonia's machines work in place; steps of a plan do not. So are
// collectives of one rank. Copies that are kept stay. So do copies of values that may be views, on which some of
// Gorgonia's ops are wrong. The bits are the same.
func (f *fuser) removeCopies(s *step) error {
	switch op := s.spec.(type) {
	case pointwise.AddGrad:
	case collective.Collective:
		if ranks, _ := op.Of(); ranks > 1 {
			return nil
		}
	case pointwise.Add:
		if len(s.in) > 1 {
			return nil
		}
	default:
		return nil
	}
	from, to := s.in[0], s.out[0]
	if w := f.writer[from]; w == nil || w.spec == nil || to.keep || !sameType(from, to) {
		return nil
	}
	f.remove(s)
	from.boundary = from.boundary || to.boundary
	for _, r := range f.readers[to] {
		f.addReader(from, r)
		for i, v := range r.in {
			if v == to {
				r.in[i] = from
			}
		}
	}
	f.removedCopies = append(f.removedCopies, s.node)
	return nil
}
