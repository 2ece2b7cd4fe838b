package kernels

import (
	"encoding/binary"
	"reflect"
	"slices"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// Ptr is an address in the memory of a device.
type Ptr = driver.DevicePtr

// Ref is a pointer whose address is not known yet: an array of the op, and an offset in bytes. The zero value is the null pointer.
// In a struct of arguments a Ref stands where C has a pointer.
type Ref uint64

// The numbers of an op's arrays in a Ref. Inputs, then outputs, are numbered from firstOperand on.
const (
	_       = iota // null
	work           // the op's own work memory
	scratch        // the work memory that its products and reductions use one after the other
	firstOperand
)

// A Ref has the number of the array in its upper bits.
const (
	offsetBits = 48
	maxArrays  = 1 << (64 - offsetBits)
)

func refTo(array int, offset int64) Ref { return Ref(array)<<offsetBits | Ref(offset) }

// Plus returns r moved forward by bytes.
func (r Ref) Plus(bytes int64) Ref { return r + Ref(bytes) }

// Addresses holds the addresses of an op's arrays by their numbers. The address of null is 0.
type Addresses []Ptr

// Of returns the address that r stands for.
func (a Addresses) Of(r Ref) Ptr { return a[r>>offsetBits] + Ptr(r&(1<<offsetBits-1)) }

// Packed is a C struct, or an array of C structs, as the device reads it, but without the addresses in it.
type Packed struct {
	Bytes       []byte
	Relocations []Relocation
	Type        reflect.Type // the struct in Go
}

// Relocation marks bytes of a Packed that depend on an address.
type Relocation struct {
	Offset int
	Ref    Ref
	// Encode, if not nil, writes the bytes, such as a tensor map: 128 bytes that a driver makes from an address. Otherwise the
	// bytes are the 8 bytes of the address.
	Encode func(to []byte, address Ptr) error
}

// Pack packs the struct that v points to, or the slice of structs v. The fields must lie as in C. Every field of type Ref that is
// not null becomes a relocation.
func Pack(v any) Packed {
	from, n := reflect.ValueOf(v), 1
	if from.Kind() == reflect.Slice {
		n = from.Len()
	}
	t := from.Type().Elem()
	size := int(t.Size())
	c := Packed{Bytes: slices.Clone(unsafe.Slice((*byte)(from.UnsafePointer()), n*size)), Type: t}
	for i := range n {
		c.relocate(t, i*size)
	}
	return c
}

var refType = reflect.TypeFor[Ref]()

// relocate finds the Refs of a value of type t at an offset.
func (c *Packed) relocate(t reflect.Type, offset int) {
	switch {
	case t == refType:
		if r := Ref(binary.NativeEndian.Uint64(c.Bytes[offset:])); r != 0 {
			c.Relocations = append(c.Relocations, Relocation{Offset: offset, Ref: r})
		}
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			c.relocate(f.Type, offset+int(f.Offset))
		}
	case t.Kind() == reflect.Array:
		for i := range t.Len() {
			c.relocate(t.Elem(), offset+i*int(t.Elem().Size()))
		}
	}
}

// Copy returns a copy of the bytes, with null for all addresses.
func (c *Packed) Copy() []byte {
	b := slices.Clone(c.Bytes)
	for _, r := range c.Relocations {
		binary.NativeEndian.PutUint64(b[r.Offset:], 0)
	}
	return b
}

// Place writes the bytes that depend on addresses to `to`, a copy of c.Bytes. It allocates nothing itself; an Encode may.
func (c *Packed) Place(to []byte, at Addresses) error {
	for i := range c.Relocations {
		r := &c.Relocations[i]
		if r.Encode != nil {
			if err := r.Encode(to[r.Offset:], at.Of(r.Ref)); err != nil {
				return err
			}
			continue
		}
		binary.NativeEndian.PutUint64(to[r.Offset:], uint64(at.Of(r.Ref)))
	}
	return nil
}
