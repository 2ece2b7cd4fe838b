package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/gather"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// gpuRounds is how often the suite gpus repeats each of its runs of trainRuns steps.
const gpuRounds = 5

// gpuSizes are the batches of each GPU. The peer is PyTorch's DistributedDataParallel on two H200s: tokens a second of
// a dense model with the shape of Base(), compiled, gradients sent as bfloat16. bench/peers.py -ddp measures it anew.
var gpuSizes = []trainSize{{16, 2048, 0, 1246000}, {4, 8192, 0, 784000}, {1, 32768, 0, 318000}}

// reductions are the forms of data-parallel training.
var reductions = []struct {
	name              string
	sharded, compress bool // ZeRO-1; gradients sent as bfloat16
}{{name: ""}, {name: ", bfloat16 gradients", compress: true}, {name: ", ZeRO-1", sharded: true},
	{name: ", ZeRO-1, bfloat16 gradients", sharded: true, compress: true}}

// ranksJob is what the processes of a suite measure together, one on each device: training with equal batches, so that
// all have the same work.
type ranksJob struct {
	Preset        string
	Batch, Seq    int      // of a device
	Steps, Rounds int      // steps of a run; runs of each kind, in turn
	Context       bool     // the devices share the sequences, with recomputation
	Layer         bool     // the devices share the sequence of one layer: see measureLayer
	Devices       []string // by rank
}

// rankFigures are the figures of one form of training.
type rankFigures struct {
	Form                   int        // index in reductions
	Alone, Apart, Together float64    // seconds of a run: on device 0 alone; on all, without a group and with one
	Before, Memory         int        // bytes of the machine on a device: without a group, and the most of all ranks with one
	Losses                 [2]float64 // of a job with Context: alone, and the mean of all together
	Forward, Backward      float64    // seconds, of a job with Layer
}

// contextLengths are the lengths of the sequences that all GPUs share, one a step. Up to contextAlone tokens are timed on
// one GPU, too.
var contextLengths = []int{131072, 524288, 1048576}

const contextAlone, contextRuns = 524288, 2

// layerLengths are the lengths of the sequence of one layer that all GPUs share. SFNSA published a forward and a
// backward pass of attention of this shape at the last one, in seconds on each of eight H800.
var layerLengths = []int{262144, 1048576}

const sfnsaForward, sfnsaBackward, layerRounds = 0.576, 1.509, 3

// benchGPUs times data-parallel training steps on the GPUs of this host, and steps with sequences that lie over them.
func benchGPUs(r *report) {
	n := cmp.Or(r.gpus, gpuCount(r.backend))
	if n < 2 {
		return
	}
	for _, c := range gpuSizes {
		r.part(c.seq, func() {
			job := ranksJob{Preset: "base", Batch: c.batch, Seq: c.seq, Steps: trainRuns, Rounds: gpuRounds, Devices: devices(n)}
			for _, f := range must(job.launch()) {
				job.add(r, f, c.peer)
			}
		})
	}
	for _, seq := range contextLengths {
		r.part(seq, func() {
			job := ranksJob{Preset: "base", Batch: 1, Seq: seq, Steps: contextRuns, Context: true, Devices: devices(n)}
			for _, f := range must(job.launch()) {
				job.addContext(r, f)
			}
		})
	}
	for _, seq := range layerLengths {
		r.part(seq, func() {
			job := ranksJob{Batch: 1, Seq: seq, Rounds: layerRounds, Layer: true, Devices: devices(n)}
			for _, f := range must(job.launch()) {
				job.addLayer(r, f)
			}
		})
	}
}

func devices(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("cuda:", i))
	}
	return list
}

// addContext adds the figures of training with sequences over all GPUs.
func (j ranksJob) addContext(r *report, f rankFigures) {
	n, size := len(j.Devices), fmt.Sprintf("%v %dx%d", trainPrecision, j.Batch, j.Seq)
	tokens := float64(j.Batch * j.Seq * j.Steps)
	what := fmt.Sprintf("Base(), training, a sequence over %d GPUs, recomputation", n)
	r.add(what, size, tokens/f.Together, "tok/s")
	r.add("memory of the machine, a GPU, sequence over all", size, float64(f.Memory)/(1<<20), "MiB")
	if f.Alone == 0 {
		return
	}
	r.add("Base(), training, 1 GPU, recomputation", size, tokens/f.Alone, "tok/s",
		against("memory of the machine, MiB", float64(f.Before)/(1<<20)))
	r.add(fmt.Sprintf("time of a token over %d GPUs", n), size, float64(n)*f.Together/f.Alone,
		fmt.Sprintf("times 1/%d of one GPU's", n), when(j.Seq == contextAlone, atMost(1.1)))
	r.add("difference of the loss from one GPU's", size, math.Abs(f.Losses[1]-f.Losses[0]), "")
}

// addLayer adds the figures of a layer whose sequence lies over all GPUs.
func (j ranksJob) addLayer(r *report, f rankFigures) {
	n, size := len(j.Devices), fmt.Sprintf("%v %dx%d", trainPrecision, j.Batch, j.Seq)
	what := fmt.Sprintf("NSA layer, 64 and 4 heads of 128, a sequence over %d GPUs", n)
	for _, pass := range []struct {
		name          string
		seconds, peer float64
	}{{", forward", f.Forward, sfnsaForward}, {", backward", f.Backward, sfnsaBackward}} {
		r.add(what+pass.name, size, 1e3*pass.seconds, "ms")
		r.add(what+pass.name+", all GPUs", size, float64(n)*pass.seconds, "GPU-s",
			when(j.Seq == layerLengths[len(layerLengths)-1], against("SFNSA, attention on eight H800, published", 8*pass.peer)))
	}
	r.add(what+", memory of the machine, a GPU", size, float64(f.Memory)/(1<<20), "MiB")
}

// gpuCount returns the number of GPUs that are present with b. A test's device has a second one.
func gpuCount(b graph.Backend) int {
	if _, ok := b.(*cuda.Backend); !ok {
		return 2
	}
	return must(cuda.Count())
}

// add adds the figures of a form of training. ddp is the peer's rate on two GPUs.
func (j ranksJob) add(r *report, f rankFigures, ddp float64) {
	n, form, size := len(j.Devices), reductions[f.Form], fmt.Sprintf("%v %dx%d", trainPrecision, j.Batch, j.Seq)
	tokens := float64(j.Batch * j.Seq * j.Steps)
	one, rate := tokens/f.Alone, float64(n)*tokens/f.Together
	what := fmt.Sprintf("Base(), training, %d GPUs%s", n, form.name)
	if f.Form == 0 {
		r.add("Base(), training, 1 GPU", size, one, "tok/s")
	}
	r.add(what, size, rate, "tok/s", against(fmt.Sprintf("%d times one GPU alone, same run", n), float64(n)*one))
	if n == 2 {
		r.add(what, size, rate, "tok/s", when(j.Seq > 2048 && !form.sharded, atLeast(ddp)),
			against("dense compiled PyTorch, DDP, bfloat16 gradients, peer figure", ddp))
	}
	r.add("weak scaling"+form.name, size, 100*rate/(float64(n)*one), "%",
		when(j.Seq == 2048 && !form.sharded, atLeast(98)))
	r.add("what the group adds to a step"+form.name, size, 100*(f.Together/f.Apart-1), "% of a step of all GPUs apart",
		when(!form.sharded, atMost(1)))
	r.add("memory of the machine, a GPU"+form.name, size, float64(f.Memory)/(1<<20), "MiB",
		against("without a group", float64(f.Before)/(1<<20)))
}

// rankChild begins the argument of -child for a rank.
const rankChild = "rank "

// launch runs the job in processes of this program and returns what rank 0 prints.
func (j ranksJob) launch() (list []rankFigures, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = dist.Launch(context.Background(), len(j.Devices),
		dist.Command{Args: []string{"-child", rankChild + string(text)}, Stdout: &out})
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &list)
	}
	return list, err
}

// runRank makes this process a rank of the job that text describes. Rank 0 prints the figures.
func runRank(text string) {
	var j ranksJob
	check(json.Unmarshal([]byte(text), &j))
	if j.Context { // the others wait for rank 0
		check(os.Setenv("NSA_DDP_TIMEOUT", "5m"))
	}
	o, _, err := dist.FromEnv()
	check(err)
	if o.Size != len(j.Devices) || o.LocalRank != o.Rank {
		check(command.UsageError(errors.New("bench: -child: not a process of the suite gpus")))
	}
	g := must(dist.Join(context.Background(), o))
	defer mustClose(g)
	b, err := cuda.Select(j.Devices[o.LocalRank])
	if err == nil {
		defer mustClose(b)
	}
	defer func() { // the others would wait for this rank, and b for them
		if p := recover(); p != nil {
			g.Fail(fmt.Errorf("%v", p))
			panic(p)
		}
	}()
	check(err)
	measure := j.measure
	switch {
	case j.Context:
		measure = j.measureContext
	case j.Layer:
		measure = j.measureLayer
	}
	if list := measure(g, b); o.Rank == 0 {
		check(json.NewEncoder(os.Stdout).Encode(list))
	}
}

// still is an optimizer whose learning rate is 0, so that all models select the same blocks however many steps they have
// taken.
func still() tinylm.ModelOption { return tinylm.WithOptimizer(must(optim.NewAdamW(optim.WithLR(0)))) }

// measure takes part in the measurements as a rank. No machine takes the 100 steps after which the ranks compare their
// weights.
func (j ranksJob) measure(g graph.Group, b graph.Backend) (list []rankFigures) {
	c, policy := must(tinylm.Preset(j.Preset)), must(graph.PolicyFromEnv())
	run := func(t *trainer, steps int) func() error {
		return func() error {
			t.steps(steps)
			_, err := g.AllGather("end of a run", nil)
			return err
		}
	}
	alone := j.Steps
	if g.Rank() > 0 {
		alone = 0
	}
	withTrainer(b, c, j.Batch, j.Seq, func(apart *trainer) {
		for i, form := range reductions {
			policy.CompressGrads = form.compress
			if form.compress && !b.Device().Half {
				continue
			}
			opts := []graph.Option{graph.WithPolicy(policy)}
			if form.sharded {
				opts = append(opts, graph.WithShardedStates())
			}
			withTrainer(b, c, j.Batch, j.Seq, func(together *trainer) {
				f := rankFigures{Form: i, Before: apart.Machine().Plan().Memory(),
					Memory: most(g, together.Machine().Plan().Memory())}
				s := secondsInTurn(j.Rounds, run(apart, alone), run(apart, 1), // the other GPUs were idle: they wake up
					run(apart, j.Steps), run(together, j.Steps))
				f.Alone, f.Apart, f.Together = s[0], s[2], s[3]
				list = append(list, f)
			}, still(), tinylm.WithGroup(g), tinylm.WithMachine(opts...))
		}
	}, still())
	return list
}

// measureContext takes part in the measurement of steps whose sequences lie over all ranks.
func (j ranksJob) measureContext(g graph.Group, b graph.Backend) []rankFigures {
	c, f := must(tinylm.Preset(j.Preset)), rankFigures{}
	measure := func(seconds, loss *float64, memory *int) func(*trainer) {
		return func(t *trainer) {
			*seconds, *memory = t.steps(j.Steps).Seconds(), t.Machine().Plan().Memory()
			*loss = must(t.loss.Next())
		}
	}
	if g.Rank() == 0 && j.Seq <= contextAlone {
		withTrainer(b, c, j.Batch, j.Seq, measure(&f.Alone, &f.Losses[0], &f.Before), still(),
			tinylm.WithRecompute())
	}
	must(g.AllGather("alone", nil))
	withTrainer(b, c, j.Batch, j.Seq, measure(&f.Together, &f.Losses[1], &f.Memory),
		still(), tinylm.WithRecompute(), tinylm.WithGroup(g), tinylm.WithContext(g.Size()))
	f.Memory = most(g, f.Memory)
	sum := 0.0
	for _, loss := range must(gather.JSON(g, "loss", f.Losses[1])) {
		sum += loss
	}
	f.Losses[1] = sum / float64(g.Size())
	return []rankFigures{f}
}

// layerConfig is a layer with the attention of SFNSA's figures. It is narrow, so that its projections take little time.
var layerConfig = nn.NSAConfig{Dim: 256, Heads: 64, KVHeads: 4, KeyDim: 128, ValueDim: 128, GateHidden: 16,
	Params: base.Params}

// measureLayer takes part in the measurement of a norm and one NSA layer whose sequence lies over all ranks: their
// forward pass, and what a machine with the gradients of input and weights takes longer. Inputs and weights are on the
// devices.
func (j ranksJob) measureLayer(g graph.Group, b graph.Backend) []rankFigures {
	precision := trainPrecision
	if !b.Device().Half {
		precision = graph.F32
	}
	const norm = "norm"
	dim := layerConfig.Dim
	var own []float32 // of a rank [2B,S/(2*ranks),dim]
	all := normal(j.Batch * j.Seq * dim)
	for row := range slices.Chunk(all, j.Seq*dim) {
		for _, t := range must(nn.ContextTokens(g.Rank(), g.Size(), j.Seq)) {
			own = append(own, row[t*dim:][:dim]...)
		}
	}
	measure := func(backward bool) (s float64, memory int) {
		net := G.NewGraph()
		builder := nn.NewBuilder(net, append(layerConfig.LayerParams("layer."), nn.Param{Name: norm + ".weight",
			Shape: tensor.Shape{dim}, Init: nn.Ones()}), nn.Random(tensor.Float32, 1))
		part := func(name string) *G.Node {
			return inputOf(net, name, slices.Clone(own), 2*j.Batch, j.Seq/g.Size()/2, dim)
		}
		x := builder.RMSNorm(part("x"), norm, 1e-6)
		y := must(builder.NSA("layer.", layerConfig).Apply(x, nn.WithContext(g.Rank(), g.Size())))
		if backward {
			addGradients(y, part("gradient of y"), builder.Learnables()...)
		}
		inputs := must(graph.MoveInputs(b, net.Inputs()...))
		defer mustClose(inputs)
		m := must(graph.NewMachine(net, graph.WithBackend(b), graph.WithPrecision(precision), graph.WithGroup(g)))
		defer mustClose(m)
		s = seconds(j.Rounds, func() error {
			err := errors.Join(m.RunAll(), m.Synchronize())
			must(g.AllGather("end of a run", nil))
			return err
		})
		return s, most(g, m.Plan().Memory())
	}
	forward, _ := measure(false)
	both, memory := measure(true)
	return []rankFigures{{Forward: forward, Backward: both - forward, Memory: memory}}
}

func most(g graph.Group, x int) int { return slices.Max(must(gather.JSON(g, "memory", x))) }
