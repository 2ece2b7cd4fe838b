// Package pretrained reads and writes the weights of a Hugging Face folder, as from_pretrained and save_pretrained of
// transformers do: the tensors of model.safetensors or, of a large model, those of several files (shards) and
// model.safetensors.index.json, which says which file each tensor is in. Other files of the folder are the caller's.
package pretrained

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"

	maxIndex = 100 << 20 // bytes, as of a header of safetensors
)

// index is the content of the file of this name.
type index struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"` // file by tensor
}

// Folder is the open weights of a folder. Its methods, but Close, may be called from several goroutines.
type Folder struct {
	path   string
	shards []*safetensors.Reader
	byName map[string]*safetensors.Reader
}

// Open opens the weights of a folder and reads their headers. model.safetensors is taken before an index, as by
// transformers. With an index, each tensor has to be in the file that it says, in no other, and each file of the index
// in the folder itself. The folder has to be closed.
func Open(path string) (*Folder, error) {
	f := &Folder{path: path, byName: map[string]*safetensors.Reader{}}
	if err := f.open(); err != nil {
		return nil, fault.In("pretrained", "", quote.Error(errors.Join(err, f.Close())))
	}
	return f, nil
}

func (f *Folder) open() error {
	r, err := safetensors.Open(filepath.Join(f.path, singleName))
	if err == nil {
		f.shards = append(f.shards, r)
		for _, name := range r.Names() {
			f.byName[name] = r
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := filepath.Join(f.path, indexName)
	text, err := files.ReadFile(path, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: neither %s nor %s: %w", f.path, singleName, indexName, fs.ErrNotExist)
	} else if err != nil {
		return err
	}
	var in index
	err = json.Unmarshal(text, &in)
	if err == nil && len(in.WeightMap) == 0 {
		err = errors.New("no weight_map")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := f.openShards(in.WeightMap); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// openShards opens the files of an index.
func (f *Folder) openShards(weightMap map[string]string) error {
	fileOf := map[string]string{} // where each tensor is
	for _, file := range slices.Compact(slices.Sorted(maps.Values(weightMap))) {
		if file != filepath.Base(file) || !filepath.IsLocal(file) || file == "." {
			return fmt.Errorf("shard %q, want the name of a file in the folder", file)
		}
		r, err := safetensors.Open(filepath.Join(f.path, file))
		if err != nil {
			return err
		}
		f.shards = append(f.shards, r)
		for _, name := range r.Names() {
			said, listed := weightMap[name]
			switch other := fileOf[name]; {
			case other != "":
				return fmt.Errorf("tensor %q is in %q and in %q", name, other, file)
			case !listed:
				return fmt.Errorf("tensor %q of %q is not listed", name, file)
			case said != file:
				return fmt.Errorf("tensor %q is in %q, not in %q", name, file, said)
			}
			fileOf[name], f.byName[name] = file, r
		}
	}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		if f.byName[name] == nil {
			return fmt.Errorf("tensor %q is not in %q", name, weightMap[name])
		}
	}
	return nil
}

// Close closes the files.
func (f *Folder) Close() error {
	var errs []error
	for _, r := range f.shards {
		errs = append(errs, r.Close())
	}
	return fault.In("pretrained", f.path, errors.Join(errs...))
}

// Names returns the sorted names of the tensors.
func (f *Folder) Names() []string { return slices.Sorted(maps.Keys(f.byName)) }

// Shape returns the shape of a tensor, which is not nil, and whether there is one of this name.
func (f *Folder) Shape(name string) (shape []int, ok bool) {
	if r := f.byName[name]; r != nil {
		return r.Shape(name)
	}
	return nil, false
}

// Type returns the type of a tensor as safetensors calls it, such as BF16; "" if there is no tensor of this name.
func (f *Folder) Type(name string) string {
	if r := f.byName[name]; r != nil {
		return r.Type(name)
	}
	return ""
}

// Read reads a tensor of F32, BF16 or F16 into dst, row-major, on all cores. dst has as many elements as the tensor.
func (f *Folder) Read(name string, dst []float32) error {
	r := f.byName[name]
	if r == nil {
		return fault.In("pretrained", f.path, quote.Error(fmt.Errorf("no tensor %q", name)))
	}
	return fault.In("pretrained", "", r.Read(name, dst))
}
