package train

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzOptions: a file of options is a short error of one line, or options that are the same when they are written and read again.
func FuzzOptions(f *testing.F) {
	for _, preset := range []string{"tiny", "base"} {
		o := testutil.Must(Preset(preset))(f)
		f.Add(o.YAML())
	}
	for _, text := range []string{"", "a: &x 1\nlr: *x", "lr: !!binary MQ==", "data: |\n  a\n  b", "\ufeffsteps: 0x10\r\n", "{steps: 1, lr: .inf}", "---\n---", "seed: 1_0"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, _, err := parseOptions(text, "")
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 400)
			return
		}
		_ = o.Validate()
		again, list, err := parseOptions(o.YAML(), "")
		require.NoError(t, err)
		require.Equal(t, string(o.YAML()), string(again.YAML()))
		require.NotEmpty(t, list)
	})
}

// FuzzState: the state of a checkpoint is an error, or is the same when it is written and read again.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"step":6,"elapsed_ns":7,"cursor":{"data":"00","seed":1,"seq":64,"window":12,"sum":3},"mean_loss":5.5,"evaluations":[{"step":2,"held_out":5.5,"train":5}],"best":null}`))
	f.Add([]byte(`{"step":2,"late":[{}],"scale":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseState(text)
		if err != nil {
			return
		}
		_ = s.best()
		written := testutil.Must(json.Marshal(s))(t)
		again, err := parseState(written)
		require.NoError(t, err)
		require.Equal(t, string(written), string(testutil.Must(json.Marshal(again))(t)))
	})
}
