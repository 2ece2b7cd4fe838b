package train

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// BenchmarkLayerStatistics times the statistics of gates and blocks of an evaluation, and training steps. It prints the
// share of the statistics in a run with a given number of steps between evaluations:
//
//	go test ./models/tinylm/train -run XXX -bench LayerStatistics -benchtime 20x
//
// Each of the 20 turns times a few steps, a batch of an evaluation with and without keeping the values, and the reading
// of the values. The result has the medians; for the batches, the median of the difference. So other load on the
// machine affects all of them.
func BenchmarkLayerStatistics(b *testing.B) {
	for _, c := range []struct {
		args  string
		on    func(testing.TB) graph.Backend
		steps int // between evaluations
	}{
		{"-device cpu", func(t testing.TB) graph.Backend { return graph.NewCPU(0) }, 120}, // the default run has more
		{"-device cuda:0 -preset base -precision bf16 -batch 16",
			func(t testing.TB) graph.Backend { return cudatest.Open(t) }, 300},
	} {
		b.Run(strings.ReplaceAll(c.args, " ", ""), func(b *testing.B) {
			backend := c.on(b)
			args := append(strings.Fields(c.args), "-data", "random", "-steps", "1000000", "-out",
				filepath.Join(b.TempDir(), "run"))
			r := &runner{Options: *testutil.Must(Parse(args, nil))(b), backend: backend, display: newDisplay(nil)}
			defer func() { require.NoError(b, r.closers.Close()) }()
			require.NoError(b, r.open(b.Context()))
			without := testutil.Closing(tinylm.NewModel(r.weights, r.shape.Batch, r.Context,
				append(r.modelOptions(), tinylm.WithMachine(r.machineOptions()...))...))(b)
			batch := testutil.Must(r.corpus.HeldOut(r.shape, 1))(b)[0]
			const stepsOfTurn = 5
			evaluated := func(m *tinylm.Model) func() error {
				return func() error {
					if err := errors.Join(fill(m, batch), m.Run()); err != nil {
						return err
					}
					_, err := m.Loss()
					return err
				}
			}
			tasks := []func() error{
				func() error {
					for range stepsOfTurn {
						if err := r.step(b.Context(), r.state.Step); err != nil {
							return err
						}
					}
					return r.awaitAll()
				},
				evaluated(r.eval), evaluated(without), r.recordLayers,
			}
			times := make([][]time.Duration, len(tasks))
			for b.Loop() {
				for i, task := range tasks {
					begin := time.Now()
					require.NoError(b, task())
					times[i] = append(times[i], time.Since(begin))
				}
				last := len(times[1]) - 1
				times[1][last] -= times[2][last]
			}
			var ms [4]float64
			for i, list := range times {
				slices.Sort(list)
				ms[i] = list[len(list)/2].Seconds() * 1e3
			}
			step, kept, read := ms[0]/stepsOfTurn, ms[1], ms[3]
			batches := float64(r.EvalTokens / (r.shape.Batch * r.Context))
			b.ReportMetric(step, "ms/step")
			b.ReportMetric(kept, "ms-more/batch")
			b.ReportMetric(read, "ms/reading")
			b.ReportMetric(100*(max(0, kept)*batches+read)/(step*float64(c.steps)), fmt.Sprintf("%%-of-%d-steps", c.steps))
		})
	}
}
