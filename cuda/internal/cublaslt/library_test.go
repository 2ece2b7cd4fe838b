package cublaslt

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestAttributes makes descriptors with the library itself, of each version that is there, and sets every attribute. That
// takes no GPU.
func TestAttributes(t *testing.T) {
	found := false
	for _, name := range places(os.Getenv(FoldersVariable)) {
		lib, err := sharedlib.Open(name)
		if err != nil {
			t.Log(err)
			continue
		}
		found = true
		l := new(Library)
		require.NoError(t, l.bind(lib))
		version := l.fn.GetVersion.Call()
		t.Logf("%s: version %d", file(name), version)
		require.True(t, version >= 120000 && version < 150000, "%s: version %d", name, version)
		require.Equal(t, "CUBLAS_STATUS_NOT_SUPPORTED", l.name(NotSupported))
		p := &Plan{l: l, x: new(product)}
		require.NoError(t, p.call(l.of[description].Create, uintptr(unsafe.Pointer(&p.x.desc)), compute32, real32))
		require.NoError(t, p.call(l.of[layout].Create, uintptr(unsafe.Pointer(&p.x.layoutA)), realBF16, 24, 16, 32))
		require.NoError(t, p.call(l.of[preference].Create, uintptr(unsafe.Pointer(&p.x.preference))))
		handles := [objects]uintptr{p.x.desc, p.x.layoutA, p.x.preference}
		for _, a := range append([]attribute{descTransA, descTransB, descEpilogue, descBiasPointer, descBiasType, layoutBatch, layoutStride,
			preferWork, preferReduction}, preferAlignments[:]...) {
			value := uint64(1)
			if a == preferAlignments[0] {
				value = 16
			}
			require.NoError(t, p.set(handles[a.of], a, value), "%v", a)
			a.bytes++ // the library knows the size of each
			require.Error(t, p.set(handles[a.of], a, value), "%v", a)
		}
		for o, h := range handles {
			require.NoError(t, p.call(l.of[o].Destroy, h))
		}
	}
	if !found {
		testutil.NoGPU(t, "no library")
	}
}

// TestOpenRefusesOthers wants a library with the functions.
func TestOpenRefusesOthers(t *testing.T) {
	c, err := sharedlib.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	require.FileExists(t, file("libc.so.6"))
	d, err := driver.Open(0, driver.WithDriver(fakedriver.New()))
	require.NoError(t, err)
	_, err = open(d, "", func(string) (sharedlib.Library, error) { return c, nil })
	require.ErrorAs(t, err, new(*Missing))
	require.ErrorContains(t, err, "libc.so.6 has no cublasLtGetVersion; ")
	require.NoError(t, d.Close())
}
