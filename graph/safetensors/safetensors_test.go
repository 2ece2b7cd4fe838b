package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
)

// sample holds every type, a scalar and a name that JSON must escape.
func sample() File {
	return File{
		Metadata: map[string]string{"config": `{"S": 3}`, "": "quote \" and é"},
		Tensors: map[string]*tensor.Dense{
			"f64":       dense([]float64{1, math.Inf(-1), -0.5, math.MaxFloat64}, 2, 2),
			"f32":       dense([]float32{1.5, -2, math.SmallestNonzeroFloat32}, 3),
			"i64":       dense([]int64{math.MinInt64}, 1, 1, 1),
			"i32":       dense([]int32{-1, math.MaxInt32}, 2),
			"scalar":    dense([]float32{7}),
			"<a \"b\">": dense([]int32{3}, 1),
		},
	}
}

func dense(data any, shape ...int) *tensor.Dense {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}

// raw builds a file of a header and n bytes of data, as any writer might.
func raw(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func TestWriteRead(t *testing.T) {
	large := make([]float32, 70_001) // more than one chunk
	for i := range large {
		large[i] = float32(i)
	}
	for _, f := range []File{sample(), one(dense(large, 70_001)), {Tensors: map[string]*tensor.Dense{}}} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		require.NoError(t, f.Write(path))
		got, err := Read(path)
		require.NoError(t, err)
		require.Equal(t, f.Metadata, got.Metadata)
		require.Len(t, got.Tensors, len(f.Tensors))
		for name, x := range f.Tensors {
			require.Equal(t, x.Shape(), got.Tensors[name].Shape(), name)
			require.Equal(t, x.Data(), got.Tensors[name].Data(), name)
		}

		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Zero(t, binary.LittleEndian.Uint64(b)%8, "header is not aligned")
		require.Equal(t, b, encoded(t, got), "the same content gave other bytes")
	}
}

// TestWriteView: a view is written as what it shows.
func TestWriteView(t *testing.T) {
	turned, path := dense([]float32{1, 2, 3, 4, 5, 6}, 2, 3), filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, turned.T())
	require.NoError(t, one(turned).Write(path))
	got, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, tensor.Shape{3, 2}, got.Tensors["x"].Shape())
	require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, got.Tensors["x"].Data())
}

// TestNaN: a file with NaN is refused without AllowNaN.
func TestNaN(t *testing.T) {
	for _, x := range []*tensor.Dense{dense([]float64{1, math.NaN()}, 2), dense([]float32{float32(math.NaN())}, 1)} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		require.NoError(t, one(x).Write(path))
		_, err := Read(path)
		require.ErrorContains(t, err, `tensor "x" has NaN in it`)
		_, err = Read(path, AllowNaN)
		require.NoError(t, err)
	}
}

// TestLayout compares the bytes of a file with bytes worked out by hand.
func TestLayout(t *testing.T) {
	f := File{
		Metadata: map[string]string{"k": "v"},
		Tensors:  map[string]*tensor.Dense{"b": dense([]int32{1, -1}, 2), "a": dense([]float32{1})},
	}
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, f.Write(path))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	head := `{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]}}`
	for len(head)%8 != 0 {
		head += " "
	}
	want := append(raw(head, 0), 0, 0, 0x80, 0x3f, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	require.Equal(t, want, got)
}

func TestWriteRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		file   File
		reason string
	}{
		{"nil tensor", one(nil), `tensor "x": nil tensor`},
		{"other data", one(dense([]uint16{1}, 1)), "type uint16, want float64"},
		{"int", one(dense([]int{1}, 1)), "type int, want float64"},
		{"column-major", one(tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float32{1, 2, 3, 4}))),
			"column-major"},
		{"name", File{Tensors: map[string]*tensor.Dense{"__metadata__": dense([]float32{1})}}, "not a valid name"},
		{"UTF-8", File{Tensors: map[string]*tensor.Dense{"\xff": dense([]float32{1})}}, "not a valid name"},
		{"metadata", File{Metadata: map[string]string{"a": "\xff"}}, "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.safetensors")
			require.NoError(t, os.WriteFile(path, []byte("before"), 0o644))
			err := c.file.Write(path)
			require.ErrorContains(t, err, c.reason)
			require.ErrorContains(t, err, path)
			requireOnly(t, dir, "x.safetensors", "before")
		})
	}
}

func one(x *tensor.Dense) File { return File{Tensors: map[string]*tensor.Dense{"x": x}} }

// requireOnly checks that dir holds one file with this name and content, and no temporary files.
func requireOnly(t *testing.T, dir, name, content string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, name, list[0].Name())
	b, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	require.Equal(t, content, string(b))
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := Read(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Read(dir)
	require.ErrorContains(t, err, "not a regular file")
	require.ErrorIs(t, sample().Write(filepath.Join(dir, "missing", "x")), os.ErrNotExist)
	path := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(path, raw(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7), 0o644))
	_, err = Read(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, `tensor "w"`)
	require.NoError(t, one(tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(3, 0))).Write(path))
	_, err = Read(path)
	require.ErrorContains(t, err, `tensor "x" has no elements: its shape is (3, 0)`)
}

func TestDecodeRefuses(t *testing.T) {
	x := func(s string) string { return `{"x":` + s + `}` }
	for _, c := range []struct {
		name   string
		data   []byte
		reason string
	}{
		{"no bytes", nil, "truncated"},
		{"short length", []byte{1, 2, 3}, "truncated"},
		{"short header", raw(`{}`, 0)[:9], "truncated"},
		{"huge header", binary.LittleEndian.AppendUint64(nil, 1<<63), "want at most"},
		{"no header", raw(``, 0), `header: got "", want an object`},
		{"no object", raw(` {}`, 0), `header: got " {}", want an object`},
		{"bad JSON", raw(`{"x":`, 0), "header"},
		{"two objects", raw(`{}{}`, 0), "header"},
		{"metadata type", raw(`{"__metadata__":{"a":1}}`, 0), "metadata"},
		{"metadata array", raw(`{"__metadata__":[]}`, 0), `metadata: got "[]", want an object`},
		{"null metadata", raw(`{"__metadata__":null}`, 0), `metadata: got "null", want an object`},
		{"metadata null", raw(`{"__metadata__":{"a":null}}`, 0), "want a string"},
		{"null", raw(x(`null`), 0), `tensor "x": null, want a value`},
		{"null dtype", raw(x(`{"dtype":null,"shape":[1],"data_offsets":[0,4]}`), 4), "null, want a value"},
		{"other case", raw(x(`{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}`), 4), `dtype "" not supported`},
		{"no dtype", raw(x(`{"shape":[1],"data_offsets":[0,4]}`), 4), `dtype "" not supported`},
		{"no shape", raw(x(`{"dtype":"F32","data_offsets":[0,4]}`), 4), "no shape"},
		{"no offsets", raw(x(`{"dtype":"F32","shape":[1]}`), 4), "data_offsets"},
		{"one offset", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[0]}`), 4), "data_offsets"},
		{"null offset", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[null,4]}`), 4), "null, want a value"},
		{"dtype", raw(x(`{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}`), 1), `dtype "F8_E4M3" not supported`},
		{"null axis", raw(x(`{"dtype":"F32","shape":[null],"data_offsets":[0,4]}`), 4), "null, want a value"},
		{"negative axis", raw(x(`{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}`), 4), "negative axis"},
		{"fraction", raw(x(`{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}`), 4), `tensor "x"`},
		{"elements overflow", raw(x(`{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}`), 0),
			"overflows"},
		{"bytes overflow", raw(x(`{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}`), 0),
			"overflows"},
		{"negative begin", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}`), 4), "not a range"},
		{"reversed", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[4,0]}`), 4), "not a range"},
		{"size", raw(x(`{"dtype":"F32","shape":[2],"data_offsets":[0,4]}`), 4), "hold 4 bytes, F32[2] wants 8"},
		{"past the end", raw(x(`{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`), 7), "7 bytes of data"},
		{"gap", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`), 8), "leave a gap"},
		{"bytes left over", raw(x(`{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), 8), "the tensors end at 4"},
		{"name twice", raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},`+
			`"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), `duplicate object member name "a"`},
		{"metadata twice", raw(`{"__metadata__":{},"__metadata__":{}}`, 0),
			`duplicate object member name "__metadata__"`},
		{"key of metadata twice", raw(`{"__metadata__":{"a":"1","a":"1"}}`, 0),
			`duplicate object member name "a" within "/__metadata__"`},
		{"field twice", raw(x(`{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}`), 4),
			`duplicate object member name "dtype" within "/x"`},
		{"size of half", raw(x(`{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}`), 8),
			"hold 8 bytes, BF16[2] wants 4"},
		{"name not UTF-8", raw("{\"w\xff\":"+`{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4),
			"invalid UTF-8 after offset 3"},
		{"metadata not UTF-8", raw("{\"__metadata__\":{\"a\":\"\xc3\"}}", 0), `invalid UTF-8 within "/__metadata__/a"`},
		{"half a surrogate pair", raw(`{"a\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4),
			"invalid surrogate pair"},
		{"half a surrogate pair in metadata", raw(`{"__metadata__":{"a":"\udc00"}}`, 0), "invalid surrogate pair"},
		{"overlap", raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},`+
			`"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), `tensor "b": data_offsets [4, 12] overlap`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Decode(c.data)
			require.ErrorContains(t, err, c.reason)
			require.ErrorContains(t, err, "safetensors: ")
		})
	}
}

// TestDecodeEscapedName: a whole surrogate pair is one character.
func TestDecodeEscapedName(t *testing.T) {
	f, err := Decode(raw(`{"\u00e9\ud83d\ude00":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}`, 4))
	require.NoError(t, err)
	require.Contains(t, f.Tensors, "é😀")
}

// TestDecodeHalf reads every number of half precision.
func TestDecodeHalf(t *testing.T) {
	const n = 1 << 16
	for dtype, layout := range map[string]struct{ exponentBits, fractionBits int }{"BF16": {8, 7}, "F16": {5, 10}} {
		b := raw(fmt.Sprintf(`{"x":{"dtype":%q,"shape":[%d],"data_offsets":[0,%d]}}`, dtype, n, 2*n), 2*n)
		for i := range n {
			binary.LittleEndian.PutUint16(b[len(b)-2*n+2*i:], uint16(i))
		}
		f, err := Decode(b)
		require.NoError(t, err)
		x := f.Tensors["x"]
		// (-1)^sign (1 + fraction) 2^(exponent - bias), and IEEE 754's special values
		for i, got := range x.Float32s() {
			maxExponent := 1<<layout.exponentBits - 1
			exponent := i >> layout.fractionBits & maxExponent
			fraction := float64(i&(1<<layout.fractionBits-1)) / float64(int(1)<<layout.fractionBits)
			bias := maxExponent / 2
			want := math.Ldexp(1+fraction, exponent-bias)
			switch {
			case exponent == 0:
				want = math.Ldexp(fraction, 1-bias)
			case exponent == maxExponent && fraction == 0:
				want = math.Inf(1)
			case exponent == maxExponent:
				want = math.NaN()
			}
			if i>>15 == 1 {
				want = math.Copysign(want, -1)
			}
			same := float64(got) == want && math.Signbit(float64(got)) == math.Signbit(want)
			if !same && !(math.IsNaN(want) && math.IsNaN(float64(got))) {
				t.Fatalf("%s %#x: got %g, want %g", dtype, i, got, want)
			}
		}
	}
}

// TestDecodeTruncated cuts a good file at every byte.
func TestDecodeTruncated(t *testing.T) {
	b := encoded(t, sample())
	for n := range len(b) + 1 {
		_, err := Decode(b[:n])
		require.Equal(t, n == len(b), err == nil, "%d bytes: %v", n, err)
	}
}

// TestDecodeFailingReader: an error of the reader comes back with the tensor's name.
func TestDecodeFailingReader(t *testing.T) {
	b := encoded(t, one(dense(make([]float64, 4), 4)))
	_, err := decode(bytes.NewReader(b[:len(b)-3]), int64(len(b)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, `tensor "x"`)
}

func encoded(t testing.TB, f File) []byte {
	t.Helper()
	head, data, err := f.header("F32")
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, encode(&b, head, data))
	return b.Bytes()
}

// FuzzDecode: no input panics. A file that can be decoded can be encoded, and then decodes to the same content.
func FuzzDecode(f *testing.F) {
	good := encoded(f, sample())
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(raw(`{}`, 0))
	f.Add(raw(`{"x":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}`, 0))
	f.Add(raw(`{"x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},`+
		`"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}`, 4))
	f.Add(raw(`{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}`, 4))
	f.Add(raw(`{"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"a":"b"}}   `, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Decode(data)
		if err != nil {
			return
		}
		b := encoded(t, file)
		again, err := Decode(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, encoded(t, again)), "changed by a round trip") // bytes: a NaN equals itself
	})
}
