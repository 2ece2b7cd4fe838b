package kernels_test

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// arrangement is how the arrays of a case lie.
type arrangement int

const (
	aligned arrangement = iota
	skewed              // off their alignment by one element
	mixed               // every second input is float32 if an entry takes both float32 and half precision
)

// typedCase is a case with its arrays in a type, and with the expected results.
type typedCase struct {
	opcases.Case
	elemType
	arrangement
	plan     *opcases.Plan
	operands []spec.Operand // of the arrays, in the types of the entries of the ops
	results  []result
}

// result is an array that is compared with the oracle's.
type result struct {
	name  string
	array int // of the plan
	want  *ref.Tensor
	naive *ref.Tensor // of the naive implementation; nil if the tolerance does not come from it
	tol   float64
}

func (x typedCase) String() string {
	return fmt.Sprint(x.Name, "/", x.Type, []string{"", "/skewed", "/mixed"}[x.arrangement])
}

// spec returns the Spec of the op itself.
func (x typedCase) spec() spec.Spec {
	i := slices.IndexFunc(x.plan.Calls, func(c opcases.Call) bool { return slices.Contains(c.Out, x.plan.Out[0]) })
	return x.plan.Calls[i].Spec
}

// withType returns a case with its arrays in a type. Arrays that are off their alignment have gradients of weights in
// the type, too; others have them in float32, as graphs do. ok is false if an op has no kernels.
func withType(t testing.TB, c opcases.Case, s elemType, as arrangement) (x typedCase, ok bool) {
	t.Helper()
	if x, ok = typed(t, c, testutil.Must(c.Plan())(t), s, as); !ok {
		return x, false
	}
	for i := range x.plan.Inputs {
		if a := &x.plan.Inputs[i]; a.Ints == nil {
			a.Floats = elemTypeOf(x.operands[i].Dtype).roundAll(a.Floats)
		}
	}
	return x, true
}

// typed is withType for a plan of the case, without the rounding of inputs.
func typed(t testing.TB, c opcases.Case, plan *opcases.Plan, s elemType, as arrangement) (x typedCase, ok bool) {
	t.Helper()
	x = typedCase{Case: c, elemType: s, arrangement: as, plan: plan, operands: make([]spec.Operand, plan.Arrays)}
	for i, a := range plan.Inputs {
		dt := dtypes[s.Type]
		if as == mixed && i%2 == 0 {
			dt = tensor.Float32
		}
		x.operands[i] = a.Operand(dt)
	}
	for _, call := range plan.Calls {
		of := graph.Call{Spec: call.Spec, In: pick(x.operands, call.In)}
		var wide []tensor.Dtype
		for _, o := range of.In {
			if spec.IsHalf(o.Dtype) {
				o.Dtype = tensor.Float32
			}
			wide = append(wide, o.Dtype)
		}
		of.Out = testutil.Must(call.Spec.Infer(retyped(of.In, wide)))(t)
		free, taken := of, false
		for _, e := range table().Of(call.Spec) { // the first one that takes the op in the types of its operands
			in, out := e.Types.Stored(free, dtypes[s.Type])
			of = graph.Call{Spec: call.Spec, In: retyped(free.In, in), Out: retyped(free.Out, out)}
			if e.Guard(call.Spec, of, h200, nil) != nil {
				continue
			}
			taken = true
			for i := range of.Out {
				if half := retyped(of.Out, out); as == skewed && out[i] == tensor.Float32 {
					half[i].Dtype = dtypes[s.Type]
					if e.Takes(graph.Call{In: of.In, Out: half}) {
						out[i] = half[i].Dtype
					}
				}
			}
			of.Out = retyped(of.Out, out)
			break
		}
		if !taken {
			return x, false
		}
		for i, j := range call.In {
			x.operands[j] = of.In[i]
		}
		for i, j := range call.Out {
			x.operands[j] = of.Out[i]
		}
	}
	return x, true
}

func retyped(list []spec.Operand, types []tensor.Dtype) []spec.Operand {
	list = slices.Clone(list)
	for i := range list {
		list[i].Dtype = types[i]
	}
	return list
}

// pick returns the elements of list at some places.
func pick[T any](list []T, places []int) (some []T) {
	for _, i := range places {
		some = append(some, list[i])
	}
	return some
}

// expect fills in the expected results: those of the oracle for the stored inputs, and their tolerances.
//
// A result in half precision that is computed from inputs has the tolerance of its type, once for each time that it is
// stored on its way. A result that is computed from stored results may have twice the error of a naive implementation
// and a unit roundoff. The same holds for results of attention, of the MLP of compression, and of gated sums with their
// sigmoid.
func (x *typedCase) expect(t testing.TB) {
	t.Helper()
	in := opcases.Tensors(x.plan.Inputs)
	add := func(name string, array int, want *ref.Tensor) {
		if want != nil && array >= 0 {
			x.results = append(x.results, result{name: name, array: array, want: want,
				tol: elemTypeOf(x.operands[array].Dtype).tolerance()})
		}
	}
	for i, want := range x.Outputs(in[:len(x.Inputs)]) {
		add(fmt.Sprint("output ", i), x.plan.Out[i], want)
	}
	if x.Gradients != nil {
		for i, want := range x.Gradients(in[:len(x.Inputs)], in[len(x.Inputs)]) {
			add("gradient of "+x.Inputs[i].Name, x.plan.Grads[i], want)
		}
	}
	if x.Type == kernels.F32 || x.Selection != nil {
		return
	}
	naive := naiveOf(t, *x)
	for i := range x.results {
		r := &x.results[i]
		switch s := x.spec().(type) {
		case pointwise.Add:
			r.tol *= float64((len(in)-2)/7 + 1) // of 8 terms, and of 7 more and the sum so far
		case linear.Fused, linear.FusedGrad:
			r.tol = 2 * x.tolerance()
		case linear.LinearAdd:
			r.tol *= 2
		default:
			if y := naive[r.array]; y != nil && spec.IsHalf(x.operands[r.array].Dtype) {
				r.naive, r.tol = y, 2*testutil.RelErr(y.Data, r.want.Data)+x.unit()
			} else if _, mlp := s.(compress.MLP); mlp && y != nil {
				r.tol = 2*testutil.RelErr(y.Data, r.want.Data) + f32.tolerance()
			}
		}
	}
}

// compute runs the calls on dev, and returns the contents of all arrays.
func (x typedCase) compute(t testing.TB, dev device, v variant) [][]byte {
	t.Helper()
	defer dev.reset(t)
	on, args := fixture{t, x.elemType, dev, map[arrangement]int{skewed: 1}[x.arrangement], map[kernels.Ptr]buffer{}},
		make([]arg, len(x.operands))
	for i, o := range x.operands {
		content := poison(o.Bytes())
		if i < len(x.plan.Inputs) {
			content = x.content(i)
		}
		args[i] = on.place(o, content)
	}
	for _, call := range x.plan.Calls {
		runOp(t, dev, v, call.Spec, pick(args, call.In), pick(args, call.Out))
	}
	contents := make([][]byte, len(args))
	for i, a := range args {
		contents[i] = on.bytes(a)
		if i < len(x.plan.Inputs) {
			require.Equal(t, x.content(i), contents[i], "%s has been written to", x.plan.Inputs[i].Name)
		}
	}
	return contents
}

// content returns the bytes of an input.
func (x typedCase) content(input int) []byte {
	if a := x.plan.Inputs[input]; a.Ints != nil {
		return encodeInts(a.Ints)
	}
	return elemTypeOf(x.operands[input].Dtype).encode(x.plan.Inputs[input].Floats)
}

func (x typedCase) floats(contents [][]byte, array int) []float64 {
	return elemTypeOf(x.operands[array].Dtype).decode(contents[array])
}

// takenBy reports whether the variant has entries for all calls. Only the mma entry may refuse one.
func (x typedCase) takenBy(t testing.TB, v variant) bool {
	t.Helper()
	for _, call := range x.plan.Calls {
		_, err := planOf(v.GPU, v.entry, call.Spec, graph.Call{In: pick(x.operands, call.In),
			Out: pick(x.operands, call.Out)})
		if u := (*graph.Unsupported)(nil); v.entry == "cuda mma" && errors.As(err, &u) {
			return false
		}
		require.NoError(t, err, "%v: %s", x, call.Spec.Name())
	}
	return true
}

// variants returns the variants of dev whose launches for the case differ from those of the variants before them, as
// far as the budget allows.
func (x typedCase) variants(t testing.TB, dev device) (list []variant) {
	t.Helper()
	var seen [][]*kernels.Plan
	for _, v := range dev.variants() {
		plans := x.plans(t, v)
		if !slices.ContainsFunc(seen, func(other []*kernels.Plan) bool { return reflect.DeepEqual(plans, other) }) {
			seen, list = append(seen, plans), append(list, v)
		}
	}
	return dev.budget().choose(list, seen)
}

func (x typedCase) plans(t testing.TB, v variant) (plans []*kernels.Plan) {
	t.Helper()
	for _, call := range x.plan.Calls {
		of := graph.Call{In: pick(x.operands, call.In), Out: pick(x.operands, call.Out)}
		plans = append(plans, testutil.Must(planOf(v.GPU, v.entry, call.Spec, of))(t))
	}
	return plans
}

// compare runs a case on dev, by some variants, against the oracle, and twice for the same bits. A case that the budget
// does not repeat leaves its order of threads to the next one.
func (x typedCase) compare(t *testing.T, dev device, variants []variant) {
	for i, v := range variants {
		t.Run(fmt.Sprint(x, "/", i), func(t *testing.T) {
			got := x.compute(t, dev, v)
			dev.otherOrder()
			if dev.budget().repeats(x.plans(t, v)) {
				defer dev.otherOrder()
				require.Equal(t, got, x.compute(t, dev, v), "another run has other bits")
			}
			if x.Selection != nil {
				q, kc := x.plan.Inputs[0].Tensor(), x.plan.Inputs[1].Tensor()
				idx := decodeInts(got[x.plan.Out[0]])
				others := testutil.Must(x.CheckSelection(q, kc, idx, 1e-5))(t)
				require.LessOrEqual(t, others, len(idx)/x.Selection.TopN/100+1, "lists that differ from the oracle's")
			}
			for _, r := range x.results {
				testutil.Within(t, r.name, x.floats(got, r.array), r.want.Data, r.tol)
			}
		})
	}
}

// compareAll compares cases on dev. It computes the expected results of several cases at once.
func compareAll(t *testing.T, dev device, cases []typedCase) {
	type planned struct {
		typedCase
		variants []variant
	}
	var list []planned
	for _, x := range cases {
		variants := dev.variants()[:1]
		if x.Mask != nil || x.Selection != nil {
			variants = x.variants(t, dev)
		}
		if len(variants) > 0 {
			list = append(list, planned{x, variants})
		}
	}
	for x := range ahead(list, func(x planned) planned {
		if attention := x.Mask != nil || x.Selection != nil; !attention || !underSanitizer {
			x.expect(t)
		}
		return x
	}) {
		x.compare(t, dev, x.variants)
	}
}

// ahead returns f of each element, in the order of the list. It computes several at once.
func ahead[T, R any](list []T, f func(T) R) iter.Seq[R] {
	results, slots := make([]chan R, len(list)), make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range list {
		results[i] = make(chan R, 1)
	}
	go func() {
		for i, x := range list {
			slots <- struct{}{}
			go func() {
				results[i] <- f(x)
				<-slots
			}()
		}
	}()
	return func(yield func(R) bool) {
		for _, r := range results {
			if !yield(<-r) {
				return
			}
		}
	}
}

// TestOpsMatchOracleOnGPU runs the cases that NSA_CASES, a regular expression, matches: every op and gradient in all
// types, at all sizes, aligned and not. Arrays lie between margins, results over poison.
func TestOpsMatchOracleOnGPU(t *testing.T) { compareAll(t, openGPU(t), chosenCases(t, opcases.All())) }

// TestDocumentsMatchOracleOnGPU does the same for ops with documents.
func TestDocumentsMatchOracleOnGPU(t *testing.T) {
	compareAll(t, openGPU(t), chosenCases(t, opcases.DocumentCases()))
}

// chosenCases returns cases in all types and arrangements, those that NSA_CASES matches.
func chosenCases(t *testing.T, cases []opcases.Case) (list []typedCase) {
	chosen := regexp.MustCompile(os.Getenv("NSA_CASES"))
	for _, c := range cases {
		for _, s := range elemTypes {
			for _, as := range []arrangement{aligned, skewed, mixed} {
				x, ok := withType(t, c, s, as)
				few := ofFewRows(x.spec())                     // with more rows the op runs as several ops
				wide := strings.HasSuffix(c.Name, "[2 17000]") // norms of more than 16384 run on the host
				require.Equal(t, wide && strings.Contains(c.Name, "rms norm"), !ok && !few, "kernels of %s", c.Name)
				if ok && chosen.MatchString(x.String()) && (as == aligned || c.Mask == nil && c.Selection == nil) {
					list = append(list, x)
				}
			}
		}
	}
	return list
}

// ofFewRows reports whether an op has kernels for few rows, or only for large products: otherwise it runs as several
// ops.
func ofFewRows(op any) bool {
	switch op.(type) {
	case linear.LinearSiLU, linear.InputGradSiLU:
		return true
	}
	linears, ok := op.(linear.Fused)
	return ok && (linears.Norm != 0 || linears.Activation != [linear.MaxFused]linear.Activation{})
}
