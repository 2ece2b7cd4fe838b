package tinylm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// bits returns every element of w by the name of its tensor.
func bits(t testing.TB, w *Weights) map[string][]float64 {
	m := map[string][]float64{}
	for name, v := range w.Tensors {
		m[name] = testutil.Floats(t, v.Data())
	}
	return m
}

func TestWeightsRoundTrip(t *testing.T) {
	mlp := small()
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 12
	dense := small()
	dense.Attention = Dense
	mixed := small()
	mixed.Attention, mixed.Layers = "dense,window,nsa", 4
	without := small()
	without.Without = decode.BranchesOf(decode.Selected)
	for name, c := range map[string]Config{"mean": small(), "mlp": mlp, "dense": dense, "without selected": without,
		"mixed": mixed} {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(name+"/"+dt.Name(), func(t *testing.T) {
				w := newTestWeights(t, c, dt, 7)
				path := filepath.Join(t.TempDir(), "weights.safetensors")
				require.NoError(t, w.Save(path))
				got := testutil.Must(LoadWeights(path))(t)
				require.Equal(t, w.Config, got.Config)
				require.Equal(t, dt, got.Tensors["norm.weight"].Dtype())
				require.Equal(t, bits(t, w), bits(t, got))

				other := newTestWeights(t, c, dt, 8)
				require.NotEqual(t, bits(t, w), bits(t, other))
				require.NoError(t, other.Restore(path))
				require.Equal(t, bits(t, w), bits(t, other))

				w.Config = c // without defaults
				require.NoError(t, w.Restore(path))

				learnables := newTestModel(t, w, nil, 1, 8).Learnables()
				for i, p := range c.LearnableParams() { // the order of the weights on a device
					require.Equal(t, p.Name, learnables[i].Name())
				}
			})
		}
	}
}

// TestHostMemory: weights too large for the memory of the host are an error and do not end the process.
func TestHostMemory(t *testing.T) {
	host, _ := memory.Total()
	if host == 0 || host > 1<<44 {
		t.Skip("the host's memory is not known, or more than a file holds")
	}
	if host < 1<<36 { // fewer than the bytes of this model, 12.9e9 parameters
		c := small()
		c.Dim, c.Vocab = 1<<14, 1<<18
		_, err := NewWeights(c, tensor.Float64, 1)
		require.ErrorIs(t, err, memory.ErrTooMuch)
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	if err := os.Truncate(file, host+1); err != nil {
		t.Skip(err)
	}
	header := fmt.Sprintf(`{"x":{"dtype":"F64","shape":[%d],"data_offsets":[0,%d]}}`, host, 8*host)
	require.NoError(t, os.WriteFile(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))),
		header...), 0o644))
	if err := os.Truncate(file, int64(8+len(header))+8*host); err != nil {
		t.Skip(err)
	}
	require.ErrorIs(t, testutil.Err(LoadWeights(file)), memory.ErrTooMuch)
}

// device is a backend type that is used only as a nil pointer.
type device struct{ graph.Backend }

// TestNoWeights: nil weights are an error of every method except Free, which does nothing.
func TestNoWeights(t *testing.T) {
	var w *Weights
	path := filepath.Join(t.TempDir(), "file")
	for _, err := range []error{w.MoveTo(graph.NewCPU(1)), w.Download(), w.Save(path), w.Restore(path)} {
		require.ErrorIs(t, err, errNoWeights)
	}
	require.NoError(t, w.Free())
	require.NoFileExists(t, path)

	w = newTestWeights(t, small(), tensor.Float32, 1)
	require.NoError(t, w.MoveTo(graph.NewCPU(1)))
	for _, none := range []graph.Backend{nil, (*device)(nil)} {
		require.ErrorContains(t, w.MoveTo(none), "nil backend")
	}
}

// TestRestoreLosesNothing reads files that are each wrong in one respect. The weights do not change.
func TestRestoreLosesNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(safetensors.File)
		message string
	}{
		{"missing", func(f safetensors.File) { delete(f.Tensors, "head.weight") }, "no tensor head.weight"},
		{"further", func(f safetensors.File) { f.Tensors["x"] = f.Tensors["norm.weight"] }, "tensor x is not"},
		{"shape", func(f safetensors.File) {
			f.Tensors["norm.weight"] = tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(4, 8))
		}, "norm.weight has shape (4, 8)"},
		{"type", func(f safetensors.File) {
			f.Tensors["norm.weight"] = tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(32))
		}, "norm.weight: type int32"},
		{"NaN", func(f safetensors.File) { f.Tensors["norm.weight"].Float32s()[1] = float32(math.NaN()) },
			`"norm.weight" has NaN in it`},
		{"Inf", func(f safetensors.File) { f.Tensors["norm.weight"].Float32s()[1] = float32(math.Inf(-1)) },
			"element 1 of norm.weight is -Inf"},
		{"no config", func(f safetensors.File) { delete(f.Metadata, configKey) }, "no configuration in the metadata"},
		{"broken config", func(f safetensors.File) { f.Metadata[configKey] = `{"Vocab": "many"}` }, "configuration: json"},
		{"two sizes", func(f safetensors.File) {
			f.Metadata[configKey] = strings.Replace(f.Metadata[configKey], "{", `{"Window":1,`, 1)
		}, "a name that appears twice"},
		{"two configs", func(f safetensors.File) { f.Metadata[configKey] += "{}" }, "configuration: no JSON object"},
		{"unknown field", func(f safetensors.File) { f.Metadata[configKey] = `{"Experts": 8}` }, "unknown field"},
		{"invalid config", func(f safetensors.File) { f.Metadata[configKey] = `{"Vocab": 0}` }, "vocab is 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestWeights(t, small(), tensor.Float32, 1)
			before := bits(t, w)
			path := filepath.Join(t.TempDir(), "weights.safetensors")
			other := newTestWeights(t, small(), tensor.Float32, 2)
			require.NoError(t, other.Save(path))
			f := testutil.Must(safetensors.Read(path))(t)
			c.change(f)
			require.NoError(t, f.Write(path))
			require.ErrorContains(t, w.Restore(path), c.message)
			require.Equal(t, before, bits(t, w))
			require.ErrorContains(t, testutil.Err(LoadWeights(path)), c.message)
		})
	}
	w := newTestWeights(t, small(), tensor.Float32, 1)
	require.ErrorIs(t, w.Restore(filepath.Join(t.TempDir(), "missing")), os.ErrNotExist)
	notFinite := newTestWeights(t, small(), tensor.Float64, 1)
	notFinite.Tensors["norm.weight"].Float64s()[2] = math.NaN()
	file := filepath.Join(t.TempDir(), "weights.safetensors")
	require.ErrorIs(t, notFinite.Save(file), safetensors.ErrNotFinite)
	require.NoFileExists(t, file)

	path := filepath.Join(t.TempDir(), "weights.safetensors")
	wide := small()
	wide.Window = 17
	other := newTestWeights(t, wide, tensor.Float32, 2)
	require.NoError(t, other.Save(path))
	require.ErrorContains(t, w.Restore(path), "configuration")
}

// TestWeightsOfOtherTensors: any caller may change Tensors. Save writes the elements of a view, and refuses tensors
// that are not of the model before it writes anything.
func TestWeightsOfOtherTensors(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, w.Save(path))
	before := bits(t, w)
	const name = "layers.0.mlp.w1.weight"
	own := w.Tensors[name]

	turned := own.Clone().(*tensor.Dense)
	require.NoError(t, turned.T())
	require.NoError(t, turned.Transpose())
	require.NoError(t, turned.T())
	w.Tensors[name] = turned
	require.NoError(t, w.Save(path))
	require.Equal(t, before, bits(t, testutil.Must(LoadWeights(path))(t)))
	require.ErrorContains(t, w.Restore(path), name+" is a view")
	w.Tensors[name] = own

	file := testutil.Must(os.ReadFile(path))(t)
	for message, change := range map[string]func(){
		"no tensor " + name:     func() { delete(w.Tensors, name) },
		"tensor " + name:        func() { w.Tensors[name] = nil },
		name + " has shape (3)": func() { w.Tensors[name] = tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(3)) },
		name + ": type int32": func() {
			w.Tensors[name] = tensor.New(tensor.Of(tensor.Int32),
				tensor.WithShape(own.Shape()...))
		},
		name + " is float64, embed": func() {
			w.Tensors[name] = tensor.New(tensor.Of(tensor.Float64),
				tensor.WithShape(own.Shape()...))
		},
		"tensor x is not of this": func() { w.Tensors["x"] = own },
	} {
		change()
		for what, err := range map[string]error{"save": w.Save(path), "restore": w.Restore(path),
			"move": w.MoveTo(graph.NewCPU(1))} {
			require.ErrorContains(t, err, message, what)
		}
		delete(w.Tensors, "x")
		w.Tensors[name] = own
		require.Equal(t, before, bits(t, w))
	}
	require.Equal(t, file, testutil.Must(os.ReadFile(path))(t))
}

func TestNewWeightsBySeedAndName(t *testing.T) {
	a := newTestWeights(t, small(), tensor.Float64, 1)
	b := newTestWeights(t, small(), tensor.Float32, 1)
	deep := small()
	deep.Layers = 3
	c := newTestWeights(t, deep, tensor.Float64, 1)
	for name, v := range a.Tensors {
		for i, x := range v.Float64s() {
			require.Equal(t, float32(x), b.Tensors[name].Float32s()[i], name)
		}
	}
	name := "layers.1.attn.wk_sel.weight"
	require.Equal(t, a.Tensors[name].Float64s(), c.Tensors[name].Float64s())
	require.NotEqual(t, a.Tensors[name].Float64s(), a.Tensors["layers.0.attn.wk_sel.weight"].Float64s())
	require.ErrorContains(t, testutil.Err(NewWeights(small(), tensor.Int32, 1)), "type int32")
}

// tensorSource reads the tensors of other weights. The read of number fail fails.
type tensorSource struct {
	from         *Weights
	fail         int
	reads, ended int
}

func (s *tensorSource) Read(p nn.Param) (*tensor.Dense, error) {
	if s.reads++; s.reads == s.fail {
		return nil, errors.New("a bad sector")
	}
	return s.from.Tensors[p.Name].Clone().(*tensor.Dense), nil
}

func (s *tensorSource) Close() error { s.ended++; return nil }

// TestReadWeights: weights of a source are read once, when they are needed: on the host all, on a device one by one, and
// are then as good as others there. The source is closed once.
func TestReadWeights(t *testing.T) {
	all := newTestWeights(t, small(), tensor.Float32, 1)
	logits := func(w *Weights, opts ...DecoderOption) []float32 {
		d := testutil.Must(NewDecoder(w, 1, 30, opts...))(t)
		require.NoError(t, d.Prefill(0, testutil.Tokens(1, 20, w.Config.Vocab)))
		defer func() { require.NoError(t, d.Close()) }()
		return slices.Clone(d.Logits(0))
	}
	want := logits(all)
	read := func(fail int) (*Weights, *tensorSource) {
		s := &tensorSource{from: all, fail: fail}
		return testutil.Must(ReadWeights(all.Config, s))(t), s
	}
	w, s := read(0)
	require.Nil(t, w.Tensors)
	require.Zero(t, s.reads)
	require.NoError(t, w.MoveTo(graph.NewCPU(1)))
	require.Equal(t, want, logits(w))
	m := testutil.Must(NewModel(w, 1, 8))(t)
	require.NoError(t, m.Close())
	require.NoError(t, w.Free())
	require.Equal(t, []int{len(all.Tensors), 1}, []int{s.reads, s.ended})

	f := fakedevice.New()
	w, s = read(0)
	require.NoError(t, w.MoveTo(f))
	require.ErrorContains(t, w.MoveTo(f), "moved already")
	require.Nil(t, w.Tensors)
	require.Equal(t, want, logits(w, DecodeOn(f, graph.F32)))
	solver := testutil.Closing(optim.NewAdamW(optim.WithLR(0.1)))(t)
	m = testutil.Must(NewModel(w, 1, 8, WithOptimizer(solver), WithMachine(graph.WithBackend(f))))(t)
	require.NoError(t, m.Step())
	require.NoError(t, m.Close())
	file := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, w.Save(file))
	require.NotEqual(t, all.Tensors["norm.weight"].Data(), w.Tensors["norm.weight"].Data())
	require.NoError(t, all.Save(file))
	require.NoError(t, w.Restore(file))
	require.Equal(t, want, logits(w, DecodeOn(f, graph.F32)))
	require.NoError(t, w.Free())
	require.Equal(t, []int{len(all.Tensors), 1}, []int{s.reads, s.ended})

	w, s = read(3)
	require.ErrorContains(t, w.MoveTo(f), "bad sector")
	require.NoError(t, w.Load(), "another try")
	require.NoError(t, w.Free())
	require.NoError(t, w.Free())
	require.Equal(t, 1, s.ended)
	require.Zero(t, f.MemoryInUse)
	require.ErrorContains(t, testutil.Err(ReadWeights(all.Config, nil)), "no source")
	require.ErrorContains(t, testutil.Err(ReadWeights(Config{}, s)), "vocab")
}
