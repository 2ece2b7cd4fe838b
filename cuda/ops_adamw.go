package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// adamWTable is the list of tensors that the step reads on the device. It lies in the work memory, and is copied there when
// an address has changed.
type adamWTable struct {
	args    []ops.Arg // of each tensor in turn
	each    int
	tensors []kernels.AdamWTensor
	runs    []kernels.AdamWRun

	tensorsAt, runsAt address
	work              kernels.Ptr // that the table has been copied to
	there             bool
}

// compileAdamW: hyper [9], and weight, grad, m, v, and a copy or none, of each tensor -> norm [1].
func compileAdamW(op ops.AdamWOp, in, out []ops.Arg) (compiled, error) {
	t := &adamWTable{args: in[1:], each: op.Each(), tensors: make([]kernels.AdamWTensor, len(op.Decay))}
	sizes := make([]int64, len(t.tensors))
	for i := range t.tensors {
		a, d := t.of(i), &t.tensors[i]
		if err := allFloat32("a weight or moment", a[0], a[2], a[3]); err != nil {
			return compiled{}, err
		}
		var err error
		if d.GradType, err = typeOf(a[1].Operand); err != nil {
			return compiled{}, err
		}
		if t.hasCopy(i) {
			if d.HalfType, err = typeOf(a[4].Operand); err != nil {
				return compiled{}, err
			}
			if d.HalfType == kernels.F32 {
				return compiled{}, graph.Refuse(graph.ReasonType, "copy %d is float32, want half precision", i)
			}
		}
		d.N = int64(a[0].Elements())
		if op.Decay[i] == '1' {
			d.Decay = 1
		}
		sizes[i] = d.N
	}
	t.runs = kernels.AdamWRuns(sizes...)
	k := kernels.AdamW{Runs: int64(len(t.runs))}
	var list composite
	t.tensorsAt, t.runsAt = list.take(int64(len(kernels.Bytes(t.tensors)))), list.take(int64(len(kernels.Bytes(t.runs))))
	squares := list.take(k.WorkBytes())
	hyper, norm := in[0], out[0]
	list.launch = func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Step(to, t.tensorsAt.at(work), t.runsAt.at(work), ptr(hyper), ptr(norm), squares.at(work))
	}
	list.prepare = t.upload
	return list.compiled, nil
}

// of returns the operands of a tensor.
func (t *adamWTable) of(i int) []ops.Arg { return t.args[i*t.each:][:t.each] }

func (t *adamWTable) hasCopy(i int) bool { return t.each > 4 && t.of(i)[4].Shape != nil }

// upload copies the table to the device, if it has changed.
func (t *adamWTable) upload(s *driver.Stream, work kernels.Ptr) error {
	same := t.there && work == t.work
	for i := range t.tensors {
		a, d := t.of(i), &t.tensors[i]
		now := *d
		now.Weight, now.Grad, now.M, now.V = ptr(a[0]), ptr(a[1]), ptr(a[2]), ptr(a[3])
		if t.hasCopy(i) {
			now.Half = ptr(a[4])
		}
		if now != *d {
			*d, same = now, false
		}
	}
	if same {
		return nil
	}
	t.there, t.work = false, work
	if err := s.Upload(driver.DevicePtr(t.tensorsAt.at(work)), kernels.Bytes(t.tensors)); err != nil {
		return err
	}
	if err := s.Upload(driver.DevicePtr(t.runsAt.at(work)), kernels.Bytes(t.runs)); err != nil {
		return err
	}
	t.there = true
	return nil
}
