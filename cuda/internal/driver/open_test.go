package driver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestOpenUnavailable(t *testing.T) {
	old := fakedriver.H200()
	old.Name, old.Capability = "Tesla T4", 75
	for _, c := range []struct {
		name   string
		drv    *fakedriver.Driver
		set    func(*fakedriver.Driver)
		n      int
		reason driver.Reason
		text   string
	}{
		{"init fails", fakedriver.New(), func(d *fakedriver.Driver) { d.Fail("Init", 1, driver.Unknown) }, 0,
			driver.ReasonStart, "does not start: cuInit"},
		{"init sees none", fakedriver.New(), func(d *fakedriver.Driver) { d.Fail("Init", 1, driver.NoDevice) }, 0,
			driver.ReasonNoDevice, "no CUDA device: cuInit"},
		{"none", fakedriver.New([]driver.Properties{}...), nil, 0, driver.ReasonNoDevice, "sees no device"},
		{"below", fakedriver.New(), nil, -1, driver.ReasonOrdinal, "device -1, want 0 to 0"},
		{"above", fakedriver.New(), nil, 1, driver.ReasonOrdinal, "device 1, want 0 to 0"},
		{"old device", fakedriver.New(old), nil, 0, driver.ReasonOldDevice, "7.5, want 8.0"},
		{"old driver", fakedriver.New(), func(d *fakedriver.Driver) { d.Version = 11080 }, 0, driver.ReasonOldDriver,
			"11.8, want 12.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.set != nil {
				c.set(c.drv)
			}
			err := testutil.Err(driver.Open(c.n, driver.WithDriver(c.drv), nil))
			require.Equal(t, c.reason, as[*driver.Unavailable](t, err).Reason)
			require.ErrorContains(t, err, c.text)
			require.Empty(t, c.drv.Leaks())
		})
	}
}

// TestOpenWithoutLibrary checks the error of Open on a machine without the driver.
func TestOpenWithoutLibrary(t *testing.T) {
	if _, err := sharedlib.Open("libcuda.so.1"); err == nil {
		t.Skip("the driver is there")
	}
	err := testutil.Err(driver.Open(0))
	require.Equal(t, driver.ReasonDriver, as[*driver.Unavailable](t, err).Reason)
	require.ErrorContains(t, err, "cuda: no CUDA driver: libcuda.so.1: ")
}

func TestProperties(t *testing.T) {
	d, _ := openFake(t)
	require.Equal(t, driver.Properties{Name: "Fake H200", Capability: 90, Driver: 12040, Memory: 256 << 20, SMs: 132,
		SharedPerBlock: 227 << 10, SharedPerSM: 228 << 10}, d.Properties())
	require.Equal(t, "cuda:0 (Fake H200)", d.String())
}

// TestSeveralDevices uses two devices from one goroutine, and one of them twice.
func TestSeveralDevices(t *testing.T) {
	drv := withKernels(fakedriver.New(fakedriver.H200(), fakedriver.H200()))
	t.Cleanup(func() { require.Empty(t, drv.Leaks()) })
	require.Equal(t, 2, testutil.Must(driver.Count(driver.WithDriver(drv)))(t))
	var streams []*driver.Stream
	var adders []*adder
	for _, n := range []int{0, 1, 1} {
		d := testutil.Closing(driver.Open(n, driver.WithDriver(drv)))(t)
		s := stream(t, d)
		streams, adders = append(streams, s), append(adders, newAdder(t, d, s, 10))
	}
	for i, s := range streams {
		ok(t, s.Launch(adders[i].call))
	}
	require.ErrorContains(t, streams[0].Launch(adders[1].call), "of another device")
	for i, s := range streams {
		require.Equal(t, [2]float32{1000, 1009}, adders[i].ends(t, s), i)
	}
}
