package tinylm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Model is the graph of a model for a batch of B sequences of S tokens, with the machine that runs it. Only one
// goroutine may use it at a time.
type Model struct {
	weights    *Weights
	batch, seq int
	own        []int // the tokens of a sequence that Tokens has, WithContext of several ranks; nil: all

	graph       *G.ExprGraph
	tokens      []int32 // [B,S]
	targets     []int32 // [B,S], -1 is ignored
	cuSeqlens   []int32 // [K+1]; nil: each row is one document
	logits      *G.Node // [B,S,V]
	layers      []Layer
	loss        *G.Node // scalar
	losses      *G.Node // of WithLosses, [B,S]
	learnables  G.Nodes
	trained     G.Nodes       // of learnables, those that training changes
	grads       []G.ValueGrad // nil: without gradients
	vm          G.VM
	machine     *graph.Machine // vm as a graph.Machine; nil: another VM
	scale       *G.F32         // of the gradients; nil means 1
	lossScale   float64        // set by SetLossScale
	accumulated *accumulated   // nil: without accumulation, and on one rank
	ranks       int            // of WithGroup, else 1
	optimizer   *optim.AdamW   // nil: without WithOptimizer
}

// NewModel builds the graph of a model for a batch of batch sequences of seq tokens, and the machine that runs it. The
// model shares the weights w. Close ends the machine.
func NewModel(w *Weights, batch, seq int, opts ...ModelOption) (m *Model, err error) {
	defer func() {
		if err != nil {
			m, err = nil, fmt.Errorf("tinylm: model of %d x %d tokens: %w", batch, seq, err)
		}
	}()
	if w == nil {
		return nil, errNoWeights
	}
	o, err := checkModel(w.Config, batch, seq, opts)
	if err != nil {
		return nil, err
	}
	m = &Model{weights: w, batch: batch, seq: seq, graph: G.NewGraph()}
	c := w.Config.WithDefaults()
	if err := w.load(); err != nil {
		return nil, err
	}
	if err := m.build(c, w.builder(m.graph), o); err != nil {
		return nil, err
	}
	if w.resident != nil {
		if err := w.bind(m.learnables); err != nil {
			return nil, err
		}
	}
	return m, m.open(o)
}

// NewPlan returns the plan of a float32 model's machine: see graph.NewPlan. NewModel with weights of c and the same
// arguments needs Plan.Memory() bytes, weights included. NewPlan makes neither weights nor a machine.
func NewPlan(c Config, batch, seq int, opts ...ModelOption) (_ graph.Plan, err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("plan of a model of %d x %d tokens", batch, seq))
	o, err := checkModel(c, batch, seq, opts)
	if err == nil && o.vm != nil {
		err = errors.New("WithVM: only a graph.Machine has a plan")
	}
	if err != nil {
		return graph.Plan{}, err
	}
	m, c := &Model{batch: batch, seq: seq, graph: G.NewGraph()}, c.WithDefaults()
	if err := m.build(c, nn.NewShapeBuilder(m.graph, c.LearnableParams(), tensor.Float32), o); err != nil {
		return graph.Plan{}, err
	}
	return graph.NewPlan(m.graph, m.machineOptions(o)...)
}

// build adds a model of configuration c to m.graph, the graph of b.
func (m *Model) build(c Config, b *nn.Builder, o modelOptions) (err error) {
	var tokens, targets, cuSeqlens *G.Node
	var attention []nn.ApplyOption
	rows, length := m.batch, m.seq
	if o.context > 1 {
		rows, length = 2*rows, length/(2*o.context) // a row is a chunk
		rank := o.group.Rank() % o.context
		attention = append(attention, nn.WithContext(rank, o.context))
		if m.own, err = nn.ContextTokens(rank, o.context, m.seq); err != nil {
			return err
		}
	}
	m.tokens, tokens = newInput(m.graph, "tokens", rows, length)
	m.targets, targets = newInput(m.graph, "targets", rows, length)
	if o.packed {
		m.cuSeqlens, cuSeqlens = newInput(m.graph, "cu_seqlens", o.documents+1)
		m.wholeRows()
		attention = append(attention, nn.WithCuSeqlens(cuSeqlens))
	}
	m.logits, m.layers, m.loss = c.addLogits(b, tokens, attention)
	if m.loss == nil {
		m.loss = b.Node(ops.CrossEntropy(m.logits, targets))
	} else if o.losses {
		return errors.New("WithLosses: an alignment has no loss of a target")
	}
	if o.losses {
		m.losses = b.Node(ops.Losses(m.loss))
	}
	if b.Err() != nil {
		return b.Err()
	}
	m.learnables = b.Learnables()
	m.trained = slices.DeleteFunc(slices.Clone(m.learnables), func(n *G.Node) bool { return !c.Trains(n.Name()) })
	if m.ranks = 1; o.group != nil {
		m.ranks = o.group.Size()
	}
	if o.accumulate || o.grads && m.ranks > 1 {
		m.accumulated = new(accumulated)
	}
	if o.grads {
		if o.scaled || m.accumulated != nil {
			m.scale, m.lossScale = G.NewF32(1), 1
			scale := G.NewScalar(m.graph, tensor.Float32, G.WithName("loss scale"), G.WithValue(m.scale))
			_, err = graph.ScaledGrad(m.loss, scale, m.trained...)
		} else {
			_, err = graph.Grad(m.loss, m.trained...)
		}
		if err != nil {
			return err
		}
		m.grads, m.optimizer = G.NodesToValueGrads(m.trained), o.optimizer
	}
	return nil
}

// newInput adds an input of int32 to g and returns its numbers, to be filled before a run.
func newInput(g *G.ExprGraph, name string, shape ...int) ([]int32, *G.Node) {
	v := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(shape...))
	return v.Int32s(), G.NewTensor(g, tensor.Int32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
}

func (m *Model) open(o modelOptions) (err error) {
	if o.vm != nil {
		if m.vm, err = o.vm(m); err == nil && m.vm == nil {
			err = errNoVM
		}
		m.machine, _ = m.vm.(*graph.Machine)
		return err
	}
	m.machine, err = graph.NewMachine(m.graph, m.machineOptions(o)...)
	m.vm = m.machine
	return err
}

// SetLossScale sets the loss scale of the next runs, a number above 0. The model must be built WithLossScale or
// WithAccumulation. Step and LossAndStep pass the scale to an optim.AdamW. All micro-batches of a step must have
// the same scale.
func (m *Model) SetLossScale(scale float64) error {
	switch {
	case m.scale == nil:
		return errors.New("tinylm: loss scale: the model was built without one")
	case !(float32(scale) > 0) || math.IsInf(float64(float32(scale)), 1):
		return fmt.Errorf("tinylm: loss scale is %v, want a number above 0 that float32 holds", scale)
	case m.accumulated != nil && m.accumulated.batches > 0 && float64(float32(scale)) != m.lossScale:
		return fmt.Errorf("tinylm: loss scale is %v, want %v as in the micro-batches added up so far", scale, m.lossScale)
	}
	*m.scale = G.F32(scale)
	m.lossScale = float64(*m.scale)
	return nil
}

// Graph returns the model's graph.
func (m *Model) Graph() *G.ExprGraph { return m.graph }

// Learnables returns the nodes of the weights, in the order of Config.LearnableParams but for those of LoRA.
func (m *Model) Learnables() G.Nodes { return m.learnables }

// Layers returns the nodes of the layers. In a model built WithParts, Gates and Blocks have values after a run: see
// graph.HostValue.
func (m *Model) Layers() []Layer { return m.layers }

// Tokens returns the model's input, [B,S] row by row, to be filled before a run.
func (m *Model) Tokens() []int32 { return m.tokens }

// Targets returns the tokens that the model should predict, [B,S] row by row, to be filled before a run; -1 is ignored.
func (m *Model) Targets() []int32 { return m.targets }

// CuSeqlens returns the boundaries of the documents of a model built WithDocuments, to be filled before a run; nil for
// another model. Document i is the tokens [CuSeqlens[i], CuSeqlens[i+1]) of Tokens and lies in one row. The first
// boundary is 0; unused ones repeat the last one, the number of all tokens. Until they are filled, each row is one
// document.
func (m *Model) CuSeqlens() []int32 { return m.cuSeqlens }

func (m *Model) wholeRows() {
	for i := range m.cuSeqlens {
		m.cuSeqlens[i] = int32(min(i, m.batch) * m.seq)
	}
}

// Fill takes the tokens and targets, [B,S] row by row, of whole sequences. A model WithContext takes those of its rank.
func (m *Model) Fill(tokens, targets []int32) error {
	if n := m.batch * m.seq; len(tokens) != n || len(targets) != n {
		return fmt.Errorf("tinylm: %d tokens and %d targets, want %d of each", len(tokens), len(targets), n)
	}
	if m.own == nil {
		copy(m.tokens, tokens)
		copy(m.targets, targets)
		return nil
	}
	for row := range m.batch {
		for i, t := range m.own {
			to, from := row*len(m.own)+i, row*m.seq+t
			m.tokens[to], m.targets[to] = tokens[from], targets[from]
		}
	}
	return nil
}

// NextTokens sets the target of each token to the token that follows in its row and document. The last token of a row
// or document has no such token: its target is ignored. So are, WithContext, those of the last token of each chunk.
func (m *Model) NextTokens() {
	run := m.seq // tokens that follow each other
	if m.own != nil {
		run = len(m.own) / 2
	}
	for i := range m.targets {
		if (i+1)%run == 0 {
			m.targets[i] = -1
		} else {
			m.targets[i] = m.tokens[i+1]
		}
	}
	m.endDocuments()
}

// endDocuments ignores the last target of each document.
func (m *Model) endDocuments() {
	for i, end := range m.cuSeqlens {
		if i > 0 && end > m.cuSeqlens[i-1] && int(end) <= len(m.targets) {
			m.targets[end-1] = -1
		}
	}
}

// Run computes logits and loss for the tokens and targets, and the gradients if the model was built WithGradients. If
// it was built WithAccumulation, Run adds the gradients to those of the micro-batches since the last step.
func (m *Model) Run() error {
	if err := m.run(); err != nil {
		return fmt.Errorf("tinylm: %w", err)
	}
	return nil
}

var errNoVM = errors.New("the model has no VM")

// run is Run without the name of this package in its error.
func (m *Model) run() error {
	if m.vm == nil {
		return errNoVM
	}
	err := m.weights.use(m.machine)
	if err == nil {
		m.countBatch()
		err = m.vm.RunAll()
		m.vm.Reset()
	}
	if err != nil {
		err = errors.Join(err, m.dropAccumulated())
	}
	return err
}

// Step enqueues a run and the step of WithOptimizer as one, and does not wait for them: see graph.Machine.Step. LossReader
// reads the loss. If the model was built WithAccumulation, the run is the last micro-batch of the step.
func (m *Model) Step() (err error) {
	defer fault.Name(&err, "tinylm", "step")
	if m.optimizer == nil {
		return errors.New("the model was built without an optimizer")
	}
	defer func() { err = errors.Join(err, m.dropAccumulated()) }()
	if m.weights.lastStepper != m.machine { // the copies in half precision are out of date
		m.machine.Refresh()
	}
	m.countBatch()
	if err := errors.Join(m.weights.use(m.machine), m.shareScale(m.optimizer)); err != nil {
		return err
	}
	m.weights.lastStepper, m.weights.version = m.machine, m.weights.version+1
	return m.machine.Step()
}

// shareScale passes the scale of the gradients to a solver, if the model has one.
func (m *Model) shareScale(solver *optim.AdamW) error {
	if m.scale == nil || solver == nil {
		return nil
	}
	return solver.SetGradScale(m.gradScale())
}

// LossReader returns a graph.AsyncReader of the loss, which ends with the model.
func (m *Model) LossReader() (*graph.AsyncReader, error) {
	if m.machine == nil {
		return nil, fmt.Errorf("tinylm: reader of the loss: the model runs on a %T, want a graph.Machine", m.vm)
	}
	return m.machine.AsyncReader(m.loss)
}

// Machine returns the machine that runs the model, nil for another VM.
func (m *Model) Machine() *graph.Machine { return m.machine }

// LossAndStep runs the model, takes a step of any solver, waits, and returns the loss before the step. If the weights are
// on a device or the model was built WithAccumulation, the solver must be an optim.AdamW: that of WithOptimizer, or one made
// with optim.WithBackend.
func (m *Model) LossAndStep(solver G.Solver) (loss float64, err error) {
	if m.optimizer != nil && solver == G.Solver(m.optimizer) {
		if err := m.Step(); err != nil {
			return 0, err
		}
		return m.Loss()
	}
	defer fault.Name(&err, "tinylm", "step")
	adamw, ok := solver.(*optim.AdamW)
	switch {
	case m.grads == nil:
		return 0, errNoGradients
	case value.IsNil(solver):
		return 0, errors.New("no solver")
	case !ok && m.weights.resident != nil:
		return 0, fmt.Errorf("the weights are on a device, where a %T cannot change them: want an optim.AdamW", solver)
	case !ok && m.accumulated != nil:
		return 0, fmt.Errorf("a %T does not know the weights of micro-batches: want an optim.AdamW", solver)
	}
	if err := m.run(); err != nil {
		return 0, err
	}
	if loss, err = m.readLoss(); err != nil {
		return 0, err
	}
	if err = m.shareScale(adamw); err == nil {
		m.weights.lastStepper, m.weights.version = nil, m.weights.version+1
		err = solver.Step(m.grads)
	}
	return loss, errors.Join(err, m.dropAccumulated())
}

// Loss returns the mean cross entropy of the last run, in nats per token. On a device it waits for the run.
func (m *Model) Loss() (_ float64, err error) {
	defer fault.Name(&err, "tinylm", "loss")
	return m.readLoss()
}

// readLoss is Loss without names in its error.
func (m *Model) readLoss() (float64, error) {
	v, err := valueOf(m.loss)
	switch v := v.(type) {
	case *G.F32:
		return float64(*v), err
	case *G.F64:
		return float64(*v), err
	}
	return 0, cmp.Or(err, errNotRun)
}

// Losses returns the cross entropy of each target of the last run of a model built WithLosses, [B,S] row by row, in
// nats: 0 for a target that is ignored. It waits for the run.
func (m *Model) Losses() ([]float64, error) {
	v, err := valueOf(m.losses)
	if v == nil || err != nil {
		return nil, fmt.Errorf("tinylm: losses: %w", cmp.Or(err, errNotRun))
	}
	if list, ok := v.Data().([]float64); ok {
		return slices.Clone(list), nil
	}
	list := make([]float64, v.Size())
	for i, x := range v.Data().([]float32) {
		list[i] = float64(x)
	}
	return list, nil
}

// valueOf returns the value of a node in host memory, nil for a nil node, as one of a Model that NewModel has not made.
func valueOf(n *G.Node) (G.Value, error) {
	if n == nil {
		return nil, nil
	}
	return graph.HostValue(n.Value())
}

var errNotRun = errors.New("no value: the model has not run, or does not keep it")

// Logits returns the logits of the last run, [B,S,V], in host memory. On the host they belong to the machine and last
// until the next run. From a device they are a copy; Logits waits for the run. A model built WithoutLogits has none.
func (m *Model) Logits() (*tensor.Dense, error) {
	v, err := valueOf(m.logits)
	if logits, ok := v.(*tensor.Dense); ok && err == nil {
		return logits, nil
	}
	return nil, fmt.Errorf("tinylm: logits: %w", cmp.Or(err, errNotRun))
}

// Close ends the machine.
func (m *Model) Close() error {
	if m.vm == nil {
		return nil
	}
	err := m.vm.Close()
	if m.machine != nil && m.weights.lastUser == m.machine {
		m.weights.lastUser = nil // Close has waited for the device
	}
	return err
}
