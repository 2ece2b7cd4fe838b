package launch

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestDevices: -device may name several devices, which the ranks of a host take in their order.
func TestDevices(t *testing.T) {
	for name, want := range map[string]string{
		"cpu": "cpu", "cuda:1": "cuda:1", "cuda:0,1": "cuda:0 cuda:1", "cuda:3,2": "cuda:3 cuda:2", "cpu:3": "cpu cpu cpu",
		"cpu:0": "want cpu:N", "cpu:x": "want cpu:N", "cpu:65": "1 to 64", "cuda:1,1": "names a GPU twice",
		"cuda:x,1": `"x" is not the number of a GPU`, "cuda:-1,0": "not the number",
	} {
		list, err := devices(name)
		require.Contains(t, cmp.Or(strings.Join(list, " "), fmt.Sprint(err)), want, name)
	}
	require.Equal(t, "cuda:5", testutil.Must(deviceOf("cuda", 5))(t))
	require.Equal(t, "cuda:1", testutil.Must(deviceOf("cuda:0,1", 1))(t))
	require.Equal(t, "cuda:2", testutil.Must(deviceOf("cuda:2", 1))(t))
	require.ErrorContains(t, testutil.Err(deviceOf("cuda:0,1", 2)), "names 2 devices, and this host has a rank 2")
}
