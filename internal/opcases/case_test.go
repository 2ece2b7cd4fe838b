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

// TestEveryOpHasCases: some case calls each Spec of package ops. The exceptions are no ops of a float graph: AdamW
// writes its inputs, a cast has kernels only on devices, and int32 converts inputs of other ops. Decoding has cases of
// its own, see Decodings.
func TestEveryOpHasCases(t *testing.T) {
	called, names := map[string]bool{"AdamWOp": true, "CastOp": true, "Int32Op": true, "AttentionGradOp[F]": true,
		"DecodeOp": true, "FillCacheOp": true}, map[string]bool{}
	costs := []Cost{Small, Large}
	if testutil.Full(t) {
		costs = nil // all: the oracle selects the blocks of huge cases, which takes seconds and GB
	}
	for _, c := range append(All(costs...), DocumentCases()...) {
		require.False(t, names[c.Name], "two cases are called %s", c.Name)
		names[c.Name] = true
		plan := testutil.Must(c.Plan())(t)
		for _, call := range plan.Calls {
			called[strings.ReplaceAll(reflect.TypeOf(call.Spec).Name(), "github.com/gorgonia-nsa/nsa/ops.", "")] = true
		}
	}
	files := testutil.Must(filepath.Glob("../../ops/*.go"))(t)
	for _, file := range files {
		f := testutil.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "ops" && (fn.Name.Name == "Bind" ||
				fn.Name.Name == "bindGrad") {
				spec := types.ExprString(fn.Recv.List[0].Type)
				if fn.Name.Name == "bindGrad" {
					spec = "AttentionGradOp[" + spec + "]"
				}
				require.True(t, called[spec], "no case for %s", spec)
			}
		}
	}
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
