package main

import (
	"bytes"
	"embed"
	"encoding/csv"
	"slices"
	"strconv"
)

// peerTables are the tables of bench/peers.py.
//
//go:embed results/gpu_peers.csv results/gpu_decode_peers.csv
var peerTables embed.FS

const densePeer = "dense, cuDNN, peer figure"

// cuDNNFigure returns a figure of PyTorch's attention by cuDNN: the given column in the last row of a peers table that
// has the given values, or 0 if there is no such row.
func cuDNNFigure(table, column string, values map[string]string) float64 {
	rows := must(csv.NewReader(bytes.NewReader(must(peerTables.ReadFile("results/" + table)))).ReadAll())
	at := func(name string) int { return slices.Index(rows[0], name) }
	for _, row := range slices.Backward(rows) {
		same := row[at("backend")] == "cuDNN"
		for name, value := range values {
			same = same && row[at(name)] == value
		}
		if same {
			return must(strconv.ParseFloat(row[at(column)], 64))
		}
	}
	return 0
}
