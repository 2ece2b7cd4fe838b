package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
)

// TestLengthRestrictsEveryPart: with -length a suite runs those of its parts that have this number of tokens, all of
// them and no other.
func TestLengthRestrictsEveryPart(t *testing.T) {
	for i := range 2 * len(suites) {
		s := suites[i/2]
		measure, device := s.cpu, graph.Backend(graph.NewCPU(1))
		if i%2 == 1 {
			measure, device = s.gpu, fakedevice.New()
		}
		if measure == nil {
			continue
		}
		t.Run(fmt.Sprint(i, " ", s.name), func(t *testing.T) {
			plan := func(length int) []int { return plan(measure, device, length) }
			all := plan(0)
			require.NotEmpty(t, all)
			for _, length := range slices.Concat(all, []int{1, 100, 512, 1984, 2048, 65536, 1 << 20}) {
				if length == 0 {
					continue
				}
				parts := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return n != length })
				switch {
				case s.name == "attention" && len(parts) < len(attentionShapes): // it takes any number
					parts = slices.Repeat([]int{length}, len(attentionShapes))
				case s.name == "profile" && slices.ContainsFunc(trainSizes,
					func(c trainSize) bool { return c.seq == length }):
					parts = []int{length}
				}
				require.ElementsMatch(t, parts, plan(length), "length %d", length)
			}
		})
	}
}
