package kernels_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// onGPU is a GPU as the attention tests see it.
type onGPU struct {
	*gpu
	t      *testing.T
	memory []*driver.Memory
}

// variants are the row that the device gets; and the general kernels, also as if it had few or many multiprocessors, so that each
// size of tiles is chosen.
func (d *onGPU) variants() []variant {
	p := d.properties()
	return []variant{
		{"", p},
		{"cuda", p},
		{"cuda", kernels.GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: 1 << 20, SMs: 1}},
		{"cuda", kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: p.SharedPerSM, SMs: 1 << 30}},
	}
}

func (d *onGPU) put(t testing.TB, data []byte) kernels.Ptr {
	m, err := d.dev.Alloc(max(1, len(data)))
	require.NoError(t, err)
	d.memory = append(d.memory, m)
	if len(data) > 0 {
		require.NoError(t, d.stream.Upload(m.Ptr(), data))
	}
	return kernels.Ptr(m.Ptr())
}

func (d *onGPU) get(t testing.TB, p kernels.Ptr, n int) []byte {
	h, err := d.dev.NewHost(n)
	require.NoError(t, err)
	require.NoError(t, d.stream.CopyOut(h, 0, driver.DevicePtr(p), n))
	require.NoError(t, d.stream.Synchronize())
	out := append([]byte(nil), h.Bytes()...)
	require.NoError(t, h.Free())
	return out
}

func (d *onGPU) reset() {
	for _, m := range d.memory {
		check(d.t, m.Free())
	}
	d.memory = nil
}

// everyCase lists the cases that NSA_CASES, a regular expression, matches, in all types.
func everyCase() (list []stored) {
	want := regexp.MustCompile(os.Getenv("NSA_CASES"))
	for _, c := range attentionCases {
		for _, s := range storages {
			if want.MatchString(fmt.Sprint(c, "/", s.Type)) {
				list = append(list, stored{c, s})
			}
		}
	}
	return list
}

func TestAttentionMatchesOracleOnGPU(t *testing.T) {
	dev := &onGPU{gpu: openGPU(t), t: t}
	compareAttention(t, dev, everyCase())
}

func TestSelectBlocksMatchesOracleOnGPU(t *testing.T) {
	dev := &onGPU{gpu: openGPU(t), t: t}
	compareSelection(t, dev, everyCase())
}

// TestAttentionMatchesGoldensOnGPU: outputs, lse and gradients of the branches in float32, and the choice.
func TestAttentionMatchesGoldensOnGPU(t *testing.T) {
	compareGoldens(t, &onGPU{gpu: openGPU(t), t: t}, testutil.Goldens(t, testutil.Ops))
}
