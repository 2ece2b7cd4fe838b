package nsa_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/convert"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/generate"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
	"github.com/gorgonia-nsa/nsa/models/tinylm/recall"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// TestZeroValues: functions with zero arguments, and methods of zero values, neither panic nor hang if they can return
// an error, those of package graph in any case. Their errors name the package once.
func TestZeroValues(t *testing.T) {
	zeroCorpus := func(call func(c *corpus.Corpus) error) func() error {
		return func() error { return call(&corpus.Corpus{Tokenizer: &tokenizer.Tokenizer{}}) }
	}
	for _, list := range [][]any{
		{spec.Apply, spec.Output, attention.LSE, ops.Params{}, decode.KVCache{}},
		{graph.CheckGraph, graph.Grad, graph.HostTensor, graph.HostValue,
			graph.MoveInputs, graph.Fusions,
			graph.NewMachine, graph.NewPlan, graph.NewResident, graph.ParsePrecision, graph.PolicyFromEnv, graph.ReadResident,
			graph.ScaledGrad,
			&graph.AsyncReader{}, &graph.Machine{}, &graph.Resident{}, graph.Call{}, (*graph.AsyncReader)(nil),
			(*graph.Machine)(nil),
			(*graph.Resident)(nil), graph.Plan{}, graph.PlanStep{}, graph.Refusal{}, graph.Policy{},
			&graph.Unsupported{}, &graph.LaunchError{}},
		{nn.Assign, nn.NewNSA, &nn.NSA{}, (*nn.NSA)(nil), nn.NSAConfig{}, nn.Param{}},
		{optim.NewAdamW, &optim.AdamW{}, &optim.LossScale{}, optim.WarmupCosine{}, optim.WarmupLinear{}},
		{func() error { // not of zero values, but of a package inside itself
			_, err := optim.NewAdamW(optim.WithSchedule(optim.WarmupCosine{}))
			return err
		}, func() error {
			_, err := graph.HostTensor(G.NewScalar(G.NewGraph(), G.Float32))
			return err
		}},
		{safetensors.Decode, safetensors.Open, safetensors.Read, safetensors.File{}, &safetensors.Reader{}},
		{convert.Defaults, convert.Parse, convert.Run, &convert.Options{}},
		{lm.CheckSave, lm.CopyTokenizer, lm.IsModel, lm.OpenWeights, lm.ReadWeights, lm.Save, lm.WithNSA},
		{evaluate.Open, evaluate.Parse, evaluate.ReadQuestions, evaluate.Run, &evaluate.Evaluator{}, (*evaluate.Evaluator)(nil), &evaluate.Options{},
			&evaluate.Report{}},
		{gguf.Open, &gguf.File{}},
		{pretrained.Open, pretrained.Write, &pretrained.Folder{}},
		{tinylm.LoadWeights, tinylm.NewDecoder, tinylm.NewModel, tinylm.NewPlan, tinylm.NewSampler, tinylm.NewWeights,
			tinylm.Preset, tinylm.ReadWeights,
			tinylm.Config{}, &tinylm.Decoder{}, &tinylm.Model{}, &tinylm.Sampler{}, tinylm.Sampling{},
			&tinylm.Weights{}, (*tinylm.Weights)(nil)},
		{tokenizer.Open, &tokenizer.Tokenizer{}, (*tokenizer.Tokenizer)(nil)},
		{corpus.Open, corpus.Random, &corpus.Corpus{}, &corpus.Reader{}, zeroCorpus(func(c *corpus.Corpus) error {
			_, err := c.Reader(corpus.Shape{Batch: 1, Seq: 2}, corpus.Cursor{})
			return err
		}), zeroCorpus(func(c *corpus.Corpus) error {
			_, err := c.HeldOut(corpus.Shape{Batch: 1, Seq: 2}, 0)
			return err
		})},
		{generate.Parse, generate.Run, &generate.Options{}},
		{inspect.Inspect, &inspect.Report{}},
		{recall.Compare, recall.Evaluate, recall.NewTask, recall.ParseKinds, recall.Train, recall.Options{},
			recall.Report{}, recall.Task{}},
		{train.FindModel, train.FindNewestRun, train.Parse, train.Preset, train.ReadOptions, train.Run,
			&train.Options{}, &train.SavedModel{}},
	} {
		for _, x := range list {
			v := reflect.ValueOf(x)
			if v.Kind() == reflect.Func {
				callWithZeros(t, fmt.Sprint(v.Type()), v)
			}
			for i := range v.NumMethod() {
				callWithZeros(t, fmt.Sprintf("(%T).%s", x, v.Type().Method(i).Name), v.Method(i))
			}
		}
	}
}

// callWithZeros calls f, if its last result is an error, with zero arguments, but context.Background() for a context.
func callWithZeros(t *testing.T, name string, f reflect.Value) {
	in, out := f.Type().NumIn(), f.Type().NumOut()
	fails := out > 0 && f.Type().Out(out-1) == reflect.TypeFor[error]()
	if !fails && !strings.Contains(name, "graph.") {
		return
	}
	if f.Type().IsVariadic() {
		in--
	}
	args := make([]reflect.Value, in)
	for i := range args {
		args[i] = reflect.Zero(f.Type().In(i))
		if f.Type().In(i) == reflect.TypeFor[context.Context]() {
			args[i] = reflect.ValueOf(context.Background())
		}
	}
	result := make(chan any, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				result <- fmt.Sprint("panic: ", r)
			}
		}()
		if results := f.Call(args); fails {
			result <- results[out-1].Interface()
		}
		close(result)
	}()
	r := <-result
	err, ok := r.(error)
	assert.True(t, ok || r == nil, "%s: %v", name, r)
	if ok {
		checkPrefix(t, name, err)
	}
}

// checkPrefix: an error begins with the name of a package and does not repeat it.
func checkPrefix(t *testing.T, name string, err error) {
	text := err.Error()
	prefix, _, _ := strings.Cut(text, " ")
	assert.Regexp(t, `^[a-z]+:$`, prefix, "%s: %s", name, text)
	assert.Equal(t, 1, strings.Count(text, prefix+" "), "%s: %s", name, text)
}
