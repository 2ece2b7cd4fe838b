package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// randomBytes is the size of the data of -data random.
const randomBytes = 32 << 20

// read returns the data that -data names.
func read(ctx context.Context, source, ext string, seed uint64) (*tinylm.Data, error) {
	switch source {
	case "random":
		return tinylm.RandomData(randomBytes, 256, seed)
	case "":
		out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return nil, fmt.Errorf("go env GOROOT: %w: where the Go source is not to be found, name a file or folder with -data", err)
		}
		return tinylm.ReadData(filepath.Join(strings.TrimSpace(string(out)), "src"), ".go")
	}
	return tinylm.ReadData(source, ext)
}
