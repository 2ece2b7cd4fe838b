package graph

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Plan says how a machine runs its graph.
type Plan struct {
	Device Device
	Steps  []PlanStep // in the order in which they run
	Copies G.Nodes    // copies without a step: their readers read the original

	// Unfused says how often a rule would have applied if the backend had an implementation, by the rule and the reasons.
	Unfused map[string]int

	Arena     int // bytes of the memory that kernels write their results to
	ArenaMin  int // the most bytes of the arena that are in use at once: no layout needs fewer
	Workspace int // bytes of work memory beside the arena, which kernels share or have to themselves
	Inputs    int // bytes of the inputs and constants that steps read; on a device they come on top of the arena
	Results   int // bytes of all results of kernels: the arena, if no memory were used twice
	Host      int // bytes of all results of ops on the host

	// Parts of Arena that last from run to run: the half-precision copies of inputs, the sums of WithGradSums, and the
	// moments of WithOptimizer.
	HalfCopies, GradSums, Moments int
}

// Memory returns the bytes that a machine needs on its device: Arena, Workspace and Inputs. It does not count the
// driver's own memory, what a solver outside of the machine keeps, or the memory of ops on the host.
func (p Plan) Memory() int { return p.Arena + p.Workspace + p.Inputs }

// NewPlan returns the plan by which NewMachine would run g, without allocating its memory. So a program can print how
// much memory a run needs, or refuse the run. Inputs need no values.
func NewPlan(g *G.ExprGraph, opts ...Option) (_ Plan, err error) {
	o, err := newOptions(g, opts)
	if err != nil {
		return Plan{}, err
	}
	if !o.hasBackend {
		defer func() { err = errors.Join(err, o.backend.Close()) }()
	}
	p, err := newPlan(g, o)
	if err != nil {
		return Plan{}, fault.In("graph", "plan", err)
	}
	return p.report(make([]int64, len(p.steps))), nil
}

// PlanStep is one instruction.
type PlanStep struct {
	Node       *G.Node        // for a cast, the node whose value it casts
	Op         string         // the name of the op
	Spec       spec.Spec      // nil for an op that is not of package ops
	Inputs     []spec.Operand // types and shapes in memory
	Rule       string         // the fusion rule that made the step, "" for none
	Replaces   G.Nodes        // the nodes whose steps it replaces
	Recomputed bool           // a step of the forward pass, computed again for the backward pass: see WithRecompute
	// a cast of an input or a constant; Step skips it if the step before has written the copy
	Prologue       bool
	Implementation string // name of the backend's implementation, or "host" for an op that runs by its own Do
	Outputs        []PlanOutput
	Cost           Cost      // zero for an op on the host
	Refused        []Refusal // preferred implementations that were refused, and why
	Runs           int64     // how often it has run, replays included
}

// PlanOutput is a result of a step.
type PlanOutput struct {
	spec.Operand
	Offset int  // bytes from the start of the arena; -1 for a value in host memory
	Last   int  // index of the last step that reads it; the number of steps if it is kept
	Kept   bool // whether the node has a value after a run
}

// Plan returns how the machine runs the graph, and how often each step has run so far.
func (m *Machine) Plan() Plan {
	if m == nil || m.plan == nil {
		return Plan{}
	}
	counts := make([]int64, len(m.counts))
	for i := range counts {
		counts[i] = m.counts[i].Load()
	}
	return m.report(counts)
}

// report returns the plan for users; counts has how often each step has run.
func (p *plan) report(counts []int64) Plan {
	r := Plan{Device: p.device, Copies: p.removedCopies, Unfused: maps.Clone(p.unfused), Arena: p.arena,
		ArenaMin: p.arenaMin, Workspace: p.workspace + p.ownWork}
	for i, s := range p.steps {
		step := PlanStep{
			Node: s.node, Op: s.opName(), Spec: s.spec, Inputs: typesOf(s.in), Prologue: i < p.prologue,
			Recomputed: s.recomputed,
			Rule:       s.rule, Replaces: s.replaces, Implementation: s.implementation, Cost: s.cost, Refused: s.refused,
			Runs: counts[i],
		}
		for _, v := range s.out {
			o := PlanOutput{Operand: v.arg.Operand, Offset: -1, Last: v.last, Kept: v.keep}
			if v.region != nil {
				o.Offset = v.region.offset
			}
			if v.region != nil && s.phase != continuesSum && s.phase != reduces && s.phase != updates { // the step before writes the same sum
				r.Results += alignUp(v.region.bytes, p.device.Alignment)
			}
			if v.kind == fromHost {
				r.Host += v.arg.Operand.Bytes()
			}
			step.Outputs = append(step.Outputs, o)
		}
		r.Steps = append(r.Steps, step)
	}
	for _, v := range p.values {
		bytes := v.arg.Operand.Bytes()
		switch {
		case (v.kind == fromInput || v.kind == fromConstant) && (v.kernelReads || v.hostReads):
			r.Inputs += bytes
		case v.persists && v.wrt != nil:
			r.GradSums += bytes
		}
	}
	r.HalfCopies = p.halfCopies.bytes()
	if p.update != nil {
		for _, m := range p.update.moments {
			if m.value != nil {
				r.Moments += m.value.arg.Operand.Bytes()
			}
		}
	}
	return r
}

// Counts returns how often each implementation has run since the machine was made, by its name. "host" counts the ops
// that ran by their own Do, "upload" and "download" the copies between host and device.
func (m *Machine) Counts() map[string]int64 {
	c := map[string]int64{}
	if m == nil {
		return c
	}
	c["upload"], c["download"] = m.transfers.uploads.Load(), m.transfers.downloads.Load()
	for i := range m.counts {
		c[m.steps[i].implementation] += m.counts[i].Load()
	}
	return c
}

// String returns a table of the steps, a line for each result, and the totals.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, %d units", p.Device.Kind, p.Device.Name, p.Device.Units)
	if p.Device.Features != "" {
		fmt.Fprintf(&b, ", %s", p.Device.Features)
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tnode\top\timplementation\truns\tresult\tbytes\toffset\tlast read\tnotes")
	for i, s := range p.Steps {
		step, notes := fmt.Sprintf("%d\t%d\t%s\t%s\t%d", i, s.Node.ID(), s.Op, s.Implementation, s.Runs), s.notes()
		for _, o := range s.Outputs {
			offset, last := "host", fmt.Sprint(o.Last)
			if o.Offset >= 0 {
				offset = fmt.Sprint(o.Offset)
			}
			if o.Kept {
				last = "kept"
			}
			fmt.Fprintf(w, "%s\t%v\t%d\t%s\t%s\t%s\n", step, o.Operand, o.Operand.Bytes(), offset, last, notes)
			step, notes = "\t\t\t\t", ""
		}
	}
	w.Flush()
	fmt.Fprintf(&b, "arena %d bytes (at least %d, results %d), workspace %d bytes, inputs %d bytes, host %d bytes a run\n",
		p.Arena, p.ArenaMin, p.Results, p.Workspace, p.Inputs, p.Host)
	if len(p.Copies) > 0 {
		fmt.Fprintf(&b, "no steps, since they are copies: %s\n", ids(p.Copies))
	}
	for _, why := range slices.Sorted(maps.Keys(p.Unfused)) {
		fmt.Fprintf(&b, "not fused, %d times: %s\n", p.Unfused[why], why)
	}
	return b.String()
}

// notes says whether the step is recomputed, what it replaces and which implementations were refused.
func (s PlanStep) notes() string {
	var list []string
	if s.Recomputed {
		list = append(list, "recomputed")
	}
	if s.Rule != "" {
		list = append(list, fmt.Sprintf("%s: nodes %s", s.Rule, ids(s.Replaces)))
	}
	if len(s.Refused) > 0 {
		list = append(list, joinRefusals(s.Refused))
	}
	return strings.Join(list, "; ")
}

func ids(nodes G.Nodes) string {
	var list []string
	for _, n := range nodes {
		list = append(list, fmt.Sprint(n.ID()))
	}
	return strings.Join(list, " ")
}
