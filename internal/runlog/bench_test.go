package runlog

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkStep records steps that are 80 ms apart: real steps take at least that long.
func BenchmarkStep(b *testing.B) {
	l := create(b, Options{})
	for i := 1; b.Loop(); i++ {
		s := step(i)
		s.Time = begin.Add(time.Duration(i) * 80 * time.Millisecond)
		l.Step(s)
	}
}

// BenchmarkScalars records eight numbers for each of twelve layers.
func BenchmarkScalars(b *testing.B) {
	l := create(b, Options{})
	values := map[string]float64{}
	for i := range 96 {
		values[fmt.Sprintf("layer%02d/number%d", i/8, i%8)] = 1 / float64(i+3)
	}
	for i := 1; b.Loop(); i++ {
		l.Scalars(i, values)
	}
}

// BenchmarkSave saves a run of 50,000 steps.
func BenchmarkSave(b *testing.B) {
	l := create(b, Options{BytesPerToken: 1})
	l.rows = realistic(50000, 1000)
	for b.Loop() {
		require.NoError(b, errors.Join(l.Save(), l.Draw()))
	}
}
