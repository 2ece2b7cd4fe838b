package opcases

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestEveryOpHasCases: some case calls each Spec. The exceptions are no ops of a float graph: the optimizer writes its
// inputs, a cast has kernels only on devices, and int32 converts inputs of other ops. Decoding has cases of its own, see
// Decodings, and so have collective ops, see package disttest.
func TestEveryOpHasCases(t *testing.T) {
	called, names := map[string]bool{"optimizer.SumSquares": true, "optimizer.GradNorm": true, "optimizer.AdamW": true, "optimizer.Muon": true,
		"spec.Cast": true, "spec.Int32": true, "decode.Step": true,
		"decode.FillCache": true, "decode.Extend": true, "attention.Grad[F]": true, "collective.AllReduce": true, "collective.Reduce": true,
		"collective.Broadcast": true, "collective.AllGather": true, "collective.ReduceScatter": true,
		"collective.GatherSequence": true, "collective.ScatterSequence": true}, map[string]bool{}
	costs := []Cost{Small, Large}
	if testutil.Full(t) {
		costs = nil // all: the oracle selects the blocks of huge cases, which takes seconds and GB
	}
	for _, c := range append(All(costs...), DocumentCases()...) {
		require.False(t, names[c.Name], "two cases are called %s", c.Name)
		names[c.Name] = true
		plan := testutil.Must(c.Plan())(t)
		for _, call := range plan.Calls {
			called[strings.ReplaceAll(reflect.TypeOf(call.Spec).String(), "github.com/gorgonia-nsa/nsa/ops/spec/", "")] = true
		}
	}
	found := map[string]bool{}
	files := slices.Concat(testutil.Must(filepath.Glob("../../ops/spec/*.go"))(t),
		testutil.Must(filepath.Glob("../../ops/spec/*/*.go"))(t))
	for _, file := range files {
		f := testutil.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && (fn.Name.Name == "Bind" || fn.Name.Name == "bindGrad") {
				op := f.Name.Name + "." + types.ExprString(fn.Recv.List[0].Type)
				if fn.Name.Name == "bindGrad" {
					op = "attention.Grad[" + op + "]"
				}
				found[op] = true
				require.True(t, called[op], "no case for %s", op)
			}
		}
	}
	require.Greater(t, len(found), 30)
}

// TestCheckSelection: a wrong selection is an error, a near tie is none.
func TestCheckSelection(t *testing.T) {
	s := AttentionCases()[slices.IndexFunc(AttentionCases(), func(s AttentionCase) bool { return s.S == 330 })]
	q, _, _ := s.Tokens(1)
	kc, _ := s.Compressed(4, s.BlockLen, s.Stride)
	idx := Blocks(s.Params, q, kc).Ints
	others := testutil.Must(CheckSelection(s.Params, q.Tensor(), kc.Tensor(), idx, 0))(t)
	require.Zero(t, others)
	last := idx[len(idx)-s.TopN:]
	for _, bad := range [][]int32{{0, 4, 4, 5}, {1, 2, 4, 5}, {0, 2, 3, 5}, {0, 1, 2, 4}, {0, 3, 1, 5}} {
		copy(last, bad)
		require.Error(t, testutil.Err(CheckSelection(s.Params, q.Tensor(), kc.Tensor(), idx, 0)), "%v", bad)
	}
	wrong := 0
	for j := int32(1); j < 4; j++ { // all free places but the best one
		copy(last, []int32{0, j, 4, 5})
		if _, err := CheckSelection(s.Params, q.Tensor(), kc.Tensor(), idx, 1e-9); err != nil {
			wrong++
		}
		require.NoError(t, testutil.Err(CheckSelection(s.Params, q.Tensor(), kc.Tensor(), idx, 1)))
	}
	require.Equal(t, 2, wrong)
}
