package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPeers: the columns that the bench names are in the committed tables. A size without a run has no figure.
func TestPeers(t *testing.T) {
	size := map[string]string{"shape": "i", "length": "65536", "attention": "dense"}
	forward, both := cuDNNFigure("gpu_peers.csv", "forward_ms", size), cuDNNFigure("gpu_peers.csv",
		"forward_and_backward_ms", size)
	require.Positive(t, forward)
	require.Greater(t, both, forward)
	require.Positive(t, cuDNNFigure("gpu_decode_peers.csv", "us", map[string]string{"shape": "i", "length": "65536",
		"batch": "8"}))
	size["length"] = "1"
	require.Zero(t, cuDNNFigure("gpu_peers.csv", "forward_ms", size))
}
