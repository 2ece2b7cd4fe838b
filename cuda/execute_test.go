package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// fixture runs ops one by one on a backend, without a machine, until the end of the test.
type fixture struct {
	t       testing.TB
	backend *cuda.Backend
	stream  *cuda.Stream
}

func newFixture(t testing.TB, b *cuda.Backend) *fixture {
	return &fixture{t, b, testutil.Closing(b.NewStream())(t).(*cuda.Stream)}
}

func newArg(o spec.Operand) spec.Arg { return spec.Arg{Operand: o, Buf: new(cpu.Buf)} }

// place gives an operand memory whose bits are all set: it holds NaN.
func (x *fixture) place(o spec.Operand) spec.Arg {
	a := newArg(o)
	x.alloc(a.Buf, o.Bytes())
	return a
}

func (x *fixture) alloc(b *cpu.Buf, bytes int) {
	if bytes == 0 {
		return
	}
	m := testutil.Must(x.backend.Alloc(bytes))(x.t)
	x.t.Cleanup(func() { require.NoError(x.t, errors.Join(x.stream.Synchronize(), m.Free())) })
	m.Place(b, 0, bytes)
	require.NoError(x.t, x.stream.Driver().Fill8(driver.Address(b), 0xFF, bytes))
}

func (x *fixture) upload(v G.Value) spec.Arg {
	a := x.place(spec.Operand{Dtype: v.Dtype(), Shape: v.Shape()})
	require.NoError(x.t, x.stream.Upload(a, v))
	return a
}

func (x *fixture) download(a spec.Arg) G.Value {
	v := spec.NewValue(a.Operand)
	require.NoError(x.t, x.stream.Download(v, a))
	require.NoError(x.t, x.stream.Synchronize())
	return v
}

// bind binds the first implementation that takes an op. It also returns the names of the offers up to that one.
func (x *fixture) bind(spec spec.Spec, in, out []spec.Arg) (k graph.Kernel, offered []string) {
	x.t.Helper()
	call := graph.Call{Spec: spec, In: operands(in), Out: operands(out)}
	by, all := refusals(x.t, x.backend, call)
	require.NotNil(x.t, by, "%v", all)
	for _, offer := range x.backend.Offers(call)[:len(all)+1] {
		offered = append(offered, offer.Name())
	}
	return testutil.Must(by.Bind(call, in, out))(x.t), offered
}

// refusals returns the first implementation that takes a call, nil for none, and the refusals of those before it.
func refusals(t testing.TB, b *cuda.Backend, s graph.Call) (by graph.Implementation, all []*graph.Unsupported) {
	t.Helper()
	for _, offer := range b.Offers(s) {
		err := offer.Guard(s)
		if err == nil {
			return offer, all
		}
		u, ok := errors.AsType[*graph.Unsupported](err)
		require.True(t, ok && u.Detail != "", "%s %+v of %v: %v", s.Spec.Name(), s.Spec, s.In, err)
		all = append(all, u)
	}
	return nil, all
}

func operands(args []spec.Arg) []spec.Operand {
	list := make([]spec.Operand, len(args))
	for i, a := range args {
		list[i] = a.Operand
	}
	return list
}
