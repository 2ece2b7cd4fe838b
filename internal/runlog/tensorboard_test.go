package runlog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// field is a field of a protocol buffers message: a number or bytes.
type field struct {
	number uint64
	bytes  []byte
}

// message decodes a message by the definition of the wire format.
func message(t testing.TB, b []byte) map[uint64][]field {
	t.Helper()
	fields := map[uint64][]field{}
	varint := func() uint64 {
		v, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		return v
	}
	for len(b) > 0 {
		key := varint()
		var f field
		switch key & 7 {
		case 0:
			f.number = varint()
		case 1:
			f.number, b = binary.LittleEndian.Uint64(b), b[8:]
		case 2:
			n := varint()
			f.bytes, b = b[:n], b[n:]
		case 5:
			f.number, b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
		default:
			require.Fail(t, "wire type", key&7)
		}
		fields[key>>3] = append(fields[key>>3], f)
	}
	return fields
}

// castagnoli computes a masked CRC-32C bit by bit.
func castagnoli(b []byte) uint32 {
	c := ^uint32(0)
	for _, v := range b {
		c ^= uint32(v)
		for range 8 {
			c = c>>1 ^ -(c&1)&0x82f63b78
		}
	}
	c = ^c
	return (c>>15 | c<<17) + 0xa282ead8
}

// records returns the whole records of an event file, and whether it ends with a torn one.
func records(t testing.TB, b []byte) (events [][]byte, torn bool) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 12 {
			return events, true
		}
		n := binary.LittleEndian.Uint64(b)
		require.Equal(t, castagnoli(b[:8]), binary.LittleEndian.Uint32(b[8:]))
		if uint64(len(b)) < n+16 {
			return events, true
		}
		data := b[12 : 12+n]
		require.Equal(t, castagnoli(data), binary.LittleEndian.Uint32(b[12+n:]))
		events, b = append(events, data), b[16+n:]
	}
	return events, false
}

// point is a number in an event file. JSON has it as a string if it is NaN or Inf.
type point struct {
	Step  int
	Value string
}

func newPoint(step int, v float64) point { return point{step, fmt.Sprintf("%.6e", float32(v))} }

func TestEventFile(t *testing.T) {
	l := create(t, Options{BytesPerToken: 2})
	want := map[string][]point{}
	for i := 1; i <= 20; i++ {
		for half := range 2 { // two steps a second: only every second step is written
			s := step(2*i + half)
			s.Time = begin.Add(time.Duration(2*i+half) * 500 * time.Millisecond)
			s.GradNorm = []float64{math.Inf(1), math.NaN(), 0, -1, 1e300}[i%5]
			l.Step(s)
			if half == 0 {
				for tag, v := range map[string]float64{
					"loss/train": s.Loss, "optimizer/learning_rate": s.LR, "optimizer/grad_norm": s.GradNorm,
					"rate/tokens_per_second": s.TokensPerSec,
				} {
					want[tag] = append(want[tag], newPoint(s.Number, v))
				}
			}
		}
	}
	require.NoError(t, l.HeldOut(41, math.Ln2))
	l.Scalars(41, map[string]float64{"gate/Fenster-äöü": 0.5})
	want["loss/held_out"], want["loss/held_out_perplexity"] = []point{newPoint(41, math.Ln2)}, []point{newPoint(41, 2)}
	want["loss/held_out_bits_per_byte"], want["gate/Fenster-äöü"] = []point{newPoint(41, 0.5)}, []point{newPoint(41, 0.5)}

	events, torn := records(t, testutil.Must(os.ReadFile(l.tensorboard.path))(t))
	require.False(t, torn)
	require.Equal(t, "brain.Event:2", string(message(t, events[0])[3][0].bytes))
	require.Equal(t, uint64(1), message(t, events[1])[2][0].number, "step")
	require.Equal(t, uint64(1), message(t, message(t, events[1])[7][0].bytes)[1][0].number, "a session starts")
	got := map[string][]point{}
	for i, e := range events[2:] {
		event := message(t, e)
		if i == 0 {
			require.Equal(t, float64(begin.Unix()+1), math.Float64frombits(event[1][0].number))
		}
		for _, value := range message(t, event[5][0].bytes)[1] {
			v := message(t, value.bytes)
			tag, x := string(v[1][0].bytes), math.Float32frombits(uint32(v[2][0].number))
			got[tag] = append(got[tag], newPoint(int(event[2][0].number), float64(x)))
		}
	}
	require.Equal(t, want, got)
}

// readScalars prints the scalars that two readers of TensorBoard find in a folder.
const readScalars = `
import json, sys
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator, tag_types
from tensorboard.util import tensor_util

old = event_accumulator.EventAccumulator(sys.argv[1], {event_accumulator.SCALARS: 0})
new = plugin_event_accumulator.EventAccumulator(sys.argv[1], {plugin_event_accumulator.TENSORS: 0})
old.Reload(), new.Reload()
show = lambda v: {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(v), "%.6e" % v)
print(json.dumps([
    {tag: [{"Step": e.step, "Value": show(e.value)} for e in old.Scalars(tag)] for tag in old.Tags()[event_accumulator.SCALARS]},
    {tag: [{"Step": e.step, "Value": show(float(tensor_util.make_ndarray(e.tensor_proto)))} for e in new.Tensors(tag)]
     for tag in new.Tags()[plugin_event_accumulator.TENSORS]},
]))
`

// TestTensorBoardReads: TensorBoard reads the steps of a run that was killed in the middle of a record and resumed
// twice. It finds no step twice.
func TestTensorBoardReads(t *testing.T) {
	t.Parallel()
	testutil.RequirePython(t, "tensorboard.compat.proto")
	l := create(t, Options{})
	dir := l.dir
	want := map[string][]point{}
	take := func(from, to int, shift float64) {
		kept := want["loss/train"]
		for len(kept) > 0 && kept[len(kept)-1].Step >= from {
			kept = kept[:len(kept)-1]
		}
		for i := from; i <= to; i++ {
			s := step(i)
			s.Loss += shift
			if i == 7 {
				s.Loss = math.NaN()
			}
			l.Step(s)
			kept = append(kept, newPoint(i, s.Loss))
		}
		want["loss/train"] = kept
	}
	take(1, 30, 0)
	require.NoError(t, l.Save())
	for i, from := range []int{20, 25} {
		info := testutil.Must(os.Stat(l.tensorboard.path))(t)
		require.NoError(t, os.Truncate(l.tensorboard.path, info.Size()-5), "the last record, of a step that is taken again")
		l = testutil.Must(Resume(dir, from, Options{}))(t)
		take(from+1, 30+10*i, float64(i+1))
		require.NoError(t, l.Save())
	}
	files := testutil.Must(filepath.Glob(filepath.Join(dir, TensorBoardFolder, "*")))(t)
	require.Len(t, files, 3)

	out, err := exec.Command("python3", "-c", readScalars, filepath.Join(dir, TensorBoardFolder)).Output()
	require.NoError(t, err, "%s", out)
	var got []map[string][]point
	require.NoError(t, json.Unmarshal(out, &got))
	require.Len(t, got, 2)
	for _, scalars := range got {
		require.Equal(t, want["loss/train"], scalars["loss/train"])
	}
}

func TestEventFilesAreOrdered(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, TensorBoardFolder), 0o755))
	last := ""
	for _, now := range []int64{1000, 1000, 999, 5000, 4000, 1e9, 2e9} {
		path := testutil.Must(newEventFile(dir, time.Unix(now, 0)))(t)
		require.Greater(t, path, last)
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		last = path
	}
}
