package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a tokenizer.json.
const (
	maxDepth = 8   // of sequences in sequences
	maxParts = 256 // of a sequence with those in it: a text goes through all of them, one inside the call of another
)

// part is an object of a tokenizer.json: a normalizer, a pre-tokenizer, a model or a decoder.
type part struct {
	kind  string // its member "type"
	value jsontext.Value
}

// partType is embedded in the options of each kind of part.
type partType struct {
	Type string `json:"type"`
}

// noOptions is the type of the options of a part that has none.
type noOptions struct{ partType }

// maker makes a T from a part of one kind.
type maker[T any] func(part) (T, error)

// with returns a maker that reads the options of a part. An option that is no field of Options is an error.
func with[Options, T any](make func(Options) (T, error)) maker[T] {
	return func(p part) (result T, err error) {
		var o Options
		if err := json.Unmarshal(p.value, &o, json.RejectUnknownMembers(true)); err != nil {
			return result, err
		}
		return make(o)
	}
}

// constant returns a maker for a part without options.
func constant[T any](t T) maker[T] {
	return with(func(noOptions) (T, error) { return t, nil })
}

// readParts makes a T from each part of a value: see flatten. It also returns the kinds of the parts.
func readParts[T any](value jsontext.Value, list string, makers map[string]maker[T]) (all []T, kinds []string,
	err error) {
	parts, err := flatten(value, list, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range parts {
		t, err := makePart(p, makers)
		if err != nil {
			return nil, nil, err
		}
		all, kinds = append(all, t), append(kinds, p.kind)
	}
	return all, kinds, nil
}

func makePart[T any](p part, makers map[string]maker[T]) (t T, err error) {
	make, err := find("type", p.kind, makers)
	if err != nil {
		return t, err
	}
	if t, err = make(p); err != nil {
		return t, fmt.Errorf("%s: %w", p.kind, err)
	}
	return t, nil
}

// find returns the entry of a name, which is the value of what.
func find[T any](what, name string, in map[string]T) (t T, err error) {
	t, ok := in[name]
	if !ok {
		err = fmt.Errorf("%s %q, want one of %s", what, name, strings.Join(slices.Sorted(maps.Keys(in)), ", "))
	}
	return t, err
}

func readPart(value jsontext.Value) (part, error) {
	var t partType
	err := json.Unmarshal(value, &t)
	return part{t.Type, value}, err
}

// flatten returns the parts of a value: none for null, the parts in the member list for a Sequence, else the value
// itself.
func flatten(value jsontext.Value, list string, depth int) ([]part, error) {
	if len(value) == 0 || value.Kind() == 'n' {
		return nil, nil
	}
	p, err := readPart(value)
	if err != nil || p.kind != "Sequence" {
		return []part{p}, err
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("sequences in more than %d sequences", maxDepth)
	}
	var sequence map[string]jsontext.Value
	if err := json.Unmarshal(value, &sequence); err != nil {
		return nil, err
	}
	var values []jsontext.Value
	if sequence[list] == nil {
		return nil, fmt.Errorf("a Sequence without %s", list)
	}
	if err := json.Unmarshal(sequence[list], &values); err != nil {
		return nil, err
	}
	var all []part
	for _, v := range values {
		if v.Kind() == 'n' {
			return nil, errors.New("null in a Sequence")
		}
		parts, err := flatten(v, list, depth+1)
		if err != nil {
			return nil, err
		}
		if all = append(all, parts...); len(all) > maxParts {
			return nil, fmt.Errorf("a Sequence of more than %d %s", maxParts, list)
		}
	}
	return all, nil
}
