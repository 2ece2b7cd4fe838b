//go:build linux && amd64

package kernels_test

import "testing"

var (
	aroundTiles  = []int{0, 16, 33, 63, 64, 66} // in the first and the last rows and keys of tiles
	fewExponents = []int{2, 8, 14, 50}
)

func TestAttentionOfPoisonOnHost(t *testing.T) {
	dev := hostDevice(t)
	for i, c := range poisonCases {
		comparePoison(t, dev, stored{c, storages[i]}, aroundTiles)
		compareSelectionPoison(t, dev, stored{c, storages[i]})
	}
}

func TestMatrixAttentionOfPoisonOnHost(t *testing.T) {
	dev := matrixHost{hostDevice(t)}
	for _, x := range inHalf(poisonCases, 64) {
		if x.lp%64 == 0 {
			comparePoison(t, dev, x, aroundTiles)
		}
		compareSelectionPoison(t, dev, x)
	}
}

func TestAttentionOfLargeLogitsOnHost(t *testing.T) {
	dev := hostDevice(t)
	for i, c := range logitCases {
		compareLargeLogits(t, dev, stored{c, storages[i]}, fewExponents)
	}
}

func TestMatrixAttentionOfLargeLogitsOnHost(t *testing.T) {
	dev := matrixHost{hostDevice(t)}
	for _, x := range inHalf(logitCases, 64) {
		if x.lp%64 == 0 {
			compareLargeLogits(t, dev, x, fewExponents)
		}
	}
}
