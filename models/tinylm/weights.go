package tinylm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/safetensors"
	"github.com/gorgonia-nsa/nsa/ops"
)

// embedStd is the standard deviation of a fresh embedding. The first norm makes its scale irrelevant for the output;
// it sets how fast the embedding moves against its size.
const embedStd = 0.1

// configKey is the entry of a file's metadata that holds the Config.
const configKey = "config"

func sqrt(n int) float64 { return math.Sqrt(float64(n)) }

// Weights are the parameters of a model by name. Models built of them hold these very tensors, or, after MoveTo, their
// copies on a device.
type Weights struct {
	Config  Config
	Dtype   tensor.Dtype // float32 or float64
	Tensors map[string]*tensor.Dense

	resident *graph.Resident    // nil: in host memory
	moved    map[string]G.Value // on the device, by name
	version  int                // how often they have been changed, by Restore and by training
	user     *graph.Machine     // that has used them on the device last: others have to wait for it
}

var errNoWeights = errors.New("tinylm: weights: nil")

// MoveTo copies the weights to the memory of b, where the models that are made from now on read and train them; Tensors are
// what they were then until Download. Nothing happens where the memory of b is the host's. Free ends it.
func (w *Weights) MoveTo(b graph.Backend) error {
	if err := w.check(); err != nil {
		return err
	}
	if w.resident != nil {
		return errors.New("tinylm: weights: moved already")
	}
	names := slices.Sorted(maps.Keys(w.Tensors))
	host := make([]G.Value, len(names))
	for i, n := range names {
		host[i] = w.Tensors[n]
	}
	r, err := graph.NewResident(b, host)
	if err != nil {
		return fmt.Errorf("tinylm: weights: %w", err)
	}
	if b.Device().Host { // r holds nothing
		return nil
	}
	w.resident, w.moved = r, map[string]G.Value{}
	for i, n := range names {
		w.moved[n] = r.Values()[i]
	}
	return nil
}

// use makes m the machine that uses the weights on the device, after what another one has under way.
func (w *Weights) use(m *graph.Machine) error {
	if w.resident == nil || m == w.user {
		return nil
	}
	if w.user != nil {
		if err := w.user.Synchronize(); err != nil {
			return err
		}
	}
	w.user = m
	return nil
}

// Download copies the weights from the device that they have been moved to into Tensors, after the steps that are under way.
func (w *Weights) Download() error {
	if w == nil {
		return errNoWeights
	}
	if w.resident == nil {
		return nil
	}
	if err := w.resident.Download(); err != nil {
		return fmt.Errorf("tinylm: weights: %w", err)
	}
	return nil
}

// Free gives up the copies on the device, after a Download if they are wanted. Models that use them must have been closed.
func (w *Weights) Free() error {
	if w == nil || w.resident == nil {
		return nil
	}
	err := w.resident.Close()
	w.resident, w.moved = nil, nil
	return err
}

// NewWeights draws the parameters of a model. The same seed gives the same weights; float32 is float64 rounded.
func NewWeights(c Config, dt tensor.Dtype, seed uint64) (*Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	size := 4
	if dt == tensor.Float64 {
		size = 8
	}
	if err := cpu.CheckMemory(c.Parameters() * size); err != nil {
		return nil, fmt.Errorf("tinylm: weights: %d parameters: %w", c.Parameters(), err)
	}
	c = c.withDefaults()
	w := &Weights{Config: c, Dtype: dt, Tensors: map[string]*tensor.Dense{}}
	for _, p := range c.LearnableParams() {
		v, err := p.New(dt, seed)
		if err != nil {
			return nil, fmt.Errorf("tinylm: %w", err)
		}
		w.Tensors[p.Name] = v
	}
	return w, nil
}

// Save writes w to path as safetensors with the configuration in the metadata, after a Download where the weights are on a
// device. The file is written aside and renamed.
func (w *Weights) Save(path string) error {
	if err := w.check(); err != nil {
		return err
	}
	if err := w.Download(); err != nil {
		return err
	}
	config, err := json.Marshal(w.Config)
	if err != nil {
		return fmt.Errorf("tinylm: save weights: %w", err)
	}
	f := &safetensors.File{Metadata: map[string]string{configKey: string(config)}, Tensors: map[string]*safetensors.Tensor{}}
	for name, v := range w.Tensors {
		dtype, err := fileType(v.Dtype())
		if err != nil {
			return fmt.Errorf("tinylm: save weights: %s: %w", name, err)
		}
		data, err := floats(v)
		if err != nil {
			return fmt.Errorf("tinylm: save weights: %s: %w", name, err)
		}
		f.Tensors[name] = &safetensors.Tensor{Dtype: dtype, Shape: v.Shape(), Data: data}
	}
	if err := safetensors.Write(path, f); err != nil {
		return fmt.Errorf("tinylm: save weights: %w", err)
	}
	return nil
}

// LoadWeights reads what Save wrote: the configuration is checked, and every parameter must be there, of its shape and
// of one type for all, and nothing else.
func LoadWeights(path string) (*Weights, error) {
	f, c, err := readWeights(path)
	if err != nil {
		return nil, err
	}
	w := &Weights{Config: c, Tensors: map[string]*tensor.Dense{}}
	for _, p := range c.LearnableParams() {
		t := f.Tensors[p.Name]
		v := tensor.New(tensor.WithShape(p.Shape...), tensor.WithBacking(t.Data))
		if w.Dtype != (tensor.Dtype{}) && v.Dtype() != w.Dtype {
			return nil, fmt.Errorf("tinylm: load weights: %s: %s is %v, the tensors before it are %v", path, p.Name, v.Dtype(), w.Dtype)
		}
		w.Dtype, w.Tensors[p.Name] = v.Dtype(), v
	}
	return w, nil
}

// Restore reads a file that Save wrote for the same configuration into the tensors of w, so that every model built of w
// has the new values. float32 and float64 are converted into each other. On an error of the file w is as it was before; if the copy
// to the device fails, the tensors have the new values and the device has not.
func (w *Weights) Restore(path string) error {
	if err := w.check(); err != nil {
		return err
	}
	for name, v := range w.Tensors {
		if !ops.IsRowMajor(v) {
			return fmt.Errorf("tinylm: load weights: %s is a view or not row-major, which cannot be written to", name)
		}
	}
	f, c, err := readWeights(path)
	if err != nil {
		return err
	}
	if c != w.Config {
		return fmt.Errorf("tinylm: load weights: %s: configuration %+v, want %+v", path, c, w.Config)
	}
	for name, v := range w.Tensors {
		if err := setFloats(v, f.Tensors[name].Data); err != nil {
			return fmt.Errorf("tinylm: load weights: %s: %s: %w", path, name, err) // not reached: both sides have been checked
		}
	}
	w.version++
	if w.resident != nil {
		if err := w.resident.Upload(); err != nil {
			return fmt.Errorf("tinylm: load weights: %w", err)
		}
	}
	return nil
}

// readWeights reads a file and checks its configuration, names, shapes and types.
func readWeights(path string) (*safetensors.File, Config, error) {
	var c Config
	f, err := safetensors.Read(path)
	if err == nil {
		err = checkWeights(f, &c)
	}
	if err != nil {
		return nil, c, fmt.Errorf("tinylm: load weights: %s: %w", path, err)
	}
	return f, c, nil
}

func checkWeights(f *safetensors.File, c *Config) error {
	text, ok := f.Metadata[configKey]
	if !ok {
		return errors.New("no configuration in the metadata: not weights of this model")
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := c.Validate(); err != nil {
		return err
	}
	*c = c.withDefaults()
	if c.Layers > len(f.Tensors) {
		return fmt.Errorf("%d tensors for %d layers", len(f.Tensors), c.Layers)
	}
	params := c.LearnableParams()
	known := make(map[string]bool, len(params))
	for _, p := range params {
		known[p.Name] = true
		t, ok := f.Tensors[p.Name]
		if !ok {
			return fmt.Errorf("no tensor %s", p.Name)
		}
		if !p.Shape.Eq(tensor.Shape(t.Shape)) {
			return fmt.Errorf("%s has shape %v, want %v", p.Name, t.Shape, p.Shape)
		}
		if t.Dtype != "F32" && t.Dtype != "F64" {
			return fmt.Errorf("%s is %s, want F32 or F64", p.Name, t.Dtype)
		}
	}
	for name := range f.Tensors {
		if !known[name] {
			return fmt.Errorf("tensor %s is not of this model", name)
		}
	}
	return nil
}

// check returns an error where Tensors are not those of a model of the configuration.
func (w *Weights) check() error {
	if w == nil {
		return errNoWeights
	}
	if err := w.Config.Validate(); err != nil {
		return err
	}
	params := w.Config.withDefaults().LearnableParams()
	for _, p := range params {
		v := w.Tensors[p.Name]
		if v == nil {
			return fmt.Errorf("tinylm: weights: no tensor %s", p.Name)
		}
		if !p.Shape.Eq(v.Shape()) {
			return fmt.Errorf("tinylm: weights: %s has shape %v, want %v", p.Name, v.Shape(), p.Shape)
		}
		if _, err := fileType(v.Dtype()); err != nil {
			return fmt.Errorf("tinylm: weights: %s: %w", p.Name, err)
		}
	}
	if len(w.Tensors) != len(params) {
		return fmt.Errorf("tinylm: weights: %d tensors, the model has %d parameters", len(w.Tensors), len(params))
	}
	return nil
}

func fileType(dt tensor.Dtype) (string, error) {
	switch dt {
	case tensor.Float32:
		return "F32", nil
	case tensor.Float64:
		return "F64", nil
	}
	return "", fmt.Errorf("type %v, want float32 or float64", dt)
}

// floats returns the elements of v, row-major: its own memory unless v is a view.
func floats(v *tensor.Dense) (any, error) {
	var b cpu.Buf
	if err := ops.HoldValue(&b, v, ops.Operand{Dtype: v.Dtype(), Shape: v.Shape()}); err != nil {
		return nil, err
	}
	if v.Dtype() == tensor.Float32 {
		return cpu.Slice[float32](&b), nil
	}
	return cpu.Slice[float64](&b), nil
}

// setFloats copies data ([]float32 or []float64, of v's length) into v.
func setFloats(v *tensor.Dense, data any) error {
	switch d := data.(type) {
	case []float32:
		return setAll(v, d)
	case []float64:
		return setAll(v, d)
	}
	return fmt.Errorf("data of type %T", data)
}

func setAll[T float32 | float64](v *tensor.Dense, data []T) error {
	switch {
	case v.DataSize() != len(data):
		return fmt.Errorf("%d elements, want %d", len(data), v.DataSize())
	case v.Dtype() == tensor.Float32:
		for i, x := range data {
			v.Float32s()[i] = float32(x)
		}
	case v.Dtype() == tensor.Float64:
		for i, x := range data {
			v.Float64s()[i] = float64(x)
		}
	default:
		return fmt.Errorf("type %v, want float32 or float64", v.Dtype())
	}
	return nil
}
