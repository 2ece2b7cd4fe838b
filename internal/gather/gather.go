// Package gather sends values between the ranks of a graph.Group.
package gather

import (
	"encoding/json"
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Group is what JSON needs of a graph.Group.
type Group interface {
	AllGather(what string, data []byte) ([][]byte, error)
}

// JSON sends a value, as JSON, to all ranks and returns those of all, by rank. All ranks call it in the same order.
// Without a group there is one rank.
func JSON[T any](g Group, what string, own T) ([]T, error) {
	if value.IsNil(g) {
		return []T{own}, nil
	}
	data, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := g.AllGather(what, data)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("%s: rank %d: %w", what, rank, err)
		}
	}
	return all, nil
}
