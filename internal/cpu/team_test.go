package cpu

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

func TestTeamRunsEachPieceOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 9} {
		team, mem := NewTeam(workers), new(Buf)
		for _, pieces := range []int{0, 1, 2, 7, 100} {
			counts := make([]atomic.Int32, 2*pieces)
			var k Kernel
			cells := Work[float32](&k, 3)
			local := Scratch[int32](&k, 5)
			for phase := range 2 {
				k.Phase(pieces, func(piece int, w *Worker) {
					if w.id < 0 || w.id >= workers || len(local.Local(w)) != 5 || len(Slice[float32](cells)) != 3 {
						t.Errorf("worker %d of %d has no memory", w.id, workers)
					}
					for i := range local.Local(w) {
						local.Local(w)[i] = int32(piece)
					}
					if phase == 1 && counts[piece].Load() != 1 {
						t.Error("a phase began before the one before it had ended")
					}
					counts[phase*pieces+piece].Add(1)
					for _, v := range local.Local(w) {
						if v != int32(piece) {
							t.Error("scratch is shared")
						}
					}
				})
			}
			Hold(mem, AlignedBytes(k.WorkBytes(workers)))
			require.NoError(t, team.Run(&k, mem))
			for i := range counts {
				require.EqualValues(t, 1, counts[i].Load(), "%d workers: runs of piece %d of %d", workers, i, pieces)
			}
		}
	}
}

func TestTeamErrors(t *testing.T) {
	team, mem := NewTeam(2), new(Buf)
	var k Kernel
	k.Phase(8, func(piece int, _ *Worker) {
		if piece == 5 {
			panic("piece five")
		}
	})
	require.ErrorContains(t, team.Run(&k, mem), "piece five")
	var after Kernel
	ran := false
	after.Phase(1, func(int, *Worker) { ran = true })
	require.NoError(t, team.Run(&after, mem), "after a panic")
	require.True(t, ran)
	Work[float64](&after, 1)
	require.Error(t, team.Run(&after, mem), "without work memory")
	var outer, inner Kernel
	inner.Phase(1, func(int, *Worker) {})
	outer.Phase(1, func(int, *Worker) { require.ErrorContains(t, team.Run(&inner, mem), "cpu: the workers are in use") })
	require.NoError(t, team.Run(&outer, mem))
	require.NoError(t, team.Run(&inner, mem))
}

func TestTeamHelpersEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	team, mem := NewTeam(4), new(Buf)
	var k Kernel
	k.Phase(64, func(int, *Worker) { time.Sleep(time.Microsecond) })
	require.NoError(t, team.Run(&k, mem))
	for runtime.NumGoroutine() > before { // until they have ended, or go test ends the wait
		time.Sleep(time.Millisecond)
	}
}

// TestRunAloneWithoutMemory: too little memory for the work memory is an error, and does not end the process.
func TestRunAloneWithoutMemory(t *testing.T) {
	if total, _ := memory.Total(); total == 0 {
		t.Skip("the host's memory is not known")
	}
	var k Kernel
	Work[int32](&k, 1<<48)
	require.ErrorIs(t, RunAlone(&k), memory.ErrTooMuch)
}

// A run allocates nothing. Nor does a small product or a vector function, even on slices of arrays on the stack.
func TestNoAllocation(t *testing.T) {
	p := withOperands[float32](Product{M: 70, N: 70, TransA: true}, []int{65, 3}, true, true, true)
	p.C, p.SiLU = NewBuf(make([]float32, 70*70)), NewBuf(make([]float32, 70*70))
	var k Kernel
	Products[float32](&k, p.Product, Product{M: 3, N: 65, Terms: []Term{{5, NewBuf(random[float32](15)),
		NewBuf(random[float32](325))}}, C: NewBuf(make([]float32, 195))})
	team, mem := NewTeam(2), new(Buf)
	Hold(mem, AlignedBytes(k.WorkBytes(2)))
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if err := team.Run(&k, mem); err != nil {
			t.Fatal(err)
		}
	}), "a run")
	require.Zero(t, testing.AllocsPerRun(20, func() {
		var x, y, z [48]float32
		TileAdd(4, 4, 4, x[:], 4, 1, y[:], 4, z[:], 4)
		ExpSum(z[:], x[:], 1, Max(x[:]))
		SoftmaxGrad(z[:], x[:], y[:], Dot(x[:], y[:]), 1)
		AdamW(x[:], y[:], z[:], z[:], AdamWStep[float32]{})
	}), "functions on slices of the stack")
}
