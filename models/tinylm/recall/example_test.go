package recall_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/recall"
)

var check = testutil.Check

// A model that trains for a moment, and its answers to questions in longer documents. DefaultOptions train for longer,
// until it knows them.
func ExampleTrain() {
	task, err := recall.NewTask(256, 16) // 16 pairs in 256 tokens
	check(err)
	longer, err := recall.NewTask(512, 16)
	check(err)
	o := recall.DefaultOptions()
	o.Backend, o.Steps, o.EvalEvery, o.EvalDocs, o.FinalDocs = graph.NewCPU(0), 4, 2, 1, 2

	ctx := context.Background()
	w, err := recall.Train(ctx, task, recall.NSA, o, func(e recall.Evaluation) { fmt.Println("step", e.Step) })
	check(err)
	answers, err := recall.Evaluate(ctx, w, longer, o)
	check(err)
	fmt.Printf("%d answers; a guess is right in %.4f\n", len(answers), longer.Chance())
	check(errors.Join(w.Free(), o.Backend.Close()))
	// Output:
	// step 2
	// step 4
	// 64 answers; a guess is right in 0.0625
}
