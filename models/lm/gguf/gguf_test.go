package gguf_test

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
)

func TestSample(t *testing.T) {
	f := must(open(t, sample()))(t)
	require.Equal(t, []string{"a", "b", "scalar"}, f.Names())
	require.Equal(t, []float32{1, 2, 3}, read(t, f, "a"))
	require.Equal(t, []float32{7}, read(t, f, "scalar"))
	shape, ok := f.Shape("b")
	require.Equal(t, []int{2, 32}, shape)
	require.True(t, ok)
	shape, ok = f.Shape("scalar")
	require.Equal(t, []int{}, shape)
	require.True(t, ok)
	_, ok = f.Shape("c")
	require.False(t, ok)
	require.Empty(t, f.Type("c"))
	require.ErrorContains(t, f.Read("c", nil), `tensor "c": not in the file`)
	require.ErrorContains(t, f.Read("b", make([]float32, 63)), "[2 32] has 64 elements, the destination has 63")
	require.Equal(t, []string{"flag", "general.alignment", "general.architecture", "merges", "tokens"}, f.Keys())
	alone := must(open(t, testutil.Must(f.MetadataAlone())(t)))(t)
	require.Empty(t, alone.Names())
	require.Equal(t, f.Keys(), alone.Keys())
	require.Equal(t, []string{"a", "", "bc"}, testutil.Must(gguf.List[string](alone, "tokens"))(t))
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Read("a", make([]float32, 3)), os.ErrClosed)
	require.Equal(t, "llama", testutil.Must(gguf.Get[string](f, "general.architecture"))(t))
}

// TestMetadata: every type of values, as a single one and as an array.
func TestMetadata(t *testing.T) {
	for kind, x := range []any{uint8(200), int8(-100), uint16(60000), int16(-3), uint32(1 << 31), int32(math.MinInt32),
		float32(0.1), true, text("überall"), nil, uint64(math.MaxInt64), int64(math.MinInt64), 0.1} {
		if x == nil {
			continue
		}
		k := uint32(kind)
		f := must(open(t, file(3, []entry{{"one", k, x}, {"list", arrayKind, array(k, 2, x, x)},
			{"none", arrayKind, array(k, 0)}}, nil, nil)))(t)
		switch x := x.(type) {
		case []byte:
			requireValue(t, f, "überall")
		case bool:
			requireValue(t, f, x)
		case float32:
			requireValue(t, f, float64(x))
		case float64:
			requireValue(t, f, x)
		default:
			requireValue(t, f, testutil.Must(strconv.Atoi(fmt.Sprint(x)))(t))
		}
	}
}

// requireValue checks the values of TestMetadata, and that they are refused as another type.
func requireValue[T gguf.Element](t *testing.T, f *gguf.File, want T) {
	t.Helper()
	require.Equal(t, want, testutil.Must(gguf.Get[T](f, "one"))(t))
	require.Equal(t, []T{want, want}, testutil.Must(gguf.List[T](f, "list"))(t))
	require.Equal(t, []T{}, testutil.Must(gguf.List[T](f, "none"))(t))
	_, err := gguf.Get[T](f, "list")
	require.ErrorContains(t, err, "an array of ")
	_, err = gguf.List[T](f, "one")
	require.ErrorContains(t, err, "want an array")
	_, err = gguf.Get[T](f, "missing")
	require.ErrorIs(t, err, gguf.ErrNoKey)
	require.Equal(t, want, testutil.Must(gguf.GetOr(f, "missing", want))(t))
	for _, err := range []error{testutil.Err(gguf.Get[string](f, "one")), testutil.Err(gguf.Get[bool](f, "one")),
		testutil.Err(gguf.Get[int](f, "one")), testutil.Err(gguf.GetOr(f, "one", 1.5))} {
		if err != nil {
			require.ErrorContains(t, err, `metadata "one": of type `)
		}
	}
}

func TestMetadataRefuses(t *testing.T) {
	f := must(open(t, file(3, []entry{{"large", 10, uint64(1 << 63)}, {"odd", boolKind, uint8(2)}}, nil, nil)))(t)
	_, err := gguf.Get[int](f, "large")
	require.ErrorContains(t, err, "9223372036854775808 does not fit in int")
	_, err = gguf.Get[bool](f, "odd")
	require.ErrorContains(t, err, "a bool of value 2")
}

// TestManyStrings: a list of strings costs few allocations.
func TestManyStrings(t *testing.T) {
	const n = 150_000
	var all []byte
	for i := range n {
		all = append(all, text(fmt.Sprint("token", i))...)
	}
	f := must(open(t, file(3, []entry{{"tokens", arrayKind, array(stringKind, n, all)}}, nil, nil)))(t)
	list := testutil.Must(gguf.List[string](f, "tokens"))(t)
	require.Len(t, list, n)
	require.Equal(t, "token149999", list[n-1])
	require.Less(t, testing.AllocsPerRun(1, func() { _, _ = gguf.List[string](f, "tokens") }), 10.0)
}

func TestOpenRefuses(t *testing.T) {
	tensors := func(list ...info) []byte { return file(3, nil, list, make([]byte, 64)) }
	metadata := func(list ...entry) []byte { return file(3, list, nil, nil) }
	long := strings.Repeat("x", 1<<16)
	for _, c := range []struct {
		name   string
		data   []byte
		reason string
	}{
		{"empty", nil, "truncated"},
		{"magic", []byte("GGML0000"), `begins with "GGML", want GGUF`},
		{"version 1", file(1, nil, nil, nil), "version 1, want 2 or 3"},
		{"big-endian", file(3<<24, nil, nil, nil), "big-endian"},
		{"no counts", file(3, nil, nil, nil)[:12], "truncated"},
		{"many tensors", fields([]byte("GGUF"), uint32(3), uint64(math.MaxUint64), uint64(0)), "truncated"},
		{"many pairs", fields([]byte("GGUF"), uint32(3), uint64(0), uint64(math.MaxUint64)), "truncated"},
		{"long key", fields([]byte("GGUF"), uint32(3), uint64(0), uint64(1), uint64(1<<63)), "truncated"},
		{"type", metadata(entry{"a", 13, uint32(0)}), `metadata "a": unknown type 13`},
		{"arrays", metadata(entry{"a", arrayKind, array(arrayKind, 1)}), `"a": an array of arrays`},
		{"long array", metadata(entry{"a", arrayKind, array(uint32Kind, 1<<62)}), "truncated"},
		{"long array of strings", metadata(entry{"a", arrayKind, array(stringKind, 1<<61)}), "truncated"},
		{"key twice", metadata(entry{"a", boolKind, true}, entry{"a", boolKind, true}), `metadata "a" appears twice`},
		{"alignment 0", metadata(entry{"general.alignment", uint32Kind, uint32(0)}), "is 0, want a power of two"},
		{"alignment 24", metadata(entry{"general.alignment", uint32Kind, uint32(24)}), "is 24, want a power of two"},
		{"alignment of text", metadata(entry{"general.alignment", stringKind, text("8")}), "of type string"},
		{"split", metadata(entry{"split.count", 2, uint16(3)}), "one of 3 files of a model"},
		{"dimensions", tensors(info{"a", make([]uint64, 5), f32, 0}), `tensor "a": 5 dimensions, want at most 4`},
		{"dimension 0", tensors(info{"a", []uint64{3, 0}, f32, 0}), "dimension 1 is 0"},
		{"overflow", tensors(info{"a", []uint64{1 << 31, 1 << 31}, f32, 0}), "overflow"},
		{"overflow to 0", tensors(info{"a", []uint64{1 << 32, 1 << 32}, f32, 0}), "overflow"},
		{"unknown type", tensors(info{"a", []uint64{8}, 4, 0}), `tensor "a": type - is not supported`},
		{"new type", tensors(info{"a", []uint64{8}, 1 << 20, 0}), "type 1048576 is not supported"},
		{"Q3_K", tensors(info{"a", []uint64{256}, 11, 0}), `tensor "a": type Q3_K is not supported, want F32`},
		{"MXFP4", tensors(info{"a", []uint64{256}, 39, 0}), "type MXFP4 is not supported"},
		{"part of a block", tensors(info{"a", []uint64{48, 2}, q4_1, 0}), "rows of 48 elements, want a multiple of 32"},
		{"scalar of blocks", tensors(info{"a", nil, q4_1, 0}), "rows of 1 elements"},
		{"alignment", tensors(info{"a", []uint64{1}, f32, 4}), "offset 4, want a multiple of 32"},
		{"end", tensors(info{"a", []uint64{9}, f32, 32}), `tensor "a": 36 bytes at offset 32 of the data`},
		{"offset", tensors(info{"a", []uint64{1}, f32, math.MaxUint64 - 31}), "bytes at offset 18446744073709551584"},
		{"no data", tensors(info{"a", []uint64{1}, f32, 0})[:66], "4 bytes at offset 0"},
		{"overlap", tensors(info{"a", []uint64{1}, f32, 32}, info{"b", []uint64{9}, f32, 0}),
			`tensor "a": offset 32 is in the tensor before it, which ends at 36`},
		{"same offset", tensors(info{"a", []uint64{1}, f32, 0}, info{"b", []uint64{1}, f32, 0}), `tensor "b": offset 0`},
		{"name twice", tensors(info{"a", []uint64{1}, f32, 0}, info{"a", []uint64{1}, f32, 32}), `"a": appears twice`},
		{"long name", tensors(info{long, []uint64{1}, f32, 4}), "want a multiple of 32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := open(t, c.data)
			require.ErrorContains(t, err, c.reason)
			requireShort(t, err)
		})
	}
	_, err := gguf.Open(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// requireShort: an error names the package, is on one line and not long.
func requireShort(t testing.TB, err error) {
	t.Helper()
	require.True(t, strings.HasPrefix(err.Error(), "gguf: "), "%v", err)
	require.Less(t, len(err.Error()), 1<<10)
	require.Equal(t, -1, strings.IndexFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", err)
}

// TestTruncated: the file is refused if any byte of the header or the data is missing.
func TestTruncated(t *testing.T) {
	b := sample()
	for n := range len(b) + 1 {
		_, err := open(t, b[:n])
		require.Equal(t, n == len(b), err == nil, "%d bytes: %v", n, err)
	}
}

// requireHarmless opens a file and, if it is good, reads all of it. This needs little more memory than the file has
// bytes.
func requireHarmless(t testing.TB, content []byte) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := open(t, content)
	if err != nil {
		requireShort(t, err)
	} else {
		for _, name := range f.Names() {
			read(t, f, name)
		}
		for _, key := range f.Keys() {
			for _, err := range []error{testutil.Err(gguf.Get[string](f, key)), testutil.Err(gguf.List[string](f, key)),
				testutil.Err(gguf.Get[int](f, key)), testutil.Err(gguf.List[int](f, key)),
				testutil.Err(gguf.List[bool](f, key)), testutil.Err(gguf.List[float64](f, key))} {
				if err != nil {
					requireShort(t, err)
				}
			}
		}
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+64*len(content)))
}

// TestMutations: see requireHarmless.
func TestMutations(t *testing.T) {
	good, r := sample(), rand.New(rand.NewPCG(1, 2))
	for range testutil.Mutations(t) {
		requireHarmless(t, testutil.Mutate(r, good))
	}
}

// FuzzOpen: see requireHarmless.
func FuzzOpen(f *testing.F) {
	f.Add(sample())
	f.Add(binary.LittleEndian.AppendUint64([]byte("GGUF\x02\x00\x00\x00"), 1<<40))
	f.Fuzz(func(t *testing.T, content []byte) { requireHarmless(t, content) })
}
