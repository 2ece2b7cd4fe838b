package pretrained

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// Layout says how Write stores tensors.
type Layout struct {
	Type       string // F32, BF16 or F16; "": F32
	ShardBytes int64  // most bytes of the tensors of a file, unless a single one has more; 0: all are in one file
}

// typeBytes is the size of an element by type.
var typeBytes = map[string]int64{"F32": 4, "BF16": 2, "F16": 2}

// Write writes tensors of float32 to a folder, which exists: into model.safetensors if one file is enough, else into
// model-00001-of-0000N.safetensors and so on, in the order of their names, and then the index. Rounding is to nearest
// even; a finite number that would become infinite is an error. It is also an error if the folder has weights: those of
// two models would mix if Write ended halfway. A folder for which Write has failed has no weights.
func Write(folder string, tensors map[string]*tensor.Dense, l Layout) error {
	return fault.In("pretrained", "", quote.Error(write(folder, tensors, l)))
}

func write(folder string, tensors map[string]*tensor.Dense, l Layout) error {
	if l.Type == "" {
		l.Type = "F32"
	}
	shards, total, err := l.shards(tensors)
	if err != nil {
		return err
	}
	for _, name := range []string{singleName, indexName} {
		path := filepath.Join(folder, name)
		if _, err := os.Lstat(path); err == nil {
			return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	in := index{Metadata: map[string]any{"total_size": total}, WeightMap: map[string]string{}}
	for i, names := range shards {
		file := singleName
		if len(shards) > 1 {
			file = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		// transformers reads no file without this word
		shard := safetensors.File{Metadata: map[string]string{"format": "pt"}, Tensors: map[string]*tensor.Dense{}}
		for _, name := range names {
			shard.Tensors[name], in.WeightMap[name] = tensors[name], file
		}
		if err := shard.WriteAs(filepath.Join(folder, file), l.Type); err != nil {
			return err
		}
	}
	if len(shards) == 1 {
		return nil
	}
	text, err := json.Marshal(in, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	return files.Write(filepath.Join(folder, indexName), append(text, '\n'))
}

// shards returns the names of the tensors of each file, and the bytes of all tensors.
func (l Layout) shards(tensors map[string]*tensor.Dense) (shards [][]string, total int64, err error) {
	size, ok := typeBytes[l.Type]
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("type %q, want F32, BF16 or F16", l.Type)
	case l.ShardBytes < 0:
		return nil, 0, fmt.Errorf("shards of %d bytes, want at least 0", l.ShardBytes)
	case len(tensors) == 0:
		return nil, 0, errors.New("no tensors")
	}
	var inShard int64
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		t := tensors[name]
		if t == nil || t.Dtype() != tensor.Float32 {
			return nil, 0, fmt.Errorf("tensor %q is nil or not of float32", name)
		}
		bytes := size * int64(t.Shape().TotalSize())
		if shards == nil || l.ShardBytes > 0 && inShard > 0 && inShard+bytes > l.ShardBytes {
			shards, inShard = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], name)
		inShard += bytes
		total += bytes
	}
	return shards, total, nil
}
