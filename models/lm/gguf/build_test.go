package gguf_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
)

// The numbers of the types of metadata and tensors that tests write.
const (
	uint32Kind, boolKind, stringKind, arrayKind = 4, 7, 8, 9

	f32, q4_1 = 0, 3
)

// entry is a pair of the metadata: a number, a bool, or a string or array as bytes.
type entry struct {
	key   string
	kind  uint32
	value any
}

// info is a tensor: dims in the order of the file.
type info struct {
	name   string
	dims   []uint64
	kind   uint32
	offset uint64
}

// text is a string of the format.
func text(s string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
}

// array is an array of n elements of the format.
func array(kind uint32, n uint64, elements ...any) []byte {
	return fields(append([]any{kind, n}, elements...)...)
}

// fields are the bytes of numbers, bools and []byte behind each other.
func fields(list ...any) []byte {
	var b bytes.Buffer
	for _, x := range list {
		if err := binary.Write(&b, binary.LittleEndian, x); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// file is the bytes of a file.
func file(version uint32, metadata []entry, tensors []info, data []byte) []byte {
	b := fields([]byte("GGUF"), version, uint64(len(tensors)), uint64(len(metadata)))
	alignment := 32
	for _, e := range metadata {
		if n, ok := e.value.(uint32); ok && e.key == "general.alignment" && n > 0 {
			alignment = int(n)
		}
		b = append(b, fields(text(e.key), e.kind, e.value)...)
	}
	for _, t := range tensors {
		b = append(b, fields(text(t.name), uint32(len(t.dims)), t.dims, t.kind, t.offset)...)
	}
	for len(b)%alignment != 0 {
		b = append(b, 0)
	}
	return append(b, data...)
}

// open opens a file of these bytes.
func open(t testing.TB, content []byte) (*gguf.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.gguf")
	require.NoError(t, os.WriteFile(path, content, 0o644))
	f, err := gguf.Open(path)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, f.Close()) })
	}
	return f, err
}

// sample is a file with values and tensors of several types.
func sample() []byte {
	return file(3, []entry{
		{"general.architecture", stringKind, text("llama")},
		{"general.alignment", uint32Kind, uint32(16)},
		{"tokens", arrayKind, array(stringKind, 3, text("a"), text(""), text("bc"))},
		{"merges", arrayKind, array(uint32Kind, 2, uint32(1), uint32(2))},
		{"flag", boolKind, true},
	}, []info{
		{"a", []uint64{3}, f32, 0}, {"b", []uint64{32, 2}, q4_1, 16}, {"scalar", nil, f32, 64},
	}, fields([]float32{1, 2, 3}, uint32(0), testBlock(40), uint64(0), []float32{7}))
}

// testBlock is n bytes of which each differs from its neighbours.
func testBlock(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 37)
	}
	return b
}

// read returns all numbers of a tensor.
func read(t testing.TB, f *gguf.File, name string) []float32 {
	t.Helper()
	shape, ok := f.Shape(name)
	require.True(t, ok, name)
	n := 1
	for _, d := range shape {
		n *= d
	}
	dst := make([]float32, n)
	require.NoError(t, f.Read(name, dst))
	return dst
}

var must = testutil.Must[*gguf.File]
