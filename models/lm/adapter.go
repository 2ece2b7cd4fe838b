package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// The files of an adapter, a folder of Python's peft.
const (
	adapterConfig  = "adapter_config.json"
	adapterWeights = "adapter_model.safetensors"
	adapterPrefix  = "base_model.model." // of the names of its tensors
)

// peftConfig is what adapter_config.json says of a LoRA.
type peftConfig struct {
	Type     string   `json:"peft_type"`
	Task     string   `json:"task_type"`
	Rank     int      `json:"r"`
	Alpha    float64  `json:"lora_alpha"`
	Targets  []string `json:"target_modules"`
	Bias     string   `json:"bias"`
	RSLoRA   bool     `json:"use_rslora"`
	DoRA     bool     `json:"use_dora"`
	FanInOut bool     `json:"fan_in_fan_out"`

	LoRABias     bool           `json:"lora_bias"`
	RankPattern  map[string]any `json:"rank_pattern,omitempty"`
	AlphaPattern map[string]any `json:"alpha_pattern,omitempty"`
	Saved        []string       `json:"modules_to_save,omitempty"`
}

// SaveAdapter writes the low-rank updates of a model of the Llama family to a folder that Python's peft reads. The
// folder must not have an adapter. The weights must be in host memory.
func SaveAdapter(w *tinylm.Weights, folder string) (err error) {
	defer func() { err = fault.In("lm", folder, quote.Error(err)) }()
	if w == nil {
		return errNoWeights
	}
	c := w.Config.WithDefaults()
	if err := checkDense(c); err != nil {
		return err
	}
	if c.LoRA == 0 {
		return errors.New("the model has no low-rank updates")
	}
	f := safetensors.File{Tensors: map[string]*tensor.Dense{}, Metadata: map[string]string{"format": "pt"}}
	o := peftConfig{Type: "LORA", Task: "CAUSAL_LM", Rank: c.LoRA, Alpha: float64(c.LoRA), Bias: "none"}
	for _, p := range loraMatrices(c) {
		a, b := nn.LoRAOf(p.Name)
		name := adapterPrefix + strings.TrimSuffix(transformers.of(p.Name), ".weight")
		f.Tensors[name+".lora_A.weight"] = w.Tensors[a]
		f.Tensors[name+".lora_B.weight"] = toTransformers(p.Name, w.Tensors[b], c)
		if module := name[strings.LastIndexByte(name, '.')+1:]; !slices.Contains(o.Targets, module) {
			o.Targets = append(o.Targets, module)
		}
	}
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(folder, adapterConfig)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s is there already: %w", adapterConfig, fs.ErrExist))
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	if err := f.Write(filepath.Join(folder, adapterWeights)); err != nil {
		return err
	}
	return files.Write(path, append(text, '\n'))
}

// ReadAdapter returns the model of w with the low-rank updates of a folder of Python's peft. The other tensors are those
// of w, which must be in host memory and have no updates. Matrices that the adapter leaves out get an update of zero.
func ReadAdapter(w *tinylm.Weights, folder string) (_ *tinylm.Weights, err error) {
	defer func() { err = fault.In("lm", folder, quote.Error(err)) }()
	if w == nil {
		return nil, errNoWeights
	}
	if err := checkDense(w.Config.WithDefaults()); err != nil {
		return nil, err
	}
	text, err := readFile(filepath.Join(folder, adapterConfig))
	if err != nil {
		return nil, err
	}
	var o peftConfig
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("%s: no JSON of a LoRA: %w", adapterConfig, err)
	}
	if o.Type != "LORA" || o.RSLoRA || o.DoRA || o.FanInOut || o.LoRABias || o.Bias != "" && o.Bias != "none" ||
		len(o.RankPattern)+len(o.AlphaPattern)+len(o.Saved) > 0 {
		return nil, fmt.Errorf("%s: want a plain LoRA: peft_type \"LORA\", one rank, no biases, rslora, dora or modules_to_save",
			adapterConfig)
	}
	adapted, err := w.WithLoRA(o.Rank, 0)
	if err != nil {
		return nil, err
	}
	f, err := safetensors.Read(filepath.Join(folder, adapterWeights))
	if err != nil {
		return nil, err
	}
	left := len(f.Tensors)
	for _, p := range loraMatrices(adapted.Config) {
		name := adapterPrefix + strings.TrimSuffix(transformers.of(p.Name), ".weight")
		a, b := f.Tensors[name+".lora_A.weight"], f.Tensors[name+".lora_B.weight"]
		if a == nil && b == nil {
			continue
		}
		toA, toB := nn.LoRAOf(p.Name)
		if a == nil || b == nil || !a.Shape().Eq(adapted.Tensors[toA].Shape()) || !b.Shape().Eq(adapted.Tensors[toB].Shape()) {
			return nil, fmt.Errorf("the updates of %s do not fit the model: want A %v and B %v", quote.Text(name),
				adapted.Tensors[toA].Shape(), adapted.Tensors[toB].Shape())
		}
		if err := nn.Assign(adapted.Tensors[toA], a); err != nil {
			return nil, err
		}
		if err := nn.Assign(adapted.Tensors[toB], fromTransformers(p.Name, b, adapted.Config)); err != nil {
			return nil, err
		}
		numbers := adapted.Tensors[toB].Float32s()
		for i := range numbers {
			numbers[i] *= float32(o.Alpha / float64(o.Rank))
		}
		left -= 2
	}
	if left != 0 {
		return nil, fmt.Errorf("%s: %d tensors are not of the model's matrices", adapterWeights, left)
	}
	return adapted, nil
}

// loraMatrices returns the matrices that have updates.
func loraMatrices(c tinylm.Config) (list []nn.Param) {
	params := c.LearnableParams()
	for _, p := range params {
		down, _ := nn.LoRAOf(p.Name)
		if slices.ContainsFunc(params, func(q nn.Param) bool { return q.Name == down }) {
			list = append(list, p)
		}
	}
	return list
}
