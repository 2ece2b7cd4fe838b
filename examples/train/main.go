// Train trains TinyLM, a byte language model of Native Sparse Attention, on text: by default for two minutes on the Go
// source of the toolchain that is on the path. It shows its progress, writes a run folder (steps.csv, events.jsonl, curves as PNG,
// scalars for TensorBoard, weights.safetensors) and ends with a sample of text and the held-out loss. Ctrl-C ends the training early and keeps it.
//
//	go run ./examples/train
//	go run ./examples/train -data notes.txt -steps 500 -out runs/notes
//	go run ./examples/train -data random -minutes 1
//	go run ./examples/train -packed
//	go run ./examples/train -preset base -device cuda:0 -precision bf16 -batch 16
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("train", flag.ContinueOnError)
	preset := flags.String("preset", "tiny", "model and training: tiny or base")
	source := flags.String("data", "", `file or folder of text, or "random" for random bytes; empty: the Go source of GOROOT`)
	ext := flags.String("ext", "", "of a folder take only files whose names end so")
	attention := flags.String("attention", "nsa", "nsa or dense")
	packed := flags.Bool("packed", false, "take each file of the folder for itself: its tokens see no other file's")
	steps := flags.Int("steps", 0, "steps to train for, in place of -minutes")
	minutes := flags.Float64("minutes", 0, "minutes to train for; 0: as the preset says")
	batch := flags.Int("batch", 0, "sequences in a step; 0: as the preset says")
	lr := flags.Float64("lr", 0, "highest learning rate; 0: as the preset says")
	seed := flags.Uint64("seed", 1, "seed of weights, batches and sample")
	device := flags.String("device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the cpu where there is none")
	precision := flags.String("precision", "f32", "of the activations: f32, bf16 or fp16, the last two on a GPU")
	out := flags.String("out", filepath.Join("runs", time.Now().Format("20060102-150405")), "run folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	config, training, err := tinylm.Preset(*preset)
	if err != nil {
		return err
	}
	config.Attention = tinylm.Attention(*attention)
	if !(*minutes >= 0 && *minutes <= 1e6) {
		return fmt.Errorf("-minutes %v, want a number from 0 to a million", *minutes)
	}
	training.Seed, training.Out, training.Progress, training.Packed = *seed, *out, os.Stderr, *packed
	training.Steps, training.Batch, training.LR = *steps, cmp.Or(*batch, training.Batch), cmp.Or(*lr, training.LR)
	if *minutes != 0 || *steps != 0 {
		training.Duration = time.Duration(*minutes * float64(time.Minute))
	}
	if training.Precision, err = graph.ParsePrecision(*precision); err != nil {
		return err
	}
	if training.Backend, err = cuda.Select(*device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, training.Backend.Close()) }()
	if err := training.Validate(config); err != nil {
		return err
	}
	data, err := read(ctx, *source, *ext, *seed)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, %v\n%s attention, %.2fM parameters, on %s: %.1f MB to train on, %.1f MB held out\n",
		cuda.Describe(training.Backend), training.Precision, config.Attention, float64(config.Parameters())/1e6,
		data.Name, float64(len(data.Train))/1e6, float64(len(data.HeldOut))/1e6)
	r, err := tinylm.Train(ctx, config, data, training)
	if err != nil {
		return err
	}
	fmt.Printf("--- sample\n%s\n", tinylm.Printable(r.Sample))
	if *out != "" {
		fmt.Printf("--- run folder: %s\n", *out)
	}
	fmt.Printf("held-out loss %.4f nats/byte after %d tokens in %.1f s\n", r.HeldOut, r.Tokens, r.Elapsed.Seconds())
	return nil
}

// randomBytes is the size of the data of -data random.
const randomBytes = 32 << 20

// read returns the data that -data names.
func read(ctx context.Context, source, ext string, seed uint64) (*tinylm.Data, error) {
	switch source {
	case "random":
		return tinylm.RandomData(randomBytes, 256, seed)
	case "":
		out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return nil, fmt.Errorf("go env GOROOT: %w: where the Go source is not to be found, name a file or folder with -data", err)
		}
		return tinylm.ReadData(filepath.Join(strings.TrimSpace(string(out)), "src"), ".go")
	}
	return tinylm.ReadData(source, ext)
}
