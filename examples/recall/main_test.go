package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefuses(t *testing.T) {
	for args, message := range map[string]string{
		"-context 0":                  "recall: context is 0, want 1 to",
		"-context 100":                "room for",
		"-needles 33":                 "recall: 33 pairs are not a multiple of the 16 values",
		"-needles -16":                "recall: pairs is -16, want 1 to",
		"-asked 64":                   "recall: a context of 64 tokens has room for 0 blocks",
		"-steps 0":                    "recall: 0 steps, want 1 to",
		"-rows 0":                     "recall: 0 rows, want 1 to",
		"-lr NaN":                     "recall: learning rate is NaN",
		"-models nsa,linear":          `recall: model "linear"`,
		"-device gpu":                 `device "gpu", want auto, cpu or cuda:N`,
		"-precision f8":               `precision "f8"`,
		"-device cpu -precision bf16": "precision bf16: cpu computes in float32",
		"rest":                        `recall: unexpected argument "rest"`,
	} {
		t.Run(args, func(t *testing.T) {
			out := t.TempDir()
			require.ErrorContains(t, run(context.Background(), append(strings.Fields(args), "-out", out)), message)
		})
	}
}
