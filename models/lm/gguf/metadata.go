package gguf

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// ErrNoKey is in the errors of Get and List for a key that the file lacks.
var ErrNoKey = errors.New("not in the metadata")

// Element is a type of the metadata. All integers are read as int, and float32 as float64.
type Element interface{ string | bool | int | float64 }

// Keys returns the sorted keys of the metadata.
func (f *File) Keys() []string { return slices.Sorted(maps.Keys(f.metadata)) }

// Get returns a value of the metadata. A value of another type and an integer that does not fit are errors.
func Get[T Element](f *File, key string) (T, error) {
	list, err := get[T](f, key, false)
	if err != nil {
		return *new(T), err
	}
	return list[0], nil
}

// GetOr is Get, but returns otherwise if the file lacks the key.
func GetOr[T Element](f *File, key string, otherwise T) (T, error) {
	v, err := Get[T](f, key)
	if errors.Is(err, ErrNoKey) {
		return otherwise, nil
	}
	return v, err
}

// List is Get for an array.
func List[T Element](f *File, key string) ([]T, error) { return get[T](f, key, true) }

func get[T Element](f *File, key string, array bool) (list []T, err error) {
	v, ok := f.metadata[key]
	switch {
	case !ok:
		err = ErrNoKey
	case v.array && !array:
		err = fmt.Errorf("an array of %s, want one %T", v.kind, *new(T))
	case array && !v.array:
		err = fmt.Errorf("one %s, want an array", v.kind)
	default:
		list = make([]T, v.count)
		err = v.elements(list)
	}
	if err != nil {
		return nil, fault.In("gguf", f.path, quote.Error(fmt.Errorf("metadata %q: %w", key, err)))
	}
	return list, nil
}

// value is an entry of the metadata as in the file.
type value struct {
	kind  kind // of the elements
	array bool
	count uint64 // of elements, 1 if it is no array
	raw   []byte // of the elements
}

// elements sets dst, a slice of an Element, to all elements.
func (v value) elements(dst any) error {
	size := int(v.kind.size())
	switch dst := dst.(type) {
	case []string:
		if v.kind == kindString {
			all := string(v.raw) // one copy, which all strings share
			for i := range dst {
				end := 8 + int(number(v.raw[len(v.raw)-len(all):][:8]))
				dst[i], all = all[8:end], all[end:]
			}
			return nil
		}
	case []bool:
		if v.kind == kindBool {
			for i, b := range v.raw {
				if b > 1 {
					return fmt.Errorf("a bool of value %d", b)
				}
				dst[i] = b == 1
			}
			return nil
		}
	case []float64:
		if v.kind == kindFloat32 || v.kind == kindFloat64 {
			for i := range dst {
				if bits := number(v.raw[size*i:][:size]); size == 4 {
					dst[i] = float64(math.Float32frombits(uint32(bits)))
				} else {
					dst[i] = math.Float64frombits(bits)
				}
			}
			return nil
		}
	case []int:
		if signed, ok := v.kind.integer(); ok {
			for i := range dst {
				x := number(v.raw[size*i:][:size])
				if shift := 64 - 8*size; signed {
					x = uint64(int64(x<<shift) >> shift)
				} else if x > math.MaxInt64 {
					return fmt.Errorf("%d does not fit in int", x)
				}
				if dst[i] = int(x); int64(dst[i]) != int64(x) {
					return fmt.Errorf("%d does not fit in int", int64(x))
				}
			}
			return nil
		}
	}
	return fmt.Errorf("of type %s, want %s", v.kind, strings.TrimPrefix(fmt.Sprintf("%T", dst), "[]"))
}

// kind is a type of the metadata.
type kind uint32

const (
	kindFloat32 kind = 6
	kindBool    kind = 7
	kindString  kind = 8
	kindArray   kind = 9
	kindFloat64 kind = 12
)

// kinds are the types in the order of their numbers, with the bytes of an element.
var kinds = [...]struct {
	name string
	size uint64 // 0: differs
}{
	{"uint8", 1}, {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"uint32", 4}, {"int32", 4}, {"float32", 4}, {"bool", 1},
	{"string", 0}, {"array", 0}, {"uint64", 8}, {"int64", 8}, {"float64", 8},
}

func (k kind) String() string { return kinds[k].name }

// size returns the bytes of an element, 0 if they differ or the type is unknown.
func (k kind) size() uint64 {
	if int(k) < len(kinds) {
		return kinds[k].size
	}
	return 0
}

// integer reports whether k is a type of integers, and of signed ones.
func (k kind) integer() (signed, ok bool) {
	return k%2 == 1, k < kindFloat32 || k > kindArray && k < kindFloat64
}
