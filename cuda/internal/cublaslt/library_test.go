package cublaslt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestOpen looks in the folders that the user lists before the system's, takes the first library that works, and lists
// what it has tried.
func TestOpen(t *testing.T) {
	drv := fakedriver.New()
	d := testutil.Closing(driver.Open(0, driver.WithDriver(drv)))(t)
	dirs := filepath.Join("/a", "b") + string(filepath.ListSeparator) + string(filepath.ListSeparator) + "/c"
	places := []string{"/a/b/libcublasLt.so.13", "/a/b/libcublasLt.so.12", "/c/libcublasLt.so.13",
		"/c/libcublasLt.so.12", "libcublasLt.so.13", "libcublasLt.so.12"}
	fake := newFake(t, drv)
	var tried []string
	installed := func(names ...string) func(string) (sharedlib.Library, error) {
		tried = nil
		return func(name string) (sharedlib.Library, error) {
			tried = append(tried, name)
			if slices.Contains(names, name) {
				return fake, nil
			}
			return nil, errors.New(name + ": no such file")
		}
	}
	for i := range places {
		l := testutil.Must(open(d, dirs, installed(places[i:]...)))(t)
		require.Equal(t, places[:i+1], tried)
		require.NoError(t, l.Close())
	}
	fake.fails["Create"] = NotInitialized
	err := testutil.Err(open(d, dirs, installed(places[0])))
	var missing *Missing
	require.ErrorAs(t, err, &missing)
	require.Equal(t, places, tried)
	require.Len(t, missing.Tried, len(places))
	for _, part := range []string{"cublaslt: no library: /a/b/libcublasLt.so.13: cublaslt: cublasLtCreate: FAKE_STATUS_1 (status 1); ",
		"; /c/libcublasLt.so.12: no such file; libcublasLt.so.13: no such file; libcublasLt.so.12: no such file. ",
		FoldersVariable} {
		require.ErrorContains(t, err, part)
	}
	fake.fails["Create"] = 3
	var e *Error
	require.ErrorAs(t, testutil.Err(open(d, "", installed(places...))), &e)
	require.EqualValues(t, 3, e.Status)
}

// TestRelativeFolders: paths become absolute, since the loader searches its own folders for a name without a slash.
func TestRelativeFolders(t *testing.T) { require.True(t, filepath.IsAbs(places(".")[0])) }

// TestAttributes makes descriptors with each version of the real library that is installed, and sets every attribute.
// It needs no GPU.
func TestAttributes(t *testing.T) {
	found := false
	for _, name := range places(os.Getenv(FoldersVariable)) {
		lib, err := sharedlib.Open(name)
		if err != nil {
			t.Log(err)
			continue
		}
		found = true
		p := &Plan{lib: new(Library), args: new(arguments)}
		t.Cleanup(func() { p.args = nil }) // moves p to the heap: the library is given addresses in it
		require.NoError(t, sharedlib.Bind(lib, "cublasLt", &p.lib.fn))
		version := p.lib.fn.GetVersion.Call()
		t.Logf("%s: version %d", name, version)
		require.True(t, version >= 120000 && version < 150000, "%s: version %d", name, version)
		require.Equal(t, "CUBLAS_STATUS_NOT_SUPPORTED", p.lib.name(NotSupported))
		for _, x := range []struct {
			*descriptor
			h          *uintptr
			args       []uintptr
			attributes []attribute
		}{
			{&p.lib.fn.MatmulDesc, &p.args.desc, []uintptr{compute32, real32},
				[]attribute{descTransA, descTransB, descEpilogue, descBiasPointer, descBiasType}},
			{&p.lib.fn.MatrixLayout, &p.args.layoutA, []uintptr{realBF16, 24, 16, 32},
				[]attribute{layoutBatch, layoutStride}},
			{&p.lib.fn.MatmulPreference, &p.args.preference, nil, append(preferAlignments[:], preferWork,
				preferReduction)},
		} {
			require.NoError(t, p.call(x.Create, append([]uintptr{uintptr(unsafe.Pointer(x.h))}, x.args...)...))
			for _, a := range x.attributes {
				value := uint64(1)
				if a == preferAlignments[0] && x.h == &p.args.preference {
					value = 16
				}
				require.NoError(t, p.set(x.descriptor, *x.h, a, value), "%v", a)
				a.bytes++ // the library knows the size of each
				require.Error(t, p.set(x.descriptor, *x.h, a, value), "%v", a)
			}
			require.NoError(t, p.call(x.Destroy, *x.h))
		}
	}
	if !found {
		testutil.NoGPU(t, "no library")
	}
}

// TestOpenRefusesOthers: Open refuses a library without the functions.
func TestOpenRefusesOthers(t *testing.T) {
	c, err := sharedlib.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	d := testutil.Closing(driver.Open(0, driver.WithDriver(fakedriver.New())))(t)
	err = testutil.Err(open(d, "", func(string) (sharedlib.Library, error) { return c, nil }))
	require.ErrorAs(t, err, new(*Missing))
	require.ErrorContains(t, err, "libc.so.6 has no cublasLtGetVersion; ")
}
