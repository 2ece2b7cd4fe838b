package tinylm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// embedStd is the standard deviation of a new embedding. The first norm makes its scale irrelevant for the output;
// it sets how fast the embedding changes relative to its size.
const embedStd = 0.1

// configKey is the entry of a file's metadata that holds the Config.
const configKey = "config"

// Weights are the parameters of a model by name. Models built with them share these tensors or, after MoveTo, their
// copies on a device.
type Weights struct {
	Config  Config
	Tensors map[string]*tensor.Dense // all float32 or all float64; nil: not in host memory, see ReadWeights

	source      Source          // of weights that have not been read
	resident    *graph.Resident // the copies on the device, in the order of Config.LearnableParams; nil: in host memory
	lastStepper *graph.Machine  // the machine whose step changed them last; nil after any other change
	lastUser    *graph.Machine  // the machine that used them last on the device; another one waits for it first
	// number of changes by steps and Restore; after a change, a Decoder refreshes its copies in half precision
	version int
}

var errNoWeights = errors.New("no weights")

// Source reads parameters of a file in float32.
type Source interface {
	Read(p nn.Param) (*tensor.Dense, error)
	io.Closer
}

// ReadWeights returns the weights of a source, which are read when they are needed: MoveTo to a device reads one after
// the other, so that there is one at a time in host memory. Whatever needs Tensors, such as a Model on the host, reads
// all, as Load does. The weights close the source when it has been read, or Free.
func ReadWeights(c Config, s Source) (_ *Weights, err error) {
	defer fault.Name(&err, "tinylm", "weights")
	if value.IsNil(s) {
		return nil, errors.New("no source")
	}
	if err := c.check(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Weights{Config: c.WithDefaults(), source: s}, nil
}

// Load reads the weights of ReadWeights into Tensors, if they are not there.
func (w *Weights) Load() (err error) {
	defer fault.Name(&err, "tinylm", "weights")
	return w.check()
}

// load reads the tensors of the source, if there is one.
func (w *Weights) load() (err error) {
	if w.source == nil {
		return nil
	}
	if err := memory.CheckTotal(4 * w.Config.Parameters()); err != nil {
		return fmt.Errorf("%d parameters in float32: %w", w.Config.Parameters(), err)
	}
	all := map[string]*tensor.Dense{}
	for _, p := range w.Config.LearnableParams() {
		if all[p.Name], err = w.source.Read(p); err != nil {
			return err
		}
	}
	w.Tensors = all
	return w.closeSource()
}

func (w *Weights) closeSource() (err error) {
	if w.source != nil {
		err, w.source = w.source.Close(), nil
	}
	return err
}

// dtype returns the type of the weights, which have been checked.
func (w *Weights) dtype() tensor.Dtype {
	if v := w.Tensors["norm.weight"]; v != nil {
		return v.Dtype()
	}
	return tensor.Float32
}

// MoveTo copies the weights to the memory of b. Models made from now on read and train these copies. Tensors keep their
// values until Download. If b uses the host's memory, MoveTo does nothing. Free frees the copies.
func (w *Weights) MoveTo(b graph.Backend) (err error) {
	defer fault.Name(&err, "tinylm", "weights")
	if w != nil && w.source != nil && !value.IsNil(b) && !b.Device().Host {
		return w.readOnto(b)
	}
	if err := w.check(); err != nil {
		return err
	}
	if w.resident != nil {
		return errors.New("moved already")
	}
	var host []G.Value
	for _, p := range w.Config.LearnableParams() {
		host = append(host, w.Tensors[p.Name])
	}
	r, err := graph.NewResident(b, host)
	if err == nil && !b.Device().Host { // else r holds nothing
		w.resident = r
	}
	return err
}

// readOnto is MoveTo of weights that have not been read.
func (w *Weights) readOnto(b graph.Backend) (err error) {
	params := w.Config.LearnableParams()
	shapes := make([]tensor.Shape, len(params))
	for i, p := range params {
		shapes[i] = p.Shape
	}
	w.resident, err = graph.ReadResident(b, tensor.Float32, shapes, func(i int) (*tensor.Dense, error) {
		return w.source.Read(params[i])
	})
	if err != nil {
		return err
	}
	return w.closeSource()
}

// checkOn refuses a backend whose memory the weights are not in.
func (w *Weights) checkOn(b graph.Backend) error {
	switch {
	case w.resident == nil && !b.Device().Host:
		return errors.New("the weights are on the host: move them to the device first")
	case w.resident != nil && b != w.resident.Backend():
		return fmt.Errorf("the weights are in the memory of another backend, on %s: decode there, or Free them first",
			w.resident.Backend().Device().Name)
	}
	return nil
}

// builder returns a builder of parts of the model in g. The parameters have the values of Tensors; those on a device
// alone have none before bind.
func (w *Weights) builder(g *G.ExprGraph) *nn.Builder {
	params := w.Config.WithDefaults().LearnableParams()
	if w.Tensors == nil {
		return nn.NewShapeBuilder(g, params, w.dtype())
	}
	return nn.NewBuilder(g, params, nn.Values(w.Tensors))
}

// bind binds the copies on the device to the nodes of parameters.
func (w *Weights) bind(nodes G.Nodes) error {
	copies := map[string]G.Value{}
	for i, p := range w.Config.LearnableParams() {
		copies[p.Name] = w.resident.Values()[i]
	}
	for _, n := range nodes {
		if err := G.UnsafeLet(n, copies[n.Name()]); err != nil {
			return err
		}
	}
	return nil
}

// use records that m uses the weights on the device. If another machine used them last, use waits for that machine
// first.
func (w *Weights) use(m *graph.Machine) error {
	if w.resident == nil || m == w.lastUser {
		return nil
	}
	if w.lastUser != nil {
		if err := w.lastUser.Synchronize(); err != nil {
			return err
		}
	}
	w.lastUser = m
	return nil
}

// Download waits for the steps under way and copies the weights on the device to Tensors.
func (w *Weights) Download() (err error) {
	defer fault.Name(&err, "tinylm", "weights")
	switch {
	case w == nil:
		return errNoWeights
	case w.resident == nil:
		return nil
	}
	return w.download()
}

// download is Download of weights on a device.
func (w *Weights) download() error {
	if err := w.resident.Download(); err != nil || w.Tensors != nil {
		return err
	}
	w.Tensors = map[string]*tensor.Dense{}
	for i, p := range w.Config.LearnableParams() {
		w.Tensors[p.Name] = w.resident.HostValues()[i].(*tensor.Dense)
	}
	return nil
}

// Free frees the copies on the device, without a Download, and closes the source of weights that have not been read. The
// models that use them must be closed first.
func (w *Weights) Free() error {
	if w == nil {
		return nil
	}
	err := w.closeSource()
	if w.resident != nil {
		err = errors.Join(err, w.resident.Close())
		w.resident = nil
	}
	return err
}

// UsesMuon reports whether a weight should take steps of Muon: the matrices of the layers do, except those of gates and
// positions; the embedding and the head do not. It is a rule for optim.WithMuon.
func UsesMuon(name string, shape tensor.Shape) bool {
	return shape.Dims() == 2 && strings.HasPrefix(name, "layers.") && !strings.Contains(name, ".gate.") &&
		!strings.HasSuffix(name, ".pe")
}

// NewWeights draws the parameters of a model. The same seed gives the same weights; float32 is float64 rounded.
func NewWeights(c Config, dt tensor.Dtype, seed uint64) (*Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("tinylm: weights of type %s, want float32 or float64", value.TypeName(dt))
	}
	if err := memory.CheckTotal(c.Parameters() * int(dt.Size())); err != nil {
		return nil, fmt.Errorf("tinylm: weights: %d parameters: %w", c.Parameters(), err)
	}
	c = c.WithDefaults()
	w := &Weights{Config: c, Tensors: map[string]*tensor.Dense{}}
	for _, p := range c.LearnableParams() {
		v, err := p.New(dt, seed)
		if err != nil {
			return nil, fmt.Errorf("tinylm: %w", err)
		}
		w.Tensors[p.Name] = v
	}
	return w, nil
}

// Save writes w to path as safetensors with the configuration in the metadata. If the weights are on a device, it
// downloads them first. It writes the file under another name and then renames it. Weights that are not finite are an
// error: LoadWeights would not take the file.
func (w *Weights) Save(path string) (err error) {
	defer fault.Name(&err, "tinylm", "weights")
	if err := w.check(); err != nil {
		return err
	}
	if w.resident != nil {
		if err := w.download(); err != nil {
			return err
		}
	}
	f := safetensors.File{Tensors: w.Tensors}
	if err := f.CheckFinite(); err != nil {
		return err
	}
	config, err := json.Marshal(w.Config)
	if err != nil {
		return err
	}
	f.Metadata = map[string]string{configKey: string(config)}
	return f.Write(path)
}

// LoadWeights reads a file that Save wrote. It is an error if the configuration is not valid, a parameter is missing or
// has another shape, the parameters have different types, there are other tensors, or numbers are not finite. With
// safetensors.AllowNaN any numbers are accepted.
func LoadWeights(path string, opts ...safetensors.Option) (_ *Weights, err error) {
	defer fault.Name(&err, "tinylm", "weights")
	f, err := safetensors.Read(path, opts...)
	if err != nil {
		return nil, err
	}
	w := &Weights{Tensors: f.Tensors}
	if w.Config, err = configOf(f); err == nil {
		err = w.check()
	}
	if err == nil && !slices.Contains(opts, safetensors.AllowNaN) {
		err = f.CheckFinite()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, quote.Error(err))
	}
	return w, nil
}

// Restore reads a file that Save wrote for the same configuration into the tensors of w, so that every model built with
// w has the new values. float32 and float64 are converted into each other. If the file is wrong, w is unchanged. If the
// copy to the device fails, the tensors have the new values but the device does not.
func (w *Weights) Restore(path string, opts ...safetensors.Option) (err error) {
	defer fault.Name(&err, "tinylm", "weights")
	if err := w.check(); err != nil {
		return err
	}
	if w.Tensors == nil {
		if err := w.download(); err != nil {
			return err
		}
	}
	for name, v := range w.Tensors {
		if !spec.IsRowMajor(v) {
			return fmt.Errorf("%s is a view or not row-major, which cannot be written to", name)
		}
	}
	from, err := LoadWeights(path, opts...)
	if err != nil {
		return err
	}
	if from.Config.WithDefaults() != w.Config.WithDefaults() {
		return fmt.Errorf("%s: configuration %+v, want %+v", path, from.Config, w.Config)
	}
	for name, v := range w.Tensors {
		if err := nn.Assign(v, from.Tensors[name]); err != nil {
			return err // not reached: both sides have been checked
		}
	}
	w.lastStepper, w.version = nil, w.version+1
	if w.resident == nil {
		return nil
	}
	return w.resident.Upload()
}

// configOf returns the configuration in the metadata of a file, not yet checked.
func configOf(f safetensors.File) (c Config, err error) {
	text, ok := f.Metadata[configKey]
	if !ok {
		return c, errors.New("no configuration in the metadata: not weights of this model")
	}
	// Package json ignores what follows an object, and takes the last of two equal names.
	if !jsontext.Value(text).IsValid() {
		return c, errors.New("configuration: no JSON object, or one with a name that appears twice")
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if c.Layers > len(f.Tensors) {
		return c, fmt.Errorf("%d tensors for %d layers", len(f.Tensors), c.Layers)
	}
	return c.WithDefaults(), nil
}

// check returns an error if Tensors do not fit the configuration or have different types. It reads those that have not been
// read, but not those that are on a device alone.
func (w *Weights) check() error {
	if w == nil {
		return errNoWeights
	}
	if err := w.Config.check(); err != nil {
		return errors.New(err.Error()) // without its fields, which are no options of the caller
	}
	if err := w.load(); err != nil {
		return err
	}
	if w.Tensors == nil && w.resident != nil {
		return nil
	}
	params := w.Config.LearnableParams()
	known, first := make(map[string]bool, len(params)), params[0].Name
	for _, p := range params {
		known[p.Name] = true
		v := w.Tensors[p.Name]
		switch {
		case v == nil:
			return fmt.Errorf("no tensor %s", p.Name)
		case !slices.Equal(p.Shape, v.Shape()):
			return fmt.Errorf("%s has shape %v, want %v", p.Name, v.Shape(), p.Shape)
		case v.Dtype() != tensor.Float32 && v.Dtype() != tensor.Float64:
			return fmt.Errorf("%s: type %v, want float32 or float64", p.Name, v.Dtype())
		case v.Dtype() != w.Tensors[first].Dtype():
			return fmt.Errorf("%s is %v, %s is %v", p.Name, v.Dtype(), first, w.Tensors[first].Dtype())
		}
	}
	for name := range w.Tensors {
		if !known[name] {
			return fmt.Errorf("tensor %s is not of this model", name)
		}
	}
	return nil
}
